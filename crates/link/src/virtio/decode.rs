//! From a header to what is known of its frame.

use std::fmt;

use base::DropReason;
use packet::{Csum, Cut, Gso, GsoKind};
use wire::checksum::{fold, pseudo_v4, pseudo_v6};
use wire::{EtherType, Protocol, eth, ip, tcp, udp, vlan};

use super::{DATA_VALID, Decoded, Framing, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Header, NEEDS_CSUM};

/// Where TCP has its checksum: `csum_offset` of a partial one.
const TCP_CHECK_AT: u16 = tcp::CHECK_AT as u16;
/// Where UDP has its checksum.
const UDP_CHECK_AT: u16 = udp::CHECK_AT as u16;

/// The most VLAN tags in a frame that has something to offload.
const MAX_TAGS: usize = 2;

/// Segments of one UDP train (`UDP_MAX_SEGMENTS`).
const MAX_UDP_SEGS: usize = 128;

/// The header contradicts its frame, or itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadHeader {
    /// `hdr_len` is more than the frame has.
    HeaderLen,
    /// The sum does not start at the frame's own TCP or UDP header, or does not go to its checksum field.
    ChecksumPlace,
    /// A type that nobody negotiated, or ECN beside one that has none.
    GsoType,
    /// `gso_size` is 0, or Linux's `GSO_BY_FRAGS`, or makes more segments than there may be.
    GsoSize,
    /// The type is not the frame's protocol.
    GsoProtocol,
    /// There is something to offload, but the frame's IP or transport header is malformed, or it is a fragment.
    Frame,
}

impl From<BadHeader> for DropReason {
    fn from(_: BadHeader) -> Self {
        Self::VirtioHeader
    }
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeaderLen => "hdr_len beyond the frame",
            Self::ChecksumPlace => "csum_start or csum_offset not the transport header's",
            Self::GsoType => "gso_type unknown",
            Self::GsoSize => "gso_size impossible",
            Self::GsoProtocol => "gso_type is not the frame's protocol",
            Self::Frame => "offload of a frame with malformed headers",
        })
    }
}

impl std::error::Error for BadHeader {}

/// What `header` says of a frame of `len` bytes, of which `head` holds the first.
///
/// Sums and offsets of the answer count from the frame's first byte, and lie inside it. A frame whose payload is one
/// segment is not fat (Linux's `virtio_net_hdr_to_skb`).
///
/// # Errors
/// [`BadHeader`]; the frame is to be dropped as [`DropReason::VirtioHeader`].
pub fn decode(header: &Header, framing: Framing, head: &[u8], len: usize) -> Result<Decoded, BadHeader> {
    if usize::from(header.hdr_len) > len {
        return Err(BadHeader::HeaderLen);
    }
    let needs_csum = header.flags & NEEDS_CSUM != 0;
    let valid = if header.flags & DATA_VALID != 0 { Csum::Unnecessary } else { Csum::None };
    if header.gso_type == GSO_NONE {
        let csum = if needs_csum { partial(header, &Transport::of(framing, head, len)?)? } else { valid };
        return Ok(Decoded { csum, cut: Cut::Whole, seed: None });
    }
    let ecn = header.gso_type & GSO_ECN != 0;
    let kind = match header.gso_type & !GSO_ECN {
        GSO_TCPV4 => GsoKind::TcpV4,
        GSO_TCPV6 => GsoKind::TcpV6,
        GSO_UDP_L4 if !ecn => GsoKind::Udp,
        _ => return Err(BadHeader::GsoType),
    };
    if header.gso_size == 0 || header.gso_size == u16::MAX {
        return Err(BadHeader::GsoSize);
    }
    let transport = Transport::of(framing, head, len)?;
    let matches = match kind {
        GsoKind::TcpV4 => (transport.protocol, transport.version) == (Protocol::TCP, ip::Version::V4),
        GsoKind::TcpV6 => (transport.protocol, transport.version) == (Protocol::TCP, ip::Version::V6),
        GsoKind::Udp => transport.protocol == Protocol::UDP,
    };
    if !matches {
        return Err(BadHeader::GsoProtocol);
    }
    let segs = transport.payload_len.div_ceil(usize::from(header.gso_size));
    if kind == GsoKind::Udp && segs > MAX_UDP_SEGS {
        return Err(BadHeader::GsoSize);
    }
    let cut = match u16::try_from(segs).map_err(|_| BadHeader::GsoSize)? {
        0 | 1 => Cut::Whole,
        segs => Cut::Gso(Gso { kind, size: header.gso_size, segs, ecn, fixed_id: false }),
    };
    if needs_csum {
        return Ok(Decoded { csum: partial(header, &transport)?, cut, seed: None });
    }
    let (csum, seed) = match cut {
        Cut::Gso(_) => {
            let at = transport.start + usize::from(transport.check_at);
            let start = u16::try_from(transport.start).map_err(|_| BadHeader::Frame)?;
            (Csum::Partial { start, offset: transport.check_at }, Some((at, transport.pseudo_sum.to_be_bytes())))
        }
        Cut::Whole | Cut::Frames(_) | Cut::Fragment => (valid, None),
    };
    Ok(Decoded { csum, cut, seed })
}

