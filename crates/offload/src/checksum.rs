//! The Internet checksum of packets (RFC 1071), and completion and verification of transport checksums, including
//! SCTP's CRC32c (RFC 9260 §6.8).
//!
//! Arithmetic on sums is in `wire::checksum`; this module sums bytes ([`sum()`]).

use std::net::IpAddr;

use base::DropReason;
use packet::{Buf, Csum, Memory, Packet};
use wire::ip::Info;
use wire::{Protocol, Version, checksum as sums, icmpv6, tcp, udp};

use crate::crc32c::Crc32c;
use crate::encapsulation::Encapsulation;
pub use crate::sum::sum;

/// The partial sum of a short header of 32-bit words: bytes after the last complete word do not count.
#[inline]
pub(crate) fn sum_words(header: &[u8]) -> u32 {
    let (words, _) = header.as_chunks::<4>();
    let acc: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    sums::fold(sums::add(acc as u32, (acc >> 32) as u32)).into()
}

/// The partial sum of a packet's bytes `from..to`, across buffers. Bytes past the packet's end count as zero.
pub fn sum_of(pkt: &Packet, from: usize, to: usize) -> u32 {
    if let Some(bytes) = pkt.head().get(from..to) {
        return sum(bytes);
    }
    let (mut at, mut acc) = (0, 0);
    let mut add = |chunk: &[u8]| {
        let (lo, hi) = (from.saturating_sub(at).min(chunk.len()), to.saturating_sub(at).min(chunk.len()));
        if lo < hi {
            acc = sums::block_add(acc, sum(&chunk[lo..hi]), at + lo - from);
        }
        at += chunk.len();
    };
    add(pkt.head());
    pkt.frags().iter().for_each(|buf| add(buf.bytes()));
    pkt.frag_list().iter().flat_map(Packet::chunks).for_each(add);
    acc
}

/// The transport checksum with a pseudo-header (TCP, UDP, ICMPv6) over the bytes including the field: the value to
/// store if the field is zero, and zero if the field is right. `pkt` begins with the IP header that `info` summarizes.
pub fn transport_check(pkt: &Packet, info: &Info) -> u16 {
    let len = info.payload_len();
    let pseudo = match (info.src, info.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sums::pseudo_v4(src, dst, info.protocol, len),
        (IpAddr::V6(src), IpAddr::V6(dst)) => sums::pseudo_v6(src, dst, info.protocol, len),
        _ => unreachable!("both addresses are of one header"),
    };
    sums::finish(sums::add(pseudo, sum_of(pkt, info.header_len, info.total_len)))
}

/// Tells whether a packet's TCP, UDP or ICMPv6 checksum is right, or was verified by its device. The packet begins with
/// the IP header that `info` summarizes, and is not a fragment. True for other protocols, which have no such checksum.
///
/// A UDP checksum of zero means "none" over IPv4 (RFC 768), and is wrong over IPv6 (RFC 8200 §8.1).
pub fn verify(pkt: &Packet, info: &Info) -> bool {
    match pkt.meta.csum {
        Csum::Unnecessary | Csum::Partial { .. } => return true,
        Csum::None | Csum::Complete(_) => {}
    }
    match info.protocol {
        Protocol::UDP => {
            let mut check = [0; 2];
            if !pkt.read_at(info.header_len + udp::CHECK_AT, &mut check) {
                return false;
            }
            if check == [0; 2] {
                return info.version() == Version::V4;
            }
        }
        Protocol::TCP | Protocol::ICMPV6 => {}
        _ => return true,
    }
    transport_check(pkt, info) == 0
}

/// Writes the checksum of TCP, UDP or ICMPv6 that fits these addresses to `upper`, a whole upper layer. Returns false, and
/// changes nothing, if it has no such checksum: UDP without one, another protocol, a truncated header.
pub fn renew(src: IpAddr, dst: IpAddr, protocol: Protocol, upper: &mut [u8]) -> bool {
    let (check_at, len) = match (protocol, dst) {
        (Protocol::TCP, _) if upper.len() >= tcp::TcpHeader::LEN => (tcp::CHECK_AT, upper.len()),
        (Protocol::ICMPV6, IpAddr::V6(_)) if upper.len() >= icmpv6::Icmpv6Header::LEN => (ICMPV6_CHECK_AT, upper.len()),
        (Protocol::UDP, _) => match udp::UdpHeader::ref_from(upper) {
            Ok(header) if header.check() == 0 => return false,
            // A length of 0 is that of a jumbogram (RFC 2675 §4).
            Ok(header) if header.len() == 0 && dst.is_ipv6() => (udp::CHECK_AT, upper.len()),
            Ok(header) if (udp::UdpHeader::LEN..=upper.len()).contains(&header.len()) => (udp::CHECK_AT, header.len()),
            _ => return false,
        },
        _ => return false,
    };
    let pseudo = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sums::pseudo_v4(src, dst, protocol, len),
        (IpAddr::V6(src), IpAddr::V6(dst)) => sums::pseudo_v6(src, dst, protocol, len),
        _ => return false,
    };
    upper[check_at..check_at + 2].fill(0);
    let total = sums::add(pseudo, sum(&upper[..len]));
    let check = if protocol == Protocol::UDP { sums::finish_udp(total) } else { sums::finish(total) };
    upper[check_at..check_at + 2].copy_from_slice(&check.to_be_bytes());
    true
}

