//! Decoding of a virtio-net header into a frame's metadata.

use std::fmt;

use base::DropReason;
use offload::inner_headers;
use packet::{Csum, Cut, Gso, GsoKind};
use wire::checksum::{fold, pseudo_v4, pseudo_v6};
use wire::{EtherType, Protocol, eth, ip, tcp, udp, vlan};

use super::{DATA_VALID, Decoded, Framing, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Header, NEEDS_CSUM};

/// Offset of TCP's checksum: `csum_offset` of a partial one.
const TCP_CHECK_AT: u16 = tcp::CHECK_AT as u16;
/// Offset of UDP's checksum.
const UDP_CHECK_AT: u16 = udp::CHECK_AT as u16;

/// Bytes of an Internet checksum.
const CHECK_LEN: usize = 2;

/// Maximum of VLAN tags in a frame with offloads.
const MAX_TAGS: usize = 2;

/// Segments of one UDP train (`UDP_MAX_SEGMENTS`).
const MAX_UDP_SEGS: usize = 128;

/// Contradictions in a header, or between a header and its frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadHeader {
    /// `hdr_len` is more than the frame has.
    HeaderLen,
    /// The checksum field lies past the frame, or not at the place that the segmentation's header has it.
    ChecksumPlace,
    /// A type that was not negotiated, or ECN with a type other than TCP's.
    GsoType,
    /// `gso_size` is 0, or Linux's `GSO_BY_FRAGS`, or makes more segments than there may be.
    GsoSize,
    /// The type contradicts the frame's protocol.
    GsoProtocol,
    /// Segments are cut inside a tunnel, but its headers do not lead to `csum_start`, or differ between segments.
    GsoEncapsulation,
    /// There are segments to cut, but the frame's IP or transport header is malformed, or it is a fragment.
    Frame,
}

impl From<BadHeader> for DropReason {
    fn from(bad: BadHeader) -> Self {
        if bad == BadHeader::GsoEncapsulation { Self::GsoEncapsulation } else { Self::VirtioHeader }
    }
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeaderLen => "hdr_len beyond the frame",
            Self::ChecksumPlace => "csum_start or csum_offset impossible",
            Self::GsoType => "gso_type unknown",
            Self::GsoSize => "gso_size impossible",
            Self::GsoProtocol => "gso_type is not the frame's protocol",
            Self::GsoEncapsulation => "tunnel headers that do not lead to csum_start",
            Self::Frame => "segmentation of a frame with malformed headers",
        })
    }
}

impl std::error::Error for BadHeader {}

