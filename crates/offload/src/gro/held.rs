//! Held packet: the segments that it accepts, its growth, and its form after the flush.

use packet::{Buf, Csum, Cut, Gso, GsoKind, MAX_FRAGS, Memory, Meta, Packet};
use wire::tcp::{self, Flags};
use wire::{Pattern, Prediction, Protocol, RisingNumber, Version, ipv4, udp};

use super::arrival::{Arrival, ENDING, LAST, View};
use crate::gso::MAX_SEGMENTS;
use crate::headers::Headers;

/// Maximum length of a merged packet, IP header included: the limit of IPv4's total length.
const MAX_LEN: usize = 65_535;

/// Maximum number of merged datagrams (Linux `UDP_GRO_CNT_MAX`).
const MAX_DATAGRAMS: u16 = 64;

/// Maximum number of page fragments without children. One slot is left for a trailer.
const MAX_SLOTS: usize = MAX_FRAGS - 1;

/// Free patterns, boxed for reuse: a pattern is large.
pub(super) type Spare = Vec<Box<Pattern>>;

/// The first packet of a flow, with the packets merged into it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) packet: Packet,
    /// Fields of the first packet.
    pub(super) first: Arrival,
    /// The next sequence number.
    next_seq: u32,
    /// Number of packets merged so far.
    count: u16,
    /// Whether all packets have the same IPv4 identification; for a single packet, whether this was true for the flow
    /// before.
    fixed_id: bool,
    /// FIN and PSH of the last segment.
    last_flags: Flags,
    /// Pattern of the headers, from the second packet on.
    pattern: Option<Box<Pattern>>,
    /// Number of packets that may still be merged by prediction alone.
    room: u16,
    /// Sum of the bytes of a predicted packet, equal to that of the preceding one: the checksums compensate changes of
    /// number and payload.
    sum: u16,
}

impl Held {
    pub(super) fn new(packet: Packet, first: Arrival) -> Self {
        let next_seq = first.seq.wrapping_add(first.payload);
        let fixed_id = false;
        let last_flags = Flags::NONE;
        let pattern = None;
        Self { packet, first, next_seq, count: 1, fixed_id, last_flags, pattern, room: 0, sum: 0 }
    }

    /// Prepares for comparisons. `spare` holds free patterns.
    #[inline]
    pub(super) fn look(&mut self, spare: &mut Spare) {
        if self.pattern.is_none() {
            self.make_pattern(spare);
        }
    }

    fn make_pattern(&mut self, spare: &mut Spare) {
        let Arrival { version, protocol, l4, end, .. } = self.first;
        let l4 = usize::from(l4);
        let mut pattern = spare.pop().unwrap_or_default();
        pattern.set(self.packet.head().get(..end.into()).unwrap_or_default()).free_ip(version);
        if protocol == Protocol::TCP {
            let flags = LAST.bits() | Flags::CWR.bits();
            pattern.free(l4 + tcp::SEQ_AT, &[0xff; 4]).free(l4 + tcp::FLAGS_AT, &flags.to_be_bytes());
            pattern.free(l4 + tcp::CHECK_AT, &[0xff; 2]);
        } else {
            pattern.free(l4 + udp::LEN_AT, &[0xff; 2]).free(l4 + udp::CHECK_AT, &[0xff; 2]);
        }
        self.pattern = Some(pattern);
    }

