//! How a packet is cut on its way into ESP, and what each segment's headers are (Linux `tcp_gso_segment`,
//! `__udp_gso_segment`).
//!
//! The general segmentation is `offload::gso`, which makes packets. Here the segments are written into frames, headers
//! and payload in one go, and their checksums completed: behind the cipher nobody can do it any more.

use base::DropReason;
use offload::checksum::sum;
use offload::gso::MAX_SEGMENTS;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::ip::Info;
use wire::tcp::{self, Flags};
use wire::{Malformed, Protocol, Version, checksum, ipv4, ipv6, udp};

/// The IP headers of a packet, which are brought into its head; bytes beyond the length that they say are cut off.
///
/// # Errors
/// What is wrong with them, or [`DropReason::NoMemory`].
pub(crate) fn ip_headers(mem: &Memory, pkt: &mut Packet) -> Result<Info, DropReason> {
    loop {
        match Info::parse(pkt.head(), pkt.len()) {
            Ok(info) => {
                if info.total_len < pkt.len() {
                    pkt.trim(info.total_len);
                }
                return Ok(info);
            }
            Err(Malformed::OutsideHead | Malformed::IpVersion) if pkt.headlen() < pkt.len() => {
                // Each turn brings in more, up to all there is.
                let more = (2 * pkt.headlen()).max(128).min(pkt.len());
                pkt.may_pull(mem, more)?;
            }
            Err(why) => return Err(why.into()),
        }
    }
}

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
    check: Check,
    version: Version,
}

