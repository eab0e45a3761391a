//! Generic receive offload: the packets of a flow that arrive together go through the stack as one fat packet.
//!
//! What is merged is what segmentation gives back, byte for byte: `gso` undoes it. The rules are those of Linux's
//! `dev_gro_receive`, `inet_gro_receive`, `ipv6_gro_receive`, `tcp_gro_receive` and `udp_gro_receive`. Payload is
//! moved by reference.
//!
//! Two things are stricter: a packet that can never be merged (options in the IPv4 header, a fragment, a wrong
//! checksum) lets go of what is held between the same two addresses, so that it does not overtake; and IPv6 packets
//! whose extension headers differ are one flow that is not merged.

mod arrival;
mod held;

use packet::{Buf, Csum, Cut, Memory, Meta, Packet};

use self::arrival::{Arrival, Class, View};
use self::held::Held;
use crate::checksum;

/// Buckets that flows are spread over by hash (Linux `GRO_HASH_BUCKETS`).
const BUCKETS: usize = 8;

/// Packets that a bucket holds (Linux `MAX_GRO_SKBS`).
const PER_BUCKET: usize = 8;

/// What is merged, and into which geometry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Merges UDP too, into trains of equal datagrams. TCP always is.
    pub udp: bool,
    /// Goes on with children when the page slots are full. Without, the packet is let go then, with one slot left for
    /// a trailer: such a packet never has to be linearized on its way.
    pub frag_list: bool,
}

/// The packets held by one worker for the links that it serves.
#[derive(Debug)]
pub struct Gro {
    config: Config,
    /// Each in order of arrival.
    buckets: [Vec<Held>; BUCKETS],
    held: usize,
}

impl Gro {
    /// Holds nothing yet.
    pub fn new(config: Config) -> Self {
        Self { config, buckets: std::array::from_fn(|_| Vec::with_capacity(PER_BUCKET)), held: 0 }
    }

    /// How many packets are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes a packet that begins with its IP header: holds it, merges it with one that is held, or appends it to
    /// `out`, behind whatever it must not overtake.
    ///
    /// A transport checksum that nobody has verified yet is, before the packet is held or merged.
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

    /// Merges a whole packet that is one buffer with the one that is held of its flow. The way of most packets that
    /// come out of a tunnel: they need be no [`Packet`] for it.
    ///
    /// # Errors
    /// `buf` itself, when that does not come to pass: it is for [`receive`](Self::receive).
    #[inline]
    pub fn join(&mut self, mem: &Memory, buf: Buf, meta: &Meta, out: &mut Vec<Packet>) -> Result<(), Buf> {
        let view = View { head: buf.bytes(), len: buf.len(), meta };
        let Ok(Class::Segment(arrival)) = Class::parse(view, self.config.udp) else { return Err(buf) };
        let bucket = &mut self.buckets[arrival.bucket(BUCKETS)];
        let Some(at) = bucket.iter().position(|held| held.first.flow == arrival.flow) else { return Err(buf) };
        let held = &mut bucket[at];
        let joins = meta.cut == Cut::Whole
            && held.accepts(view.head, &arrival, meta)
            && held.has_slots(1)
            && arrival.check_ok(view, |l4| checksum::sum(&view.head[l4..]));
        if !joins || !held.own_headers(mem) {
            return Err(buf);
        }
        if !held.merge_buf(buf, &arrival) {
            out.push(bucket.remove(at).finish());
            self.held -= 1;
        }
        Ok(())
    }

    #[inline]
    fn receive_segment(&mut self, mem: &Memory, mut pkt: Packet, arrival: &Arrival, out: &mut Vec<Packet>) {
        let bucket = &mut self.buckets[arrival.bucket(BUCKETS)];
        let check_ok = |pkt: &Packet| arrival.check_ok(View::of(pkt), |l4| checksum::sum_of(pkt, l4, pkt.len()));
        if let Some(at) = bucket.iter().position(|held| held.first.flow == arrival.flow) {
            let held = &mut bucket[at];
            let joins = pkt.meta.cut == Cut::Whole
                && held.accepts(pkt.head(), arrival, &pkt.meta)
                && (self.config.frag_list || held.has_slots_for(&pkt, arrival))
                && check_ok(&pkt);
            if joins && held.own_headers(mem) {
                if !held.merge(pkt, arrival) {
                    out.push(bucket.remove(at).finish());
                    self.held -= 1;
                }
                return;
            }
            out.push(bucket.remove(at).finish());
            self.held -= 1;
        }
        if !arrival.may_be_first() || pkt.meta.cut != Cut::Whole || !check_ok(&pkt) {
            out.push(pkt);
            return;
        }
        if matches!(pkt.meta.csum, Csum::None | Csum::Complete(_)) {
            pkt.meta.csum = Csum::Unnecessary;
        }
        if bucket.len() == PER_BUCKET {
            out.push(bucket.remove(0).finish());
            self.held -= 1;
        }
        bucket.push(Held::new(pkt, *arrival));
        self.held += 1;
    }

    /// Lets go of everything: at the end of a burst, before the worker sleeps or looks elsewhere.
    pub fn flush(&mut self, out: &mut Vec<Packet>) {
        if self.held > 0 {
            for bucket in &mut self.buckets {
                out.extend(bucket.drain(..).map(Held::finish));
            }
            self.held = 0;
        }
    }

    /// Lets go of what is held from the source to the destination of the packet that begins with `head`.
    #[cold]
    fn flush_between(&mut self, head: &[u8], out: &mut Vec<Packet>) {
        for bucket in self.buckets.iter_mut().filter(|bucket| !bucket.is_empty()) {
            let gone = bucket.extract_if(.., |held| held.first.flow.has_addresses_of(head));
            let before = out.len();
            out.extend(gone.map(Held::finish));
            self.held -= out.len() - before;
        }
    }
}