    /// Step by which a packet continues this one, if it does: it has the same link and SAs, and the headers of the
    /// first packet, except fields that change from segment to segment and have the expected values. The transport
    /// checksum is not checked here. Requires [`look`](Self::look).
    #[inline]
    pub(super) fn continued_by(&self, view: View<'_>) -> Option<Step> {
        let Self { first, packet, .. } = self;
        let pattern = self.pattern.as_deref()?;
        let View { head, len, meta } = view;
        if !(packet.meta.came_like(meta) && pattern.matches(head) && pattern.is_right(first.version, head, len)) {
            return None;
        }
        let (l4, end) = (usize::from(first.l4), usize::from(first.end));
        let payload = (len - end) as u32;
        let fits = payload.wrapping_sub(1) < first.payload
            && packet.len() + payload as usize <= MAX_LEN
            && usize::from(self.count) < MAX_SEGMENTS;
        let id = match first.version {
            Version::V4 => Some(ipv4::Ipv4Header::ref_from(head).ok()?.id()).filter(|&id| self.id_goes_on(id))?,
            Version::V6 => 0,
        };
        let transport = head.get(l4..)?;
        let flags = if first.protocol == Protocol::TCP {
            let header = tcp::TcpHeader::ref_from(transport).ok()?;
            // Only the first segment may have Congestion Window Reduced (RFC 3168 §6.1.2).
            let is_next = header.seq() == self.next_seq && !header.flags().contains(Flags::CWR);
            is_next.then(|| header.flags())?
        } else {
            let header = udp::UdpHeader::ref_from(transport).ok()?;
            (header.len() == len - l4 && header.check() != 0).then_some(Flags::NONE)?
        };
        fits.then_some(Step { payload, id, flags })
    }

    /// Summary of a TCP packet that may replace this one: its headers are those of the first packet, except fields that
    /// change from segment to segment. The transport checksum is not checked here. Requires [`look`](Self::look).
    pub(super) fn begins_anew(&self, view: View<'_>) -> Option<Arrival> {
        let Self { first, pattern, .. } = self;
        let View { head, len, .. } = view;
        let is_like = |pattern: &Pattern| pattern.matches(head) && pattern.is_right(first.version, head, len);
        if !first.is_plain_tcp() || !pattern.as_deref().is_some_and(is_like) {
            return None;
        }
        first.anew(view).filter(Arrival::may_be_first)
    }

    /// Replaces this packet, which is returned, with `packet`, whose summary is from
    /// [`begins_anew`](Self::begins_anew). The next packet is predicted from the front and the sum of `packet`.
    pub(super) fn renew(
        &mut self,
        packet: Packet,
        first: Arrival,
        seen: Option<([u8; Prediction::WINDOW], u16)>,
    ) -> Self {
        let (pattern, fixed_id) = (self.pattern.take(), self.fixed_id);
        let former = std::mem::replace(self, Self { pattern, fixed_id, ..Self::new(packet, first) });
        let Arrival { payload, id, flags, .. } = first;
        // A segment with CWR is never merged, so the predicted flags do not contain CWR.
        if let Some((front, sum)) = seen
            && self.packet.head_mut().is_some()
            && !flags.contains(Flags::CWR)
        {
            self.predict(&front, Step { payload, id, flags }, sum);
        }
        former
    }

    /// Tells whether an IPv4 identification continues the flow: it counts up or, with DF, stays the same (Linux
    /// `inet_gro_flush`).
    #[inline]
    fn id_goes_on(&self, id: u16) -> bool {
        match (id.wrapping_sub(self.first.id), self.count) {
            (0, 1) => self.first.dont_fragment,
            (step, count) if count == 1 || !self.fixed_id => step == count,
            (step, _) => step == 0,
        }
    }

    /// Tells whether the payload of `pkt` fits into the free slots.
    #[inline]
    pub(super) fn has_slots_for(&self, pkt: &Packet) -> bool {
        let slots = pkt.frags().len() + usize::from(pkt.headlen() > usize::from(self.first.end));
        pkt.frag_list().is_empty() && self.has_slots(slots)
    }

    /// Tells whether that many slots are free. The first packet's own payload takes one more slot if its headers have
    /// to be copied.
    #[inline]
    pub(super) fn has_slots(&self, slots: usize) -> bool {
        let taken = self.packet.frags().len() + usize::from(self.count == 1);
        self.packet.frag_list().is_empty() && taken + slots <= MAX_SLOTS
    }

    /// Makes the headers writable for the flush. Only headers are copied.
    ///
    /// Returns whether they are writable.
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

