//! Algorithm of an SA, with its keys, and the check of key and ICV lengths.

use std::fmt;

use crate::key::Key;
use crate::table::{Aead, Auth, Enc, MAX_KEY, Name};

/// Algorithm of an SA, with its keys.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Algorithm {
    /// `aead`: encryption and authentication in one algorithm.
    Aead {
        /// Name.
        name: Aead,
        /// Key, with the salt at its end.
        key: Key,
        /// Length of the integrity check value in bits.
        icv_bits: u16,
    },
    /// `enc`, with or without `auth` or `auth-trunc`. Without authentication all packets can be forged (RFC 4303 §5).
    Separate {
        /// The cipher.
        enc: Enc,
        /// Key, with the nonce of CTR at its end; empty for a cipher without a key.
        key: Key,
        /// Authentication.
        auth: Option<AuthConfig>,
    },
}

/// A message authentication code of an SA.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuthConfig {
    /// Name.
    pub name: Auth,
    /// Key.
    pub key: Key,
    /// Bits of the code that are sent.
    pub icv_bits: u16,
}

/// Length that the algorithm does not support.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AlgorithmError {
    /// Length of the key.
    KeyLen {
        /// Linux's name of the algorithm.
        name: &'static str,
        /// Supported lengths in bytes; empty for any from 1 to [`MAX_KEY`].
        takes: &'static [usize],
        /// Configured length of the key, in bytes.
        len: usize,
    },
    /// Length of the integrity check value.
    IcvBits {
        /// Linux's name of the algorithm.
        name: &'static str,
        /// Configured length.
        bits: u16,
    },
}

impl Algorithm {
    /// An AEAD.
    pub const fn aead(name: Aead, key: Key, icv_bits: u16) -> Self {
        Self::Aead { name, key, icv_bits }
    }

    /// A cipher, with a message authentication code except in tests and measurements.
    pub const fn separate(enc: Enc, key: Key, auth: Option<AuthConfig>) -> Self {
        Self::Separate { enc, key, auth }
    }

    /// `ecb(cipher_null)` without integrity (RFC 2410), for measurements.
    pub fn null() -> Self {
        Self::separate(Enc::Null, Key::default(), None)
    }

    /// Tells whether packets are neither encrypted nor authenticated.
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Separate { enc: Enc::Null, auth: None, .. })
    }

    /// Tells whether packets are encrypted.
    pub const fn encrypts(&self) -> bool {
        !matches!(self, Self::Separate { enc: Enc::Null, .. } | Self::Aead { name: Aead::GmacAes, .. })
    }

    /// Linux's name of the encryption algorithm, as `ip xfrm state` shows it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Aead { name, .. } => name.name(),
            Self::Separate { enc, .. } => enc.name(),
        }
    }

    /// Key of the encryption algorithm, with its salt.
    pub const fn key(&self) -> &Key {
        match self {
            Self::Aead { key, .. } | Self::Separate { key, .. } => key,
        }
    }

    /// Length of the key in bits, without salt or nonce; 0 without a key.
    pub fn key_bits(&self) -> u16 {
        match self {
            Self::Aead { name, key, .. } => key.bits(name.spec().salt_len),
            Self::Separate { enc, key, .. } => key.bits(enc.spec().salt_len),
        }
    }

    /// Authentication, if separate from the cipher.
    pub const fn auth(&self) -> Option<&AuthConfig> {
        match self {
            Self::Aead { .. } => None,
            Self::Separate { auth, .. } => auth.as_ref(),
        }
    }

    /// Length of the integrity check value in bits; 0 without one.
    pub fn icv_bits(&self) -> u16 {
        match self {
            Self::Aead { icv_bits, .. } => *icv_bits,
            Self::Separate { auth, .. } => auth.as_ref().map_or(0, |auth| auth.icv_bits),
        }
    }

    /// Checks the lengths of ICV and keys.
    ///
    /// # Errors
    /// A length that is not in the table.
    pub fn check(&self) -> Result<(), AlgorithmError> {
        match self {
            Self::Aead { name, key, icv_bits } => {
                if !name.icv_bits().contains(icv_bits) {
                    return Err(AlgorithmError::IcvBits { name: name.name(), bits: *icv_bits });
                }
                check_key(*name, key)
            }
            Self::Separate { enc, key, auth } => {
                if let Some(AuthConfig { name, icv_bits, .. }) = auth
                    && !name.takes_icv_of(*icv_bits)
                {
                    return Err(AlgorithmError::IcvBits { name: name.name(), bits: *icv_bits });
                }
                check_key(*enc, key)?;
                auth.as_ref().map_or(Ok(()), |auth| check_key(auth.name, &auth.key))
            }
        }
    }
}

