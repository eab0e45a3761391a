//! Generic receive offload: packets of a flow that are received together pass the stack as one fat packet.
//!
//! Merging is reversible: `gso` restores the same bytes. The rules are those of Linux's `dev_gro_receive`,
//! `inet_gro_receive`, `ipv6_gro_receive`, `tcp_gro_receive` and `udp_gro_receive`. Payload is moved by reference.
//!
//! Two rules are stricter: a packet that can never be merged (options in the IPv4 header, a fragment, a wrong checksum)
//! flushes the held packets with the same two addresses, so that order is kept; and IPv6 packets with different
//! extension headers are one flow that is not merged.

mod arrival;
mod held;

use packet::{Buf, Csum, Cut, Memory, Meta, Packet};

use self::arrival::{Arrival, Class, Flow, View};
use self::held::{Held, Spare};
use crate::checksum;

/// Number of hash buckets (Linux `GRO_HASH_BUCKETS`).
const BUCKETS: usize = 8;

/// Maximum number of packets held in a bucket (Linux `MAX_GRO_SKBS`).
const PER_BUCKET: usize = 8;

/// Protocols to merge, and the geometry of the result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Merges UDP too, into trains of equal datagrams. TCP is always merged.
    pub udp: bool,
    /// Continues with children when the page fragments are full. Otherwise the packet is flushed with one slot left for
    /// a trailer, and never has to be linearized.
    pub frag_list: bool,
}

/// The packets held by one worker for its links.
#[derive(Debug)]
pub struct Gro {
    config: Config,
    /// Buckets, each in the order of arrival.
    buckets: [Vec<Held>; BUCKETS],
    held: usize,
    /// Bucket and index of the packet that was last extended or found.
    latest: Option<(usize, usize)>,
    /// Free patterns for later held packets.
    spare: Spare,
}

impl Gro {
    /// GRO without packets.
    pub fn new(config: Config) -> Self {
        let buckets = std::array::from_fn(|_| Vec::with_capacity(PER_BUCKET));
        Self { config, buckets, held: 0, latest: None, spare: Vec::new() }
    }

    /// Number of held packets.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Receives a packet that begins with its IP header: holds it, merges it into a held one, or appends it to `out`,
    /// after packets that it must not overtake.
    ///
    /// An unverified transport checksum is verified before the packet is held or merged.
    pub fn receive(&mut self, mem: &Memory, mut pkt: Packet, out: &mut Vec<Packet>) {
        match Class::of(mem, &mut pkt, self.config.udp) {
            Class::Segment(arrival) => self.receive_segment(mem, pkt, &arrival, out),
            Class::Odd => {
                self.flush_between(pkt.head(), out);
                out.push(pkt);
            }
            Class::Other => out.push(pkt),
        }
    }

    /// Merges a packet of one buffer, with TCP directly behind its IP header, into the held packet of its flow; or
    /// replaces the held packet, if `buf` does not continue it. Most packets out of a tunnel take this path, and never
    /// become a [`Packet`].
    ///
    /// # Errors
    /// `buf` itself, if it needs [`receive`](Self::receive).
    #[expect(clippy::inline_always, reason = "a buffer that is handed over has to be written and read once more")]
    #[inline(always)]
    pub fn join(&mut self, mem: &Memory, buf: Buf, meta: &Meta, out: &mut Vec<Packet>) -> Result<(), Buf> {
        if let Some((bucket, at)) = self.latest
            && let Some(held) = self.buckets[bucket].get_mut(at)
            && held.expects(&buf, meta)
        {
            held.merge_expected(buf);
            return Ok(());
        }
        self.join_its_flow(mem, buf, meta, out)
    }

    /// As [`join`](Self::join), for a packet that is not the next one of the latest flow.
    #[inline(never)]
    fn join_its_flow(&mut self, mem: &Memory, buf: Buf, meta: &Meta, out: &mut Vec<Packet>) -> Result<(), Buf> {
        let Some((bucket, at)) = Flow::of_plain_tcp(buf.bytes()).and_then(|flow| self.find(&flow)) else {
            return Err(buf);
        };
        let held = &mut self.buckets[bucket][at];
        if self.latest != Some((bucket, at)) {
            self.latest = Some((bucket, at));
            if held.expects(&buf, meta) {
                held.merge_expected(buf);
                return Ok(());
            }
        }
        held.look(&mut self.spare);
        let bytes = buf.bytes();
        let view = View { head: bytes, len: bytes.len(), meta };
        let step = held.continued_by(view).filter(|_| {
            matches!(meta.cut, Cut::Whole)
                && held.has_slots(1)
                && held.first.check_ok(view, |l4| checksum::sum(&bytes[l4..]))
                && held.own_headers(mem)
        });
        let Some(step) = step else {
            // A flow can continue with children after all slots are used.
            let may_begin = !self.config.frag_list;
            return if may_begin { self.begin_anew((bucket, at), buf, meta, out) } else { Err(buf) };
        };
        let front = bytes.first_chunk().copied();
        if !held.merge_buf(buf, step) {
            out.push(self.let_go(bucket, at));
        } else if let (Some(front), Csum::Complete(sum)) = (front, meta.csum) {
            held.predict(&front, step, sum);
        }
        Ok(())
    }

