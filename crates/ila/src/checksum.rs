//! Checksum modes, and the arithmetic of the neutral modes.

use wire::checksum as sums;

use crate::identifier::Identifier;
use crate::locator::Locator;

/// Treatment of the transport checksum when the destination changes (Linux `ILA_CSUM_*`).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum CsumMode {
    /// The checksum of TCP, UDP or ICMPv6 is adjusted, if that header directly follows the IPv6 header.
    AdjTransport = 0,
    /// The identifier's last 16 bits absorb the difference, and the C bit is set.
    NeutralMap = 1,
    /// No adjustment.
    #[default]
    NoAction = 2,
    /// The identifier's last 16 bits absorb the difference, without a mark.
    NeutralMapAuto = 3,
}

impl CsumMode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::AdjTransport, Self::NeutralMap, Self::NoAction, Self::NeutralMapAuto];

    /// Mode of that number (Linux `ILA_CSUM_*`).
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::AdjTransport),
            1 => Some(Self::NeutralMap),
            2 => Some(Self::NoAction),
            3 => Some(Self::NeutralMapAuto),
            _ => None,
        }
    }

    /// Tells whether the identifier absorbs the difference.
    pub const fn is_neutral(self) -> bool {
        matches!(self, Self::NeutralMap | Self::NeutralMapAuto)
    }

    /// iproute2's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdjTransport => "adj-transport",
            Self::NeutralMap => "neutral-map",
            Self::NoAction => "no-action",
            Self::NeutralMapAuto => "neutral-map-auto",
        }
    }
}

/// Difference of the sums of an address before and after a change of locator: the old locator's sum less the new one's,
/// in one's complement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Diff(u16);

impl Diff {
    /// Difference of a change from one locator to another. A [`Rewrite`](crate::Rewrite) with a fixed old locator
    /// stores this value.
    #[inline]
    pub fn between(old: Locator, new: Locator) -> Self {
        Self(sums::fold(sums::sub(sums::sum(&old.0.to_be_bytes()), sums::sum(&new.0.to_be_bytes()))))
    }

    /// The difference as a partial sum: the old locator less the new one.
    #[inline]
    pub(crate) const fn old_less_new(self) -> u32 {
        self.0 as u32
    }

    /// The difference as a partial sum: the new locator less the old one.
    #[inline]
    pub(crate) const fn new_less_old(self) -> u32 {
        !self.0 as u32
    }
}

impl Identifier {
    /// The identifier with a change of locator absorbed in the last 16 bits (Linux `ila_csum_do_neutral_nofmt`).
    #[inline]
    pub(crate) const fn absorb(self, diff: Diff) -> Self {
        self.absorb_sum(diff.old_less_new())
    }

    /// As [`absorb`](Self::absorb), with the C bit flipped and the flip absorbed as well (Linux
    /// `ila_csum_do_neutral_fmt`).
    #[inline]
    pub(crate) const fn absorb_and_flip(self, diff: Diff) -> Self {
        // The weight of the C bit in its 16-bit word.
        let c_bit = if self.is_checksum_neutral() { 0x1000 } else { !0x1000 & 0xffff };
        self.absorb_sum(sums::add(diff.old_less_new(), c_bit)).with_flipped_c_bit()
    }

    #[inline]
    const fn absorb_sum(self, sum: u32) -> Self {
        self.with_last_word(sums::fold(sums::add(sum, self.last_word() as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_found_by_number() {
        for mode in CsumMode::ALL {
            assert_eq!(CsumMode::from_number(mode as u8), Some(mode));
        }
        assert_eq!(CsumMode::from_number(4), None);
    }

    #[test]
    fn difference_and_its_opposite_cancel() {
        let pairs =
            [(0, 0), (1, 2), (2, 1), (u64::MAX, 0), (0, u64::MAX), (0x2001_0db8_0000_0001, 0xfd00_0000_0000_0000)];
        for (old, new) in pairs {
            let diff = Diff::between(Locator(old), Locator(new));
            let none = sums::fold(sums::add(diff.old_less_new(), diff.new_less_old()));
            assert_eq!(none, 0xffff, "{old:x} to {new:x}");
            let back = Diff::between(Locator(new), Locator(old));
            let none = sums::fold(sums::add(diff.old_less_new(), back.old_less_new()));
            assert!(matches!(none, 0 | 0xffff), "{old:x} to {new:x}: {none:x}");
        }
    }
}
