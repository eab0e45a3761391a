//! How a packet is cut on its way into ESP, and what each segment's headers are (Linux `tcp_gso_segment`,
//! `__udp_gso_segment`).
//!
//! The general segmentation is `offload::gso`, which makes packets. Here the segments are written into frames, headers
//! and payload in one go, and their checksums completed: behind the cipher nobody can do it any more.

use base::DropReason;
use offload::gso::MAX_SEGMENTS;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::ip::Info;
use wire::tcp::{self, Flags};
use wire::{Protocol, Version, checksum, ipv4, ipv6, udp};

/// How a packet is cut.
#[derive(Debug)]
pub(crate) struct Cutting {
    /// How many segments there are; 1 for a packet that is whole.
    pub(crate) segs: usize,
    /// Bytes of headers that each segment repeats; 0 for a packet that is whole.
    pub(crate) headers: usize,
    /// Bytes of payload behind the headers in all, and in each segment but the last.
    pub(crate) payload: usize,
    pub(crate) size: usize,
    /// Whether all segments have one IPv4 identification.
    pub(crate) fixed_id: bool,
    checks: Checks,
}

/// What is to be done about checksums, and with them about the headers that they cover.
#[derive(Debug)]
enum Checks {
    /// They are there already.
    Done,
    /// A whole packet's: the sum from `start` goes to `at`.
    Complete { start: usize, at: usize },
    /// Each segment's, made from what all have in common and what one has for itself.
    Segments { ip: IpTemplate, l4: usize, transport: TransportTemplate },
}

/// What is changed in each segment's IP header.
#[derive(Debug)]
enum IpTemplate {
    /// `rest` is the header's sum without length and identification.
    V4 {
        id: u16,
        rest: u32,
    },
    V6,
}

/// What is changed in each segment's transport header; `rest` is the sum of the pseudo-header and of the header without
/// what is changed.
#[derive(Debug)]
enum TransportTemplate {
    Tcp {
        seq: u32,
        flags: Flags,
        rest: u32,
    },
    Udp {
        rest: u32,
    },
    /// UDP over IPv4 that was sent without a check.
    Unchecked,
}

impl Cutting {
    /// Decides how `pkt`, whose IP headers are `info`, is cut, and brings all headers that repeat into its head.
    ///
    /// # Errors
    /// [`DropReason::CannotSegment`] when a fat packet is not what it says it is; what is wrong with its headers.
    pub(crate) fn new(mem: &Memory, pkt: &mut Packet, info: &Info) -> Result<Self, DropReason> {
        match pkt.meta.cut {
            Cut::Gso(gso) => Self::fat(mem, pkt, info, gso),
            Cut::Whole | Cut::Fragment => Self::whole(pkt, info),
            Cut::Frames(_) => Err(DropReason::CannotSegment),
        }
    }

    fn whole(pkt: &Packet, info: &Info) -> Result<Self, DropReason> {
        let checks = match pkt.meta.csum {
            Csum::Partial { start, offset } => {
                let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
                if start < info.header_len || at + 2 > pkt.len() {
                    return Err(DropReason::TransportHeader);
                }
                Checks::Complete { start, at }
            }
            Csum::None | Csum::Unnecessary | Csum::Complete(_) => Checks::Done,
        };
        let payload = pkt.len();
        Ok(Self { segs: 1, headers: 0, payload, size: payload, fixed_id: true, checks })
    }

