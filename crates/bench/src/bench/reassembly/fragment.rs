//! Single fragments of any shape, as on the wire.

use wire::{FragInfo, FragOffset, Protocol, Version, frag, ipv4, ipv6};

use super::stream::FLOWS;

/// Number of fragments that a device delivers at once.
pub(super) const BURST: usize = 64;

/// One fragment on the wire.
pub(super) fn fragment(version: Version, id: u32, at: usize, len: usize, more: bool) -> Vec<u8> {
    let offset = FragOffset::from_bytes(at).expect("a multiple of 8");
    let mut bytes = match (FLOWS[0].src, FLOWS[0].dst, FLOWS[1].src, FLOWS[1].dst) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst), ..) if version == Version::V4 => {
            let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::UDP, (ipv4::Ipv4Header::LEN + len) as u16);
            header.set_id(id as u16);
            header.set_fragment(offset, more);
            header.fill_check();
            header.as_bytes().to_vec()
        }
        (.., std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
            let header = ipv6::Ipv6Header::new(src, dst, Protocol::FRAGMENT, (frag::FragHeader::LEN + len) as u16);
            let fragment = frag::FragHeader::new(Protocol::UDP, FragInfo { offset, more, id });
            [header.as_bytes(), fragment.as_bytes()].concat()
        }
        _ => unreachable!("flows of both families"),
    };
    bytes.resize(bytes.len() + len, 0x5a);
    bytes
}
