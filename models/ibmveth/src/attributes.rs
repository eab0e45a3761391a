//! Attribute word of an adapter: capabilities of the hypervisor, and negotiated offloads (`H_ILLAN_ATTRIBUTES`).

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

/// Attribute word. One call reads it, and clears and sets bits.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct Attributes(pub u64);

impl Attributes {
    /// No bit.
    pub const NONE: Self = Self(0);
    /// The adapter is the active trunk of one of its VLANs.
    pub const ACTIVE_TRUNK: Self = Self(1 << 0);
    /// TCP checksums over IPv4 may be partial.
    pub const IPV4_TCP_CSUM: Self = Self(1 << 1);
    /// TCP checksums over IPv6 may be partial.
    pub const IPV6_TCP_CSUM: Self = Self(1 << 2);
    /// Priority of a trunk, 0 for other adapters.
    pub const TRUNK_PRIORITY: Self = Self(0xf00);
    /// Checksums may be partial in padded frames too; without this bit they may not be partial at all.
    pub const PADDED_CSUM: Self = Self(0x2000);
    /// Frames may be sent with the MSS as an argument.
    pub const LARGE_SEND_SUPPORT: Self = Self(0x8000);
    /// Frames are sent and received with the MSS as an argument.
    pub const LARGE_SEND_ENABLED: Self = Self(0x1_0000);
    /// One call may add several receive buffers.
    pub const RX_MULTI_BUFFER: Self = Self(0x4_0000);
    /// Bits that a partition may change.
    pub const SETTABLE: Self = Self(Self::IPV4_TCP_CSUM.0 | Self::IPV6_TCP_CSUM.0 | Self::LARGE_SEND_ENABLED.0);
    /// Every bit of a current hypervisor, for an adapter that is no trunk.
    pub const ALL: Self =
        Self(Self::SETTABLE.0 | Self::PADDED_CSUM.0 | Self::LARGE_SEND_SUPPORT.0 | Self::RX_MULTI_BUFFER.0);

    /// Bits of a trunk's priority, whose lower four bits count.
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
