//! ICMP errors about sent datagrams. The kernel consumes the ICMP messages and reports errors of the socket (ip(7),
//! `IP_RECVERR`). A report of a path MTU is turned back into an ICMP message, so that the datapath handles it like any
//! other.
//!
//! With `IP_PMTUDISC_PROBE` and `IP_PMTUDISC_OMIT` the kernel accepts packets up to the first link's MTU: otherwise it
//! would trust every message that quotes the socket's ports. The node, which knows its SPIs, checks whether a message
//! is about a packet that was sent.

use std::net::{IpAddr, SocketAddr};

use packet::{Csum, Memory, Packet, PoolDry};
use wire::{Protocol, icmp, icmpv6, ipv4, ipv6, udp};

use crate::sys::{cmsg, sockaddr};

/// Bytes of a quoted datagram's payload that are kept: more than an SPI.
pub(super) const QUOTE_LEN: usize = 64;

/// Bytes of `struct sock_extended_err`.
const EXTENDED_LEN: usize = 16;

/// An error of a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SocketError {
    /// Equivalent `errno`.
    pub(super) errno: i32,
    /// Whether the error comes from this host, rather than from an ICMP message.
    pub(super) is_local: bool,
    /// MTU, with `EMSGSIZE`.
    pub(super) info: u32,
    /// Sender of the ICMP message.
    pub(super) offender: Option<IpAddr>,
    /// Our address that the message was sent to.
    pub(super) local: Option<IpAddr>,
}

/// The error in the control messages of an entry of the error queue.
pub(super) fn parse(control: &[u8]) -> Option<SocketError> {
    let (mut error, mut local) = (None, None);
    for (level, kind, data) in cmsg::iter(control) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => error = extended(data),
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => local = sockaddr::local_of_pktinfo_v4(data),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => local = sockaddr::local_of_pktinfo_v6(data),
            _ => {}
        }
    }
    Some(SocketError { local, ..error? })
}

/// A `struct sock_extended_err`, with the offender's address behind it.
fn extended(data: &[u8]) -> Option<SocketError> {
    let (fixed, offender) = data.split_first_chunk::<EXTENDED_LEN>()?;
    let [e0, e1, e2, e3, origin, _, _, _, i0, i1, i2, i3, ..] = *fixed;
    Some(SocketError {
        errno: i32::from_ne_bytes([e0, e1, e2, e3]),
        is_local: origin == libc::SO_EE_ORIGIN_LOCAL,
        info: u32::from_ne_bytes([i0, i1, i2, i3]),
        offender: sockaddr::parse(offender).map(|offender| offender.ip()),
        local: None,
    })
}

/// The headers of a datagram of ours, with the first bytes of its payload.
pub(super) fn quote(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let udp_len = (udp::UdpHeader::LEN + payload.len()) as u16;
    let udp = udp::UdpHeader::new(src.port(), dst.port(), udp_len);
    Some(match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = ipv4::Ipv4Header::new(src, dst, Protocol::UDP, ipv4::Ipv4Header::LEN as u16 + udp_len);
            ip.fill_check();
            [ip.as_bytes(), udp.as_bytes(), payload].concat()
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            [ipv6::Ipv6Header::new(src, dst, Protocol::UDP, udp_len).as_bytes(), udp.as_bytes(), payload].concat()
        }
        _ => return None,
    })
}

