//! Descriptors of transmit and receive buffers, and of received frames.

use std::fmt;

/// Flags of both buffer descriptors and receive queue entries.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct FrameFlags(u32);

impl FrameFlags {
    /// No flag: a complete frame with its checksum.
    pub const NONE: Self = Self(0);
    /// A fat frame, whose MSS is an argument of the call, or in the receive buffer.
    pub const LARGE: Self = Self(0x0400_0000);
    /// The TCP checksum is not in the frame.
    pub const NO_CSUM: Self = Self(0x0200_0000);
    /// The receiver need not verify the TCP checksum.
    pub const CSUM_GOOD: Self = Self(0x0100_0000);

    const MASK: u32 = Self::LARGE.0 | Self::NO_CSUM.0 | Self::CSUM_GOOD.0;

    /// Union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Tells whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for FrameFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameFlags({:#x})", self.0)
    }
}

/// Descriptor of a buffer: flags and length in the upper half, an I/O address in the lower one.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct BufDesc(pub u64);

impl BufDesc {
    /// An empty descriptor.
    pub const UNUSED: Self = Self(0);

    const VALID: u32 = 0x8000_0000;
    const TOGGLE: u32 = 0x4000_0000;
    const LEN: u32 = 0x00ff_ffff;

    /// Maximum length of a buffer, in bytes.
    pub const MAX_LEN: usize = Self::LEN as usize;

    /// A valid descriptor of `len` bytes at an I/O address.
    ///
    /// # Panics
    /// When the length exceeds 24 bits.
    pub const fn new(flags: FrameFlags, len: usize, address: u32) -> Self {
        assert!(len <= Self::MAX_LEN, "a length of 24 bits");
        Self(((Self::VALID | flags.0 | len as u32) as u64) << 32 | address as u64)
    }

    const fn flags_len(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Tells whether the descriptor is valid.
    pub const fn is_valid(self) -> bool {
        self.flags_len() & Self::VALID != 0
    }

    /// The toggle bit, which is ignored in a buffer.
    pub const fn toggle(self) -> bool {
        self.flags_len() & Self::TOGGLE != 0
    }

    /// Flags of the frame.
    pub const fn flags(self) -> FrameFlags {
        FrameFlags(self.flags_len() & FrameFlags::MASK)
    }

    /// Length of the buffer, in bytes.
    pub const fn len(self) -> usize {
        (self.flags_len() & Self::LEN) as usize
    }

    /// Tells whether the length is 0.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// I/O address.
    pub const fn address(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for BufDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufDesc({:#x})", self.0)
    }
}

/// Entry of a receive queue, 16 bytes: flags and offset, length, both big-endian, and the correlator of the buffer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RxEntry {
    flags_offset: u32,
    /// Bytes of the frame.
    pub length: u32,
    /// Correlator from the front of the buffer.
    pub correlator: u64,
}

impl RxEntry {
    /// Bytes of an entry.
    pub const LEN: usize = 16;

    const TOGGLE: u32 = 0x8000_0000;
    const VALID: u32 = 0x4000_0000;
    const OFFSET: u32 = 0x0000_ffff;

    /// An entry for a frame that begins at `offset` of its buffer.
    pub const fn new(toggle: bool, flags: FrameFlags, offset: u16, length: u32, correlator: u64) -> Self {
        Self { flags_offset: Self::toggled(toggle) | Self::VALID | flags.0 | offset as u32, length, correlator }
    }

    /// An entry that returns a buffer without a frame.
    pub const fn invalid(toggle: bool, correlator: u64) -> Self {
        Self { flags_offset: Self::toggled(toggle), length: 0, correlator }
    }

    const fn toggled(toggle: bool) -> u32 {
        if toggle { Self::TOGGLE } else { 0 }
    }

    /// Reads an entry.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let word = |at: usize| u32::from_be_bytes(words[at]);
        Self { flags_offset: word(0), length: word(1), correlator: u64::from(word(2)) << 32 | u64::from(word(3)) }
    }

    /// Writes an entry.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.flags_offset.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..].copy_from_slice(&self.correlator.to_be_bytes());
        bytes
    }

    /// The toggle bit: an entry is new when it has the value of the queue's current round.
    pub const fn toggle(self) -> bool {
        self.flags_offset & Self::TOGGLE != 0
    }

    /// Tells whether the entry holds a frame.
    pub const fn is_valid(self) -> bool {
        self.flags_offset & Self::VALID != 0
    }

    /// Flags of the frame.
    pub const fn flags(self) -> FrameFlags {
        FrameFlags(self.flags_offset & FrameFlags::MASK)
    }

    /// Bytes in front of the frame.
    pub const fn offset(self) -> usize {
        (self.flags_offset & Self::OFFSET) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_descriptor_has_bits_of_the_interface() {
        let flags = FrameFlags::LARGE.with(FrameFlags::NO_CSUM).with(FrameFlags::CSUM_GOOD);
        let cases = [
            (BufDesc::new(FrameFlags::NONE, 0, 0), 0x8000_0000_0000_0000),
            (BufDesc::new(FrameFlags::LARGE, 0xff_ffff, 0x1234), 0x84ff_ffff_0000_1234),
            (BufDesc::new(FrameFlags::NO_CSUM, 1, u32::MAX), 0x8200_0001_ffff_ffff),
            (BufDesc::new(FrameFlags::CSUM_GOOD, 60, 7), 0x8100_003c_0000_0007),
            (BufDesc::new(flags, 60, 7), 0x8700_003c_0000_0007),
        ];
        for (desc, want) in cases {
            assert_eq!(desc.0, want, "{desc:?}");
            assert!(desc.is_valid() && !desc.toggle());
        }
        let desc = BufDesc::new(flags, 60, 7);
        assert_eq!((desc.flags(), desc.len(), desc.address(), desc.is_empty()), (flags, 60, 7, false));
        assert!(!BufDesc::UNUSED.is_valid() && BufDesc::UNUSED.is_empty());
        assert!(BufDesc(0x4000_0000_0000_0000).toggle());
        // Unassigned bits are not flags.
        assert_eq!(BufDesc(0x3800_0000_0000_0000).flags(), FrameFlags::NONE);
    }

    #[test]
    fn receive_entry_is_big_endian() {
        let flags = FrameFlags::LARGE.with(FrameFlags::CSUM_GOOD);
        let entry = RxEntry::new(true, flags, 16, 0x1_0203, 0x0000_0004_0000_00ff);
        let bytes = entry.encode();
        assert_eq!(bytes, [0xc5, 0, 0, 16, 0, 1, 2, 3, 0, 0, 0, 4, 0, 0, 0, 0xff]);
        let read = RxEntry::decode(&bytes);
        assert_eq!(read, entry);
        assert!(read.toggle() && read.is_valid());
        assert_eq!((read.flags(), read.offset()), (flags, 16));
        let none = RxEntry::invalid(false, 9);
        assert!(!none.toggle() && !none.is_valid());
        assert_eq!(none.encode()[8..], 9u64.to_be_bytes());
    }
}