/// Decodes the header of a frame of `len` bytes, whose first bytes are `head`.
///
/// Offsets in the result count from the frame's first byte, and lie inside the frame. A frame whose payload is one
/// segment is not fat (Linux's `virtio_net_hdr_to_skb`), unless it is in a tunnel. Headers end with the transport
/// header at `csum_start`: `hdr_len` is only a hint (virtio 1.2 §5.1.6.2).
///
/// # Errors
/// [`BadHeader`], which names the drop reason of the frame.
pub fn decode(header: &Header, framing: Framing, head: &[u8], len: usize) -> Result<Decoded, BadHeader> {
    if usize::from(header.hdr_len) > len {
        return Err(BadHeader::HeaderLen);
    }
    let needs_csum = header.flags & NEEDS_CSUM != 0;
    let valid = if header.flags & DATA_VALID != 0 { Csum::Unnecessary } else { Csum::None };
    let asked = Csum::Partial { start: header.csum_start, offset: header.csum_offset };
    if needs_csum && usize::from(header.csum_start) + usize::from(header.csum_offset) + CHECK_LEN > len {
        return Err(BadHeader::ChecksumPlace);
    }
    if header.gso_type == GSO_NONE {
        let csum = if needs_csum { asked } else { valid };
        let complete = if needs_csum { anywhere(header, framing, head, len) } else { None };
        return Ok(Decoded { csum, cut: Cut::Whole, seed: None, complete });
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
    let l3 = ip_offset(framing, head)?;
    let (transport, in_tunnel) = match Transport::own(l3, head, len) {
        Ok(own) if !needs_csum || own.start == usize::from(header.csum_start) => (own, false),
        Ok(_) | Err(BadHeader::GsoProtocol) if needs_csum => (Transport::inside(l3, head, len, header)?, true),
        Ok(_) => return Err(BadHeader::ChecksumPlace),
        Err(bad) => return Err(bad),
    };
    let matches = match kind {
        GsoKind::TcpV4 => (transport.protocol, transport.version) == (Protocol::TCP, ip::Version::V4),
        GsoKind::TcpV6 => (transport.protocol, transport.version) == (Protocol::TCP, ip::Version::V6),
        GsoKind::Udp => transport.protocol == Protocol::UDP,
    };
    if !matches {
        return Err(BadHeader::GsoProtocol);
    }
    if needs_csum && header.csum_offset != transport.check_at {
        return Err(BadHeader::ChecksumPlace);
    }
    let segs = transport.payload_len.div_ceil(usize::from(header.gso_size));
    if kind == GsoKind::Udp && segs > MAX_UDP_SEGS {
        return Err(BadHeader::GsoSize);
    }
    // In a tunnel, the segmentation also completes lengths and checksums, so even a single segment stays GSO.
    let cut = match u16::try_from(segs).map_err(|_| BadHeader::GsoSize)? {
        0 | 1 if !in_tunnel => Cut::Whole,
        segs => Cut::Gso(Gso { kind, size: header.gso_size, segs: segs.max(1), ecn, fixed_id: false }),
    };
    if needs_csum {
        return Ok(Decoded { csum: asked, cut, seed: None, complete: None });
    }
    let (csum, seed) = match cut {
        Cut::Gso(_) => {
            let at = transport.start + usize::from(transport.check_at);
            let start = u16::try_from(transport.start).map_err(|_| BadHeader::Frame)?;
            (Csum::Partial { start, offset: transport.check_at }, Some((at, transport.pseudo_sum.to_be_bytes())))
        }
        Cut::Whole | Cut::Frames(_) | Cut::Fragment => (valid, None),
    };
    Ok(Decoded { csum, cut, seed, complete: None })
}

/// Offset of the IP header in a frame whose partial checksum is not that of the TCP or UDP header right behind the IP
/// header; the frame's end if it has no IP header. `None` if the checksum is that of TCP or UDP.
fn anywhere(header: &Header, framing: Framing, head: &[u8], len: usize) -> Option<usize> {
    let Ok(l3) = ip_offset(framing, head) else { return Some(len) };
    let is_own = Transport::own(l3, head, len)
        .is_ok_and(|own| own.start == usize::from(header.csum_start) && own.check_at == header.csum_offset);
    if is_own { None } else { Some(l3) }
}

/// A frame's TCP or UDP header.
struct Transport {
    version: ip::Version,
    protocol: Protocol,
    /// Offset of the header from the frame's first byte.
    start: usize,
    /// Offset of the checksum in the header.
    check_at: u16,
    /// Bytes behind the header.
    payload_len: usize,
    /// Folded sum of the pseudo-header.
    pseudo_sum: u16,
}

impl Transport {
    /// Transport header right behind the IP headers that begin at `l3`.
    fn own(l3: usize, head: &[u8], len: usize) -> Result<Self, BadHeader> {
        let head = head.get(l3..).ok_or(BadHeader::Frame)?;
        let info = ip::Info::parse(head, len.saturating_sub(l3)).map_err(|_| BadHeader::Frame)?;
        if info.fragment.is_some() {
            return Err(BadHeader::Frame);
        }
        let payload = info.payload(head);
        let header_len = match info.protocol {
            Protocol::TCP => {
                let tcp = tcp::Tcp::parse_head(payload, info.payload_len()).map_err(|_| BadHeader::Frame)?;
                tcp.header_len()
            }
            Protocol::UDP => {
                udp::UdpHeader::ref_from(payload).map_err(|_| BadHeader::Frame)?;
                udp::UdpHeader::LEN
            }
            _ => return Err(BadHeader::GsoProtocol),
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
            check_at: check_at(info.protocol),
            payload_len: info.payload_len().saturating_sub(header_len),
            pseudo_sum: fold(sum),
        })
    }

    /// Transport header at `csum_start`, inside tunnels.
    fn inside(l3: usize, head: &[u8], len: usize, header: &Header) -> Result<Self, BadHeader> {
        let start = usize::from(header.csum_start);
        let inner = inner_headers(head, len, l3, start).map_err(|_| BadHeader::GsoEncapsulation)?;
        Ok(Self {
            version: inner.version,
            protocol: inner.protocol,
            start,
            check_at: check_at(inner.protocol),
            payload_len: len - inner.end,
            // The sender has already written the pseudo-header's sum to the checksum field.
            pseudo_sum: 0,
        })
    }
}

