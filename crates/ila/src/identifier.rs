//! Identifier: the lower 64 bits of an address, beginning with a type and the C bit.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::groups;

/// Lower 64 bits of an IPv6 address, in host byte order: three bits of type, the C bit, 60 bits. Written as all four groups
/// of hexadecimal digits, as a locator: `2000:0:0:7`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Identifier(pub u64);

/// Type of an identifier (Linux `ILA_ATYPE_*`). In a mapping the type informs the operator; translation ignores it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum IdentType {
    /// Interface identifier of RFC 4291: the address is not an ILA address.
    InterfaceId = 0,
    /// Locally unique identifier.
    Luid = 1,
    /// Virtual network's IPv4 address.
    VirtV4 = 2,
    /// Virtual network's IPv6 unicast address.
    VirtUnicastV6 = 3,
    /// Virtual network's IPv6 multicast address.
    VirtMulticastV6 = 4,
    /// Address outside the domain.
    NonLocalAddr = 5,
    /// Reserved.
    Reserved6 = 6,
    /// Reserved.
    Reserved7 = 7,
    /// Type encoded in three bits of the identifier itself.
    #[default]
    UseFormat = 32,
}

/// Error: the text is not an identifier.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadIdentifier;

/// The C bit: the last 16 bits have absorbed the difference of a translation.
const CHECKSUM_NEUTRAL: u64 = 1 << 60;

impl Identifier {
    /// Identifier of an address.
    #[inline]
    pub const fn of(addr: Ipv6Addr) -> Self {
        Self(addr.to_bits() as u64)
    }

    /// Type from the first three bits.
    pub const fn ident_type(self) -> IdentType {
        match self.0 >> 61 {
            0 => IdentType::InterfaceId,
            1 => IdentType::Luid,
            2 => IdentType::VirtV4,
            3 => IdentType::VirtUnicastV6,
            4 => IdentType::VirtMulticastV6,
            5 => IdentType::NonLocalAddr,
            6 => IdentType::Reserved6,
            _ => IdentType::Reserved7,
        }
    }

    /// Tells whether the C bit is set.
    #[inline]
    pub const fn is_checksum_neutral(self) -> bool {
        self.0 & CHECKSUM_NEUTRAL != 0
    }

    /// The identifier with the C bit flipped.
    #[inline]
    pub(crate) const fn with_flipped_c_bit(self) -> Self {
        Self(self.0 ^ CHECKSUM_NEUTRAL)
    }

    /// The last 16 bits.
    #[inline]
    pub(crate) const fn last_word(self) -> u16 {
        self.0 as u16
    }

    /// The identifier with the last 16 bits replaced.
    #[inline]
    pub(crate) const fn with_last_word(self, word: u16) -> Self {
        Self(self.0 & !0xffff | word as u64)
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        groups::write(self.0, f)
    }
}

impl FromStr for Identifier {
    type Err = BadIdentifier;

    fn from_str(text: &str) -> Result<Self, BadIdentifier> {
        groups::parse(text).map(Self).ok_or(BadIdentifier)
    }
}

impl fmt::Display for BadIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an identifier is four groups of hexadecimal digits, as 2000:0:0:7")
    }
}

impl std::error::Error for BadIdentifier {}

impl IdentType {
    /// Every type.
    pub const ALL: [Self; 9] = [
        Self::InterfaceId,
        Self::Luid,
        Self::VirtV4,
        Self::VirtUnicastV6,
        Self::VirtMulticastV6,
        Self::NonLocalAddr,
        Self::Reserved6,
        Self::Reserved7,
        Self::UseFormat,
    ];

    /// Type of that number (Linux `ILA_ATYPE_*`).
    pub const fn from_number(number: u8) -> Option<Self> {
        let mut at = 0;
        while at < Self::ALL.len() {
            if Self::ALL[at] as u8 == number {
                return Some(Self::ALL[at]);
            }
            at += 1;
        }
        None
    }

    /// iproute2's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InterfaceId => "iid",
            Self::Luid => "luid",
            Self::VirtV4 => "virt-v4",
            Self::VirtUnicastV6 => "virt-uni-v6",
            Self::VirtMulticastV6 => "virt-multi-v6",
            Self::NonLocalAddr => "nonlocal-addr",
            Self::Reserved6 => "reserved-6",
            Self::Reserved7 => "reserved-7",
            Self::UseFormat => "use-format",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_nibble_is_type_and_c_bit() {
        // From the kernel's documentation: a type nibble of 2 is a locally unique identifier, 3 the same with the C
        // bit.
        for (nibble, ident_type, is_neutral) in [
            (0x0, IdentType::InterfaceId, false),
            (0x1, IdentType::InterfaceId, true),
            (0x2, IdentType::Luid, false),
            (0x3, IdentType::Luid, true),
            (0x4, IdentType::VirtV4, false),
            (0x6, IdentType::VirtUnicastV6, false),
            (0x8, IdentType::VirtMulticastV6, false),
            (0xb, IdentType::NonLocalAddr, true),
            (0xc, IdentType::Reserved6, false),
            (0xf, IdentType::Reserved7, true),
        ] {
            let identifier = Identifier(nibble << 60 | 0x0fff_ffff_ffff_ffff);
            assert_eq!(
                (identifier.ident_type(), identifier.is_checksum_neutral()),
                (ident_type, is_neutral),
                "{nibble:x}"
            );
        }
    }

    #[test]
    fn identifier_is_written_and_read_in_four_groups() {
        let identifier = Identifier(0x2000_0000_0000_0007);
        assert_eq!(identifier.to_string(), "2000:0:0:7");
        assert_eq!("2000:0:0:7".parse(), Ok(identifier));
        for text in ["", "::7", "2000:0:0", "2000:0:0:7:1", "2001:db8::7"] {
            assert_eq!(text.parse::<Identifier>(), Err(BadIdentifier), "{text:?}");
        }
    }

    #[test]
    fn types_are_found_by_number() {
        for ident_type in IdentType::ALL {
            assert_eq!(IdentType::from_number(ident_type as u8), Some(ident_type));
        }
        for number in (8..=31).chain(33..=255) {
            assert_eq!(IdentType::from_number(number), None);
        }
    }
}
