//! Socket addresses as the bytes that the kernel reads and writes. No pointers, so nothing here is unsafe.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for either address: `struct sockaddr_in6`.
pub(crate) const SOCKADDR_LEN: usize = 28;

/// Bytes of `struct sockaddr_ll`.
pub(crate) const LINK_LAYER_LEN: usize = 20;

/// A socket address as bytes, with its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SockAddr {
    bytes: [u8; SOCKADDR_LEN],
    len: usize,
}

impl SockAddr {
    /// `struct sockaddr_in` or `struct sockaddr_in6`.
    pub(crate) fn new(addr: SocketAddr) -> Self {
        let mut bytes = [0; SOCKADDR_LEN];
        bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
        let (family, len) = match addr {
            SocketAddr::V4(addr) => {
                bytes[4..8].copy_from_slice(&addr.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(addr) => {
                bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&addr.ip().octets());
                bytes[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self { bytes, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Internet address and port in a `struct sockaddr` that the kernel wrote; `None` for another family.
pub(crate) fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let (&family, rest) = bytes.split_first_chunk::<2>()?;
    let (&port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(port);
    let addr = match i32::from(u16::from_ne_bytes(family)) {
        libc::AF_INET => SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from_octets(*rest.first_chunk()?), port)),
        libc::AF_INET6 => {
            let (&flow, rest) = rest.split_first_chunk::<4>()?;
            let (&ip, rest) = rest.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*rest.first_chunk()?);
            SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from_octets(ip), port, u32::from_be_bytes(flow), scope))
        }
        _ => return None,
    };
    Some(addr)
}

/// `struct sockaddr_ll` for all frames received by the interface of that index (packet(7)).
pub(crate) fn link_layer(index: i32) -> [u8; LINK_LAYER_LEN] {
    link_layer_of(index, libc::ETH_P_ALL as u16)
}

/// `struct sockaddr_ll` for frames of one EtherType.
pub(crate) fn link_layer_of(index: i32, ether_type: u16) -> [u8; LINK_LAYER_LEN] {
    let mut bytes = [0; LINK_LAYER_LEN];
    bytes[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&ether_type.to_be_bytes());
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes
}

/// The index of the interface in a `struct sockaddr_ll` that the kernel wrote, which may be shorter than the structure.
pub(crate) fn index_of_link_layer(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?))
}

/// `struct sockaddr_xdp`: one queue of the interface of that index.
pub(crate) fn xdp(index: i32, queue: u32, flags: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_XDP as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&flags.to_ne_bytes());
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

/// The local address in `struct in_pktinfo` (`ipi_addr`, where the packet was sent to).
pub(crate) fn local_of_pktinfo_v4(bytes: &[u8]) -> Option<IpAddr> {
    Some(IpAddr::V4(Ipv4Addr::from_octets(*bytes.get(8..)?.first_chunk()?)))
}

/// `struct in_pktinfo` for sending from this address (`ipi_spec_dst`).
pub(crate) fn pktinfo_v4(src: Ipv4Addr) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[4..8].copy_from_slice(&src.octets());
    bytes
}

/// `struct in6_pktinfo` for sending from this address.
pub(crate) fn pktinfo_v6(src: Ipv6Addr) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&src.octets());
    bytes
}

/// The local address in `struct in6_pktinfo`.
pub(crate) fn local_of_pktinfo_v6(bytes: &[u8]) -> Option<IpAddr> {
    Some(IpAddr::V6(Ipv6Addr::from_octets(*bytes.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_were_written() {
        for text in ["192.0.2.1:4500", "[2001:db8::1]:500", "[fe80::1%3]:1", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(parse(SockAddr::new(addr).bytes()), Some(addr));
        }
    }

    #[test]
    fn truncated_bytes_are_no_address() {
        let bytes = SockAddr::new("[2001:db8::1]:500".parse().unwrap());
        for len in 0..28 {
            assert_eq!(parse(&bytes.bytes()[..len]), None, "{len} bytes");
        }
        assert_eq!((local_of_pktinfo_v4(&[0; 11]), local_of_pktinfo_v6(&[0; 15])), (None, None));
        assert_eq!((index_of_link_layer(&link_layer(7)), index_of_link_layer(&[0; 7])), (Some(7), None));
    }
}
