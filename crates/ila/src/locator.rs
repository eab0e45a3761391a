//! Locator: the upper 64 bits of an address.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::groups;
use crate::identifier::Identifier;

/// Upper 64 bits of an IPv6 address, in host byte order. Written as all four groups of hexadecimal digits, as iproute2
/// does: `2001:db8:0:1`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Locator(pub u64);

/// Error: the text is not a locator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadLocator;

impl Locator {
    /// Locator of an address.
    #[inline]
    pub const fn of(addr: Ipv6Addr) -> Self {
        Self((addr.to_bits() >> 64) as u64)
    }

    /// Address with this locator.
    #[inline]
    pub const fn with(self, identifier: Identifier) -> Ipv6Addr {
        Ipv6Addr::from_bits((self.0 as u128) << 64 | identifier.0 as u128)
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        groups::write(self.0, f)
    }
}

impl FromStr for Locator {
    type Err = BadLocator;

    fn from_str(text: &str) -> Result<Self, BadLocator> {
        groups::parse(text).map(Self).ok_or(BadLocator)
    }
}

impl fmt::Display for BadLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a locator is four groups of hexadecimal digits, as 2001:db8:0:1")
    }
}

impl std::error::Error for BadLocator {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locator_is_written_and_read_in_four_groups() {
        for (text, bits) in [
            ("2001:db8:0:1", 0x2001_0db8_0000_0001),
            ("0:0:0:0", 0),
            ("ffff:ffff:ffff:ffff", u64::MAX),
            ("1:20:300:4000", 0x0001_0020_0300_4000),
        ] {
            assert_eq!(Locator(bits).to_string(), text);
            assert_eq!(text.parse(), Ok(Locator(bits)));
        }
        assert_eq!("0001:00DB:0:0".parse(), Ok(Locator(0x0001_00db_0000_0000)));
    }

    #[test]
    fn text_that_is_no_locator_is_refused() {
        for text in [
            "",
            "1",
            "1:2:3",
            "1:2:3:4:5",
            "1::2:3",
            "1:2:3:",
            ":1:2:3",
            "1:2:3:10000",
            "1:2:3:-4",
            "1:2:3:+4",
            "g:2:3:4",
        ] {
            assert_eq!(text.parse::<Locator>(), Err(BadLocator), "{text:?}");
        }
    }

    #[test]
    fn address_is_its_locator_and_identifier() {
        let addr: Ipv6Addr = "2001:db8:0:1:2345:6789:abcd:ef01".parse().unwrap();
        assert_eq!(Locator::of(addr), Locator(0x2001_0db8_0000_0001));
        assert_eq!(Identifier::of(addr), Identifier(0x2345_6789_abcd_ef01));
        assert_eq!(Locator::of(addr).with(Identifier::of(addr)), addr);
    }
}