impl AuthConfig {
    /// A code of which the first `icv_bits` are sent.
    pub const fn new(name: Auth, key: Key, icv_bits: u16) -> Self {
        Self { name, key, icv_bits }
    }
}

fn check_key<N: Name>(name: N, key: &Key) -> Result<(), AlgorithmError> {
    let len = key.bytes().len();
    if name.takes_key_of(len) {
        return Ok(());
    }
    Err(AlgorithmError::KeyLen { name: name.name(), takes: name.spec().key_lens, len })
}

impl fmt::Display for AlgorithmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyLen { name, takes: [], len } => {
                write!(f, "{name} takes a key of 1 to {MAX_KEY} bytes, not {len}")
            }
            Self::KeyLen { name, takes: [first, rest @ ..], len } => {
                write!(f, "{name} takes a key of {first}")?;
                for (at, takes) in rest.iter().enumerate() {
                    write!(f, "{}{takes}", if at + 1 < rest.len() { ", " } else { " or " })?;
                }
                write!(f, " bytes, not {len}")
            }
            Self::IcvBits { name, bits } => write!(f, "{name} has no ICV of {bits} bits"),
        }
    }
}

impl std::error::Error for AlgorithmError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(len: usize) -> Key {
        vec![0; len].into()
    }

    #[test]
    fn key_bits_are_those_without_salt() {
        let aead = |name, len| Algorithm::aead(name, key(len), 128).key_bits();
        assert_eq!([aead(Aead::GcmAes, 36), aead(Aead::CcmAes, 35), aead(Aead::ChaCha20Poly1305, 36)], [256; 3]);
        let enc = |enc, len| Algorithm::separate(enc, key(len), None).key_bits();
        assert_eq!([enc(Enc::CbcAes, 24), enc(Enc::CtrAes, 28), enc(Enc::Null, 0)], [192, 192, 0]);
        assert_eq!(Algorithm::null().name(), "ecb(cipher_null)");
    }

    #[test]
    fn wrong_lengths_are_refused_by_name() {
        let auth =
            |name, len, bits| Algorithm::separate(Enc::CbcAes, key(16), Some(AuthConfig::new(name, key(len), bits)));
        let cases = [
            (
                Algorithm::aead(Aead::GcmAes, key(21), 128),
                "rfc4106(gcm(aes)) takes a key of 20, 28 or 36 bytes, not 21",
            ),
            (Algorithm::aead(Aead::GcmAes, key(20), 32), "rfc4106(gcm(aes)) has no ICV of 32 bits"),
            (
                Algorithm::aead(Aead::ChaCha20Poly1305, key(32), 128),
                "rfc7539esp(chacha20,poly1305) takes a key of 36 bytes, not 32",
            ),
            (Algorithm::separate(Enc::Null, key(1), None), "ecb(cipher_null) takes a key of 0 bytes, not 1"),
            (auth(Auth::HmacSha1, 0, 96), "hmac(sha1) takes a key of 1 to 4096 bytes, not 0"),
            (auth(Auth::XcbcAes, 24, 96), "xcbc(aes) takes a key of 16 bytes, not 24"),
            (auth(Auth::HmacSha1, 20, 168), "hmac(sha1) has no ICV of 168 bits"),
            (auth(Auth::HmacSha1, 20, 33), "hmac(sha1) has no ICV of 33 bits"),
        ];
        for (algorithm, want) in cases {
            assert_eq!(algorithm.check().map_err(|err| err.to_string()), Err(want.to_owned()), "{algorithm:?}");
        }
        for fitting in [auth(Auth::HmacSha1, MAX_KEY, 160), auth(Auth::CmacAes, 24, 32), Algorithm::null()] {
            assert_eq!(fitting.check(), Ok(()), "{fitting:?}");
        }
    }
}
