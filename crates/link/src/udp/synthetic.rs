//! The IP and UDP headers that a socket hides: prepended to received datagrams, removed from packets to be sent.
//!
//! TTL and identification are made up, the checksum is left out: the kernel has verified it, and the packet is
//! addressed to this node.

use std::net::{IpAddr, SocketAddr};

use packet::{Buf, Csum, Cut, Gso, GsoKind, Packet, PoolDry};
use wire::{Malformed, Protocol, ip, ipv4, ipv6, udp};

/// Longest IP and UDP headers.
pub(crate) const MAX_HEADERS: usize = ipv6::Ipv6Header::LEN + udp::UdpHeader::LEN;

/// Longest payload of a datagram or a train.
pub(crate) const LONGEST: usize = 65_535;

/// Source and destination of a train.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ends {
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    pub(crate) tos: u8,
}

/// Packet around the payload of one or more datagrams; all but the last have `size` bytes.
///
/// `None` when the addresses are of two families, or the payload is longer than a datagram may be.
pub(crate) fn wrap(mut payload: Buf, ends: &Ends, size: Option<u16>) -> Result<Option<Packet>, PoolDry> {
    let udp_len = payload.len() + udp::UdpHeader::LEN;
    let Ok(wire_udp_len) = u16::try_from(udp_len) else { return Ok(None) };
    let segs = size.map_or(1, |size| payload.len().div_ceil(usize::from(size.max(1))));
    let header = udp::UdpHeader::new(ends.src.port(), ends.dst.port(), wire_udp_len);
    payload.push(udp::UdpHeader::LEN).ok_or(PoolDry)?.copy_from_slice(header.as_bytes());
    match (ends.src.ip(), ends.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let Ok(total_len) = u16::try_from(ipv4::Ipv4Header::LEN + udp_len) else { return Ok(None) };
            let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::UDP, total_len);
            header.set_dont_fragment(true);
            header.set_tos(ends.tos);
            header.fill_check();
            payload.push(ipv4::Ipv4Header::LEN).ok_or(PoolDry)?.copy_from_slice(header.as_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = ipv6::Ipv6Header::new(src, dst, Protocol::UDP, wire_udp_len);
            header.set_traffic_class(ends.tos);
            payload.push(ipv6::Ipv6Header::LEN).ok_or(PoolDry)?.copy_from_slice(header.as_bytes());
        }
        _ => return Ok(None),
    }
    let mut packet = Packet::from_buf(payload);
    packet.meta.csum = Csum::Unnecessary;
    if let (Some(size), Ok(segs @ 2..)) = (size, u16::try_from(segs)) {
        packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size, segs, ecn: false, fixed_id: false });
    }
    Ok(Some(packet))
}

/// Parameters of a packet that a socket sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Unwrapped {
    pub(crate) ends: Ends,
    /// Whether routers must not fragment the packet: IPv4's Don't Fragment, and always with IPv6.
    pub(crate) dont_fragment: bool,
    /// Bytes of headers in front of the payload.
    pub(crate) header_len: usize,
}

/// Parses a packet that a socket can send: a whole UDP datagram, or a train of them.
pub(crate) fn unwrap(packet: &Packet) -> Result<Unwrapped, Unsendable> {
    let info = ip::Info::parse(packet.head(), packet.len())?;
    if info.protocol != Protocol::UDP || info.fragment.is_some() || info.total_len != packet.len() {
        return Err(Unsendable);
    }
    let datagram = udp::UdpHeader::ref_from(info.payload(packet.head()))?;
    Ok(Unwrapped {
        ends: Ends {
            src: SocketAddr::new(info.src, datagram.sport()),
            dst: SocketAddr::new(info.dst, datagram.dport()),
            tos: info.tos,
        },
        dont_fragment: info.dont_fragment,
        header_len: info.header_len + udp::UdpHeader::LEN,
    })
}

/// Error of a packet that a UDP socket cannot send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Unsendable;

impl From<Malformed> for Unsendable {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// Sets the IP address of a socket address, if there is one.
pub(crate) fn set_ip(addr: &mut SocketAddr, ip: Option<IpAddr>) {
    if let Some(ip) = ip {
        addr.set_ip(ip);
    }
}

#[cfg(test)]
mod tests {
    use packet::Memory;

    use super::*;

    fn payload(mem: &Memory, len: usize) -> Buf {
        let mut buf = mem.take(Memory::HEADROOM, len).unwrap();
        buf.put(len).unwrap().fill(9);
        buf
    }

    fn ends(src: &str, dst: &str) -> Ends {
        Ends { src: src.parse().unwrap(), dst: dst.parse().unwrap(), tos: 0xb9 }
    }

    #[test]
    fn wrapped_packet_unwraps_to_the_same_ends() {
        let mem = Memory::heap();
        for (ends, header_len) in
            [(ends("192.0.2.1:4500", "192.0.2.2:4501"), 28), (ends("[2001:db8::1]:4500", "[2001:db8::2]:4501"), 48)]
        {
            for (len, size, segs) in [(0, None, 1), (1, None, 1), (2801, Some(1400), 3), (1400, Some(1400), 1)] {
                let packet = wrap(payload(&mem, len), &ends, size).unwrap().unwrap();
                assert_eq!((packet.len(), packet.meta.cut.segs()), (header_len + len, segs));
                assert_eq!(unwrap(&packet), Ok(Unwrapped { ends, dont_fragment: true, header_len }));
                assert_eq!(&packet.head()[header_len..], vec![9; len]);
            }
        }
    }

    #[test]
    fn payload_too_long_for_ip_is_not_wrapped() {
        let mem = Memory::heap();
        let v4 = ends("192.0.2.1:4500", "192.0.2.2:4501");
        let v6 = ends("[2001:db8::1]:4500", "[2001:db8::2]:4501");
        assert!(wrap(payload(&mem, 65_507), &v4, None).unwrap().is_some());
        assert!(wrap(payload(&mem, 65_508), &v4, None).unwrap().is_none());
        assert!(wrap(payload(&mem, 65_527), &v6, None).unwrap().is_some());
        assert!(wrap(payload(&mem, 65_528), &v6, None).unwrap().is_none());
        assert!(wrap(payload(&mem, 1), &Ends { dst: v6.dst, ..v4 }, None).unwrap().is_none());
    }

    #[test]
    fn unwrap_accepts_whole_datagrams_only() {
        let mem = Memory::heap();
        let ends = ends("192.0.2.1:4500", "192.0.2.2:4501");
        let good = || wrap(payload(&mem, 100), &ends, None).unwrap().unwrap();
        for (what, at, byte) in [("tcp", 9, 6), ("more fragments", 6, 0x20), ("version", 0, 0x65)] {
            let mut packet = good();
            packet.head_mut().unwrap()[at] = byte;
            let head = packet.head_mut().unwrap();
            let _ = ipv4::fill_check(&mut head[..20]);
            assert_eq!(unwrap(&packet), Err(Unsendable), "{what}");
        }
        let mut packet = good();
        packet.trim(127);
        assert_eq!(unwrap(&packet), Err(Unsendable));
        let mut packet = good();
        packet.put(1).unwrap()[0] = 0;
        assert_eq!(unwrap(&packet), Err(Unsendable), "with something behind its end");
    }
}
