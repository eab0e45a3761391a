//! Mark under a mask: selects packets, or is set on packets.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A mark with a mask (Linux `struct xfrm_mark`). The default matches every packet, and changes none.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct Mark {
    /// Value of the mark.
    pub value: u32,
    /// Bits that are compared.
    pub mask: u32,
}

impl Mark {
    /// Mark that matches every packet, and changes none.
    pub const ANY: Self = Self { value: 0, mask: 0 };

    /// Exactly this mark, with all bits compared.
    pub const fn exactly(value: u32) -> Self {
        Self { value, mask: u32::MAX }
    }

    /// Tells whether a packet marked `mark` matches. A value with bits outside of the mask matches nothing.
    #[inline]
    pub const fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    /// The packet's mark after this mark was set (Linux `xfrm_smark_get`).
    #[inline]
    pub const fn set_on(self, mark: u32) -> u32 {
        self.value & self.mask | mark & !self.mask
    }

    /// Value for the look-up of entries with this mark (Linux `xfrm_mark_get`).
    pub const fn sought(self) -> u32 {
        self.value & self.mask
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_counts_and_is_set_under_its_mask() {
        let cases = [
            // (value, mask, a packet's mark, whether it matches, result of setting)
            (0, 0, 0, true, 0),
            (0, 0, 7, true, 7),
            (5, u32::MAX, 5, true, 5),
            (5, u32::MAX, 0x15, false, 5),
            (5, 0xf, 0x15, true, 0x15),
            (5, 0xf, 0x23, false, 0x25),
            (0x15, 0xf, 0x15, false, 0x15), // a bit outside of the mask: matches nothing
        ];
        for (value, mask, of_packet, is_meant, becomes) in cases {
            let mark = Mark { value, mask };
            assert_eq!(
                (mark.matches(of_packet), mark.set_on(of_packet)),
                (is_meant, becomes),
                "{mark:?} {of_packet:#x}"
            );
        }
    }
}