/// Offset of the checksum in a TCP or UDP header.
fn check_at(protocol: Protocol) -> u16 {
    if protocol == Protocol::UDP { UDP_CHECK_AT } else { TCP_CHECK_AT }
}

/// Offset of the IP header in a frame; in Ethernet, behind its VLAN tags.
fn ip_offset(framing: Framing, frame: &[u8]) -> Result<usize, BadHeader> {
    if framing == Framing::Ip {
        return Ok(0);
    }
    let header = eth::EthHeader::ref_from(frame).map_err(|_| BadHeader::Frame)?;
    let (mut ethertype, mut at) = (header.ethertype(), eth::EthHeader::LEN);
    for _ in 0..MAX_TAGS {
        if !ethertype.is_vlan() {
            break;
        }
        let tag = frame.get(at..).and_then(|rest| vlan::VlanHeader::ref_from(rest).ok()).ok_or(BadHeader::Frame)?;
        (ethertype, at) = (tag.ethertype(), at + vlan::VlanHeader::LEN);
    }
    match ethertype {
        EtherType::IPV4 | EtherType::IPV6 => Ok(at),
        _ => Err(BadHeader::Frame),
    }
}

#[cfg(test)]
mod tests {
    use offload::{Features, gso};
    use packet::{Memory, Packet};
    use wire::checksum::{finish, finish_udp};

    use super::*;
    use crate::virtio::HEADER_LEN;

    /// TCP with a timestamp option and `payload` bytes, over IPv4 or IPv6.
    fn tcp_frame(version: ip::Version, payload: usize) -> Vec<u8> {
        let mut segment = tcp::TcpHeader::new(1, 2, 3, 4);
        segment.set_header_len(32);
        let mut bytes = ip_header(version, Protocol::TCP, 32 + payload);
        bytes.extend_from_slice(segment.as_bytes());
        bytes.resize(bytes.len() + 12 + payload, 1);
        bytes
    }

    fn udp_frame(version: ip::Version, payload: usize) -> Vec<u8> {
        let mut bytes = ip_header(version, Protocol::UDP, 8 + payload);
        bytes.extend_from_slice(udp::UdpHeader::new(1, 2, (8 + payload) as u16).as_bytes());
        bytes.resize(bytes.len() + payload, 1);
        bytes
    }

    fn ip_header(version: ip::Version, protocol: Protocol, payload: usize) -> Vec<u8> {
        match version {
            ip::Version::V4 => {
                let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
                let mut header = wire::ipv4::Ipv4Header::new(src, dst, protocol, (20 + payload) as u16);
                header.fill_check();
                header.as_bytes().to_vec()
            }
            ip::Version::V6 => {
                let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
                wire::ipv6::Ipv6Header::new(src, dst, protocol, payload as u16).as_bytes().to_vec()
            }
        }
    }

    const V4: ip::Version = ip::Version::V4;
    const V6: ip::Version = ip::Version::V6;

    fn gso(kind: GsoKind, size: u16, segs: u16) -> Cut {
        Cut::Gso(Gso { kind, size, segs, ecn: false, fixed_id: false })
    }

