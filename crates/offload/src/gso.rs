//! Segmentation: a fat packet becomes the packets that go on the wire.
//!
//! Follows Linux's `skb_segment`, `tcp_gso_segment` and `__udp_gso_segment`.

use base::DropReason;
use packet::{CopyReason, Csum, Cut, Gso, Memory, Meta, Packet};
use wire::tcp::{self, Flags};
use wire::{Protocol, Version, checksum as sums, ipv4, udp};

use crate::checksum;
use crate::features::Features;
use crate::headers::Headers;

/// The most segments one packet is cut into: 64 KiB over the smallest MTU of IPv4, which leaves 28 bytes of payload
/// (RFC 791 §3.2). A guest that asks for more wants us to run out of memory.
pub const MAX_SEGMENTS: usize = 65_535 / 28;

/// Cuts a fat packet, whose IP header begins at `l3`, and appends its segments to `out`. What comes before the IP
/// header is repeated in front of each.
///
/// The headers are copied; the payload goes by reference if the device takes slots, else it is copied into linear
/// packets. Checks are completed unless the device does that. A packet whose payload is one segment's at most goes out
/// as it is, no longer fat: Linux's answer to a guest that marked too small a packet.
///
/// # Errors
/// [`DropReason::CannotSegment`] for a packet that is not fat, whose headers are not of the kind that it says, or that
/// would be more than [`MAX_SEGMENTS`]; what is wrong with its headers; [`DropReason::NoMemory`]. Then `out` is as it
/// was.
pub fn segment(
    mem: &Memory,
    features: &Features,
    mut pkt: Packet,
    l3: usize,
    out: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    let before = out.len();
    let result = Plan::new(mem, features, &mut pkt, l3).and_then(|plan| plan.cut(mem, pkt, out));
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// What every segment of a packet has in common.
struct Plan {
    headers: Headers,
    /// Bytes of payload in each segment but the last.
    size: usize,
    segs: usize,
    fixed_id: bool,
    /// The pseudo-header's partial sum without its length.
    pseudo: u32,
    /// UDP over IPv4 that was sent without a check.
    no_check: bool,
    by_reference: bool,
    /// Whether the device completes the checks.
    partial: bool,
    meta: Meta,
}

impl Plan {
    fn new(mem: &Memory, features: &Features, pkt: &mut Packet, l3: usize) -> Result<Self, DropReason> {
        let Cut::Gso(Gso { kind, size, fixed_id, .. }) = pkt.meta.cut else { return Err(DropReason::CannotSegment) };
        let headers = Headers::find(mem, pkt, l3)?;
        let payload = pkt.len() - headers.end;
        let size = usize::from(size);
        if !headers.is(kind) || size == 0 || headers.end + size.min(payload) > headers.max_len() {
            return Err(DropReason::CannotSegment);
        }
        let segs = payload.div_ceil(size);
        if segs > MAX_SEGMENTS {
            return Err(DropReason::CannotSegment);
        }
        let transport_len = pkt.len() - headers.l4;
        let field_at = headers.l4 + headers.check_at();
        let field = u16::from_be_bytes([pkt.head()[field_at], pkt.head()[field_at + 1]]);
        let is_partial = matches!(pkt.meta.csum, Csum::Partial { start, .. } if usize::from(start) == headers.l4);
        let pseudo = if is_partial {
            // The sender knows the address that the check is made with, also when a routing header hides it.
            sums::sub(u32::from(field), sums::add(0, transport_len as u32))
        } else {
            headers.pseudo(pkt.head(), 0)
        };
        let no_check = !is_partial && field == 0 && headers.protocol == Protocol::UDP && headers.version == Version::V4;
        let partial = features.csum.completes(&headers);
        let meta = Meta { csum: Csum::None, cut: Cut::Whole, ..pkt.meta.clone() };
        Ok(Self { headers, size, segs, fixed_id, pseudo, no_check, by_reference: features.sg, partial, meta })
    }

    fn cut(self, mem: &Memory, mut pkt: Packet, out: &mut Vec<Packet>) -> Result<(), DropReason> {
        if self.segs <= 1 {
            return self.keep(mem, pkt, out);
        }
        out.reserve(self.segs);
        let end = self.headers.end;
        let mut template = mem.take(Memory::HEADROOM, end)?;
        template.put(end).ok_or(DropReason::NoMemory)?.copy_from_slice(&pkt.head()[..end]);
        mem.copied(CopyReason::SegmentHeader, end);
        pkt.pull(end);
        for index in 0..self.segs {
            let size = self.size.min(pkt.len());
            let mut seg = self.take_payload(mem, template.bytes(), &mut pkt, size)?;
            let head = seg.head_mut().ok_or(DropReason::NoMemory)?;
            self.patch(head, index, end + size);
            self.finish(mem, &mut seg)?;
            out.push(seg);
        }
        Ok(())
    }

    /// The packet is one segment: only its lengths and its check may be missing.
    fn keep(self, mem: &Memory, mut pkt: Packet, out: &mut Vec<Packet>) -> Result<(), DropReason> {
        pkt.meta.cut = Cut::Whole;
        if !self.by_reference {
            pkt.linearize(mem)?;
        }
        let len = pkt.len();
        self.patch(checksum::writable_head(mem, &mut pkt)?, 0, len);
        self.finish(mem, &mut pkt)?;
        out.push(pkt);
        Ok(())
    }

    /// A packet of the headers and the next `size` bytes of payload.
    fn take_payload(&self, mem: &Memory, template: &[u8], pkt: &mut Packet, size: usize) -> Result<Packet, DropReason> {
        let end = template.len();
        let room = if self.by_reference { end } else { end + size };
        let mut head = mem.take(Memory::HEADROOM, room)?;
        head.put(end).ok_or(DropReason::NoMemory)?.copy_from_slice(template);
        mem.copied(CopyReason::SegmentHeader, end);
        let mut seg = Packet::from_buf(head);
        seg.meta = self.meta.clone();
        if self.by_reference && pkt.move_front(size, &mut seg).is_ok() {
            return Ok(seg);
        }
        if self.by_reference {
            // Too many pieces for its slots.
            seg = Packet::from_buf(mem.take(Memory::HEADROOM, end + size)?);
            seg.put(end).ok_or(DropReason::NoMemory)?.copy_from_slice(template);
            seg.meta = self.meta.clone();
        }
        pkt.read_at(0, seg.put(size).ok_or(DropReason::NoMemory)?);
        mem.copied(CopyReason::SegmentPayload, size);
        pkt.pull(size);
        Ok(seg)
    }

    /// Makes the headers at the front of `head` those of segment `index`, which is `len` bytes long in all.
    fn patch(&self, head: &mut [u8], index: usize, len: usize) {
        let Headers { version, protocol, l3, l4, .. } = self.headers;
        if version == Version::V4 && !self.fixed_id {
            let header = ipv4::Header::mut_from(&mut head[l3..]).expect("found before");
            header.set_id(header.id().wrapping_add(index as u16));
        }
        if protocol == Protocol::TCP {
            let header = tcp::Header::mut_from(&mut head[l4..]).expect("found before");
            header.set_seq(header.seq().wrapping_add((index * self.size) as u32));
            let mut flags = header.flags();
            if index > 0 {
                flags = flags & !Flags::CWR;
            }
            if index + 1 < self.segs {
                flags = flags & !(Flags::FIN | Flags::PSH);
            }
            header.set_flags(flags);
        }
        self.headers.fill(head, len, sums::add(self.pseudo, (len - l4) as u32));
        if self.no_check {
            udp::Header::mut_from(&mut head[l4..]).expect("found before").set_check(0);
        }
    }

    /// Leaves the check to the device, or completes it.
    fn finish(&self, mem: &Memory, seg: &mut Packet) -> Result<(), DropReason> {
        if self.no_check {
            seg.meta.csum = Csum::None;
            return Ok(());
        }
        let offset = self.headers.check_at() as u16;
        let start = u16::try_from(self.headers.l4).map_err(|_| DropReason::CannotSegment)?;
        seg.meta.csum = Csum::Partial { start, offset };
        if self.partial { Ok(()) } else { checksum::complete(mem, seg) }
    }
}