/// What is to be done about the transport's checksum, and with it about the transport's header.
#[derive(Debug)]
enum Check {
    /// It is there already.
    Done,
    /// A whole packet's: the sum from `start` goes to `at`.
    Complete { start: usize, at: usize },
    /// Segments' whose transport header begins at `l4`. `pseudo` is the pseudo-header's sum without the length.
    Segments { l4: usize, tcp: bool, pseudo: u32, none: bool },
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
        }
    }

    fn whole(pkt: &Packet, info: &Info) -> Result<Self, DropReason> {
        let check = match pkt.meta.csum {
            Csum::Partial { start, offset } => {
                let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
                if start < info.header_len || at + 2 > pkt.len() {
                    return Err(DropReason::TransportHeader);
                }
                Check::Complete { start, at }
            }
            Csum::None | Csum::Unnecessary | Csum::Complete(_) => Check::Done,
        };
        let payload = pkt.len();
        Ok(Self { segs: 1, headers: 0, payload, size: payload, check, version: info.version(), fixed_id: true })
    }

    fn fat(mem: &Memory, pkt: &mut Packet, info: &Info, gso: Gso) -> Result<Self, DropReason> {
        let (l4, size) = (info.header_len, usize::from(gso.size));
        let (version, protocol) = match gso.kind {
            GsoKind::TcpV4 => (Version::V4, Protocol::TCP),
            GsoKind::TcpV6 => (Version::V6, Protocol::TCP),
            GsoKind::Udp => (info.version(), Protocol::UDP),
        };
        if (version, protocol) != (info.version(), info.protocol) || info.fragment.is_some() || size == 0 {
            return Err(DropReason::CannotSegment);
        }
        let tcp = protocol == Protocol::TCP;
        if !pkt.may_pull(mem, l4 + if tcp { tcp::Header::LEN } else { udp::Header::LEN })? {
            return Err(DropReason::TransportHeader);
        }
        let transport = &pkt.head()[l4..];
        let (len, check) = if tcp {
            let header = tcp::Header::ref_from(transport)?;
            (header.header_len(), header.check())
        } else {
            (udp::Header::LEN, udp::Header::ref_from(transport)?.check())
        };
        let headers = l4 + len;
        if tcp && len < tcp::Header::LEN || !pkt.may_pull(mem, headers)? {
            return Err(DropReason::TransportHeader);
        }
        let payload = pkt.len() - headers;
        let segs = payload.div_ceil(size).max(1);
        if segs > MAX_SEGMENTS {
            return Err(DropReason::CannotSegment);
        }
        let partial = matches!(pkt.meta.csum, Csum::Partial { start, .. } if usize::from(start) == l4);
        let pseudo = if partial {
            // The sender knows the address that the check is made with, also when a routing header hides it.
            checksum::sub(u32::from(check), (len + payload) as u32)
        } else {
            pseudo(info)
        };
        let none = !tcp && !partial && check == 0 && version == Version::V4;
        let check = Check::Segments { l4, tcp, pseudo, none };
        Ok(Self { segs, headers, payload, size, check, version, fixed_id: gso.fixed_id })
    }

    /// Bytes of payload in segment `index`.
    #[inline]
    pub(crate) fn payload_of(&self, index: usize) -> usize {
        if index + 1 < self.segs { self.size } else { self.payload - (self.segs - 1) * self.size }
    }

    /// Makes `inside`, the packet's headers and a segment's payload without the first `skipped` bytes, which stay
    /// outside of ESP, the segment `index`.
    #[inline]
    pub(crate) fn patch(&self, inside: &mut [u8], skipped: usize, index: usize) {
        match self.check {
            Check::Done => {}
            Check::Complete { start, at } => {
                let (start, at) = (start - skipped, at - skipped);
                let total = sum(&inside[start..]);
                let check =
                    if at - start == udp::CHECK_AT { checksum::finish_udp(total) } else { checksum::finish(total) };
                inside[at..at + 2].copy_from_slice(&check.to_be_bytes());
            }
            Check::Segments { l4, tcp, pseudo, none } => {
                if skipped == 0 {
                    self.patch_ip(inside, index);
                }
                let transport = &mut inside[l4 - skipped..];
                let pseudo = checksum::add(pseudo, transport.len() as u32);
                if tcp {
                    self.patch_tcp(transport, index, pseudo);
                } else {
                    patch_udp(transport, pseudo, none);
                }
            }
        }
    }

    fn patch_ip(&self, packet: &mut [u8], index: usize) {
        let len = packet.len();
        match self.version {
            Version::V4 => {
                let header = ipv4::Header::mut_from(packet).expect("an IPv4 header, parsed before");
                header.set_total_len(len as u16);
                if !self.fixed_id {
                    header.set_id(header.id().wrapping_add(index as u16));
                }
                ipv4::fill_check(packet).expect("an IPv4 header, parsed before");
            }
            Version::V6 => {
                let header = ipv6::Header::mut_from(packet).expect("an IPv6 header, parsed before");
                header.set_payload_len((len - ipv6::Header::LEN) as u16);
            }
        }
    }

    fn patch_tcp(&self, transport: &mut [u8], index: usize, pseudo: u32) {
        let header = tcp::Header::mut_from(transport).expect("a TCP header, parsed before");
        header.set_seq(header.seq().wrapping_add((index * self.size) as u32));
        let mut flags = header.flags();
        if index > 0 {
            flags = flags & !Flags::CWR;
        }
        if index + 1 < self.segs {
            flags = flags & !(Flags::FIN | Flags::PSH);
        }
        header.set_flags(flags);
        header.set_check(0);
        let check = checksum::finish(checksum::add(pseudo, sum(transport)));
        transport[tcp::CHECK_AT..tcp::CHECK_AT + 2].copy_from_slice(&check.to_be_bytes());
    }
}

fn patch_udp(transport: &mut [u8], pseudo: u32, none: bool) {
    let len = transport.len();
    let header = udp::Header::mut_from(transport).expect("a UDP header, parsed before");
    header.set_len(len as u16);
    header.set_check(0);
    if !none {
        let check = checksum::finish_udp(checksum::add(pseudo, sum(transport)));
        transport[udp::CHECK_AT..udp::CHECK_AT + 2].copy_from_slice(&check.to_be_bytes());
    }
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
