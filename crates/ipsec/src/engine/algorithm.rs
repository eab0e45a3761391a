//! Algorithms of SAs, by Linux's names, and the keys and ICVs that each takes.

use std::fmt;

use zeroize::Zeroizing;

/// Algorithm of an SA, with its keys.
#[derive(Clone)]
pub enum Algorithm {
    /// `rfc4106(gcm(aes))` (RFC 4106).
    GcmAes {
        /// AES key and salt: 20, 28 or 36 bytes.
        key: Zeroizing<Vec<u8>>,
        /// Bytes of the integrity check value: 8, 12 or 16.
        icv_len: usize,
    },
    /// `rfc4543(gcm(aes))`: integrity alone, with an ICV of 16 bytes (RFC 4543).
    GmacAes {
        /// AES key and salt: 20, 28 or 36 bytes.
        key: Zeroizing<Vec<u8>>,
    },
    /// `rfc4309(ccm(aes))` (RFC 4309).
    CcmAes {
        /// AES key and salt: 19, 27 or 35 bytes.
        key: Zeroizing<Vec<u8>>,
        /// Bytes of the integrity check value: 8, 12 or 16.
        icv_len: usize,
    },
    /// `rfc7539esp(chacha20,poly1305)`, with an ICV of 16 bytes (RFC 7634).
    ChaCha20Poly1305 {
        /// Key and salt: 36 bytes.
        key: Zeroizing<Vec<u8>>,
    },
    /// A cipher, and a code that authenticates what it makes. A cipher without one is open to forgery (RFC 4303 §5).
    Separate {
        /// The cipher.
        enc: Encryption,
        /// The code.
        auth: Option<Authentication>,
    },
    /// `ecb(cipher_null)` without integrity (RFC 2410), for measuring.
    Null,
}

/// A cipher that does not authenticate, with its key.
#[derive(Clone)]
pub enum Encryption {
    /// `ecb(cipher_null)` (RFC 2410).
    Null,
    /// `cbc(aes)` (RFC 3602).
    CbcAes {
        /// AES key: 16, 24 or 32 bytes.
        key: Zeroizing<Vec<u8>>,
    },
    /// `rfc3686(ctr(aes))` (RFC 3686).
    CtrAes {
        /// AES key and nonce: 20, 28 or 36 bytes.
        key: Zeroizing<Vec<u8>>,
    },
}

/// A message authentication code, with its key.
#[derive(Clone)]
pub struct Authentication {
    /// Kind of code.
    pub code: Code,
    /// Key, of any length but none; an AES key for [`Code::CmacAes`], of 16 bytes for [`Code::XcbcAes`].
    pub key: Zeroizing<Vec<u8>>,
    /// Bytes of the integrity check value: the code's front, of 4 bytes at least.
    pub icv_len: usize,
}

/// Message authentication codes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Code {
    /// `hmac(md5)` (RFC 2403).
    HmacMd5,
    /// `hmac(sha1)` (RFC 2404).
    HmacSha1,
    /// `hmac(sha256)` (RFC 4868).
    HmacSha256,
    /// `hmac(sha384)` (RFC 4868).
    HmacSha384,
    /// `hmac(sha512)` (RFC 4868).
    HmacSha512,
    /// `hmac(rmd160)` (RFC 2857).
    HmacRipemd160,
    /// `hmac(sm3)` (GB/T 32905).
    HmacSm3,
    /// `cmac(aes)` (RFC 4494).
    CmacAes,
    /// `xcbc(aes)` (RFC 3566).
    XcbcAes,
}

impl Code {
    /// Linux's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HmacMd5 => "hmac(md5)",
            Self::HmacSha1 => "hmac(sha1)",
            Self::HmacSha256 => "hmac(sha256)",
            Self::HmacSha384 => "hmac(sha384)",
            Self::HmacSha512 => "hmac(sha512)",
            Self::HmacRipemd160 => "hmac(rmd160)",
            Self::HmacSm3 => "hmac(sm3)",
            Self::CmacAes => "cmac(aes)",
            Self::XcbcAes => "xcbc(aes)",
        }
    }

    /// Bytes of the whole code.
    pub const fn full_len(self) -> usize {
        match self {
            Self::HmacMd5 | Self::CmacAes | Self::XcbcAes => 16,
            Self::HmacSha1 | Self::HmacRipemd160 => 20,
            Self::HmacSha256 | Self::HmacSm3 => 32,
            Self::HmacSha384 => 48,
            Self::HmacSha512 => 64,
        }
    }
}