    #[test]
    fn decode_accepts_headers_that_a_kernel_sends() {
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
    fn header_that_contradicts_its_frame_is_refused() {
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
            (Header { csum_start: 0, ..good }, BadHeader::GsoEncapsulation),
            (Header { csum_start: 16, csum_offset: 0, ..good }, BadHeader::GsoEncapsulation),
            (Header { csum_start: 3034, ..good }, BadHeader::GsoEncapsulation),
            (Header { csum_start: 3035, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_start: u16::MAX, csum_offset: u16::MAX, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_offset: 6, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_start: 3035, gso_type: GSO_NONE, ..good }, BadHeader::ChecksumPlace),
            (Header { csum_offset: 3031, gso_type: GSO_NONE, ..good }, BadHeader::ChecksumPlace),
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
    fn segmentation_of_a_malformed_frame_is_refused() {
        let thin = Header { flags: NEEDS_CSUM, csum_start: 20, csum_offset: 16, ..Header::default() };
        let header = Header { gso_type: GSO_TCPV4, gso_size: 10, ..thin };
        let frame = tcp_frame(V4, 100);
        let whole = decode(&thin, Framing::Ip, &frame, frame.len());
        assert_eq!(whole.map(|got| got.complete), Ok(None));
        let with = |at: usize, byte: u8| {
            let mut frame = frame.clone();
            frame[at] = byte;
            frame
        };
        for (what, bad) in [
            ("version", with(0, 0x55)),
            ("header length", with(0, 0x4f)),
            ("check", with(10, frame[10] ^ 1)),
            ("tcp header truncated", frame[..39].to_vec()),
        ] {
            assert_eq!(decode(&header, Framing::Ip, &bad, bad.len()), Err(BadHeader::Frame), "{what}");
            // Without segmentation, a checksum is completed in any frame that has room for it.
            let got = decode(&thin, Framing::Ip, &bad, bad.len());
            assert_eq!(got.map(|got| (got.csum, got.complete)), Ok((asked(&thin), Some(0))), "{what}");
        }
        assert_eq!(decode(&thin, Framing::Ip, &[], 0), Err(BadHeader::ChecksumPlace));
        let fragment = {
            let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
            let mut header = wire::ipv4::Ipv4Header::new(src, dst, Protocol::TCP, frame.len() as u16);
            header.set_fragment(wire::FragOffset::ZERO, true);
            header.fill_check();
            [header.as_bytes(), &frame[20..]].concat()
        };
        assert_eq!(decode(&header, Framing::Ip, &fragment, fragment.len()), Err(BadHeader::Frame));
        assert_eq!(decode(&thin, Framing::Ip, &fragment, fragment.len()).map(|got| got.complete), Ok(Some(0)));
    }

    fn asked(header: &Header) -> Csum {
        Csum::Partial { start: header.csum_start, offset: header.csum_offset }
    }

    /// `inner` in VXLAN of IPv4, behind an Ethernet header.
    fn in_vxlan(inner: &[u8]) -> Vec<u8> {
        let payload = [&[8, 0, 0, 0, 0, 0, 5, 0], &[2; 12][..], &[8, 0], inner].concat();
        let datagram = [udp::UdpHeader::new(1, 4789, (8 + payload.len()) as u16).as_bytes(), &payload].concat();
        let ip = ip_header(V4, Protocol::UDP, datagram.len());
        [&[2; 12], &[8, 0][..], &ip, &datagram].concat()
    }

    #[test]
    fn checksum_anywhere_in_the_frame_is_completed_at_once() {
        let mem = Memory::heap();
        let frame = in_vxlan(&tcp_frame(V4, 100));
        for (start, offset) in [(84, 16), (34, 6), (34, 16), (34, 2), (30, 0), (0, 0), (0, 64), (214, 0), (213, 1)] {
            let header = Header { flags: NEEDS_CSUM, csum_start: start, csum_offset: offset, ..Header::default() };
            let decoded = decode(&header, Framing::Ethernet, &frame, frame.len()).unwrap();
            let is_own = (start, offset) == (34, 6);
            assert_eq!(decoded.complete, if is_own { None } else { Some(14) }, "{start} and {offset}");
            let mut packet = Packet::with_data(&mem, &frame).unwrap();
            decoded.apply(&mem, &mut packet).unwrap();
            let mut want = frame.clone();
            let (start, at) = (usize::from(start), usize::from(start + offset));
            if !is_own {
                let sum = wire::checksum::sum(&want[start..]);
                let check = if offset == 6 { finish_udp(sum) } else { finish(sum) };
                want[at..at + 2].copy_from_slice(&check.to_be_bytes());
            }
            assert_eq!(packet.to_vec(), want, "{start} and {offset}");
            assert_eq!(packet.meta.csum, if is_own { asked(&header) } else { Csum::None }, "{start} and {offset}");
        }
        // No IP header.
        let header = Header { flags: NEEDS_CSUM, csum_start: 14, csum_offset: 8, ..Header::default() };
        let arp = [&[2; 12], &[8, 6][..], &[0x45; 28]].concat();
        let decoded = decode(&header, Framing::Ethernet, &arp, arp.len()).unwrap();
        assert_eq!(decoded.complete, Some(arp.len()));
        let mut packet = Packet::with_data(&mem, &arp).unwrap();
        decoded.apply(&mem, &mut packet).unwrap();
        assert_eq!(packet.head()[22..24], finish(wire::checksum::sum(&arp[14..])).to_be_bytes());
        // SCTP truncated in front of its four bytes of checksum.
        let mut sctp = [ip_header(V4, Protocol::SCTP, 11), vec![1; 11]].concat();
        let header = Header { flags: NEEDS_CSUM, csum_start: 20, csum_offset: 8, ..Header::default() };
        let decoded = decode(&header, Framing::Ip, &sctp, sctp.len()).unwrap();
        let mut packet = Packet::with_data(&mem, &sctp).unwrap();
        assert_eq!(decoded.apply(&mem, &mut packet), Err(DropReason::TransportHeader));
        sctp.push(1);
        let mut packet = Packet::with_data(&mem, &sctp).unwrap();
        let decoded = decode(&header, Framing::Ip, &sctp, sctp.len()).unwrap();
        decoded.apply(&mem, &mut packet).unwrap();
        assert_eq!(packet.to_vec()[..28], sctp[..28]);
        assert_ne!(packet.to_vec()[28..], sctp[28..]);
    }

    #[test]
    fn segments_in_a_tunnel_are_cut_at_csum_start() {
        // The header that a packet socket gives for VXLAN received by a veth; `hdr_len` may be anything in the frame.
        let good = Header {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 0,
            gso_size: 1348,
            csum_start: 84,
            csum_offset: 16,
        };
        let frame = in_vxlan(&tcp_frame(V4, 4044));
        for (hdr_len, size, segs) in
            [(0, 1348, 3), (116, 1349, 3), (4159, 1347, 4), (1, 4043, 2), (1, 4044, 1), (1, 9000, 1)]
        {
            let header = Header { hdr_len, gso_size: size, ..good };
            let got = decode(&header, Framing::Ethernet, &frame, frame.len()).unwrap();
            let want = Decoded { csum: asked(&good), cut: gso(GsoKind::TcpV4, size, segs), seed: None, complete: None };
            assert_eq!(got, want, "{hdr_len} {size}");
        }
        let gre = |flags: u8| {
            let inner = tcp_frame(V4, 4000);
            let payload = [&[flags, 0, 8, 0, 0, 0, 0, 0], &inner[..]].concat();
            [ip_header(V4, Protocol::GRE, payload.len()), payload].concat()
        };
        let in_gre = Header { csum_start: 48, ..good };
        assert!(decode(&in_gre, Framing::Ip, &gre(0x20), 4080).is_ok());
        let cases = [
            ("GRE with a sequence number", Framing::Ip, in_gre, gre(0x10), BadHeader::GsoEncapsulation),
            ("GRE with a checksum", Framing::Ip, in_gre, gre(0x80), BadHeader::GsoEncapsulation),
            (
                "not at a header",
                Framing::Ethernet,
                Header { csum_start: 85, ..good },
                frame.clone(),
                BadHeader::GsoEncapsulation,
            ),
            (
                "TCP that is UDP",
                Framing::Ethernet,
                Header { csum_start: 34, csum_offset: 6, ..good },
                frame.clone(),
                BadHeader::GsoProtocol,
            ),
            (
                "UDP that is TCP",
                Framing::Ethernet,
                Header { gso_type: GSO_UDP_L4, ..good },
                frame.clone(),
                BadHeader::GsoProtocol,
            ),
            (
                "IPv6 that is IPv4",
                Framing::Ethernet,
                Header { gso_type: GSO_TCPV6, ..good },
                frame.clone(),
                BadHeader::GsoProtocol,
            ),
            (
                "another checksum",
                Framing::Ethernet,
                Header { csum_offset: 6, ..good },
                frame.clone(),
                BadHeader::ChecksumPlace,
            ),
            (
                "beyond the frame",
                Framing::Ethernet,
                Header { csum_start: 4150, ..good },
                frame.clone(),
                BadHeader::ChecksumPlace,
            ),
            ("no checksum", Framing::Ethernet, Header { flags: 0, ..good }, frame.clone(), BadHeader::GsoProtocol),
            ("no checksum in GRE", Framing::Ip, Header { flags: 0, ..in_gre }, gre(0), BadHeader::GsoProtocol),
        ];
        for (what, framing, header, frame, want) in cases {
            assert_eq!(decode(&header, framing, &frame, frame.len()), Err(want), "{what}");
        }
        assert_eq!(DropReason::from(BadHeader::GsoEncapsulation), DropReason::GsoEncapsulation);
        assert_eq!(DropReason::from(BadHeader::GsoProtocol), DropReason::VirtioHeader);
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
            let want = Decoded { csum, cut: Cut::Gso(gso), seed: None, complete: None };
            let want = if tags <= 2 { Ok(want) } else { Err(BadHeader::Frame) };
            assert_eq!(decode(&header, Framing::Ethernet, &frame, frame.len()), want, "{tags} tags");
        }
    }

    #[test]
    fn complete_checksum_of_a_fat_frame_becomes_partial() {
        let frame = tcp_frame(V4, 3000);
        let header = Header { flags: DATA_VALID, gso_type: GSO_TCPV4, gso_size: 1500, ..Header::default() };
        let got = decode(&header, Framing::Ip, &frame, frame.len()).unwrap();
        assert_eq!((got.csum, got.cut), (Csum::Partial { start: 20, offset: 16 }, gso(GsoKind::TcpV4, 1500, 2)));
        // 10.0.0.1, 10.0.0.2, protocol 6, 3032 bytes.
        let sum = 0x0a00 + 1 + 0x0a00 + 2 + 6 + 3032_u16;
        assert_eq!(got.seed, Some((36, sum.to_be_bytes())));
    }

    #[test]
    fn decoded_offsets_lie_inside_any_frame() {
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        let in_tunnel = in_vxlan(&tcp_frame(V4, 200)).split_off(eth::EthHeader::LEN);
        let frames = [tcp_frame(V4, 200), tcp_frame(V6, 200), udp_frame(V4, 200), udp_frame(V6, 200), in_tunnel];
        let mem = Memory::heap();
        let mut accepted = [0; 3];
        for round in 0..40_000 {
            let mut frame = frames[round % 5].clone();
            if round % 7 == 0 {
                frame.truncate(usize::from(next()) + 20);
            }
            let mut bytes = [0; HEADER_LEN];
            bytes.fill_with(&mut next);
            bytes[0] &= 3;
            bytes[1] &= 0x87;
            if round % 2 == 0 {
                (bytes[3], bytes[5], bytes[7], bytes[9]) = (0, 0, 0, 0);
                (bytes[6], bytes[8]) = ([20, 40, 70][round / 2 % 3], [16, 6][round / 4 % 2]);
            }
            let Ok(got) = decode(&Header::from_bytes(bytes), Framing::Ip, &frame, frame.len()) else { continue };
            accepted[usize::from(got.complete.is_some())] += 1;
            if let Csum::Partial { start, offset } = got.csum {
                assert!(usize::from(start) + usize::from(offset) + 2 <= frame.len(), "{bytes:?}");
            }
            assert!(got.cut.gso().is_none_or(|gso| gso.size > 0 && gso.segs > 0), "{bytes:?}");
            let mut packet = Packet::with_data(&mem, &frame).unwrap();
            if got.apply(&mem, &mut packet).is_ok() {
                assert_eq!(packet.len(), frame.len());
                let mut out = Vec::new();
                if got.cut.gso().is_some() && gso::segment(&mem, &Features::NONE, packet, 0, &mut out).is_ok() {
                    accepted[2] += 1;
                }
            }
        }
        assert!(accepted.iter().all(|&count| count > 100), "{accepted:?}");
    }
}
