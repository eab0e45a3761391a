//! Flow keys.

use std::net::IpAddr;

use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::ip::Info;
use crate::{Malformed, Protocol};

/// The five-tuple. For ICMP, type and code stand in for source and destination port, as in Linux's `flowi` and in IPsec
/// selectors (RFC 4301 §4.4.1.1); likewise the type of a mobility header and the halves of a GRE key. For all other
/// protocols without ports both are zero.
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
    /// The flow of a packet with the summary `info`. A fragment after the first has no ports, nor does a packet whose
    /// head ends before the ports.
    #[inline]
    pub fn new(info: &Info, head: &[u8]) -> Self {
        let (sport, dport) = if info.has_transport() { ports(info.protocol, info.payload(head)) } else { (0, 0) };
        Self { src: info.src, dst: info.dst, protocol: info.protocol, sport, dport }
    }

    /// The flow of a packet of `packet_len` bytes, whose headers are in `head`.
    ///
    /// # Errors
    /// As [`Info::parse`].
    pub fn parse(head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        Ok(Self::new(&Info::parse(head, packet_len)?, head))
    }

    /// The flow of the replies. Only ports are swapped, not types and keys.
    #[must_use]
    pub const fn reversed(self) -> Self {
        let (sport, dport) = match self.protocol {
            Protocol::ICMP | Protocol::ICMPV6 | Protocol::MH | Protocol::GRE => (self.sport, self.dport),
            _ => (self.dport, self.sport),
        };
        Self { src: self.dst, dst: self.src, protocol: self.protocol, sport, dport }
    }
}

#[inline]
fn ports(protocol: Protocol, transport: &[u8]) -> (u16, u16) {
    match protocol {
        Protocol::TCP | Protocol::UDP | Protocol::DCCP | Protocol::SCTP | Protocol::UDPLITE => {
            <[U16; 2]>::ref_from_prefix(transport).map_or((0, 0), |([sport, dport], _)| (sport.get(), dport.get()))
        }
        Protocol::ICMP | Protocol::ICMPV6 => match transport {
            [kind, code, ..] => (u16::from(*kind), u16::from(*code)),
            _ => (0, 0),
        },
        Protocol::MH => transport.get(MH_TYPE_AT).map_or((0, 0), |&kind| (u16::from(kind), 0)),
        Protocol::GRE => gre_key(transport).map_or((0, 0), |key| ((key >> 16) as u16, key as u16)),
        _ => (0, 0),
    }
}

/// Offset of a mobility header's type (RFC 6275 §6.1.1).
const MH_TYPE_AT: usize = 2;

/// The key of a GRE header, if present (RFC 2890 §2).
fn gre_key(header: &[u8]) -> Option<u32> {
    let flags = *header.first()?;
    let (has_checksum, has_key) = (flags & 0x80 != 0, flags & 0x20 != 0);
    let at = if has_checksum { 8 } else { 4 };
    let key = header.get(at..)?.first_chunk()?;
    has_key.then(|| u32::from_be_bytes(*key))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{FragOffset, ipv4};

    const HERE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
    const THERE: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);

    fn packet(protocol: Protocol, offset_bytes: usize, transport: &[u8]) -> Vec<u8> {
        let mut header = ipv4::Ipv4Header::new(HERE, THERE, protocol, 20 + transport.len() as u16);
        header.set_fragment(FragOffset::from_bytes(offset_bytes).unwrap(), offset_bytes == 0);
        header.fill_check();
        [header.as_bytes(), transport].concat()
    }

    #[test]
    fn ports_come_from_where_the_protocol_has_them() {
        let bytes = [1_u8, 2, 3, 4, 5, 6, 7, 8];
        let cases = [
            (Protocol::TCP, 0, &bytes[..], (0x0102, 0x0304)),
            (Protocol::UDP, 0, &bytes[..], (0x0102, 0x0304)),
            (Protocol::UDP, 0, &bytes[..4], (0x0102, 0x0304)),
            (Protocol::UDP, 0, &bytes[..3], (0, 0)),
            (Protocol::ICMP, 0, &bytes[..], (1, 2)),
            (Protocol::ICMPV6, 0, &bytes[..2], (1, 2)),
            (Protocol::ICMP, 0, &bytes[..1], (0, 0)),
            (Protocol::ESP, 0, &bytes[..], (0, 0)),
            (Protocol::SCTP, 0, &bytes[..], (0x0102, 0x0304)),
            (Protocol::DCCP, 0, &bytes[..], (0x0102, 0x0304)),
            (Protocol::UDPLITE, 0, &bytes[..], (0x0102, 0x0304)),
            (Protocol::MH, 0, &bytes[..], (3, 0)),
            (Protocol::MH, 0, &bytes[..2], (0, 0)),
            (Protocol::GRE, 0, &bytes[..], (0, 0)),
            (Protocol::GRE, 0, &[0x20, 0, 8, 0, 1, 2, 3, 4][..], (0x0102, 0x0304)),
            (Protocol::GRE, 0, &[0x20, 0, 8, 0, 1, 2, 3][..], (0, 0)),
            (Protocol::GRE, 0, &[0xa0, 0, 8, 0, 9, 9, 9, 9, 1, 2, 3, 4][..], (0x0102, 0x0304)),
            (Protocol::TCP, 8, &bytes[..], (0, 0)),
            (Protocol::ICMP, 8, &bytes[..], (0, 0)),
        ];
        for (protocol, offset, transport, (sport, dport)) in cases {
            let bytes = packet(protocol, offset, transport);
            let want = FlowKey { src: HERE.into(), dst: THERE.into(), protocol, sport, dport };
            assert_eq!(FlowKey::parse(&bytes, bytes.len()), Ok(want), "{protocol} at {offset}");
        }
    }

    #[test]
    fn an_answer_exchanges_ports_but_not_type_and_code() {
        let ping = FlowKey { src: HERE.into(), dst: THERE.into(), protocol: Protocol::ICMP, sport: 8, dport: 0 };
        let back = FlowKey { src: THERE.into(), dst: HERE.into(), ..ping };
        assert_eq!(ping.reversed(), back);
        let udp = FlowKey { protocol: Protocol::UDP, sport: 53, dport: 1024, ..ping };
        assert_eq!(udp.reversed(), FlowKey { protocol: Protocol::UDP, sport: 1024, dport: 53, ..back });
    }

    #[test]
    fn ports_behind_the_packet_are_not_read() {
        let mut bytes = packet(Protocol::UDP, 0, &[1, 2]);
        let len = bytes.len();
        bytes.extend([3, 4]);
        assert_eq!(FlowKey::parse(&bytes, len).map(|flow| (flow.sport, flow.dport)), Ok((0, 0)));
    }
}
