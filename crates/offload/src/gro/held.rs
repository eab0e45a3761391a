//! A held packet: what it accepts, how it grows, and what it is when it is let go.

use packet::{Buf, Csum, Cut, Gso, GsoKind, MAX_FRAGS, Memory, Meta, Packet};
use wire::tcp::{self, Flags};
use wire::{Protocol, Version, ipv6};

use super::arrival::{Arrival, LAST};
use crate::gso::MAX_SEGMENTS;
use crate::headers::Headers;

/// The longest packet that is made, IP header included: what IPv4's total length can say.
const MAX_LEN: usize = 65_535;

/// The most datagrams that are merged into one (Linux `UDP_GRO_CNT_MAX`).
const MAX_DATAGRAMS: u16 = 64;

/// Page slots that are filled when there are to be no children. One is left for a trailer.
const MAX_SLOTS: usize = MAX_FRAGS - 1;

/// The first packet of a flow, and what was merged with it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) packet: Packet,
    /// What was read of the first packet.
    pub(super) first: Arrival,
    /// The sequence number that comes next.
    next_seq: u32,
    /// How many packets there are in this one.
    count: u16,
    /// Whether all have the same IPv4 identification.
    fixed_id: bool,
    /// FIN and PSH, if the last one had them.
    last_flags: Flags,
}

impl Held {
    pub(super) fn new(packet: Packet, first: Arrival) -> Self {
        let next_seq = first.seq.wrapping_add(first.payload);
        Self { packet, first, next_seq, count: 1, fixed_id: false, last_flags: Flags::NONE }
    }

    /// Tells whether a packet of the same flow, whose head is `head`, continues this one. It must have come by the same
    /// link and SAs.
    #[inline]
    pub(super) fn accepts(&self, head: &[u8], arrival: &Arrival, meta: &Meta) -> bool {
        let Self { first, .. } = self;
        let in_order = match first.protocol {
            Protocol::TCP => arrival.seq == self.next_seq && !arrival.flags.contains(Flags::CWR),
            _ => true,
        };
        in_order
            && arrival.around == first.around
            && self.packet.meta.sec_path.as_slice() == meta.sec_path.as_slice()
            && arrival.constant == first.constant
            && arrival.payload.wrapping_sub(1) < first.payload
            && self.packet.len() + arrival.payload as usize <= MAX_LEN
            && self.id_goes_on(arrival)
            && usize::from(self.count) < MAX_SEGMENTS
            && self.same_options(head, arrival)
    }

    /// IPv4 identifications either count up or, under DF, stay the same (Linux `inet_gro_flush`).
    #[inline]
    fn id_goes_on(&self, arrival: &Arrival) -> bool {
        let step = arrival.id.wrapping_sub(self.first.id);
        match arrival.version {
            Version::V6 => true,
            Version::V4 if self.fixed_id || (self.count == 1 && arrival.dont_fragment && step == 0) => step == 0,
            Version::V4 => step == self.count,
        }
    }

    /// Tells whether the payload of `pkt` goes into the slots.
    #[inline]
    pub(super) fn has_slots_for(&self, pkt: &Packet, arrival: &Arrival) -> bool {
        let slots = pkt.frags().len() + usize::from(pkt.headlen() > usize::from(arrival.end));
        pkt.frag_list().is_empty() && self.has_slots(slots)
    }

    /// Tells whether there are so many slots. The first packet's own payload takes one more if its headers have to be
    /// copied.
    #[inline]
    pub(super) fn has_slots(&self, slots: usize) -> bool {
        let taken = self.packet.frags().len() + usize::from(self.count == 1);
        self.packet.frag_list().is_empty() && taken + slots <= MAX_SLOTS
    }

    /// Tells whether IPv6 extension headers and TCP options are the same bytes. The fixed headers' lengths agree.
    #[inline]
    fn same_options(&self, head: &[u8], arrival: &Arrival) -> bool {
        let (l4, end) = (usize::from(arrival.l4), usize::from(arrival.end));
        if (arrival.l4, arrival.end) != (self.first.l4, self.first.end) {
            return false;
        }
        let (ours, theirs) = (&self.packet.head()[..end], &head[..end]);
        let options = match arrival.protocol {
            Protocol::TCP => l4 + tcp::Header::LEN..end,
            _ => end..end,
        };
        let extensions = match arrival.version {
            Version::V6 if l4 > ipv6::Header::LEN => ipv6::Header::LEN..l4,
            _ => 0..0,
        };
        // What the first extension header is, the fixed header says.
        let same_kind = extensions.is_empty() || ours[ipv6::NEXT_HEADER_AT] == theirs[ipv6::NEXT_HEADER_AT];
        same(&ours[options.clone()], &theirs[options])
            && same_kind
            && same(&ours[extensions.clone()], &theirs[extensions])
    }

