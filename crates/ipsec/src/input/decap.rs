//! Decapsulation of decrypted ESP.

use base::{DropReason, Mib};
use packet::{Buf, CopyReason, Csum, Memory, Packet};
use wire::ext::Chain;
use wire::ip::Info;
use wire::{Ecn, Protocol, Version, checksum, ipv4, ipv6, udp};

use super::refused::Uncounted;
use crate::open_job::{NoopDecap, OuterHeaders};
use crate::outer::{write_own, write_v4};
use crate::pieces::Pieces;
use crate::sa::Sa;

/// The inner packet of a tunnel, without its padding (RFC 4303 §2.7), and with the congestion and DSCP marks of its
/// outer header (Linux `xfrm4_remove_tunnel_encap`, `xfrm6_remove_tunnel_encap`). `sum` is the sum of its bytes, if
/// known. Other faults are found by IP input.
#[inline]
pub(super) fn tunnel(
    sa: &Sa,
    outer: &Info,
    inside: &mut Buf,
    next_header: Protocol,
    sum: Option<u16>,
    noop_decap: &mut Option<NoopDecap>,
) -> Result<Csum, Uncounted> {
    let refused = (Mib::XfrmInStateModeError, DropReason::EspFormat);
    let bytes = inside.bytes();
    let mut csum = sum.map_or(Csum::None, Csum::Complete);
    if noop_decap.is_some_and(|noop_decap| noop_decap.is_like(bytes, next_header)) {
        return Ok(csum);
    }
    let len = bytes.len();
    let (version, total, tos) = match (next_header, Version::of(bytes)) {
        (Protocol::IPIP, Ok(Version::V4)) => {
            let header = ipv4::Ipv4Header::ref_from(bytes).map_err(|_| refused)?;
            (Version::V4, header.total_len(), header.tos())
        }
        (Protocol::IPV6, Ok(Version::V6)) => {
            let header = ipv6::Ipv6Header::ref_from(bytes).map_err(|_| refused)?;
            (Version::V6, ipv6::Ipv6Header::LEN + header.payload_len(), header.traffic_class())
        }
        _ => return Err(refused),
    };
    if !sa.takes(version) {
        return Err(refused);
    }
    *noop_decap = bytes.first_chunk().map(|&front| NoopDecap { front, next_header });
    if let Some(tos) = marked(sa, outer, tos) {
        let bytes = inside.bytes_mut().ok_or(refused)?;
        match version {
            Version::V4 => ipv4::Ipv4Header::mut_from(bytes).map_err(|_| refused)?.replace_tos(tos),
            Version::V6 => ipv6::Ipv6Header::mut_from(bytes).map_err(|_| refused)?.set_traffic_class(tos),
        }
        csum = Csum::None;
        *noop_decap = None;
    }
    //= RFC 4303 §2.7 tfc-padding: bytes behind the inner packet's length are padding, and are removed (tunnel mode)
    if total < len && total >= version.header_len() {
        inside.trim(total);
        csum = Csum::None;
    }
    Ok(csum)
}

/// The inner TOS after decapsulation, if it changes: the outer DSCP if the SA copies it; CE if the outer header has it
/// and the inner one can carry it. If the inner one cannot, the packet passes (RFC 6040 would drop it, Linux does not).
#[inline]
fn marked(sa: &Sa, outer: &Info, inner: u8) -> Option<u8> {
    if !sa.flags.decap_dscp && outer.ecn() != Ecn::Ce {
        return None;
    }
    let mut tos = inner;
    if sa.flags.decap_dscp {
        tos = Ecn::from_tos(inner).in_tos(outer.tos);
    }
    //= RFC 4301 §5.1.2.1 dscp-and-ecn
    let can_carry = matches!(Ecn::from_tos(inner), Ecn::Ect0 | Ecn::Ect1);
    if !sa.flags.noecn && outer.ecn() == Ecn::Ce && can_carry {
        tos = Ecn::Ce.in_tos(tos);
    }
    (tos != inner).then_some(tos)
}

const PARSED: &str = "an IP header, parsed before";

impl OuterHeaders {
    /// The packet that transport mode protected: its own IP headers in front of `inside`, in its headroom if there is
    /// enough, else in a buffer of their own, which is returned. `sum` is the sum of `inside`, if known.
    pub(super) fn transport(
        &mut self,
        mem: &Memory,
        inside: &mut Buf,
        next_header: Protocol,
        sum: Option<u16>,
        id: u16,
    ) -> Result<Option<Buf>, Uncounted> {
        let len = self.info.header_len;
        let renewed = if self.is_udp { self.renew_checksum(inside, next_header) } else { Csum::None };
        let front = if self.push_own(mem, inside, next_header, id) {
            None
        } else {
            let no_memory = (Mib::XfrmInError, DropReason::NoMemory);
            let mut front = mem.take(Memory::HEADROOM, len).map_err(|_| no_memory)?;
            self.restore(mem, front.put(len).ok_or(no_memory)?, next_header, len + inside.len(), id);
            Some(front)
        };
        self.meta.csum = match sum {
            Some(sum) => self.complete(&front.as_ref().unwrap_or(inside).bytes()[..len], sum),
            None => renewed,
        };
        Ok(front)
    }

