//! Key material that does not leak: neither into a log, nor into a reply, nor into memory that is handed back.

use std::fmt;

use zeroize::Zeroizing;

/// Keying material as it was given, with salt or nonce at its end where the algorithm has one. Zeroed when dropped; its
/// `Debug` shows no byte of it.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Key {
    bytes: Zeroizing<Vec<u8>>,
}

impl Key {
    /// The key that `bytes` are.
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

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_as_long_as_it_is_without_its_salt() {
        for (len, salt_len, bits) in [(20, 4, 128), (36, 4, 256), (0, 0, 0), (3, 4, 0), (10_000, 0, u16::MAX)] {
            assert_eq!(Key::new(vec![0; len].into()).bits(salt_len), bits);
        }
    }

    #[test]
    fn a_key_shows_no_byte_of_itself() {
        let key = Key::new(vec![0xab; 20].into());
        assert_eq!(format!("{key:?}"), "<hidden>");
    }
}
