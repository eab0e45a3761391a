//! Packets compared with plain vectors of bytes: random sequences of operations, checked after each step.
//!
//! The property test and the fuzz target run the same steps.

use std::sync::Arc;

use packet::{Buf, CopyReason, Csum, Memory, PACKET_OVERHEAD, Packet, Pool, PoolDry};

/// One step: operation, packets, amount.
pub(crate) type Step = (u8, u8, u16);

/// Number of kinds of steps.
pub(crate) const KINDS: u8 = 22;

/// Number of packets in use.
const PACKETS: usize = 6;

/// Foreign memory.
struct Guest(Arc<Vec<u8>>);

impl AsRef<[u8]> for Guest {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A packet and its expected bytes.
struct Pair {
    packet: Packet,
    bytes: Vec<u8>,
}

struct World {
    mem: Memory,
    pairs: Vec<Pair>,
    /// Foreign pages, with their original contents.
    guests: Vec<(Arc<Vec<u8>>, Vec<u8>)>,
    next_byte: u8,
}

/// Runs the steps with pools of these sizes.
pub(crate) fn run(small_pages: u8, large_pages: u8, steps: &[Step]) {
    let small = Pool::bounded(Memory::SMALL, usize::from(small_pages));
    let large = Pool::bounded(Memory::LARGE, usize::from(large_pages));
    let mut world = World { mem: Memory::new(small, large), pairs: Vec::new(), guests: Vec::new(), next_byte: 1 };
    for &step in steps {
        // An exhausted pool is a valid outcome, and must not change a packet.
        let _ = world.step(step);
        world.check();
    }
    world.pairs.clear();
    assert_eq!((world.mem.small().in_use(), world.mem.large().in_use()), (0, 0), "pages that did not come home");
}

impl World {
    fn step(&mut self, (kind, who, n): Step) -> Result<(), PoolDry> {
        let n = usize::from(n);
        match kind % KINDS {
            0 => self.make(n % 1700, usize::from(who)),
            1 => self.make(n % 9000, 0),
            2 => self.make_foreign(n % 3000),
            3 => self.make_train(1 + n % 1500, 1 + usize::from(who) % 12),
            _ if self.pairs.is_empty() => self.make(n % 1500, 64),
            16 => self.clone_shared(usize::from(who)),
            17 => self.copy(usize::from(who)),
            kind @ 18..=21 if self.pairs.len() > 1 => self.join(kind, usize::from(who), n),
            kind => self.alone(kind, usize::from(who), n),
        }
    }

    /// Runs a step on one packet.
    fn alone(&mut self, kind: u8, who: usize, n: usize) -> Result<(), PoolDry> {
        let at = who % self.pairs.len();
        let fill = self.fill(n);
        let Pair { packet, bytes } = &mut self.pairs[at];
        match kind {
            4 => {
                let fill = &fill[..n % 300];
                packet.push(&self.mem, fill.len())?.copy_from_slice(fill);
                bytes.splice(..0, fill.iter().copied());
            }
            5 => {
                let n = n % (bytes.len() + 1);
                packet.pull(n);
                bytes.drain(..n);
            }
            6 => {
                let fill = &fill[..n % 200];
                let room = packet.tailroom();
                match packet.put(fill.len()) {
                    Some(to) => {
                        to.copy_from_slice(fill);
                        bytes.extend(fill);
                    }
                    None => assert!(room < fill.len() || room == 0, "no room in {packet:?}"),
                }
            }
            7 => {
                let len = n % (bytes.len() + 1);
                packet.trim(len);
                bytes.truncate(len);
            }
            8 => {
                packet.linearize(&self.mem)?;
                assert!(packet.is_linear() && packet.frags().is_empty() && packet.frag_list().is_empty());
            }
            9 => {
                let n = n % (bytes.len() + 20);
                assert_eq!(packet.may_pull(&self.mem, n)?, n <= bytes.len());
                assert!(packet.headlen() >= n || n > bytes.len());
            }
            10 | 11 => {
                packet.make_writable(&self.mem, n % 60)?;
                let whole = self.pairs.swap_remove(at);
                self.pairs.push(rewrite(whole, &mut self.next_byte));
            }
            12 => {
                if let Some(head) = packet.head_mut() {
                    head.fill(self.next_byte);
                    let len = head.len();
                    bytes[..len].fill(self.next_byte);
                    packet.meta.csum = Csum::None;
                }
            }
            13 => packet.meta.csum = Csum::Complete(sum(bytes)),
            14 => {
                packet.meta.csum = match n % 3 {
                    0 => Csum::Unnecessary,
                    1 => Csum::None,
                    _ => Csum::Partial { start: (n % (bytes.len() + 1)) as u16, offset: 6 },
                };
            }
            _ => drop(self.pairs.swap_remove(at)),
        }
        Ok(())
    }

