//! Cost and outcome of joining packets (Linux's `skb_try_coalesce`).

use packet::{Buf, CopyReason, MAX_FRAGS, Memory, PACKET_OVERHEAD, Packet};

/// Result of joining.
#[derive(Debug, Eq, PartialEq)]
enum Joined {
    /// The bytes were copied to the target's tailroom.
    Copied,
    /// The bytes moved by reference, to further slots; the target's truesize grew.
    Stolen {
        slots: usize,
        delta: usize,
    },
    Refused,
}

use Joined::{Copied, Refused, Stolen};

const PAGE: usize = Memory::SMALL;

fn buf(mem: &Memory, byte: u8, len: usize) -> Buf {
    let mut buf = mem.take(64, len).unwrap();
    buf.put(len).unwrap().fill(byte);
    buf
}

/// A buffer without tailroom.
fn full(mem: &Memory, byte: u8, len: usize) -> Buf {
    let mut room = buf(mem, byte, len);
    room.split_to(len)
}

/// A packet with a head of `head` bytes, if any, and `frags` fragments of 100 bytes.
fn packet(mem: &Memory, head: usize, frags: usize) -> Packet {
    let mut packet = if head == 0 { Packet::new(mem, 0, 0).unwrap() } else { Packet::from_buf(full(mem, 1, head)) };
    for at in 0..frags {
        packet.push_frag(full(mem, 2 + at as u8, 100)).unwrap();
    }
    packet
}

fn join(mem: &Memory, target: &mut Packet, source: Packet) -> Joined {
    let (slots, truesize, copied) =
        (target.frags().len(), target.truesize(), mem.copies().get(CopyReason::Coalesce).bytes);
    let want = [target.to_vec(), source.to_vec()].concat();
    let (kept, len) = (target.to_vec(), source.len());
    match target.try_coalesce(mem, source) {
        Err(source) => {
            assert_eq!((target.to_vec(), target.truesize()), (kept, truesize));
            assert_eq!(source.to_vec(), want[target.len()..]);
            Refused
        }
        Ok(delta) => {
            target.check_invariants();
            assert_eq!(target.to_vec(), want, "the order of bytes");
            assert_eq!(target.truesize(), truesize + delta);
            let copied = mem.copies().get(CopyReason::Coalesce).bytes - copied;
            let slots = target.frags().len() - slots;
            if copied > 0 {
                assert_eq!((copied, delta, slots), (len as u64, 0, 0));
                return Copied;
            }
            Stolen { slots, delta }
        }
    }
}

#[test]
fn data_that_fits_tailroom_is_copied_else_referenced() {
    let mem = Memory::heap();
    let with_child = || {
        let mut packet = packet(&mem, 100, 0);
        packet.push_child(Packet::from_buf(full(&mem, 9, 100)));
        packet
    };
    let shared = || Packet::from_buf(buf(&mem, 3, 100)).clone_shared();
    let foreign = || Packet::from_buf(Buf::foreign([4; 100]));
    let foreign_slot = || {
        let mut packet = packet(&mem, 0, 0);
        packet.push_frag(Buf::foreign([5; 100])).unwrap();
        packet
    };
    let pulled = || {
        let mut packet = packet(&mem, 100, 2);
        packet.pull(150);
        packet
    };
    // A full buffer is charged up to its end: 64 bytes of headroom and its data.
    let part = 164;
    let cases: [(&str, &dyn Fn() -> Packet, Joined); 10] = [
        ("linear", &|| Packet::from_buf(buf(&mem, 2, 100)), Stolen { slots: 1, delta: PAGE }),
        ("linear, to the end of its room", &|| packet(&mem, 100, 0), Stolen { slots: 1, delta: part }),
        ("once shared", &shared, Stolen { slots: 1, delta: PAGE }),
        ("foreign", &foreign, Stolen { slots: 1, delta: 100 }),
        ("head and one slot", &|| packet(&mem, 100, 1), Stolen { slots: 2, delta: 2 * part }),
        ("head and nine slots", &|| packet(&mem, 100, 9), Stolen { slots: 10, delta: 10 * part }),
        ("no head, one slot", &|| packet(&mem, 0, 1), Stolen { slots: 1, delta: part }),
        ("no head, a foreign slot", &foreign_slot, Stolen { slots: 1, delta: 100 }),
        ("head pulled, slot pulled half", &pulled, Stolen { slots: 2, delta: 2 * part }),
        ("with a child", &with_child, Refused),
    ];
    for (name, source, want) in cases {
        let mut roomy = Packet::from_buf(buf(&mem, 1, 64));
        assert_eq!(join(&mem, &mut roomy, source()), Copied, "{name} to a target with room");
        let mut target = packet(&mem, 64, 0);
        assert_eq!(join(&mem, &mut target, source()), want, "{name} to a target without");
    }
}