/// The partial checksum that the header asks for, if it is the one of the frame's own transport header.
fn partial(header: &Header, transport: &Transport) -> Result<Csum, BadHeader> {
    if usize::from(header.csum_start) != transport.start || header.csum_offset != transport.check_at {
        return Err(BadHeader::ChecksumPlace);
    }
    Ok(Csum::Partial { start: header.csum_start, offset: header.csum_offset })
}

/// A frame's TCP or UDP header.
struct Transport {
    version: ip::Version,
    protocol: Protocol,
    /// Where it starts, from the frame's first byte.
    start: usize,
    /// Where its checksum is, from there.
    check_at: u16,
    /// Bytes behind it.
    payload_len: usize,
    /// The folded sum of its pseudo-header.
    pseudo_sum: u16,
}

impl Transport {
    fn of(framing: Framing, head: &[u8], len: usize) -> Result<Self, BadHeader> {
        let l3 = match framing {
            Framing::Ip => 0,
            Framing::Ethernet => ip_offset(head)?,
        };
        let head = head.get(l3..).ok_or(BadHeader::Frame)?;
        let info = ip::Info::parse(head, len.saturating_sub(l3)).map_err(|_| BadHeader::Frame)?;
        if info.fragment.is_some() {
            return Err(BadHeader::Frame);
        }
        let payload = info.payload(head);
        let (header_len, check_at) = match info.protocol {
            Protocol::TCP => {
                let tcp = tcp::Tcp::parse_head(payload, info.payload_len()).map_err(|_| BadHeader::Frame)?;
                (tcp.header_len(), TCP_CHECK_AT)
            }
            Protocol::UDP => {
                udp::Header::ref_from(payload).map_err(|_| BadHeader::Frame)?;
                (udp::Header::LEN, UDP_CHECK_AT)
            }
            _ => return Err(BadHeader::ChecksumPlace),
        };
        let sum = match (info.src, info.dst) {
            (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
                pseudo_v4(src, dst, info.protocol, info.payload_len())
            }
            (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
                pseudo_v6(src, dst, info.protocol, info.payload_len())
            }
            _ => return Err(BadHeader::Frame),
        };
        Ok(Self {
            version: info.version(),
            protocol: info.protocol,
            start: l3 + info.header_len,
            check_at,
            payload_len: info.payload_len().saturating_sub(header_len),
            pseudo_sum: fold(sum),
        })
    }
}

