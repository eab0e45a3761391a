//! Attribute word of an adapter: what the hypervisor can do, and what was agreed on (`H_ILLAN_ATTRIBUTES`).

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

/// Attribute word. One call asks for it, clears bits and sets bits.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct Attributes(pub u64);

impl Attributes {
    /// No bit.
    pub const NONE: Self = Self(0);
    /// The adapter is the active trunk of one of its VLANs.
    pub const ACTIVE_TRUNK: Self = Self(1 << 0);
    /// Checksums of TCP over IPv4 may be left to be made.
    pub const IPV4_TCP_CSUM: Self = Self(1 << 1);
    /// Checksums of TCP over IPv6 may be left to be made.
    pub const IPV6_TCP_CSUM: Self = Self(1 << 2);
    /// Priority of a trunk, 0 for an adapter that is none.
    pub const TRUNK_PRIORITY: Self = Self(0xf00);
    /// Checksums may be left to be made in padded frames too, without which none may be.
    pub const PADDED_CSUM: Self = Self(0x2000);
    /// Frames may be sent with their MSS in the call.
    pub const LARGE_SEND_SUPPORT: Self = Self(0x8000);
    /// Frames are sent and received so.
    pub const LARGE_SEND_ENABLED: Self = Self(0x1_0000);
    /// Several receive buffers may be added by one call.
    pub const RX_MULTI_BUFFER: Self = Self(0x4_0000);
    /// Bits that a partition may change.
    pub const SETTABLE: Self = Self(Self::IPV4_TCP_CSUM.0 | Self::IPV6_TCP_CSUM.0 | Self::LARGE_SEND_ENABLED.0);
    /// Every bit that a current hypervisor has for an adapter that is no trunk.
    pub const ALL: Self =
        Self(Self::SETTABLE.0 | Self::PADDED_CSUM.0 | Self::LARGE_SEND_SUPPORT.0 | Self::RX_MULTI_BUFFER.0);

    /// The word of a trunk's priority; of its lower four bits, as the word has no more.
    pub const fn of_priority(priority: u8) -> Self {
        Self((priority as u64 & 0xf) << 8)
    }

    /// Priority as a trunk; 0 for none.
    pub const fn priority(self) -> u8 {
        ((self.0 & Self::TRUNK_PRIORITY.0) >> 8) as u8
    }

    /// Tells whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Tells whether some bit of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Attributes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Attributes {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Attributes {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attributes({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_interface_has_them() {
        let bits = [
            (Attributes::ACTIVE_TRUNK, 0x1),
            (Attributes::IPV4_TCP_CSUM, 0x2),
            (Attributes::IPV6_TCP_CSUM, 0x4),
            (Attributes::TRUNK_PRIORITY, 0xf00),
            (Attributes::PADDED_CSUM, 0x2000),
            (Attributes::LARGE_SEND_SUPPORT, 0x8000),
            (Attributes::LARGE_SEND_ENABLED, 0x1_0000),
            (Attributes::RX_MULTI_BUFFER, 0x4_0000),
        ];
        let mut all = Attributes::NONE;
        for (bit, number) in bits {
            assert_eq!(bit.0, number);
            assert!(!all.intersects(bit), "{bit:?} twice");
            all = all | bit;
        }
        assert_eq!((all & !Attributes::ALL).0, 0xf01);
    }

    #[test]
    fn priority_has_four_bits() {
        for priority in 0..16 {
            let word = Attributes::of_priority(priority);
            assert_eq!((word.priority(), word & !Attributes::TRUNK_PRIORITY), (priority, Attributes::NONE));
        }
        assert_eq!(Attributes::of_priority(0x12).priority(), 2);
    }
}
