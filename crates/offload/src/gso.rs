//! Segmentation of fat packets.
//!
//! Follows Linux's `skb_segment`, `tcp_gso_segment`, `__udp_gso_segment`, and for a packet inside tunnels
//! `skb_udp_tunnel_segment` and `gre_gso_segment`.

use arrayvec::ArrayVec;
use base::DropReason;
use packet::{Buf, CopyReason, Csum, Cut, Gso, MAX_FRAGS, Memory, Meta, Packet};
use wire::tcp::{self, Flags};
use wire::{Protocol, Version, checksum as sums, ipv4, udp};

use crate::checksum;
use crate::encapsulation::{Encapsulation, MAX_TUNNELS};
use crate::features::Features;
use crate::headers::Headers;

/// Maximum number of segments of a packet: 64 KiB over the smallest MTU of IPv4, which leaves 28 bytes of payload (RFC
/// 791 §3.2). Bounds the memory that a guest can demand.
pub const MAX_SEGMENTS: usize = 65_535 / 28;

/// Segments a fat packet, whose IP header begins at `l3`, and appends its segments to `out`. Bytes in front of the IP
/// header are repeated in each segment.
///
/// A packet with a [partial](Csum::Partial) checksum is segmented at the transport header where the checksum starts,
/// which may be inside tunnels: IP in IP, GRE, VXLAN, Geneve. Tunnel headers are repeated too, each with the lengths,
/// identification and checksums of its segment; UDP without a checksum stays without. For such segments this function
/// completes all checksums.
///
/// Headers are copied; payload is passed by reference if the device supports fragments, else copied into linear
/// packets. Checksums are completed unless the device does that. A packet whose payload fits one segment is passed
/// unchanged, no longer fat, as Linux treats a guest that marked too small a packet.
///
/// # Errors
/// [`DropReason::CannotSegment`] for a packet that is not fat, whose headers contradict its kind, or that has more than
/// [`MAX_SEGMENTS`] segments; [`DropReason::GsoEncapsulation`] if no headers lead to the start of its partial checksum,
/// or tunnel headers differ between segments; the fault of its headers; [`DropReason::NoMemory`]. On error `out` is
/// unchanged.
pub fn segment(
    mem: &Memory,
    features: &Features,
    mut pkt: Packet,
    l3: usize,
    out: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    let before = out.len();
    let result = Plan::new(mem, features, &mut pkt, l3).and_then(|plan| plan.cut(mem, features, pkt, out));
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// Properties that all segments of a packet share.
struct Plan {
    /// Headers of the packet's tunnels, outermost first.
    tunnels: ArrayVec<Headers, MAX_TUNNELS>,
    /// Headers of the inner packet, which is the one to segment.
    headers: Headers,
    /// Bytes of payload in each segment except the last.
    size: usize,
    segs: usize,
    fixed_id: bool,
    /// The pseudo-header's partial sum without its length.
    pseudo: u32,
    /// UDP over IPv4 without a checksum.
    no_check: bool,
    /// Checksum state of the segments: partial for the device, or the original one.
    csum: Csum,
    /// Whether the device completes the checksums.
    partial: bool,
}

impl Plan {
    fn new(mem: &Memory, features: &Features, pkt: &mut Packet, l3: usize) -> Result<Self, DropReason> {
        let Cut::Gso(Gso { kind, size, fixed_id, .. }) = pkt.meta.cut else { return Err(DropReason::CannotSegment) };
        let mut headers = Headers::find(mem, pkt, l3)?;
        let mut tunnels = ArrayVec::new();
        if let Some(start) = headers.start_inside(pkt.meta.csum) {
            Encapsulation { tunnels, inner: headers, .. } = Encapsulation::find(mem, pkt, l3, start)?;
        }
        let payload = pkt.len() - headers.end;
        let size = usize::from(size);
        let longest = headers.end + size.min(payload);
        let has_room = tunnels.iter().chain([&headers]).all(|headers| longest <= headers.max_len());
        if !headers.is(kind) || size == 0 || !has_room {
            return Err(DropReason::CannotSegment);
        }
        let segs = payload.div_ceil(size);
        if segs > MAX_SEGMENTS {
            return Err(DropReason::CannotSegment);
        }
        let transport_len = pkt.len() - headers.l4;
        let field_at = headers.l4 + headers.check_at();
        let field = u16::from_be_bytes([pkt.head()[field_at], pkt.head()[field_at + 1]]);
        let csum = headers.partial_csum().ok_or(DropReason::CannotSegment)?;
        let is_partial = pkt.meta.csum == csum;
        let pseudo = if is_partial {
            // The sender's sum covers the final address, also if a routing header replaces it.
            sums::sub(u32::from(field), sums::add(0, transport_len as u32))
        } else {
            headers.pseudo(pkt.head(), 0)
        };
        let no_check = !is_partial && field == 0 && headers.protocol == Protocol::UDP && headers.version == Version::V4;
        let partial = tunnels.is_empty() && features.csum.completes(&headers);
        Ok(Self { tunnels, headers, size, segs, fixed_id, pseudo, no_check, csum, partial })
    }

    fn cut(self, mem: &Memory, features: &Features, pkt: Packet, out: &mut Vec<Packet>) -> Result<(), DropReason> {
        if self.segs <= 1 {
            return self.keep(mem, features, pkt, out);
        }
        out.reserve(self.segs);
        let end = self.headers.end;
        let mut left = pkt.len() - end;
        let meta = Meta { csum: Csum::None, cut: Cut::Whole, ..pkt.meta.clone() };
        let (mut head, frags, children) = pkt.into_parts();
        let template = head.split_to(end);
        let mut payload = Payload { front: Some(head), rest: frags.chain(children.flat_map(pieces)) };
        for index in 0..self.segs {
            let size = self.size.min(left);
            left -= size;
            let room = if features.sg { end } else { end + size };
            // Built in place, as moves of a packet are expensive.
            let seg = out.push_mut(Packet::new(mem, Memory::HEADROOM, room)?);
            let headers = seg.put(end).ok_or(DropReason::NoMemory)?;
            headers.copy_from_slice(template.bytes());
            self.patch(headers, index, end + size);
            mem.copied(CopyReason::SegmentHeader, end);
            if features.sg {
                payload.move_to(size, mem, seg)?;
            } else {
                payload.copy_to(size, mem, seg)?;
            }
            seg.meta = meta.clone();
            self.finish(mem, seg)?;
        }
        Ok(())
    }

    /// Finishes a packet of one segment, which may lack only its lengths and its checksum.
    fn keep(self, mem: &Memory, features: &Features, mut pkt: Packet, out: &mut Vec<Packet>) -> Result<(), DropReason> {
        pkt.meta.cut = Cut::Whole;
        if !features.takes_pieces_of(&pkt) {
            pkt.linearize(mem)?;
        }
        let len = pkt.len();
        self.patch(pkt.writable_head(mem)?, 0, len);
        self.finish(mem, &mut pkt)?;
        out.push(pkt);
        Ok(())
    }

    /// Turns the headers at the front of `head` into those of segment `index`, whose total length is `len`.
    fn patch(&self, head: &mut [u8], index: usize, len: usize) {
        let Headers { version, protocol, l3, l4, .. } = self.headers;
        if version == Version::V4 && !self.fixed_id {
            let header = ipv4::Ipv4Header::mut_from(&mut head[l3..]).expect("found before");
            header.set_id(header.id().wrapping_add(index as u16));
        }
        if protocol == Protocol::TCP {
            let header = tcp::TcpHeader::mut_from(&mut head[l4..]).expect("found before");
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
            udp::UdpHeader::mut_from(&mut head[l4..]).expect("found before").set_check(0);
        }
        for tunnel in &self.tunnels {
            patch_tunnel(tunnel, head, index, len);
        }
    }

    /// Leaves the checksum to the device, or completes it.
    fn finish(&self, mem: &Memory, seg: &mut Packet) -> Result<(), DropReason> {
        seg.meta.csum = if self.no_check { Csum::None } else { self.csum };
        if self.partial {
            return Ok(());
        }
        checksum::complete(mem, seg, self.headers.l3)?;
        // From the innermost header outwards: each checksum covers the inner ones.
        for tunnel in self.tunnels.iter().rev() {
            seg.meta.csum =
                if has_check(tunnel, seg.head()) { tunnel.partial_csum() } else { None }.unwrap_or_default();
            checksum::complete(mem, seg, tunnel.l3)?;
        }
        Ok(())
    }
}

/// Turns a tunnel's headers in `head` into those of segment `index`, whose total length is `len`. UDP's checksum
/// becomes the pseudo-header's sum, or stays zero for none (RFC 6935).
fn patch_tunnel(tunnel: &Headers, head: &mut [u8], index: usize, len: usize) {
    if tunnel.version == Version::V4 {
        let header = ipv4::Ipv4Header::mut_from(&mut head[tunnel.l3..]).expect("found before");
        header.set_id(header.id().wrapping_add(index as u16));
    }
    tunnel.fill_lengths(head, len);
    if has_check(tunnel, head) {
        let pseudo = tunnel.pseudo(head, len - tunnel.l4);
        tunnel.put_pseudo(head, pseudo);
    }
}

/// Tells whether a tunnel's header has a checksum.
fn has_check(tunnel: &Headers, head: &[u8]) -> bool {
    tunnel.protocol == Protocol::UDP && udp::UdpHeader::ref_from(&head[tunnel.l4..]).is_ok_and(|udp| udp.check() != 0)
}

/// A child's head and fragments.
fn pieces(child: Packet) -> impl Iterator<Item = Buf> {
    let (head, frags, _) = child.into_parts();
    std::iter::once(head).chain(frags)
}

/// Remaining payload, consumed from the front.
struct Payload<I> {
    front: Option<Buf>,
    rest: I,
}

impl<I: Iterator<Item = Buf>> Payload<I> {
    /// The next contiguous bytes, at most `n`.
    #[inline]
    fn next(&mut self, n: usize) -> Option<Buf> {
        loop {
            match self.front.as_mut()?.len() {
                len if len > n => return self.front.as_mut().map(|front| front.split_to(n)),
                0 => self.front = self.rest.next(),
                _ => return std::mem::replace(&mut self.front, self.rest.next()),
            }
        }
    }

    /// Moves the next `n` bytes to fragments of `seg`, or copies them if they lie in too many buffers.
    fn move_to(&mut self, n: usize, mem: &Memory, seg: &mut Packet) -> Result<(), DropReason> {
        let end = seg.len() + n;
        while seg.len() < end {
            if seg.frags().len() == MAX_FRAGS {
                let mut flat = Packet::new(mem, Memory::HEADROOM, end)?;
                let moved = seg.data_len();
                for chunk in seg.chunks() {
                    flat.put(chunk.len()).ok_or(DropReason::NoMemory)?.copy_from_slice(chunk);
                }
                mem.copied(CopyReason::SegmentPayload, moved);
                *seg = flat;
                return self.copy_to(n - moved, mem, seg);
            }
            let piece = self.next(end - seg.len()).ok_or(DropReason::CannotSegment)?;
            seg.push_frag(piece).map_err(|_| DropReason::CannotSegment)?;
        }
        Ok(())
    }

    /// Copies the next `n` bytes to the tailroom of `seg`, which is large enough.
    fn copy_to(&mut self, n: usize, mem: &Memory, seg: &mut Packet) -> Result<(), DropReason> {
        let mut to = seg.put(n).ok_or(DropReason::NoMemory)?;
        mem.copied(CopyReason::SegmentPayload, n);
        while !to.is_empty() {
            let piece = self.next(to.len()).ok_or(DropReason::CannotSegment)?;
            let (here, rest) = to.split_at_mut(piece.len());
            here.copy_from_slice(piece.bytes());
            to = rest;
        }
        Ok(())
    }
}
