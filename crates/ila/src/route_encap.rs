//! Encapsulation of a route: a translation that is applied where the route is used (Linux `ila_lwt.c`).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use base::Prefix;

use crate::checksum::CsumMode;
use crate::identifier::{IdentType, Identifier};
use crate::locator::Locator;
use crate::translate::{Direction, Rewrite};

/// ILA encapsulation of a route (`ip route … encap ila`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouteEncap {
    /// Locator of destinations after the translation.
    pub locator: Locator,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Type of the identifiers, as information for the operator. Translation ignores it.
    pub ident_type: IdentType,
    /// Packets that the route translates.
    pub hook_type: HookType,
}

/// Packets that a route translates (Linux `ILA_HOOK_ROUTE_*`).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum HookType {
    /// Packets that the node sends or forwards; from SIR to ILA.
    #[default]
    Output = 0,
    /// Packets that the node receives, for delivery or forwarding; from ILA to SIR.
    Input = 1,
}

/// Reasons for which a prefix cannot have an encapsulation. Linux (`ila_build_state`) also refuses all types of identifiers
/// but [`IdentType::Luid`], and prefixes that do not contain the type, with [`IdentType::UseFormat`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EncapError {
    /// The prefix is not an IPv6 prefix.
    NotIpv6,
    /// [`CsumMode::NeutralMap`], while the prefix contains a set C bit.
    ChecksumNeutralPrefix,
}

impl HookType {
    /// Both hooks.
    pub const ALL: [Self; 2] = [Self::Output, Self::Input];

    /// Hook of that number (Linux `ILA_HOOK_ROUTE_*`).
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Output),
            1 => Some(Self::Input),
            _ => None,
        }
    }

    /// iproute2's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Input => "input",
        }
    }
}

impl RouteEncap {
    /// Checks that a route to `prefix` may have this encapsulation.
    ///
    /// # Errors
    /// [`EncapError`].
    pub fn check(&self, prefix: Prefix) -> Result<(), EncapError> {
        let IpAddr::V6(addr) = prefix.addr() else { return Err(EncapError::NotIpv6) };
        if self.csum_mode == CsumMode::NeutralMap && Identifier::of(addr).is_checksum_neutral() {
            return Err(EncapError::ChecksumNeutralPrefix);
        }
        Ok(())
    }

    /// Direction of the translation.
    #[inline]
    pub const fn direction(&self) -> Direction {
        match self.hook_type {
            HookType::Output => Direction::SirToIla,
            HookType::Input => Direction::IlaToSir,
        }
    }

    /// The translation. Routes to many locators may share one encapsulation, so no difference is stored.
    #[inline]
    pub const fn rewrite(&self) -> Rewrite {
        Rewrite { locator: self.locator, csum_mode: self.csum_mode, diff: None }
    }

    /// Destination of a packet to `dst` after the translation.
    #[inline]
    pub fn address(&self, dst: Ipv6Addr) -> Ipv6Addr {
        self.rewrite().address(dst, self.direction())
    }

    /// The destination with the locator `sir_prefix` that this encapsulation translates to `translated`, if any.
    pub fn original(&self, translated: Ipv6Addr, sir_prefix: Locator) -> Option<Ipv6Addr> {
        let back = match self.direction() {
            Direction::SirToIla => Direction::IlaToSir,
            Direction::IlaToSir => Direction::SirToIla,
        };
        let original = Rewrite { locator: sir_prefix, ..self.rewrite() }.address(translated, back);
        (self.address(original) == translated).then_some(original)
    }
}

impl fmt::Display for EncapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIpv6 => f.write_str("ILA is for IPv6 alone"),
            Self::ChecksumNeutralPrefix => f.write_str("the prefix has the C bit, which csum-mode neutral-map sets"),
        }
    }
}

impl std::error::Error for EncapError {}

#[cfg(test)]
mod tests {
    use super::*;

    const ENCAP: RouteEncap = RouteEncap {
        locator: Locator(0x2001_0db8_0000_0001),
        csum_mode: CsumMode::NoAction,
        ident_type: IdentType::UseFormat,
        hook_type: HookType::Output,
    };

    #[test]
    fn prefix_is_refused_for_family_and_c_bit_alone() {
        let neutral = RouteEncap { csum_mode: CsumMode::NeutralMap, ..ENCAP };
        let auto = RouteEncap { csum_mode: CsumMode::NeutralMapAuto, ..ENCAP };
        let cases = [
            (ENCAP, "3333:0:0:1:2000:0:1:87/128", Ok(())),
            (ENCAP, "3333:0:0:1::7/128", Ok(())),
            (ENCAP, "3333:0:0:1:4000::/67", Ok(())),
            (ENCAP, "3333:0:0:1::/64", Ok(())),
            (ENCAP, "::/0", Ok(())),
            (ENCAP, "10.0.0.0/8", Err(EncapError::NotIpv6)),
            (neutral, "3333:0:0:1:2000::/68", Ok(())),
            (neutral, "3333:0:0:1:3000::/68", Err(EncapError::ChecksumNeutralPrefix)),
            (auto, "3333:0:0:1:3000::/68", Ok(())),
        ];
        for ident_type in IdentType::ALL {
            let encap = RouteEncap { ident_type, ..neutral };
            assert_eq!(encap.check("3333:0:0:1:2000::/68".parse().unwrap()), Ok(()), "{ident_type:?}");
        }
        for (encap, prefix, want) in cases {
            assert_eq!(encap.check(prefix.parse().unwrap()), want, "{prefix} {encap:?}");
        }
    }

    #[test]
    fn hooks_are_found_by_number() {
        for hook in HookType::ALL {
            assert_eq!(HookType::from_number(hook as u8), Some(hook));
        }
        assert_eq!(HookType::from_number(2), None);
    }

    #[test]
    fn original_undoes_translation_in_every_mode() {
        let sir_prefix = Locator(0x3333_0000_0000_0001);
        // 65 535 of 65 536 last words: 0 comes back as ffff, which is equal in a checksum.
        let identifiers = (1..=0xffff_u64).step_by(7).map(|word| Identifier(0x2000_0000_0001_0000 | word));
        for csum_mode in CsumMode::ALL {
            let encap = RouteEncap { csum_mode, ..ENCAP };
            for identifier in identifiers.clone() {
                let original = sir_prefix.with(identifier);
                let translated = encap.address(original);
                assert_eq!(encap.original(translated, sir_prefix), Some(original), "{csum_mode:?}");
            }
        }
        let elsewhere = Locator(0x2001_0db8_0000_0002).with(Identifier(0x2000_0000_0000_0001));
        assert_eq!(ENCAP.original(elsewhere, sir_prefix), None);
    }
}
