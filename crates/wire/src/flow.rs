//! What tells one flow from another.

use std::net::IpAddr;

use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::ip::Info;
use crate::{Malformed, Protocol};

/// The five-tuple. Where a protocol has no ports, ICMP's type stands for the source port and its code for the
/// destination port, as in Linux's `flowi` and in IPsec selectors (RFC 4301 §4.4.1.1); else both are zero.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Upper-layer protocol.
    pub protocol: Protocol,
    /// Source port, or ICMP type.
    pub sport: u16,
    /// Destination port, or ICMP code.
    pub dport: u16,
}

impl FlowKey {
    /// The flow of a packet whose summary is `info`. A fragment after the first has no ports, and neither has a
    /// packet whose head ends before them.
    #[inline]
    pub fn new(info: &Info, head: &[u8]) -> Self {
        let (sport, dport) = if info.has_transport() { ports(info.protocol, info.payload(head)) } else { (0, 0) };
        Self { src: info.src, dst: info.dst, protocol: info.protocol, sport, dport }
    }

    /// The flow of a packet of `packet_len` bytes, of which `head` holds at least the headers.
    ///
    /// # Errors
    /// As [`Info::parse`].
    pub fn parse(head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        Ok(Self::new(&Info::parse(head, packet_len)?, head))
    }

    /// The flow of the answers. ICMP's type and code stay where they are.
    #[must_use]
    pub const fn reversed(self) -> Self {
        let (sport, dport) = match self.protocol {
            Protocol::ICMP | Protocol::ICMPV6 => (self.sport, self.dport),
            _ => (self.dport, self.sport),
        };
        Self { src: self.dst, dst: self.src, protocol: self.protocol, sport, dport }
    }
}

#[inline]
fn ports(protocol: Protocol, transport: &[u8]) -> (u16, u16) {
    match protocol {
        Protocol::TCP | Protocol::UDP => {
            <[U16; 2]>::ref_from_prefix(transport).map_or((0, 0), |([sport, dport], _)| (sport.get(), dport.get()))
        }
        Protocol::ICMP | Protocol::ICMPV6 => match transport {
            [kind, code, ..] => (u16::from(*kind), u16::from(*code)),
            _ => (0, 0),
        },
        _ => (0, 0),
    }
}
