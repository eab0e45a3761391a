//! The VLAN tag (IEEE 802.1Q §9.6): four bytes in front of the frame's original type.

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{EtherType, Malformed};

/// Tag control information: priority, drop eligible, VLAN identifier.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Tci(pub u16);

impl Tci {
    /// The largest VLAN identifier in use; 4095 is reserved.
    pub const MAX_VID: u16 = 4094;

    /// A tag of VLAN `vid`, 12 bits, and `priority`, 3 bits. `None` if a value is too large or the VLAN is reserved.
    pub const fn new(vid: u16, priority: u8) -> Option<Self> {
        if vid > Self::MAX_VID || priority > 7 { None } else { Some(Self((priority as u16) << 13 | vid)) }
    }

    /// The VLAN identifier; 0 for a priority tag without a VLAN.
    pub const fn vid(self) -> u16 {
        self.0 & 0x0fff
    }

    /// Priority code point, 0 to 7.
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }
}

/// Tag behind a type of [`EtherType::VLAN`].
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct VlanHeader {
    tci: U16,
    ethertype: U16,
}

header!(VlanHeader, 4, Malformed::VlanShort);

impl VlanHeader {
    /// A tag in front of a payload of type `ethertype`.
    pub const fn new(tci: Tci, ethertype: EtherType) -> Self {
        Self { tci: U16::new(tci.0), ethertype: U16::new(ethertype.0) }
    }

    /// Priority and VLAN.
    pub const fn tci(&self) -> Tci {
        Tci(self.tci.get())
    }

    /// Protocol that follows the tag.
    pub const fn ethertype(&self) -> EtherType {
        EtherType(self.ethertype.get())
    }
}

/// A tag and the following bytes.
#[derive(Clone, Copy, Debug)]
pub struct Vlan<'a> {
    header: &'a VlanHeader,
    payload: &'a [u8],
}

impl<'a> Vlan<'a> {
    /// Parses the bytes behind the tag's type field.
    ///
    /// # Errors
    /// [`Malformed::VlanShort`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = VlanHeader::split_from(bytes)?;
        Ok(Self { header, payload })
    }

    /// The tag.
    pub const fn header(&self) -> &'a VlanHeader {
        self.header
    }

    /// Bytes behind the tag.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_holds_priority_and_vlan_within_their_bits() {
        let tci = Tci::new(4094, 7).unwrap();
        assert_eq!((tci.0, tci.vid(), tci.priority()), (0xeffe, 4094, 7));
        assert_eq!((Tci::new(4095, 0), Tci::new(1, 8)), (None, None));
    }

    #[test]
    fn a_tag_is_four_bytes() {
        let bytes = [0x60, 0x64, 0x08, 0x00, 0x45];
        let vlan = Vlan::parse(&bytes).unwrap();
        assert_eq!((vlan.header().tci(), vlan.header().ethertype()), (Tci::new(100, 3).unwrap(), EtherType::IPV4));
        assert_eq!(vlan.payload(), [0x45]);
        assert_eq!(Vlan::parse(&bytes[..3]).err(), Some(Malformed::VlanShort));
        assert_eq!(VlanHeader::new(Tci(0x6064), EtherType::IPV4).as_bytes(), &bytes[..4]);
    }
}
