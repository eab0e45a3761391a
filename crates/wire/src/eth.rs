//! Ethernet II frames (RFC 894, RFC 2464) and Ethernet addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;

/// An Ethernet address.
#[derive(
    Clone, Copy, Default, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, Ord, PartialEq, PartialOrd, Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations of the link.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// Unset address: the field that an ARP request leaves open.
    pub const ZERO: Self = Self([0; 6]);

    /// Tells whether the address is a group address, which includes broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Tells whether the address may be a station's.
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::ZERO
    }

    /// Group address of an IPv4 multicast address (RFC 1112 §6.4).
    pub const fn multicast_v4(group: Ipv4Addr) -> Self {
        let [_, a, b, c] = group.octets();
        Self([0x01, 0x00, 0x5e, a & 0x7f, b, c])
    }

    /// Group address of an IPv6 multicast address (RFC 2464 §7).
    pub const fn multicast_v6(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Link-local address of this station, by modified EUI-64 (RFC 4291 App. A).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error: the text is not six pairs of hexadecimal digits separated by colons.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MacAddrError;

impl fmt::Display for MacAddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a link-layer address, as in 02:00:00:00:00:01")
    }
}

impl std::error::Error for MacAddrError {}

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let digits = parts.next().filter(|digits| matches!(digits.as_bytes(), [a, ..] if a.is_ascii_hexdigit()));
            let digits = digits.filter(|digits| digits.len() <= 2).ok_or(MacAddrError)?;
            *octet = u8::from_str_radix(digits, 16).map_err(|_| MacAddrError)?;
        }
        if parts.next().is_some() { Err(MacAddrError) } else { Ok(Self(octets)) }
    }
}

/// Protocol in an Ethernet frame (IANA ieee-802-numbers).
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// A customer's VLAN tag (802.1Q).
    pub const VLAN: Self = Self(0x8100);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
    /// A provider's VLAN tag (802.1ad).
    pub const SERVICE_VLAN: Self = Self(0x88a8);

    /// Tells whether the type is that of a VLAN tag, of either kind.
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN)
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.pad("ipv4"),
            Self::ARP => f.pad("arp"),
            Self::VLAN => f.pad("802.1Q"),
            Self::IPV6 => f.pad("ipv6"),
            Self::SERVICE_VLAN => f.pad("802.1ad"),
            Self(other) => write!(f, "{other:#06x}"),
        }
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Ethernet header: destination, source, type.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct EthHeader {
    dst: MacAddr,
    src: MacAddr,
    ethertype: U16,
}

header!(EthHeader, 14, Malformed::EthShort);

impl EthHeader {
    /// A header from `src` to `dst`.
    pub const fn new(dst: MacAddr, src: MacAddr, ethertype: EtherType) -> Self {
        Self { dst, src, ethertype: U16::new(ethertype.0) }
    }

    /// Destination of the frame.
    #[inline]
    pub const fn dst(&self) -> MacAddr {
        self.dst
    }

    /// Source of the frame.
    #[inline]
    pub const fn src(&self) -> MacAddr {
        self.src
    }

    /// Protocol of the payload. A value below 0x0600 is a length (802.3) and means a protocol that this node does not
    /// implement.
    #[inline]
    pub const fn ethertype(&self) -> EtherType {
        EtherType(self.ethertype.get())
    }

    /// Changes the destination of the frame.
    pub const fn set_dst(&mut self, dst: MacAddr) {
        self.dst = dst;
    }

    /// Changes the source of the frame.
    pub const fn set_src(&mut self, src: MacAddr) {
        self.src = src;
    }

    /// Changes the protocol of the payload.
    pub const fn set_ethertype(&mut self, ethertype: EtherType) {
        self.ethertype = U16::new(ethertype.0);
    }
}

/// A frame: its header and the following bytes, padding included.
#[derive(Clone, Copy, Debug)]
pub struct Eth<'a> {
    header: &'a EthHeader,
    payload: &'a [u8],
}

impl<'a> Eth<'a> {
    /// Parses `frame`, without preamble and FCS.
    ///
    /// # Errors
    /// [`Malformed::EthShort`].
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = EthHeader::split_from(frame)?;
        Ok(Self { header, payload })
    }

    /// The header.
    #[inline]
    pub const fn header(&self) -> &'a EthHeader {
        self.header
    }

    /// Bytes behind the header, padding of short frames included.
    #[inline]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_at_least_its_header() {
        let dst = MacAddr([2, 0, 0, 0, 0, 1]);
        let header = EthHeader::new(dst, MacAddr([2, 0, 0, 0, 0, 2]), EtherType::IPV6);
        assert_eq!(header.as_bytes(), [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]);
        assert_eq!(Eth::parse(&header.as_bytes()[..13]).err(), Some(Malformed::EthShort));
        let frame = Eth::parse(header.as_bytes()).unwrap();
        assert_eq!(
            (frame.header().dst(), frame.header().ethertype(), frame.payload()),
            (dst, EtherType::IPV6, &[][..])
        );
    }

    #[test]
    fn groups_map_to_their_link_layer_addresses() {
        assert_eq!(MacAddr::multicast_v4(Ipv4Addr::new(239, 129, 2, 3)).to_string(), "01:00:5e:01:02:03");
        assert_eq!(MacAddr::multicast_v6("ff02::1:ff28:9c5a".parse().unwrap()).to_string(), "33:33:ff:28:9c:5a");
        assert!(MacAddr::BROADCAST.is_multicast() && !MacAddr::BROADCAST.is_unicast() && !MacAddr::ZERO.is_unicast());
    }

    #[test]
    fn a_station_makes_its_link_local_address_by_eui_64() {
        // The interface identifier of RFC 2464 §4.
        let mac: MacAddr = "34:56:78:9a:bc:de".parse().unwrap();
        assert_eq!(mac.link_local(), "fe80::3656:78ff:fe9a:bcde".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff"] {
            assert_eq!(text.parse::<MacAddr>().unwrap().to_string(), text);
        }
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:001", "02:00:00:00:00:+1", "02::0:0:0:1"]
        {
            assert_eq!(text.parse::<MacAddr>(), Err(MacAddrError), "{text}");
        }
    }
}