    /// Makes the checksum of the upper layer right for these headers: the sender's covers the addresses before translation, and
    /// the ICV was correct (RFC 3948 §3.1.2). Linux marks the packet `CHECKSUM_UNNECESSARY`, but a TAP's kernel and the next host
    /// verify the bytes. The checksum of a fragment is left to reassembly.
    fn renew_checksum(&self, inside: &mut Buf, next_header: Protocol) -> Csum {
        let Some(payload) = inside.bytes_mut() else { return Csum::None };
        let found = match self.info.version() {
            Version::V4 => Some((next_header, 0)),
            Version::V6 => Chain::upper_layer(next_header, payload),
        };
        let renewed = found.is_some_and(|(protocol, at)| {
            offload::checksum::renew(self.info.src, self.info.dst, protocol, &mut payload[at..])
        });
        if renewed { Csum::Unnecessary } else { Csum::None }
    }

    /// As [`transport`](Self::transport) if `inside` has the headroom; else false.
    #[inline]
    pub(super) fn push_own(&mut self, mem: &Memory, inside: &mut Buf, next_header: Protocol, id: u16) -> bool {
        let total = self.info.header_len + inside.len();
        let Some(front) = inside.push(self.info.header_len) else { return false };
        self.restore(mem, front, next_header, total, id);
        true
    }

    /// Writes the IP headers of a packet of `total` bytes with `next_header` inside to `to`. Most packets have the same
    /// length and protocol as the one before, so the kept headers are updated only for others; they are complete but
    /// for the identification.
    #[expect(clippy::inline_always, reason = "less than a call takes")]
    #[inline(always)]
    fn restore(&mut self, mem: &Memory, to: &mut [u8], next_header: Protocol, total: usize, id: u16) {
        let own = &mut self.headers[..self.info.header_len];
        mem.copied(CopyReason::SegmentHeader, own.len());
        match self.info.version() {
            Version::V4 => {
                let header = ipv4::Ipv4Header::mut_from(own).expect(PARSED);
                if header.total_len() != total || header.protocol() != next_header {
                    header.replace_total_len(total as u16);
                    header.replace_protocol(next_header);
                }
                write_v4(to, *header, own, id.wrapping_sub(self.info.id));
            }
            Version::V6 => {
                own[self.info.next_header_at] = next_header.0;
                ipv6::Ipv6Header::mut_from(own).expect(PARSED).set_payload_len((total - ipv6::Ipv6Header::LEN) as u16);
                to.copy_from_slice(own);
            }
        }
    }

    /// Checksum state of a packet with these IP `headers`, in front of bytes whose sum is `sum`.
    #[inline(always)]
    pub(super) fn complete(&self, headers: &[u8], sum: u16) -> Csum {
        let of_headers = match self.info.version() {
            // A header with a correct checksum sums to 0xffff.
            Version::V4 => 0xffff,
            Version::V6 => offload::checksum::sum(headers),
        };
        Csum::Complete(checksum::fold(checksum::add(sum.into(), of_headers)))
    }
}

/// The first `n` bytes of `pieces` as a packet with `headers`, those of ESP or ESP in UDP: one of a mixed train.
pub(super) fn datagram(
    mem: &Memory,
    info: &Info,
    headers: &[u8],
    id: u16,
    pieces: &mut Pieces<'_>,
    n: usize,
) -> Result<Packet, DropReason> {
    let total = headers.len() + n;
    let mut pkt = Packet::new(mem, Memory::HEADROOM, total)?;
    let bytes = pkt.put(total).ok_or(DropReason::NoMemory)?;
    let (front, payload) = bytes.split_at_mut(headers.len());
    pieces.copy(0, payload);
    pieces.skip(n);
    let (ip, udp) = front.split_at_mut(info.header_len);
    let (own, own_udp) = headers.split_at(info.header_len);
    write_own(ip, own, info.version(), info.next_header_at, info.protocol, total, id.wrapping_sub(info.id));
    udp.copy_from_slice(own_udp);
    if let Ok(udp) = udp::UdpHeader::mut_from(udp) {
        udp.set_len((udp::UdpHeader::LEN + n) as u16);
    }
    mem.copied(CopyReason::SegmentPayload, n);
    Ok(pkt)
}
