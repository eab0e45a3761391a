//! Key material that is kept out of logs, replies and freed memory.

use std::fmt;

use zeroize::Zeroizing;

/// Key material as configured, with salt or nonce at its end for algorithms with one. Zeroed on drop; `Debug` prints
/// none of it.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Key {
    bytes: Zeroizing<Vec<u8>>,
}

impl Key {
    /// A key of `bytes`.
    pub const fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self { bytes }
    }

    /// Bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length in bits without the last `salt_len` bytes.
    pub fn bits(&self, salt_len: usize) -> u16 {
        let bits = self.bytes.len().saturating_sub(salt_len).saturating_mul(8);
        u16::try_from(bits).unwrap_or(u16::MAX)
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into() }
    }
}

impl From<Zeroizing<Vec<u8>>> for Key {
    fn from(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self { bytes }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_bits_exclude_salt() {
        for (len, salt_len, bits) in [(20, 4, 128), (36, 4, 256), (0, 0, 0), (3, 4, 0), (10_000, 0, u16::MAX)] {
            assert_eq!(Key::from(vec![0; len]).bits(salt_len), bits);
        }
    }

    #[test]
    fn key_debug_shows_no_byte() {
        let key = Key::from(vec![0xab; 20]);
        assert_eq!(format!("{key:?}"), "<hidden>");
    }
}