    fn fat(mem: &Memory, pkt: &mut Packet, info: &Info, gso: Gso) -> Result<Self, DropReason> {
        let (l4, size) = (info.header_len, usize::from(gso.size));
        let kind_ok = match gso.kind {
            GsoKind::TcpV4 => (info.version(), info.protocol) == (Version::V4, Protocol::TCP),
            GsoKind::TcpV6 => (info.version(), info.protocol) == (Version::V6, Protocol::TCP),
            GsoKind::Udp => info.protocol == Protocol::UDP,
        };
        if !kind_ok || info.fragment.is_some() || size == 0 {
            return Err(DropReason::CannotSegment);
        }
        let headers = l4 + transport_header_len(mem, pkt, info)?;
        if !pkt.may_pull(mem, headers)? {
            return Err(DropReason::TransportHeader);
        }
        let payload = pkt.len() - headers;
        let segs = payload.div_ceil(size).max(1);
        if segs > MAX_SEGMENTS {
            return Err(DropReason::CannotSegment);
        }
        let (ip, transport) = pkt.head()[..headers].split_at(l4);
        let partial = matches!(pkt.meta.csum, Csum::Partial { start, .. } if usize::from(start) == l4);
        let transport = TransportTemplate::new(transport, info, partial)?;
        let checks = Checks::Segments { ip: IpTemplate::new(ip)?, l4, transport };
        Ok(Self { segs, headers, payload, size, fixed_id: gso.fixed_id, checks })
    }

    /// Bytes of payload in segment `index`.
    #[inline]
    pub(crate) fn payload_of(&self, index: usize) -> usize {
        if index + 1 < self.segs { self.size } else { self.payload - (self.segs - 1) * self.size }
    }

    /// Whether each segment gets a checksum of its own, so that its payload has to be summed.
    #[inline]
    pub(crate) const fn sums_payload(&self) -> bool {
        use TransportTemplate::{Tcp, Udp};
        matches!(self.checks, Checks::Segments { transport: Tcp { .. } | Udp { .. }, .. })
    }

    /// Makes `inside`, the packet's headers and a segment's payload without the first `skipped` bytes, which stay
    /// outside of ESP, the segment `index`. `sum` is the partial sum of its payload.
    #[inline]
    pub(crate) fn patch(&self, inside: &mut [u8], skipped: usize, index: usize, sum: u32) {
        match &self.checks {
            Checks::Done => {}
            Checks::Complete { start, at } => complete(inside, start - skipped, at - skipped),
            Checks::Segments { ip, l4, transport } => {
                if skipped == 0 {
                    ip.patch(inside, if self.fixed_id { 0 } else { index as u16 });
                }
                let len = inside.len() + skipped - l4;
                match transport {
                    TransportTemplate::Tcp { seq, flags, rest } => {
                        let seq = seq.wrapping_add((index * self.size) as u32);
                        let flags = self.flags(*flags, index);
                        let sum = checksum::add_all([sum, *rest, len as u32, seq, u32::from(flags.bits())]);
                        patch_tcp(&mut inside[l4 - skipped..], seq, flags, checksum::finish(sum));
                    }
                    TransportTemplate::Udp { rest } => {
                        // The length is in the pseudo-header and in the header.
                        let sum = checksum::add_all([sum, *rest, len as u32, len as u32]);
                        patch_udp(&mut inside[l4 - skipped..], len, checksum::finish_udp(sum));
                    }
                    TransportTemplate::Unchecked => patch_udp(&mut inside[l4 - skipped..], len, 0),
                }
            }
        }
    }

    /// The TCP flags of segment `index`: CWR belongs to the first, FIN and PSH to the last.
    fn flags(&self, mut flags: Flags, index: usize) -> Flags {
        if index > 0 {
            flags = flags & !Flags::CWR;
        }
        if index + 1 < self.segs {
            flags = flags & !(Flags::FIN | Flags::PSH);
        }
        flags
    }
}

/// Bytes of a fat packet's transport header, of which the fixed part is brought into the head.
fn transport_header_len(mem: &Memory, pkt: &mut Packet, info: &Info) -> Result<usize, DropReason> {
    if info.protocol == Protocol::UDP {
        return Ok(udp::Header::LEN);
    }
    if !pkt.may_pull(mem, info.header_len + tcp::Header::LEN)? {
        return Err(DropReason::TransportHeader);
    }
    match tcp::Header::ref_from(&pkt.head()[info.header_len..])?.header_len() {
        len if len < tcp::Header::LEN => Err(DropReason::TransportHeader),
        len => Ok(len),
    }
}