    /// Makes sure that the headers can be rewritten when the packet is let go. Only headers are copied.
    ///
    /// Returns whether they can.
    #[inline]
    pub(super) fn own_headers(&mut self, mem: &Memory) -> bool {
        self.count > 1 || self.packet.head_mut().is_some() || self.copy_headers(mem)
    }

    #[cold]
    fn copy_headers(&mut self, mem: &Memory) -> bool {
        let end = usize::from(self.first.end);
        let Ok(mut fresh) = Packet::new(mem, Memory::HEADROOM, end) else { return false };
        let Some(to) = fresh.put(end) else { return false };
        to.copy_from_slice(&self.packet.head()[..end]);
        mem.copied(packet::CopyReason::Writable, end);
        fresh.meta = self.packet.meta.clone();
        let mut rest = std::mem::replace(&mut self.packet, fresh);
        rest.meta.csum = Csum::Unnecessary;
        rest.pull(end);
        self.packet.append(rest);
        true
    }

    /// Joins the payload of `pkt`, which this packet accepts, by reference.
    ///
    /// Returns whether the flow may be held further.
    #[inline]
    pub(super) fn merge(&mut self, mut pkt: Packet, arrival: &Arrival) -> bool {
        if pkt.is_linear() && self.packet.frags().len() < MAX_FRAGS && self.packet.frag_list().is_empty() {
            let (buf, _, _) = pkt.into_parts();
            return self.merge_buf(buf, arrival);
        }
        pkt.meta.csum = Csum::Unnecessary;
        pkt.pull(arrival.end.into());
        self.packet.append(pkt);
        self.grown(arrival)
    }

    /// As [`merge`](Self::merge), for a packet that is one buffer and for which there is a slot.
    #[inline]
    pub(super) fn merge_buf(&mut self, mut buf: Buf, arrival: &Arrival) -> bool {
        buf.pull(arrival.end.into());
        self.packet.push_frag(buf).expect("a free slot, just seen");
        self.grown(arrival)
    }

    #[inline]
    fn grown(&mut self, arrival: &Arrival) -> bool {
        if self.count == 1 {
            self.fixed_id = arrival.version == Version::V4 && arrival.id == self.first.id;
        }
        self.count += 1;
        self.next_seq = self.next_seq.wrapping_add(arrival.payload);
        self.last_flags = arrival.flags & LAST;
        let full = arrival.protocol == Protocol::UDP && self.count == MAX_DATAGRAMS;
        arrival.payload == self.first.payload && !full && !arrival.ends_flow()
    }

    /// The packet as the stack gets it: alone as it came, or fat.
    #[inline]
    pub(super) fn finish(mut self) -> Packet {
        if self.count > 1 {
            self.fatten();
        }
        self.packet
    }

    fn fatten(&mut self) {
        let Self { first, count, fixed_id, last_flags, ref mut packet, .. } = *self;
        let headers = Headers::of_parts(first.version, first.protocol, first.l4.into(), first.end.into());
        let len = packet.len();
        let head = packet.head_mut().expect("made writable before the first was merged");
        let pseudo = headers.pseudo(head, len - headers.l4);
        headers.fill(head, len, pseudo);
        if first.protocol == Protocol::TCP {
            let header = tcp::Header::mut_from(&mut head[headers.l4..]).expect("read before");
            header.set_flags(header.flags() | last_flags);
        }
        let kind = match (first.protocol, first.version) {
            (Protocol::TCP, Version::V4) => GsoKind::TcpV4,
            (Protocol::TCP, Version::V6) => GsoKind::TcpV6,
            _ => GsoKind::Udp,
        };
        let ecn = first.flags.contains(Flags::CWR);
        packet.meta.csum = Csum::Partial { start: first.l4, offset: headers.check_at() as u16 };
        packet.meta.cut = Cut::Gso(Gso { kind, size: first.payload as u16, segs: count, ecn, fixed_id });
    }
}

/// Whether two stretches of options are equal. Those of time stamps, by far the most frequent, take no call.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    match (a.as_array::<12>(), b.as_array::<12>()) {
        (Some(a), Some(b)) => a == b,
        _ => a.is_empty() && b.is_empty() || a == b,
    }
}