    /// Runs a step on two packets.
    fn join(&mut self, kind: u8, who: usize, n: usize) -> Result<(), PoolDry> {
        let from = self.pairs.swap_remove(who % self.pairs.len());
        let at = n % self.pairs.len();
        let Pair { packet, bytes } = &mut self.pairs[at];
        let (ours, theirs) = (packet.truesize(), from.packet.truesize());
        let (children, expected) = (from.packet.frag_list().len(), joined(packet.meta.csum, from.packet.meta.csum));
        match kind {
            18 => {
                let shell = PACKET_OVERHEAD + empty_head(&from.packet);
                match packet.try_coalesce(&self.mem, from.packet) {
                    Ok(delta) => {
                        assert!(delta == 0 || delta == theirs - shell, "{delta} of {theirs}");
                        assert_eq!(packet.truesize(), ours + delta);
                        bytes.extend(from.bytes);
                        check_joined(packet.meta.csum, expected);
                    }
                    Err(back) => self.pairs.push(Pair { packet: back, bytes: from.bytes }),
                }
            }
            19 => {
                let empty = from.packet.is_empty();
                packet.append(from.packet);
                bytes.extend(from.bytes);
                assert!(packet.truesize() <= ours + theirs, "{} of {ours} and {theirs}", packet.truesize());
                if !empty {
                    check_joined(packet.meta.csum, expected);
                }
            }
            20 => {
                let has_own = from.packet.headlen() > 0 || !from.packet.frags().is_empty();
                let gone = if has_own { 0 } else { PACKET_OVERHEAD + empty_head(&from.packet) };
                packet.push_child(from.packet);
                bytes.extend(from.bytes);
                assert_eq!(packet.truesize(), ours + theirs - gone, "with {children} grandchildren");
            }
            _ => {
                let mut from = from;
                let len = (who << 8 | n) % (from.bytes.len() + 1);
                let shells: Vec<_> =
                    from.packet.frag_list().iter().map(|child| PACKET_OVERHEAD + empty_head(child)).collect();
                let moved = from.packet.move_front(len, packet).is_ok();
                let gone: usize = shells[..children - from.packet.frag_list().len()].iter().sum();
                assert_eq!(packet.truesize() + from.packet.truesize(), ours + theirs - gone);
                if moved {
                    bytes.extend(from.bytes.drain(..len));
                }
                self.pairs.push(from);
            }
        }
        Ok(())
    }

    fn make(&mut self, len: usize, headroom: usize) -> Result<(), PoolDry> {
        let bytes = self.fill(len);
        let mut packet = Packet::new(&self.mem, headroom, len)?;
        packet.put(len).expect("as much room as was requested").copy_from_slice(&bytes);
        self.add(packet, bytes);
        Ok(())
    }

    fn make_foreign(&mut self, len: usize) -> Result<(), PoolDry> {
        let bytes = self.fill(len);
        let page = Arc::new(bytes.clone());
        self.guests.push((Arc::clone(&page), bytes.clone()));
        self.add(Packet::from_buf(Buf::foreign(Guest(page))), bytes);
        Ok(())
    }

    /// Makes packets in one page, one behind the other.
    fn make_train(&mut self, size: usize, count: usize) -> Result<(), PoolDry> {
        let bytes = self.fill(size * count);
        let mut page = self.mem.take(64, bytes.len())?;
        page.put(bytes.len()).expect("as much room as was requested").copy_from_slice(&bytes);
        let charged = page.truesize();
        let mut parts: Vec<_> = bytes.chunks(size).map(|bytes| (page.split_to(size), bytes.to_vec())).collect();
        let shared_out: usize = parts.iter().map(|(buf, _)| buf.truesize()).sum();
        assert_eq!(shared_out + page.truesize(), charged);
        for (buf, bytes) in parts.drain(..) {
            self.add(Packet::from_buf(buf), bytes);
        }
        Ok(())
    }

    fn clone_shared(&mut self, who: usize) -> Result<(), PoolDry> {
        let at = who % self.pairs.len();
        let Pair { packet, bytes } = &mut self.pairs[at];
        let (clone, bytes) = (packet.clone_shared(), bytes.clone());
        assert_eq!(clone.truesize(), packet.truesize());
        self.add(clone, bytes);
        Ok(())
    }

