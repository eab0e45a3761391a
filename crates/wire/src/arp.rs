//! Address resolution for IPv4 over Ethernet (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{EtherType, MacAddr, Malformed};

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Operation(pub u16);

impl Operation {
    /// Request for the link-layer address of the target's IP address.
    pub const REQUEST: Self = Self(1);
    /// Reply with the sender's link-layer address.
    pub const REPLY: Self = Self(2);
}

/// A complete ARP packet, behind its Ethernet header.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct ArpHeader {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender_mac: MacAddr,
    sender_ip: [u8; 4],
    target_mac: MacAddr,
    target_ip: [u8; 4],
}

header!(ArpHeader, 28, Malformed::ArpShort);

/// Hardware type of Ethernet.
const HARDWARE_ETHERNET: u16 = 1;

impl ArpHeader {
    const fn new(operation: Operation, sender: (MacAddr, Ipv4Addr), target: (MacAddr, Ipv4Addr)) -> Self {
        Self {
            hardware: U16::new(HARDWARE_ETHERNET),
            protocol: U16::new(EtherType::IPV4.0),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(operation.0),
            sender_mac: sender.0,
            sender_ip: sender.1.octets(),
            target_mac: target.0,
            target_ip: target.1.octets(),
        }
    }

    /// Request of `sender` for the link-layer address of `target`. A request with an unspecified sender address is a
    /// probe (RFC 5227 §1.1); with equal addresses, an announcement.
    pub const fn request(sender: (MacAddr, Ipv4Addr), target: Ipv4Addr) -> Self {
        Self::new(Operation::REQUEST, sender, (MacAddr::ZERO, target))
    }

    /// Reply of `sender` to `target`.
    pub const fn reply(sender: (MacAddr, Ipv4Addr), target: (MacAddr, Ipv4Addr)) -> Self {
        Self::new(Operation::REPLY, sender, target)
    }

    /// The ARP packet at the front of `bytes`; a frame's padding may follow it.
    ///
    /// # Errors
    /// [`Malformed::ArpShort`]; [`Malformed::ArpFormat`] for other kinds of address.
    pub fn parse(bytes: &[u8]) -> Result<&Self, Malformed> {
        let arp = Self::ref_from(bytes)?;
        let kinds = (arp.hardware.get(), arp.protocol.get(), arp.hardware_len, arp.protocol_len);
        if kinds == (HARDWARE_ETHERNET, EtherType::IPV4.0, 6, 4) { Ok(arp) } else { Err(Malformed::ArpFormat) }
    }

    /// Request or reply.
    pub const fn operation(&self) -> Operation {
        Operation(self.operation.get())
    }

    /// Link-layer address of the sender.
    pub const fn sender_mac(&self) -> MacAddr {
        self.sender_mac
    }

    /// IPv4 address of the sender.
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.sender_ip.into()
    }

    /// Link-layer address of the target; zero in a request.
    pub const fn target_mac(&self) -> MacAddr {
        self.target_mac
    }

    /// IPv4 address of the target.
    pub fn target_ip(&self) -> Ipv4Addr {
        self.target_ip.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(192, 0, 2, 1));
    const THERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_request_is_as_rfc_826_lays_it_out() {
        let request = ArpHeader::request(HERE, THERE.1);
        let want = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2];
        assert_eq!(request.as_bytes(), want);
        assert_eq!(ArpHeader::parse(&want), Ok(&request));
        assert_eq!(request.target_ip(), THERE.1);
    }

    #[test]
    fn a_reply_names_both_sides() {
        let reply = ArpHeader::reply(HERE, THERE);
        let seen = ArpHeader::parse(reply.as_bytes()).unwrap();
        assert_eq!(seen.operation(), Operation::REPLY);
        assert_eq!(((seen.sender_mac(), seen.sender_ip()), (seen.target_mac(), seen.target_ip())), (HERE, THERE));
    }

    #[test]
    fn other_address_families_and_short_packets_are_refused() {
        let good = ArpHeader::request(HERE, THERE.1);
        assert_eq!(ArpHeader::parse(&good.as_bytes()[..27]), Err(Malformed::ArpShort));
        for at in 0..6 {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] ^= 1;
            assert_eq!(ArpHeader::parse(&bytes), Err(Malformed::ArpFormat), "byte {at}");
        }
    }
}
