//! The packet that an ICMP error quotes, which may be truncated (RFC 792, RFC 1812 §4.3.2.3, RFC 4443 §3).

use std::net::IpAddr;

use crate::frag::FragInfo;
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::{Malformed, Protocol, Version};

/// A quoted packet, which may be forged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quote<'a> {
    /// Source of the quoted packet.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// The first bytes of the payload; empty for a fragment after the first.
    pub payload: &'a [u8],
}

impl<'a> Quote<'a> {
    /// Parses the bytes behind the first eight of an ICMP error. IPv4's header checksum is not verified: routers quote
    /// the header with a decremented TTL.
    ///
    /// # Errors
    /// A wrong version or length, or a quote that is shorter than its headers.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        match Version::of(bytes)? {
            Version::V4 => {
                let packet = Ipv4::parse_head(bytes, usize::MAX)?;
                let header = packet.header();
                let is_first = header.fragment().is_none_or(FragInfo::is_first);
                Ok(Self {
                    src: header.src().into(),
                    dst: header.dst().into(),
                    protocol: header.protocol(),
                    payload: if is_first { packet.payload() } else { &[] },
                })
            }
            Version::V6 => {
                let packet = Ipv6::parse_head(bytes, usize::MAX)?;
                let (header, chain) = (packet.header(), packet.chain()?);
                let is_first = chain.fragment.is_none_or(|fragment| fragment.info.is_first());
                let end = bytes.len().min(packet.total_len());
                Ok(Self {
                    src: header.src().into(),
                    dst: header.dst().into(),
                    protocol: chain.protocol,
                    payload: if is_first { bytes.get(chain.offset..end).unwrap_or_default() } else { &[] },
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::{FragInfo, FragOffset, frag, ipv4, ipv6};

    fn v4(payload: &[u8], total: u16, edit: impl FnOnce(&mut ipv4::Ipv4Header)) -> Vec<u8> {
        let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::ESP, total);
        edit(&mut header);
        [header.as_bytes(), payload].concat()
    }

    fn v6(first: Protocol, payload: &[u8], len: u16) -> Vec<u8> {
        let [src, dst] = [1, 2].map(|last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        [ipv6::Ipv6Header::new(src, dst, first, len).as_bytes(), payload].concat()
    }

    #[test]
    fn a_quote_is_read_as_far_as_it_goes() {
        let esp = [0, 0, 0x10, 0, 0, 0, 0, 7];
        let later = FragOffset::from_bytes(64).unwrap();
        let fragment = |offset, more| {
            let info = FragInfo { offset, more, id: 9 };
            [frag::FragHeader::new(Protocol::ESP, info).as_bytes(), &esp[..]].concat()
        };
        let options = [Protocol::ESP.0, 0, 1, 4, 0, 0, 0, 0];
        let cases: [(Vec<u8>, &[u8]); 9] = [
            (v4(&esp, 1500, |_| {}), &esp),
            (v4(&esp, 1500, |header| header.set_ttl(0)), &esp),
            (v4(&esp[..3], 1500, |_| {}), &esp[..3]),
            (v4(&esp, 24, |_| {}), &esp[..4]),
            (v4(&esp, 1500, |header| header.set_fragment(later, true)), &[]),
            (v6(Protocol::ESP, &esp, 1460), &esp),
            (v6(Protocol::FRAGMENT, &fragment(FragOffset::ZERO, true), 1460), &esp),
            (v6(Protocol::FRAGMENT, &fragment(later, false), 1460), &[]),
            (v6(Protocol::DEST_OPTS, &[&options[..], &esp].concat(), 1460), &esp),
        ];
        for (bytes, want) in cases {
            let quote = Quote::parse(&bytes).unwrap();
            assert_eq!((quote.protocol, quote.payload), (Protocol::ESP, want), "{bytes:02x?}");
            assert_ne!(quote.src, quote.dst);
        }
    }

    #[test]
    fn a_quote_without_its_headers_is_none() {
        let (v4, v6) = (v4(&[0; 8], 1500, |_| {}), v6(Protocol::DEST_OPTS, &[50, 1, 1, 4, 0, 0, 0, 0], 1460));
        let cut = |bytes: &[u8], most: usize| {
            (0..most).for_each(|len| assert!(Quote::parse(&bytes[..len]).is_err(), "{len} bytes of {bytes:02x?}"));
        };
        cut(&v4, 20);
        cut(&v6, v6.len());
        let mut wrong = v4;
        wrong[0] = 0x44;
        assert_eq!(Quote::parse(&wrong), Err(Malformed::Ipv4HeaderLen));
    }
}