/// The message from `offender` to `local` that the quoted packet is longer than `mtu`. `None` when they are of two
/// families.
pub(super) fn too_big(
    mem: &Memory,
    offender: IpAddr,
    local: IpAddr,
    mtu: u32,
    quote: &[u8],
) -> Result<Option<Packet>, PoolDry> {
    let mut message = vec![0; icmp::IcmpHeader::LEN];
    message.extend_from_slice(quote);
    let bytes = match (offender, local) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header =
                icmp::IcmpHeader::new(icmp::IcmpMessage::FragNeeded { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) });
            message[..icmp::IcmpHeader::LEN].copy_from_slice(header.as_bytes());
            let check = icmp::fill_check(&mut message);
            let mut ip =
                ipv4::Ipv4Header::new(src, dst, Protocol::ICMP, (ipv4::Ipv4Header::LEN + message.len()) as u16);
            ip.fill_check();
            check.map(|()| [ip.as_bytes(), &message].concat())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = icmpv6::Icmpv6Header::new(icmpv6::Icmpv6Message::PacketTooBig { mtu });
            message[..icmp::IcmpHeader::LEN].copy_from_slice(header.as_bytes());
            let ip = ipv6::Ipv6Header::new(src, dst, Protocol::ICMPV6, message.len() as u16);
            icmpv6::fill_check(&mut message, src, dst).map(|()| [ip.as_bytes(), &message].concat())
        }
        _ => return Ok(None),
    };
    let Ok(bytes) = bytes else { return Ok(None) };
    let mut packet = Packet::with_data(mem, &bytes)?;
    packet.meta.csum = Csum::Unnecessary;
    Ok(Some(packet))
}

#[cfg(test)]
mod tests {
    use wire::{Quote, ip};

    use super::*;

    #[test]
    fn message_equals_that_of_a_router() {
        let mem = Memory::heap();
        for (src, dst, router) in [
            ("192.0.2.1:4500", "192.0.2.2:4501", "203.0.113.1"),
            ("[2001:db8::1]:4500", "[2001:db8::2]:4501", "2001:db8:9::1"),
        ] {
            let (src, dst, router): (SocketAddr, SocketAddr, IpAddr) =
                (src.parse().unwrap(), dst.parse().unwrap(), router.parse().unwrap());
            let payload = [0, 0, 0x10, 0, 0, 0, 0, 7];
            let quoted = quote(src, dst, &payload).unwrap();
            let bytes = too_big(&mem, router, src.ip(), 1280, &quoted).unwrap().unwrap().to_vec();
            let info = ip::Info::parse(&bytes, bytes.len()).unwrap();
            assert_eq!((info.src, info.dst, info.total_len), (router, src.ip(), bytes.len()));
            let body = info.payload(&bytes);
            if src.is_ipv4() {
                let seen = icmp::Icmp::parse(body).unwrap();
                assert!(seen.check_ok());
                assert_eq!(seen.header().message(), Some(icmp::IcmpMessage::FragNeeded { mtu: 1280 }));
            } else {
                let seen = icmpv6::Icmpv6Header::ref_from(body).unwrap();
                assert_eq!(seen.message(), Some(icmpv6::Icmpv6Message::PacketTooBig { mtu: 1280 }));
            }
            let seen = Quote::parse(&body[8..]).unwrap();
            assert_eq!((seen.src, seen.dst, seen.protocol), (src.ip(), dst.ip(), Protocol::UDP));
            assert_eq!((&seen.payload[..4], &seen.payload[8..]), (&[0x11, 0x94, 0x11, 0x95][..], &payload[..]));
        }
    }

    #[test]
    fn parse_reads_control_messages_of_every_length() {
        let mut data = vec![90, 0, 0, 0, libc::SO_EE_ORIGIN_ICMP, 3, 4, 0, 0, 5, 0, 0, 0, 0, 0, 0];
        data.extend_from_slice(sockaddr::SockAddr::new("203.0.113.1:0".parse().unwrap()).bytes());
        let mut control = cmsg::Control::EMPTY;
        control.push(libc::IPPROTO_IP, libc::IP_RECVERR, &data);
        let want = SocketError {
            errno: libc::EMSGSIZE,
            is_local: false,
            info: 1280,
            offender: Some("203.0.113.1".parse().unwrap()),
            local: None,
        };
        assert_eq!(parse(control.bytes()), Some(want));
        for len in 0..data.len() {
            let got = extended(&data[..len]);
            let offender = want.offender.filter(|_| len >= EXTENDED_LEN + 8);
            assert_eq!(got, (len >= EXTENDED_LEN).then_some(SocketError { offender, ..want }), "{len} bytes");
        }
    }
}