/// Reason for which there is no such algorithm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AlgorithmError {
    /// Keying material of a length that the algorithm does not have.
    KeyLen {
        /// Linux's name of the algorithm.
        name: &'static str,
        /// Lengths that it takes.
        takes: &'static str,
        /// Length that was given.
        len: usize,
    },
    /// An integrity check value of a length that the algorithm does not have.
    IcvLen {
        /// Linux's name of the algorithm.
        name: &'static str,
        /// Number of bytes.
        len: usize,
    },
}

/// Bytes of keying material that an AES key with a salt of four is.
const AES_AND_SALT: &str = "20, 28 or 36";

impl Algorithm {
    /// Linux's name: of both parts, if it has two.
    fn name(&self) -> &'static str {
        match self {
            Self::GcmAes { .. } => "rfc4106(gcm(aes))",
            Self::GmacAes { .. } => "rfc4543(gcm(aes))",
            Self::CcmAes { .. } => "rfc4309(ccm(aes))",
            Self::ChaCha20Poly1305 { .. } => "rfc7539esp(chacha20,poly1305)",
            Self::Separate { enc, .. } => enc.name(),
            Self::Null => Encryption::Null.name(),
        }
    }

    /// The error of a key that does not fit.
    pub(super) fn bad_key(&self) -> AlgorithmError {
        let (takes, len) = match self {
            Self::GcmAes { key, .. } | Self::GmacAes { key } => (AES_AND_SALT, key.len()),
            Self::CcmAes { key, .. } => ("19, 27 or 35", key.len()),
            Self::ChaCha20Poly1305 { key } => ("36", key.len()),
            Self::Separate { enc, .. } => return enc.bad_key(),
            Self::Null => return Encryption::Null.bad_key(),
        };
        AlgorithmError::KeyLen { name: self.name(), takes, len }
    }

    /// The error of an ICV of this many bytes.
    pub(super) fn bad_icv(&self, len: usize) -> AlgorithmError {
        AlgorithmError::IcvLen { name: self.name(), len }
    }

    /// A number that stands for the key that encrypts.
    #[cfg(debug_assertions)]
    pub(super) fn fingerprint(&self) -> u64 {
        let key: &[u8] = match self {
            Self::GcmAes { key, .. } | Self::CcmAes { key, .. } => key,
            Self::GmacAes { key } | Self::ChaCha20Poly1305 { key } => key,
            Self::Separate { enc: Encryption::CbcAes { key } | Encryption::CtrAes { key }, .. } => key,
            Self::Separate { enc: Encryption::Null, .. } | Self::Null => &[],
        };
        crate::nonces::fingerprint(key)
    }
}

impl Encryption {
    /// Linux's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Null => "ecb(cipher_null)",
            Self::CbcAes { .. } => "cbc(aes)",
            Self::CtrAes { .. } => "rfc3686(ctr(aes))",
        }
    }

    pub(super) fn bad_key(&self) -> AlgorithmError {
        let (takes, len) = match self {
            Self::Null => ("0", 0),
            Self::CbcAes { key } => ("16, 24 or 32", key.len()),
            Self::CtrAes { key } => (AES_AND_SALT, key.len()),
        };
        AlgorithmError::KeyLen { name: self.name(), takes, len }
    }
}

impl Authentication {
    pub(super) fn bad_key(&self) -> AlgorithmError {
        let takes = match self.code {
            Code::CmacAes => "16, 24 or 32",
            Code::XcbcAes => "16",
            _ => "1 or more",
        };
        AlgorithmError::KeyLen { name: self.code.name(), takes, len: self.key.len() }
    }

    pub(super) const fn bad_icv(&self) -> AlgorithmError {
        AlgorithmError::IcvLen { name: self.code.name(), len: self.icv_len }
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::GcmAes { key, icv_len } | Self::CcmAes { key, icv_len } => {
                write!(f, " <{} bytes hidden> icv of {icv_len} bytes", key.len())
            }
            Self::GmacAes { key } | Self::ChaCha20Poly1305 { key } => write!(f, " <{} bytes hidden>", key.len()),
            Self::Separate { auth: Some(auth), .. } => write!(f, " {auth:?}"),
            Self::Separate { auth: None, .. } | Self::Null => Ok(()),
        }
    }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <hidden>", self.name())
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, key, icv_len } = self;
        write!(f, "{} <{} bytes hidden> icv of {icv_len} bytes", code.name(), key.len())
    }
}

impl fmt::Display for AlgorithmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyLen { name, takes, len } => write!(f, "{name} takes a key of {takes} bytes, not {len}"),
            Self::IcvLen { name, len } => write!(f, "{name} has no ICV of {} bits", len * 8),
        }
    }
}

impl std::error::Error for AlgorithmError {}