    /// Appends the payload of `pkt`, which continues this packet, by reference.
    ///
    /// Returns whether the flow may be held longer.
    #[inline]
    pub(super) fn merge(&mut self, mut pkt: Packet, step: Step) -> bool {
        if pkt.is_linear() && self.packet.frags().len() < MAX_FRAGS && self.packet.frag_list().is_empty() {
            let (buf, _, _) = pkt.into_parts();
            return self.merge_buf(buf, step);
        }
        pkt.meta.csum = Csum::Unnecessary;
        pkt.pull(self.first.end.into());
        self.packet.append(pkt);
        self.grown(step)
    }

    /// As [`merge`](Self::merge), for a packet of one buffer; requires a free slot.
    #[inline]
    pub(super) fn merge_buf(&mut self, buf: Buf, step: Step) -> bool {
        self.packet.push_frag_behind(buf, self.first.end.into()).expect("a free slot, just seen");
        self.grown(step)
    }

    /// Predicts the packet after one that begins with `front` and has the sum `sum`, if the flow is held longer.
    pub(super) fn predict(&mut self, front: &[u8; Prediction::WINDOW], step: Step, sum: u16) {
        let Arrival { version, l4, end, payload, .. } = self.first;
        let l4 = usize::from(l4);
        let number = RisingNumber { at: l4 + tcp::SEQ_AT, step: payload };
        let id_step = u16::from(version == Version::V4 && !self.fixed_id);
        let check = (l4 + tcp::CHECK_AT, &[0xff; 2][..]);
        if let Some(pattern) = &mut self.pattern
            && step.payload == payload
            && self.first.is_plain_tcp()
            && self.packet.frag_list().is_empty()
        {
            pattern.next.set(front, end.into(), usize::from(end) + payload as usize, id_step, number, check);
            let by_len = MAX_LEN.saturating_sub(self.packet.len()) / payload as usize;
            let by_count = MAX_SEGMENTS.saturating_sub(self.count.into());
            let by_slots = MAX_SLOTS.saturating_sub(self.packet.frags().len());
            (self.room, self.sum) = (by_len.min(by_count).min(by_slots) as u16, sum);
        }
    }

    /// Tells whether a packet of one buffer is the [predicted](Self::predict) one.
    #[inline]
    pub(super) fn expects(&self, buf: &Buf, meta: &Meta) -> bool {
        self.room > 0
            && matches!(meta.csum, Csum::Complete(sum) if sum == self.sum)
            && matches!(meta.cut, Cut::Whole)
            && self.pattern.as_ref().is_some_and(|pattern| pattern.next.is(buf.bytes(), buf.len()))
            && self.packet.meta.came_like(meta)
    }

    /// Appends the payload of an [expected](Self::expects) packet.
    #[inline]
    pub(super) fn merge_expected(&mut self, buf: Buf) {
        if let Some(pattern) = &mut self.pattern {
            pattern.next.advance();
        }
        let (front, payload) = (self.first.end.into(), self.first.payload as usize);
        self.packet.fill_slot(buf, front, payload);
        self.room -= 1;
        self.count += 1;
        self.next_seq = self.next_seq.wrapping_add(self.first.payload);
    }

    #[inline]
    fn grown(&mut self, step: Step) -> bool {
        let Step { payload, id, flags } = step;
        self.room = 0;
        if self.count == 1 {
            self.fixed_id = self.first.version == Version::V4 && id == self.first.id;
        }
        self.count += 1;
        self.next_seq = self.next_seq.wrapping_add(payload);
        self.last_flags = flags & LAST;
        let full = self.first.protocol == Protocol::UDP && self.count == MAX_DATAGRAMS;
        payload == self.first.payload && !full && !flags.intersects(ENDING)
    }

    /// The flushed packet: unchanged if nothing was merged, otherwise fat.
    #[inline]
    pub(super) fn finish(mut self, spare: &mut Spare) -> Packet {
        spare.extend(self.pattern.take());
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
            let header = tcp::TcpHeader::mut_from(&mut head[headers.l4..]).expect("read before");
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

/// Differences of a packet from the one that it continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Bytes of payload.
    payload: u32,
    /// IPv4's identification.
    id: u16,
    flags: Flags,
}