/// Where the IP header of an Ethernet frame starts, behind its VLAN tags.
fn ip_offset(frame: &[u8]) -> Result<usize, BadHeader> {
    let header = eth::Header::ref_from(frame).map_err(|_| BadHeader::Frame)?;
    let (mut ethertype, mut at) = (header.ethertype(), eth::Header::LEN);
    for _ in 0..MAX_TAGS {
        if !ethertype.is_vlan() {
            break;
        }
        let tag = frame.get(at..).and_then(|rest| vlan::Header::ref_from(rest).ok()).ok_or(BadHeader::Frame)?;
        (ethertype, at) = (tag.ethertype(), at + vlan::Header::LEN);
    }
    match ethertype {
        EtherType::IPV4 | EtherType::IPV6 => Ok(at),
        _ => Err(BadHeader::Frame),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::HEADER_LEN;

    /// TCP with a timestamp option and `payload` bytes, over IPv4 or IPv6.
    fn tcp_frame(version: ip::Version, payload: usize) -> Vec<u8> {
        let mut segment = tcp::Header::new(1, 2, 3, 4);
        segment.set_header_len(32);
        let mut bytes = ip_header(version, Protocol::TCP, 32 + payload);
        bytes.extend_from_slice(segment.as_bytes());
        bytes.resize(bytes.len() + 12 + payload, 1);
        bytes
    }

    fn udp_frame(version: ip::Version, payload: usize) -> Vec<u8> {
        let mut bytes = ip_header(version, Protocol::UDP, 8 + payload);
        bytes.extend_from_slice(udp::Header::new(1, 2, (8 + payload) as u16).as_bytes());
        bytes.resize(bytes.len() + payload, 1);
        bytes
    }

    fn ip_header(version: ip::Version, protocol: Protocol, payload: usize) -> Vec<u8> {
        match version {
            ip::Version::V4 => {
                let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
                let mut header = wire::ipv4::Header::new(src, dst, protocol, (20 + payload) as u16);
                header.fill_check();
                header.as_bytes().to_vec()
            }
            ip::Version::V6 => {
                let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
                wire::ipv6::Header::new(src, dst, protocol, payload as u16).as_bytes().to_vec()
            }
        }
    }

    const V4: ip::Version = ip::Version::V4;
    const V6: ip::Version = ip::Version::V6;

    fn gso(kind: GsoKind, size: u16, segs: u16) -> Cut {
        Cut::Gso(Gso { kind, size, segs, ecn: false, fixed_id: false })
    }

    #[test]
    fn what_a_kernel_sends_is_understood() {
        let fat = |gso_type, gso_size, csum_start, csum_offset| Header {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: 40,
            gso_size,
            csum_start,
            csum_offset,
        };
        let partial = |start, offset| Csum::Partial { start, offset };
        let cases = [
            (Header::default(), vec![0xff; 3], (Csum::None, Cut::Whole)),
            (Header { flags: DATA_VALID, ..Header::default() }, vec![0xff; 3], (Csum::Unnecessary, Cut::Whole)),
            (fat(GSO_NONE, 0, 20, 16), tcp_frame(V4, 10), (partial(20, 16), Cut::Whole)),
            (fat(GSO_NONE, 0, 40, 6), udp_frame(V6, 10), (partial(40, 6), Cut::Whole)),
            (fat(GSO_TCPV4, 1448, 20, 16), tcp_frame(V4, 2896), (partial(20, 16), gso(GsoKind::TcpV4, 1448, 2))),
            (fat(GSO_TCPV4, 1448, 20, 16), tcp_frame(V4, 2897), (partial(20, 16), gso(GsoKind::TcpV4, 1448, 3))),
            (fat(GSO_TCPV6, 1428, 40, 16), tcp_frame(V6, 65_000), (partial(40, 16), gso(GsoKind::TcpV6, 1428, 46))),
            (fat(GSO_UDP_L4, 1400, 20, 6), udp_frame(V4, 1401), (partial(20, 6), gso(GsoKind::Udp, 1400, 2))),
            (fat(GSO_UDP_L4, 10, 40, 6), udp_frame(V6, 1280), (partial(40, 6), gso(GsoKind::Udp, 10, 128))),
            // One segment is not fat.
            (fat(GSO_TCPV4, 1448, 20, 16), tcp_frame(V4, 1448), (partial(20, 16), Cut::Whole)),
            (fat(GSO_TCPV4, 1448, 20, 16), tcp_frame(V4, 0), (partial(20, 16), Cut::Whole)),
        ];
        for (header, frame, want) in cases {
            let got = decode(&header, Framing::Ip, &frame, frame.len());
            assert_eq!(got.map(|got| (got.csum, got.cut)), Ok(want), "{header:?}");
        }
    }

    #[test]
    fn a_header_that_contradicts_its_frame_is_refused() {
        let good = Header {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 52,
            gso_size: 1448,
            csum_start: 20,
            csum_offset: 16,
        };
        let frame = tcp_frame(V4, 3000);
        let cases = [
            (Header { hdr_len: 3053, ..good }, BadHeader::HeaderLen),
            (Header { csum_start: 0, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_start: 16, csum_offset: 0, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_start: 3051, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_start: u16::MAX, csum_offset: u16::MAX, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_offset: 6, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_offset: 0, gso_type: GSO_NONE, ..good }, BadHeader::ChecksumPlace),
            (Header { gso_type: 2, ..good }, BadHeader::GsoType),
            (Header { gso_type: 3, ..good }, BadHeader::GsoType), // UFO
            (Header { gso_type: 0x7f, ..good }, BadHeader::GsoType),
            (Header { gso_type: GSO_ECN, ..good }, BadHeader::GsoType),
            (Header { gso_type: GSO_ECN | GSO_UDP_L4, ..good }, BadHeader::GsoType),
            (Header { gso_size: 0, ..good }, BadHeader::GsoSize),
            (Header { gso_size: u16::MAX, ..good }, BadHeader::GsoSize),
            (Header { gso_type: GSO_TCPV6, ..good }, BadHeader::GsoProtocol),
            (Header { gso_type: GSO_UDP_L4, ..good }, BadHeader::GsoProtocol),
        ];
        assert!(decode(&good, Framing::Ip, &frame, frame.len()).is_ok());
        for (header, want) in cases {
            assert_eq!(decode(&header, Framing::Ip, &frame, frame.len()), Err(want), "{header:?}");
        }
        let train = Header { gso_type: GSO_UDP_L4, csum_offset: 6, gso_size: 10, ..good };
        let frame = udp_frame(V4, 1281);
        assert_eq!(decode(&train, Framing::Ip, &frame, frame.len()), Err(BadHeader::GsoSize));
    }

    #[test]
    fn an_offload_needs_a_frame_that_is_in_order() {
        let header = Header { flags: NEEDS_CSUM, csum_start: 20, csum_offset: 16, ..Header::default() };
        let frame = tcp_frame(V4, 100);
        let with = |at: usize, byte: u8| {
            let mut frame = frame.clone();
            frame[at] = byte;
            frame
        };
        for (what, bad) in [
            ("nothing", vec![]),
            ("version", with(0, 0x55)),
            ("header length", with(0, 0x4f)),
            ("check", with(10, frame[10] ^ 1)),
            ("tcp header cut short", frame[..39].to_vec()),
        ] {
            assert_eq!(decode(&header, Framing::Ip, &bad, bad.len()), Err(BadHeader::Frame), "{what}");
        }
        let fragment = {
            let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
            let mut header = wire::ipv4::Header::new(src, dst, Protocol::TCP, frame.len() as u16);
            header.set_fragment(wire::FragOffset::ZERO, true);
            header.fill_check();
            [header.as_bytes(), &frame[20..]].concat()
        };
        assert_eq!(decode(&header, Framing::Ip, &fragment, fragment.len()), Err(BadHeader::Frame));
    }

    #[test]
    fn offsets_count_from_the_ethernet_header_and_its_tags() {
        let packet = tcp_frame(V6, 5000);
        for tags in 0..=3 {
            let mut frame = vec![2; 12];
            for _ in 0..tags {
                frame.extend([0x81, 0x00, 0x00, 0x07]);
            }
            frame.extend([0x86, 0xdd]);
            frame.extend(&packet);
            let csum_start = 54 + 4 * tags;
            let header = Header {
                flags: NEEDS_CSUM,
                gso_type: GSO_TCPV6 | GSO_ECN,
                hdr_len: 0,
                gso_size: 1000,
                csum_start,
                csum_offset: 16,
            };
            let gso = Gso { kind: GsoKind::TcpV6, size: 1000, segs: 5, ecn: true, fixed_id: false };
            let csum = Csum::Partial { start: csum_start, offset: 16 };
            let want = Decoded { csum, cut: Cut::Gso(gso), seed: None };
            let want = if tags <= 2 { Ok(want) } else { Err(BadHeader::Frame) };
            assert_eq!(decode(&header, Framing::Ethernet, &frame, frame.len()), want, "{tags} tags");
        }
    }

    #[test]
    fn a_finished_checksum_of_a_fat_frame_becomes_a_partial_one() {
        let frame = tcp_frame(V4, 3000);
        let header = Header { flags: DATA_VALID, gso_type: GSO_TCPV4, gso_size: 1500, ..Header::default() };
        let got = decode(&header, Framing::Ip, &frame, frame.len()).unwrap();
        assert_eq!((got.csum, got.cut), (Csum::Partial { start: 20, offset: 16 }, gso(GsoKind::TcpV4, 1500, 2)));
        // 10.0.0.1, 10.0.0.2, protocol 6, 3032 bytes.
        let sum = 0x0a00 + 1 + 0x0a00 + 2 + 6 + 3032_u16;
        assert_eq!(got.seed, Some((36, sum.to_be_bytes())));
    }

    #[test]
    fn no_header_over_any_frame_reaches_outside_it() {
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        let frames = [tcp_frame(V4, 200), tcp_frame(V6, 200), udp_frame(V4, 200), udp_frame(V6, 200)];
        let mut accepted = 0;
        for round in 0..40_000 {
            let mut frame = frames[round % 4].clone();
            if round % 5 == 0 {
                frame.truncate(usize::from(next()) + 20);
            }
            let mut bytes = [0; HEADER_LEN];
            bytes.fill_with(&mut next);
            bytes[0] &= 3;
            bytes[1] &= 0x87;
            if round % 2 == 0 {
                (bytes[3], bytes[5], bytes[7], bytes[9]) = (0, 0, 0, 0);
                (bytes[6], bytes[8]) = ([20, 40][round / 2 % 2], [16, 6][round / 4 % 2]);
            }
            let Ok(got) = decode(&Header::from_bytes(bytes), Framing::Ip, &frame, frame.len()) else { continue };
            accepted += 1;
            if let Csum::Partial { start, offset } = got.csum {
                assert!(usize::from(start) + usize::from(offset) + 2 <= frame.len(), "{bytes:?}");
            }
            assert!(got.cut.gso().is_none_or(|gso| gso.size > 0 && gso.segs > 1), "{bytes:?}");
        }
        assert!(accepted > 1000, "{accepted}");
    }
}