#[test]
fn tailroom_counts_to_the_last_byte() {
    let mem = Memory::heap();
    let room = PAGE - 64 - 100;
    for (len, want) in [(room, Copied), (room + 1, Stolen { slots: 1, delta: 64 + room + 1 })] {
        let mut target = Packet::from_buf(buf(&mem, 1, 100));
        assert_eq!(join(&mem, &mut target, packet(&mem, len, 0)), want, "{len} bytes");
    }
    let mut target = packet(&mem, 100, 0);
    assert_eq!(join(&mem, &mut target, packet(&mem, 0, 0)), Stolen { slots: 0, delta: 0 }, "nothing to nothing");
}

#[test]
fn slots_are_filled_to_the_last_and_not_beyond() {
    let mem = Memory::heap();
    let cases = [
        (MAX_FRAGS - 1, 100, 0, true),
        (MAX_FRAGS, 100, 0, false),
        (MAX_FRAGS - 1, 0, 1, true),
        (MAX_FRAGS, 0, 1, false),
        (MAX_FRAGS - 2, 100, 1, true),
        (MAX_FRAGS - 1, 100, 1, false),
        (0, 100, MAX_FRAGS - 1, true),
        (0, 100, MAX_FRAGS, false),
        (0, 0, MAX_FRAGS, true),
        (1, 0, MAX_FRAGS, false),
    ];
    for (slots, head, frags, fits) in cases {
        let what = format!("{frags} slots with {head} bytes before them, to {slots}");
        let mut target = packet(&mem, 100, slots);
        let joined = join(&mem, &mut target, packet(&mem, head, frags));
        assert_eq!(joined != Refused, fits, "{what}");
        assert_eq!(target.frags().len() == MAX_FRAGS, fits || slots == MAX_FRAGS, "{what}");

        // `append` adds the packets beyond the free slots as a child.
        let mut target = packet(&mem, 100, slots);
        target.append(packet(&mem, head, frags));
        assert_eq!((target.frag_list().len(), target.len()), (usize::from(!fits), 100 + 100 * (slots + frags) + head));
        target.check_invariants();
    }
}

#[test]
fn shared_target_or_one_with_children_is_left_alone() {
    let mem = Memory::heap();
    let mut cloned = packet(&mem, 100, 1);
    let clone = cloned.clone_shared();
    assert_eq!(join(&mem, &mut cloned, packet(&mem, 100, 0)), Refused);
    drop(clone);
    assert_eq!(join(&mem, &mut cloned, packet(&mem, 100, 0)), Stolen { slots: 1, delta: 164 });

    let mut parent = packet(&mem, 100, 0);
    parent.push_child(packet(&mem, 100, 0));
    assert_eq!(join(&mem, &mut parent, packet(&mem, 10, 0)), Refused);
}

#[test]
fn neighbours_in_one_page_share_a_slot() {
    let mem = Memory::heap();
    let mut train = mem.take(64, 4400).unwrap();
    train.put(4400).unwrap().fill(7);
    let mut segments = (0..44).map(|_| Packet::from_buf(train.split_to(100))).collect::<Vec<_>>().into_iter();
    let mut whole = segments.next().unwrap();
    for segment in segments {
        whole.append(segment);
    }
    // The head is unchanged, and the other bytes are one fragment again.
    assert_eq!((whole.headlen(), whole.frags().len(), whole.len()), (100, 1, 4400));
    drop(train);
    assert!(whole.truesize() - PACKET_OVERHEAD <= Memory::LARGE && mem.large().in_use() == 1);
    assert!(whole.make_writable(&mem, 0).is_ok());
    assert_eq!(mem.copies().total_bytes(), 0, "all of it is still exclusive");
}

#[test]
fn grandchildren_become_children() {
    let mem = Memory::heap();
    let with_child = |byte| {
        let mut packet = Packet::from_buf(buf(&mem, byte, 10));
        packet.push_child(Packet::from_buf(buf(&mem, byte + 1, 10)));
        packet
    };
    let mut packet = with_child(1);
    packet.push_child(with_child(3));
    packet.check_invariants();
    assert_eq!(packet.frag_list().len(), 3);
    let firsts: Vec<_> = packet.to_vec().chunks(10).map(|chunk| chunk[0]).collect();
    assert_eq!(firsts, [1, 2, 3, 4]);
    assert_eq!(packet.truesize(), 4 * (PACKET_OVERHEAD + PAGE));
}