impl IpTemplate {
    fn new(headers: &[u8]) -> Result<Self, DropReason> {
        if Version::of(headers)? == Version::V6 {
            return Ok(Self::V6);
        }
        let header = ipv4::Header::ref_from(headers)?;
        let changed = [header.total_len() as u16, header.id(), header.check()].map(u32::from);
        let rest = changed.into_iter().fold(checksum::sum(headers), checksum::sub);
        Ok(Self::V4 { id: header.id(), rest })
    }

    fn patch(&self, packet: &mut [u8], index: u16) {
        let len = packet.len();
        match self {
            Self::V4 { id, rest } => {
                let header = ipv4::Header::mut_from(packet).expect("an IPv4 header, parsed before");
                let id = id.wrapping_add(index);
                header.set_total_len(len as u16);
                header.set_id(id);
                header.set_check(checksum::finish(checksum::add_all([*rest, len as u32, id.into()])));
            }
            Self::V6 => {
                let header = ipv6::Header::mut_from(packet).expect("an IPv6 header, parsed before");
                header.set_payload_len((len - ipv6::Header::LEN) as u16);
            }
        }
    }
}

impl TransportTemplate {
    /// `partial` tells that the check is the pseudo-header's sum: the sender knows the address that it is made with,
    /// also when a routing header hides it.
    fn new(header: &[u8], info: &Info, partial: bool) -> Result<Self, DropReason> {
        let without = |pseudo, changed: &[u32]| {
            let all = checksum::add(pseudo, checksum::sum(header));
            changed.iter().copied().fold(all, checksum::sub)
        };
        let pseudo = |check| {
            let len = info.payload_len() as u32;
            if partial { checksum::sub(u32::from(check), len) } else { pseudo(info) }
        };
        if info.protocol == Protocol::TCP {
            let tcp = tcp::Header::ref_from(header)?;
            let (seq, flags, check) = (tcp.seq(), tcp.flags(), tcp.check());
            let rest = without(pseudo(check), &[seq, u32::from(flags.bits()), u32::from(check)]);
            return Ok(Self::Tcp { seq, flags, rest });
        }
        let udp = udp::Header::ref_from(header)?;
        if !partial && udp.check() == 0 && info.version() == Version::V4 {
            return Ok(Self::Unchecked);
        }
        Ok(Self::Udp { rest: without(pseudo(udp.check()), &[udp.len() as u32, u32::from(udp.check())]) })
    }
}

fn patch_tcp(transport: &mut [u8], seq: u32, flags: Flags, check: u16) {
    let header = tcp::Header::mut_from(transport).expect("a TCP header, parsed before");
    header.set_seq(seq);
    header.set_flags(flags);
    header.set_check(check);
}

fn patch_udp(transport: &mut [u8], len: usize, check: u16) {
    let header = udp::Header::mut_from(transport).expect("a UDP header, parsed before");
    header.set_len(len as u16);
    header.set_check(check);
}

/// Completes a whole packet's checksum.
#[inline(never)]
fn complete(packet: &mut [u8], start: usize, at: usize) {
    let sum = offload::checksum::sum(&packet[start..]);
    let check = if at - start == udp::CHECK_AT { checksum::finish_udp(sum) } else { checksum::finish(sum) };
    packet[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// The pseudo-header's partial sum without the length.
fn pseudo(info: &Info) -> u32 {
    use std::net::IpAddr::{V4, V6};
    match (info.src, info.dst) {
        (V4(src), V4(dst)) => checksum::pseudo_v4(src, dst, info.protocol, 0),
        (V6(src), V6(dst)) => checksum::pseudo_v6(src, dst, info.protocol, 0),
        _ => unreachable!("both addresses are of one header"),
    }
}
