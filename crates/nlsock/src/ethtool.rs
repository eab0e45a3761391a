//! `ioctl(SIOCETHTOOL)` as a request: the request contains the program's memory block, and the reply the bytes that the
//! kernel would write into the block (Linux `include/uapi/linux/ethtool.h`, `net/ethtool/ioctl.c`).
//!
//! The request is a message [`MESSAGE`] of rtnetlink: four zero bytes as a `struct rtgenmsg`, then [`NAME`], the
//! interface's name, and [`BLOCK`], the first [`input_len`] bytes of the block. The reply has the same four bytes,
//! [`BLOCK`] with the new first bytes of the block, at most [`room`] of them, and [`RESULT`], the call's return value.
//! All numbers are in the host's byte order.
//!
//! Linux has no such message; all its message types of rtnetlink are smaller.

/// Type of the request and of the reply.
pub const MESSAGE: u16 = 0x3fe;
/// Length of the part before the attributes.
pub const FIXED: usize = 4;
/// Attribute of the interface's name (`IFLA_IFNAME`).
pub const NAME: u16 = 3;
/// Attribute of the block's bytes.
pub const BLOCK: u16 = 4;
/// Attribute of the call's return value, 32 bits; 0 if it is absent.
pub const RESULT: u16 = 5;

/// Supported commands, the first word of a block.
pub mod command {
    /// `struct ethtool_drvinfo`.
    pub const GDRVINFO: u32 = 0x3;
    /// `struct ethtool_value`.
    pub const GLINK: u32 = 0xa;
    /// `struct ethtool_ringparam`.
    pub const GRINGPARAM: u32 = 0x10;
    /// Receive checksums: `struct ethtool_value`, like the commands up to `SSG`.
    pub const GRXCSUM: u32 = 0x14;
    /// Sets receive checksums.
    pub const SRXCSUM: u32 = 0x15;
    /// Transmit checksums.
    pub const GTXCSUM: u32 = 0x16;
    /// Sets transmit checksums.
    pub const STXCSUM: u32 = 0x17;
    /// Scatter-gather.
    pub const GSG: u32 = 0x18;
    /// Sets scatter-gather.
    pub const SSG: u32 = 0x19;
    /// `struct ethtool_gstrings`.
    pub const GSTRINGS: u32 = 0x1b;
    /// `struct ethtool_stats`.
    pub const GSTATS: u32 = 0x1d;
    /// TCP segmentation: `struct ethtool_value`, like the commands up to `SGRO`.
    pub const GTSO: u32 = 0x1e;
    /// Sets TCP segmentation.
    pub const STSO: u32 = 0x1f;
    /// Segmentation in software.
    pub const GGSO: u32 = 0x23;
    /// Sets segmentation in software.
    pub const SGSO: u32 = 0x24;
    /// Flags `ETH_FLAG_*`.
    pub const GFLAGS: u32 = 0x25;
    /// Sets the flags `ETH_FLAG_*`.
    pub const SFLAGS: u32 = 0x26;
    /// Receive offload in software.
    pub const GGRO: u32 = 0x2b;
    /// Sets receive offload in software.
    pub const SGRO: u32 = 0x2c;
    /// `struct ethtool_sset_info`.
    pub const GSSET_INFO: u32 = 0x37;
    /// `struct ethtool_gfeatures`.
    pub const GFEATURES: u32 = 0x3a;
    /// `struct ethtool_sfeatures`.
    pub const SFEATURES: u32 = 0x3b;
    /// `struct ethtool_channels`.
    pub const GCHANNELS: u32 = 0x3c;
    /// `struct ethtool_link_settings`.
    pub const GLINKSETTINGS: u32 = 0x4c;
}

/// Length of a name in a string set (`ETH_GSTRING_LEN`).
pub const STRING_LEN: usize = 32;
/// Number of 32-bit words of features (`ETHTOOL_DEV_FEATURE_WORDS`).
pub const FEATURE_WORDS: usize = 2;
/// Length of `struct ethtool_drvinfo`.
pub const DRVINFO_LEN: usize = 196;
/// Length of `struct ethtool_channels` and of `struct ethtool_ringparam`.
pub const COUNTS_LEN: usize = 36;
/// Length of `struct ethtool_link_settings` without the link mode sets.
pub const LINK_SETTINGS_LEN: usize = 48;
/// Number of 32-bit words of a set of link modes (Linux 6.18's `__ETHTOOL_LINK_MODE_MASK_NU32`).
pub const LINK_MODE_WORDS: usize = 4;