/// Completes a partial checksum (Linux `skb_checksum_help`); other states are unchanged. A zero checksum is sent as
/// 0xffff only at UDP's offset.
///
/// The checksum may belong to any protocol, and lie anywhere behind `l3`, the start of the IP header. SCTP's is a
/// CRC32c (Linux `skb_crc32c_csum_help`), which is recognized by the preceding headers, also in tunnels, as a
/// virtio-net header does not contain the kind. If the headers do not lead to the checksum, an Internet checksum is
/// assumed.
///
/// # Errors
/// [`DropReason::CannotSegment`] for a fat packet, since each of its segments has its own checksum;
/// [`DropReason::TransportHeader`] if the field lies past the packet's end; [`DropReason::NoMemory`].
pub fn complete(mem: &Memory, pkt: &mut Packet, l3: usize) -> Result<(), DropReason> {
    let Csum::Partial { start, offset } = pkt.meta.csum else { return Ok(()) };
    if pkt.meta.cut.gso().is_some() {
        return Err(DropReason::CannotSegment);
    }
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    if !pkt.may_pull(mem, at + 2)? {
        return Err(DropReason::TransportHeader);
    }
    // The owner of foreign memory could change the bytes after they were summed.
    if !pkt.is_linear() && pieces(pkt).any(Buf::is_foreign) {
        pkt.linearize(mem)?;
    }
    pkt.writable_head(mem)?;
    if usize::from(offset) == SCTP_CHECK_AT && is_sctp(pkt, l3, start) {
        return complete_crc32c(mem, pkt, start, at);
    }
    let total = sum_of(pkt, start, pkt.len());
    let check = if usize::from(offset) == udp::CHECK_AT { sums::finish_udp(total) } else { sums::finish(total) };
    let head = pkt.head_mut().ok_or(DropReason::NoMemory)?;
    head[at..at + 2].copy_from_slice(&check.to_be_bytes());
    pkt.meta.csum = Csum::Unnecessary;
    Ok(())
}

/// Offset of ICMPv6's checksum (RFC 4443 §2.1).
const ICMPV6_CHECK_AT: usize = 2;

/// Offset of SCTP's checksum, four bytes (RFC 9260 §3.1).
const SCTP_CHECK_AT: usize = 8;

/// Tells whether the headers from `l3` on lead to an SCTP header at `start`.
fn is_sctp(pkt: &Packet, l3: usize, start: usize) -> bool {
    Encapsulation::parse(pkt.head(), pkt.len(), l3, start).is_ok_and(|found| found.inner.protocol == Protocol::SCTP)
}

/// Computes the CRC32c of all bytes from `start` on, with zeros in the checksum field, and writes it to `at` (RFC 9260
/// §6.8).
fn complete_crc32c(mem: &Memory, pkt: &mut Packet, start: usize, at: usize) -> Result<(), DropReason> {
    if !pkt.may_pull(mem, at + 4)? {
        return Err(DropReason::TransportHeader);
    }
    let head = pkt.writable_head(mem)?;
    head[at..at + 4].fill(0);
    let mut crc = Crc32c::EMPTY;
    crc.add(&head[start..]);
    pkt.frags().iter().for_each(|buf| crc.add(buf.bytes()));
    pkt.frag_list().iter().flat_map(Packet::chunks).for_each(|chunk| crc.add(chunk));
    let head = pkt.head_mut().ok_or(DropReason::NoMemory)?;
    head[at..at + 4].copy_from_slice(&crc.to_bytes());
    pkt.meta.csum = Csum::Unnecessary;
    Ok(())
}

/// A packet's fragments and those of its children, and the children's heads.
fn pieces(pkt: &Packet) -> impl Iterator<Item = &Buf> {
    let children = pkt.frag_list().iter().flat_map(Packet::frags);
    pkt.frags().iter().chain(children)
}
