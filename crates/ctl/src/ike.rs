//! Datagrams between the gateway and a key manager, with IKE messages (RFC 3948 §2.2, RFC 7296 §2).
//!
//! Each datagram of the socket `NAME.ike` is one message, without its non-ESP marker, behind a header of 40 bytes.
//! Numbers are in network byte order; an IPv4 address is in the first four bytes of its field, and the others are zero.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | 4 or 6 |
//! | 1 | 0 |
//! | 2–3 | the peer's port |
//! | 4–19 | the peer's address |
//! | 20–21 | this node's port |
//! | 22–23 | 0 |
//! | 24–39 | this node's address |
//!
//! A named socket that sends a datagram to the gateway's socket receives the messages of peers from then on; an empty
//! datagram has no other effect. A header alone with a zero peer requests the messages to one port, at one address or,
//! if that is zero, too, at any address of the family: the gateway sends the same header back if a link has the port,
//! else an empty datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of the header.
pub const IKE_HEADER_LEN: usize = 40;

/// Maximum length of a message: the payload of a UDP datagram over IPv4 behind the marker.
pub const MAX_IKE_LEN: usize = 65_507 - 4;

/// Both ends of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IkeHeader {
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// Address and port of this node, of the same family.
    pub local: SocketAddr,
}

/// Address and port in a request; `None` for other datagrams.
#[must_use]
pub fn requested_port(datagram: &[u8]) -> Option<SocketAddr> {
    let header: &[u8; IKE_HEADER_LEN] = datagram.try_into().ok()?;
    let local = IkeHeader::end(header, 20, 24).filter(|local| local.port() != 0)?;
    let no_peer = SocketAddr::new(if local.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
    (IkeHeader { peer: no_peer, local }.to_bytes() == *header).then_some(local)
}

impl IkeHeader {
    /// Serialises the header.
    pub fn to_bytes(self) -> [u8; IKE_HEADER_LEN] {
        let mut bytes = [0; IKE_HEADER_LEN];
        bytes[0] = if self.local.is_ipv4() { 4 } else { 6 };
        for (at, end) in [(2, self.peer), (20, self.local)] {
            bytes[at..at + 2].copy_from_slice(&end.port().to_be_bytes());
            let at = if at == 2 { 4 } else { 24 };
            match end.ip() {
                IpAddr::V4(addr) => bytes[at..at + 4].copy_from_slice(&addr.octets()),
                IpAddr::V6(addr) => bytes[at..at + 16].copy_from_slice(&addr.octets()),
            }
        }
        bytes
    }

    /// Parses a datagram into the header and the message. `None` unless every byte of the header is valid, and the
    /// message is neither empty nor too long.
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, message) = datagram.split_first_chunk::<IKE_HEADER_LEN>()?;
        let end = |port_at, addr_at| Self::end(header, port_at, addr_at).filter(|end| end.port() != 0);
        let parsed = Self { peer: end(2, 4)?, local: end(20, 24)? };
        let is_exact = parsed.to_bytes() == *header;
        (is_exact && (1..=MAX_IKE_LEN).contains(&message.len())).then_some((parsed, message))
    }

    fn end(header: &[u8; IKE_HEADER_LEN], port_at: usize, addr_at: usize) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(*header.get(port_at..)?.first_chunk()?);
        let addr: [u8; 16] = *header.get(addr_at..)?.first_chunk()?;
        let ip = match header[0] {
            4 => IpAddr::V4(Ipv4Addr::from_octets(*addr.first_chunk()?)),
            6 => IpAddr::V6(Ipv6Addr::from_octets(addr)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(peer: &str, local: &str) -> IkeHeader {
        IkeHeader { peer: peer.parse().unwrap(), local: local.parse().unwrap() }
    }

    #[test]
    fn a_header_reads_as_it_was_written() {
        let v4 = header("198.51.100.7:61000", "192.0.2.1:4500");
        let bytes = v4.to_bytes();
        assert_eq!(bytes[..8], [4, 0, 0xee, 0x48, 198, 51, 100, 7]);
        assert_eq!(bytes[20..28], [0x11, 0x94, 0, 0, 192, 0, 2, 1]);
        for header in [v4, header("[2001:db8::7]:1", "[2001:db8::1]:4500")] {
            let datagram = [&header.to_bytes()[..], b"message"].concat();
            assert_eq!(IkeHeader::parse(&datagram), Some((header, &b"message"[..])));
        }
    }

    #[test]
    fn port_request_has_no_peer_and_no_message() {
        for (no_peer, local) in [("0.0.0.0:0", "0.0.0.0:500"), ("[::]:0", "[2001:db8::1]:4500")] {
            let request = header(no_peer, local).to_bytes();
            assert_eq!(requested_port(&request), Some(local.parse().unwrap()));
            assert_eq!(IkeHeader::parse(&request), None);
            assert_eq!(requested_port(&[&request[..], &[1]].concat()), None, "a message");
            assert_eq!(requested_port(&request[1..]), None);
            for at in [0, 1, 2, 4, 19, 22] {
                let mut wrong = request;
                wrong[at] ^= 1;
                assert_eq!(requested_port(&wrong), None, "byte {at}");
            }
        }
        assert_eq!(requested_port(&header("0.0.0.0:0", "192.0.2.1:0").to_bytes()), None, "no port");
        assert_eq!(requested_port(&[]), None);
    }

    #[test]
    fn datagram_without_header_or_message_is_refused() {
        let good = [&header("198.51.100.7:61000", "192.0.2.1:4500").to_bytes()[..], b"m"].concat();
        assert!(IkeHeader::parse(&good).is_some());
        for len in 0..good.len() {
            assert_eq!(IkeHeader::parse(&good[..len]), None, "{len} bytes");
        }
        for (at, byte) in [(0, 5), (0, 0), (1, 1), (8, 1), (19, 1), (22, 1), (28, 1), (39, 1)] {
            let mut wrong = good.clone();
            wrong[at] = byte;
            assert_eq!(IkeHeader::parse(&wrong), None, "{byte} at {at}");
        }
        for port_at in [2, 20] {
            let mut wrong = good.clone();
            wrong[port_at..port_at + 2].fill(0);
            assert_eq!(IkeHeader::parse(&wrong), None, "port 0 at {port_at}");
        }
        let longest = [&good[..IKE_HEADER_LEN], &vec![1; MAX_IKE_LEN]].concat();
        assert!(IkeHeader::parse(&longest).is_some());
        assert_eq!(IkeHeader::parse(&[&longest[..], &[1]].concat()), None);
    }
}