    fn copy(&mut self, who: usize) -> Result<(), PoolDry> {
        let Pair { packet, bytes } = &self.pairs[who % self.pairs.len()];
        let before = self.mem.copies().get(CopyReason::Copy).bytes;
        let copy = packet.copy(&self.mem, CopyReason::Copy)?;
        assert_eq!(self.mem.copies().get(CopyReason::Copy).bytes - before, bytes.len() as u64);
        let bytes = bytes.clone();
        self.add(copy, bytes);
        Ok(())
    }

    fn add(&mut self, packet: Packet, bytes: Vec<u8>) {
        if self.pairs.len() == PACKETS {
            self.pairs.remove(0);
        }
        self.pairs.push(Pair { packet, bytes });
    }

    /// Bytes with values other than those of earlier calls.
    fn fill(&mut self, len: usize) -> Vec<u8> {
        self.next_byte = self.next_byte.wrapping_add(41);
        let first = self.next_byte;
        (0..len).map(|at| first.wrapping_add((at * 7) as u8)).collect()
    }

    fn check(&self) {
        for Pair { packet, bytes } in &self.pairs {
            packet.check_invariants();
            assert_eq!(packet.len(), bytes.len(), "{packet:?}");
            assert!(packet.to_vec() == *bytes, "other bytes in {packet:?}");
            assert_eq!(packet.len(), packet.headlen() + packet.data_len());
            assert!(packet.is_linear() || packet.tailroom() == 0, "{packet:?}");
            assert!(packet.chunks().all(|chunk| !chunk.is_empty()), "{packet:?}");
            assert!(packet.frags().iter().all(|buf| !buf.is_empty()), "{packet:?}");
            check_sums(packet);
            let mut middle = vec![0; bytes.len() / 2];
            assert!(packet.read_at(bytes.len() / 4, &mut middle) && bytes[bytes.len() / 4..].starts_with(&middle));
            assert!(!packet.read_at(bytes.len() / 2 + 1, &mut vec![0; bytes.len().div_ceil(2)]));
        }
        for (page, was) in &self.guests {
            assert!(**page == *was, "a foreign page was written");
        }
    }
}

/// Checks complete sums, including those of children.
fn check_sums(packet: &Packet) {
    if let Csum::Complete(complete) = packet.meta.csum {
        assert_eq!(complete % 0xffff, sum(&packet.to_vec()) % 0xffff, "the sum of {packet:?}");
    }
    packet.frag_list().iter().for_each(check_sums);
}

/// Overwrites all bytes of a writable packet, buffer by buffer.
fn rewrite(pair: Pair, next_byte: &mut u8) -> Pair {
    fn write(packet: Packet, next: &mut impl FnMut() -> u8) -> Packet {
        let meta = packet.meta.clone();
        let (mut head, frags, children) = packet.into_parts();
        head.bytes_mut().expect("a writable head").fill_with(&mut *next);
        let mut again = Packet::from_buf(head);
        for mut frag in frags {
            frag.bytes_mut().expect("a writable slot").fill_with(&mut *next);
            again.push_frag(frag).expect("the slot it had");
        }
        for child in children {
            again.push_child(write(child, next));
        }
        again.meta = meta;
        again.meta.csum = Csum::None;
        again
    }
    let mut written = Vec::with_capacity(pair.bytes.len());
    let mut next = || {
        *next_byte = next_byte.wrapping_add(13);
        written.push(*next_byte);
        *next_byte
    };
    let packet = write(pair.packet, &mut next);
    Pair { packet, bytes: written }
}

/// Checksum state of two joined packets: the sum of both, or the state of both, or a partial checksum.
fn joined(first: Csum, second: Csum) -> Csum {
    match (first, second) {
        (Csum::Partial { .. }, _) => first,
        (Csum::Complete(_), Csum::Complete(_)) => Csum::Complete(0),
        (Csum::Unnecessary, Csum::Unnecessary) => Csum::Unnecessary,
        _ => Csum::None,
    }
}

/// Compares checksum states without the sum's value, which `check_sums` checks.
fn check_joined(got: Csum, want: Csum) {
    match (got, want) {
        (Csum::Complete(_), Csum::Complete(_)) => {}
        _ => assert_eq!(got, want),
    }
}

/// Address of a head without data, which is not moved.
fn empty_head(packet: &Packet) -> usize {
    if packet.headlen() > 0 {
        return 0;
    }
    let slots: usize = packet.frags().iter().map(Buf::truesize).sum();
    let children: usize = packet.frag_list().iter().map(Packet::truesize).sum();
    packet.truesize() - PACKET_OVERHEAD - slots - children
}

/// The folded sum of big-endian words (RFC 1071 §1).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u64 = words.map(u64::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16 + (sum >> 16) as u16
}