/// Offset of the number of link mode words in a block of link settings.
pub const LINK_MODE_WORDS_AT: usize = 15;

/// Number of bytes that a command reads from its block. The arguments are the block's first two words; for a command
/// without a [size](has_size) the caller passes 0 as the second one.
pub fn input_len([command, size]: [u32; 2]) -> usize {
    use command::*;
    match command {
        SRXCSUM | STXCSUM | SSG | STSO | SGSO | SFLAGS | SGRO | GSTATS | GFEATURES => 8,
        GSTRINGS => 12,
        GSSET_INFO => 16,
        // A wrong number of words alone makes the command fail.
        SFEATURES => 8 + if size as usize == FEATURE_WORDS { 8 * FEATURE_WORDS } else { 0 },
        GLINKSETTINGS => LINK_SETTINGS_LEN,
        _ => 4,
    }
}

/// Tells whether the second word of a command's block is its size.
pub const fn has_size(command: u32) -> bool {
    command == command::SFEATURES
}

/// Maximum number of bytes that a command may write to its block, which begins with `input`. The program's own count is
/// the limit for the commands for which Linux reads the count, and for commands for which only newer kernels do
/// (`GSTRINGS`, `GSTATS`); a count of 0 is no limit.
pub fn room(input: &[u8]) -> usize {
    use command::*;
    let word = |at: usize| input.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word));
    let counted = |head: usize, count: u32, each: usize| match count {
        0 => usize::MAX,
        count => (count as usize).saturating_mul(each).saturating_add(head),
    };
    match word(0) {
        GDRVINFO => DRVINFO_LEN,
        GLINK | GRXCSUM | GTXCSUM | GSG | GTSO | GGSO | GFLAGS | GGRO => 8,
        GRINGPARAM | GCHANNELS => COUNTS_LEN,
        GSTRINGS => counted(12, word(8), STRING_LEN),
        GSTATS => counted(8, word(4), 8),
        GSSET_INFO => 16 + 4 * (word(8).count_ones() + word(12).count_ones()) as usize,
        GFEATURES => 8 + 16 * (word(4) as usize).min(FEATURE_WORDS),
        // A program that states another number of words has no space for them.
        GLINKSETTINGS => {
            let words = input.get(LINK_MODE_WORDS_AT).map_or(0, |&words| words as i8);
            LINK_SETTINGS_LEN + if words as usize == LINK_MODE_WORDS { 12 * LINK_MODE_WORDS } else { 0 }
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::command::*;
    use super::*;

    fn block(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn no_more_is_read_than_a_command_has() {
        let cases = [
            ([GDRVINFO, 7], 4),
            ([SGRO, 7], 8),
            ([GSSET_INFO, 0], 16),
            ([SFEATURES, 1], 8),
            ([SFEATURES, 2], 24),
            ([SFEATURES, u32::MAX], 8),
            ([u32::MAX, u32::MAX], 4),
        ];
        for (words, want) in cases {
            assert_eq!(input_len(words), want, "{words:x?}");
        }
    }

    #[test]
    fn no_more_is_written_than_a_program_has_room_for() {
        let settings = |words: i8| {
            let mut block = block(&[GLINKSETTINGS, 0, 0, 0, 0, 0]);
            block[LINK_MODE_WORDS_AT] = words as u8;
            block
        };
        let cases = [
            (block(&[GDRVINFO]), 196),
            (block(&[GLINK]), 8),
            (block(&[SGRO, 1]), 0),
            (block(&[GSTRINGS, 4, 3]), 12 + 3 * 32),
            (block(&[GSTRINGS, 4, 0]), usize::MAX),
            (block(&[GSTATS, 5]), 48),
            (block(&[GSTATS, 1 << 31]), (1 << 34) + 8),
            (block(&[GSSET_INFO, 0, 0x12, 1]), 28),
            (block(&[GFEATURES, 0]), 8),
            (block(&[GFEATURES, 1]), 24),
            (block(&[GFEATURES, u32::MAX]), 40),
            (settings(0), 48),
            (settings(-4), 48),
            (settings(4), 96),
            (block(&[0]), 0),
            (vec![3], 0),
            (Vec::new(), 0),
        ];
        for (input, want) in cases {
            assert_eq!(room(&input), want, "{input:x?}");
        }
    }
}