    /// Bucket and index of a held flow.
    #[inline]
    fn find(&self, flow: &Flow) -> Option<(usize, usize)> {
        let bucket = flow.bucket(BUCKETS);
        let at = self.buckets[bucket].iter().position(|held| held.first.flow == *flow)?;
        Some((bucket, at))
    }

    /// Replaces the held packet of a flow with a packet of one buffer that does not continue it. The values for
    /// comparison stay.
    ///
    /// # Errors
    /// `buf` itself, if it needs [`receive`](Self::receive).
    fn begin_anew(
        &mut self,
        (bucket, at): (usize, usize),
        buf: Buf,
        meta: &Meta,
        out: &mut Vec<Packet>,
    ) -> Result<(), Buf> {
        let held = &mut self.buckets[bucket][at..];
        let bytes = buf.bytes();
        let view = View { head: bytes, len: bytes.len(), meta };
        let (Csum::Complete(sum), Cut::Whole) = (meta.csum, &meta.cut) else { return Err(buf) };
        let begins = held[0].begins_anew(view).filter(|it| it.check_ok(view, |l4| checksum::sum(&bytes[l4..])));
        let Some(first) = begins else { return Err(buf) };
        let front = bytes.first_chunk().copied();
        let mut packet = Packet::from_buf(buf);
        packet.meta = Meta { csum: Csum::Unnecessary, ..meta.clone() };
        out.push(held[0].renew(packet, first, front.zip(Some(sum))).finish(&mut self.spare));
        held.rotate_left(1);
        self.latest = Some((bucket, self.buckets[bucket].len() - 1));
        Ok(())
    }

    /// Flushes one packet.
    fn let_go(&mut self, bucket: usize, at: usize) -> Packet {
        self.held -= 1;
        self.latest = None;
        self.buckets[bucket].remove(at).finish(&mut self.spare)
    }

    #[inline]
    fn receive_segment(&mut self, mem: &Memory, mut pkt: Packet, arrival: &Arrival, out: &mut Vec<Packet>) {
        let check_ok = |pkt: &Packet| arrival.check_ok(View::of(pkt), |l4| checksum::sum_of(pkt, l4, pkt.len()));
        if let Some((bucket, at)) = self.find(&arrival.flow) {
            let held = &mut self.buckets[bucket][at];
            held.look(&mut self.spare);
            let step = held.continued_by(View::of(&pkt)).filter(|_| {
                let has_slots = self.config.frag_list || held.has_slots_for(&pkt);
                pkt.meta.cut == Cut::Whole && has_slots && check_ok(&pkt)
            });
            match step {
                Some(step) if held.own_headers(mem) => {
                    if held.merge(pkt, step) {
                        self.latest = Some((bucket, at));
                    } else {
                        out.push(self.let_go(bucket, at));
                    }
                    return;
                }
                _ => out.push(self.let_go(bucket, at)),
            }
        }
        if !arrival.may_be_first() || pkt.meta.cut != Cut::Whole || !check_ok(&pkt) {
            out.push(pkt);
            return;
        }
        if matches!(pkt.meta.csum, Csum::None | Csum::Complete(_)) {
            pkt.meta.csum = Csum::Unnecessary;
        }
        let bucket = arrival.flow.bucket(BUCKETS);
        if self.buckets[bucket].len() == PER_BUCKET {
            out.push(self.let_go(bucket, 0));
        }
        self.latest = Some((bucket, self.buckets[bucket].len()));
        self.buckets[bucket].push(Held::new(pkt, *arrival));
        self.held += 1;
    }

    /// Flushes all packets, at the end of a burst.
    pub fn flush(&mut self, out: &mut Vec<Packet>) {
        if self.held > 0 {
            for bucket in &mut self.buckets {
                out.extend(bucket.drain(..).map(|held| held.finish(&mut self.spare)));
            }
            (self.held, self.latest) = (0, None);
        }
    }

    /// Flushes held packets with the same two addresses as `head`, whose packet must not overtake them.
    #[cold]
    pub fn flush_between(&mut self, head: &[u8], out: &mut Vec<Packet>) {
        if self.held == 0 {
            return;
        }
        for bucket in self.buckets.iter_mut().filter(|bucket| !bucket.is_empty()) {
            let gone = bucket.extract_if(.., |held| held.first.flow.has_addresses_of(head));
            let before = out.len();
            out.extend(gone.map(|held| held.finish(&mut self.spare)));
            if out.len() > before {
                self.held -= out.len() - before;
                self.latest = None;
            }
        }
    }
}
