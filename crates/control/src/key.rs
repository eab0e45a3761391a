//! Key material that does not leak: neither into a log, nor into a reply, nor into memory that is handed back.

use std::fmt;

use zeroize::Zeroizing;

/// The keying material of `rfc4106(gcm(aes))`: an AES key of 128, 192 or 256 bits, then 4 bytes of salt
/// (RFC 4106 §8.1). Zeroed when dropped; its `Debug` shows no byte of it.
#[derive(Clone, Eq, PartialEq)]
pub struct GcmKey {
    bytes: Zeroizing<Vec<u8>>,
}

/// Length of the salt at the end of the keying material, in bytes.
const SALT_LEN: usize = 4;

impl GcmKey {
    /// The key that `bytes` holds: key and salt together. `None` unless they are 20, 28 or 36 bytes long.
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Option<Self> {
        matches!(bytes.len(), 20 | 28 | 36).then_some(Self { bytes })
    }

    /// The AES key: 16, 24 or 32 bytes.
    pub fn aes(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - SALT_LEN]
    }

    /// The salt, the first four bytes of each nonce.
    pub fn salt(&self) -> [u8; SALT_LEN] {
        let mut salt = [0; SALT_LEN];
        salt.copy_from_slice(&self.bytes[self.bytes.len() - SALT_LEN..]);
        salt
    }

    /// Length of the AES key in bits.
    pub fn bits(&self) -> u16 {
        self.aes().len() as u16 * 8
    }
}

impl fmt::Debug for GcmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_an_aes_key_and_four_bytes_of_salt() {
        for (len, bits) in [(20, 128), (28, 192), (36, 256)] {
            let bytes: Vec<u8> = (0..len).collect();
            let key = GcmKey::new(Zeroizing::new(bytes.clone())).unwrap();
            assert_eq!(key.bits(), bits);
            assert_eq!([key.aes(), &key.salt()].concat(), bytes);
        }
        for len in [0, 4, 16, 19, 21, 32, 35, 37] {
            assert_eq!(GcmKey::new(Zeroizing::new(vec![0; len])), None, "{len} bytes");
        }
    }

    #[test]
    fn a_key_shows_no_byte_of_itself() {
        let key = GcmKey::new(Zeroizing::new(vec![0xab; 20])).unwrap();
        assert_eq!(format!("{key:?}"), "<hidden>");
    }
}
