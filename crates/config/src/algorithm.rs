//! The algorithms of ESP by Linux's names, with the lengths that each takes, as in `net/xfrm/xfrm_algo.c`.

use crate::key::Key;

/// Algorithm of an SA, with its keys.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Algorithm {
    /// `aead`: one that encrypts and authenticates in one.
    Aead {
        /// Name.
        name: Aead,
        /// Key, with the salt at its end.
        key: Key,
        /// Length of the integrity check value in bits.
        icv_bits: u16,
    },
    /// `enc`, with or without `auth` or `auth-trunc`.
    Separate {
        /// The cipher.
        enc: Enc,
        /// Key, with the nonce of CTR at its end; empty if it has none.
        key: Key,
        /// Authentication; without it everything can be forged.
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

/// Bytes of the longest key of an algorithm that takes any length. HMAC hashes one of more than 64 or 128 bytes first (RFC 2104
/// §3), and a netlink message that shows an SA holds its key twice.
pub const MAX_KEY: usize = 4096;

/// Names of one kind of algorithm.
pub trait Name: Copy + PartialEq + 'static {
    /// Name of the kind in the kernel's refusals.
    const KIND: &'static str;
    /// Every one of them, by each name that Linux knows it by; the first is the one that is shown.
    const NAMES: &'static [(&'static str, Self)];
    /// Those that Linux has and this program has not.
    const MISSING: &'static [&'static str];

    /// Linux's name, as `ip xfrm state` gives it.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, known)| known == self).map_or("", |&(text, _)| text)
    }

    /// Lengths of the key in bytes, with what is at its end; none if every length from 1 to [`MAX_KEY`] will do.
    fn key_lens(self) -> &'static [usize];
    /// Tells whether a key may have so many bytes.
    fn takes_key_of(self, len: usize) -> bool {
        match self.key_lens() {
            [] => (1..=MAX_KEY).contains(&len),
            lens => lens.contains(&len),
        }
    }
    /// Bytes at the end of the key that are no key but the beginning of each nonce.
    fn salt_len(self) -> usize;
}

/// Names of `aead`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Aead {
    /// AES-GCM (RFC 4106).
    GcmAes,
    /// AES-GMAC, which does not encrypt (RFC 4543).
    GmacAes,
    /// AES-CCM (RFC 4309).
    CcmAes,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
}

/// Names of `enc`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Enc {
    /// No cipher (RFC 2410).
    Null,
    /// AES-CBC (RFC 3602).
    CbcAes,
    /// AES-CTR (RFC 3686).
    CtrAes,
}

/// Names of `auth` and `auth-trunc`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Auth {
    /// HMAC-MD5 (RFC 2403).
    HmacMd5,
    /// HMAC-SHA-1 (RFC 2404).
    HmacSha1,
    /// HMAC-SHA-256 (RFC 4868).
    HmacSha256,
    /// HMAC-SHA-384 (RFC 4868).
    HmacSha384,
    /// HMAC-SHA-512 (RFC 4868).
    HmacSha512,
    /// HMAC-RIPEMD-160 (RFC 2857).
    HmacRipemd160,
    /// HMAC-SM3 (GB/T 32905).
    HmacSm3,
    /// AES-CMAC (RFC 4494).
    CmacAes,
    /// AES-XCBC-MAC (RFC 3566).
    XcbcAes,
}

impl Name for Aead {
    const KIND: &'static str = "AEAD";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("rfc4106(gcm(aes))", Self::GcmAes),
        ("rfc4543(gcm(aes))", Self::GmacAes),
        ("rfc4309(ccm(aes))", Self::CcmAes),
        ("rfc7539esp(chacha20,poly1305)", Self::ChaCha20Poly1305),
    ];
    const MISSING: &'static [&'static str] = &[];

    fn key_lens(self) -> &'static [usize] {
        match self {
            Self::GcmAes | Self::GmacAes => &[20, 28, 36],
            Self::CcmAes => &[19, 27, 35],
            Self::ChaCha20Poly1305 => &[36],
        }
    }

    fn salt_len(self) -> usize {
        if self == Self::CcmAes { 3 } else { 4 }
    }
}

impl Aead {
    /// Lengths of the integrity check value in bits.
    pub const fn icv_bits(self) -> &'static [u16] {
        match self {
            Self::GcmAes | Self::CcmAes => &[64, 96, 128],
            Self::GmacAes | Self::ChaCha20Poly1305 => &[128],
        }
    }
}

impl Name for Enc {
    const KIND: &'static str = "CRYPT";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("ecb(cipher_null)", Self::Null),
        ("cbc(aes)", Self::CbcAes),
        ("rfc3686(ctr(aes))", Self::CtrAes),
        ("cipher_null", Self::Null),
        ("aes", Self::CbcAes),
    ];
    const MISSING: &'static [&'static str] = &[
        "cbc(des)",
        "cbc(des3_ede)",
        "cbc(cast5)",
        "cbc(blowfish)",
        "cbc(serpent)",
        "cbc(camellia)",
        "cbc(twofish)",
        "cbc(sm4)",
        "des",
        "des3_ede",
        "cast5",
        "blowfish",
        "serpent",
        "camellia",
        "twofish",
        "sm4",
    ];

    fn key_lens(self) -> &'static [usize] {
        match self {
            Self::Null => &[0],
            Self::CbcAes => &[16, 24, 32],
            Self::CtrAes => &[20, 28, 36],
        }
    }

    fn salt_len(self) -> usize {
        if self == Self::CtrAes { 4 } else { 0 }
    }
}

impl Name for Auth {
    const KIND: &'static str = "AUTH";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("hmac(md5)", Self::HmacMd5),
        ("hmac(sha1)", Self::HmacSha1),
        ("hmac(sha256)", Self::HmacSha256),
        ("hmac(sha384)", Self::HmacSha384),
        ("hmac(sha512)", Self::HmacSha512),
        ("hmac(rmd160)", Self::HmacRipemd160),
        ("hmac(sm3)", Self::HmacSm3),
        ("cmac(aes)", Self::CmacAes),
        ("xcbc(aes)", Self::XcbcAes),
        ("md5", Self::HmacMd5),
        ("sha1", Self::HmacSha1),
        ("sha256", Self::HmacSha256),
        ("rmd160", Self::HmacRipemd160),
        ("sm3", Self::HmacSm3),
    ];
    const MISSING: &'static [&'static str] = &[];

    fn key_lens(self) -> &'static [usize] {
        match self {
            Self::CmacAes => &[16, 24, 32],
            Self::XcbcAes => &[16],
            _ => &[],
        }
    }

    fn salt_len(self) -> usize {
        0
    }
}

impl Auth {
    /// Bits of the code that `auth` sends; `auth-trunc` says it itself. Of SHA-256 it is less than RFC 4868 has.
    pub const fn default_icv_bits(self) -> u16 {
        match self {
            Self::HmacMd5 | Self::HmacSha1 | Self::HmacSha256 | Self::HmacRipemd160 => 96,
            Self::CmacAes | Self::XcbcAes => 96,
            Self::HmacSha384 => 192,
            Self::HmacSha512 | Self::HmacSm3 => 256,
        }
    }

    /// Length of the whole code in bits.
    pub const fn full_bits(self) -> u16 {
        match self {
            Self::HmacMd5 | Self::CmacAes | Self::XcbcAes => 128,
            Self::HmacSha1 | Self::HmacRipemd160 => 160,
            Self::HmacSha256 | Self::HmacSm3 => 256,
            Self::HmacSha384 => 384,
            Self::HmacSha512 => 512,
        }
    }
}

impl Algorithm {
    /// `ecb(cipher_null)` without integrity (RFC 2410), for measuring.
    pub fn null() -> Self {
        Self::Separate { enc: Enc::Null, key: Key::default(), auth: None }
    }

    /// Linux's name of what encrypts, as `ip xfrm state` gives it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Aead { name, .. } => name.name(),
            Self::Separate { enc, .. } => enc.name(),
        }
    }

    /// Length of its key in bits, without salt or nonce; 0 if it has none.
    pub fn key_bits(&self) -> u16 {
        match self {
            Self::Aead { name, key, .. } => key.bits(name.salt_len()),
            Self::Separate { enc, key, .. } => key.bits(enc.salt_len()),
        }
    }

    /// Authentication apart from the cipher.
    pub const fn auth(&self) -> Option<&AuthConfig> {
        match self {
            Self::Aead { .. } => None,
            Self::Separate { auth, .. } => auth.as_ref(),
        }
    }

    /// Length of the integrity check value in bits; 0 if there is none.
    pub fn icv_bits(&self) -> u16 {
        match self {
            Self::Aead { icv_bits, .. } => *icv_bits,
            Self::Separate { auth, .. } => auth.as_ref().map_or(0, |auth| auth.icv_bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_truncates_as_xfrm_aalg_list_says() {
        let table = Auth::NAMES.iter().map(|&(name, auth)| (name, auth.default_icv_bits(), auth.full_bits()));
        let want = [
            ("hmac(md5)", 96, 128),
            ("hmac(sha1)", 96, 160),
            ("hmac(sha256)", 96, 256),
            ("hmac(sha384)", 192, 384),
            ("hmac(sha512)", 256, 512),
            ("hmac(rmd160)", 96, 160),
            ("hmac(sm3)", 256, 256),
            ("cmac(aes)", 96, 128),
            ("xcbc(aes)", 96, 128),
            ("md5", 96, 128),
            ("sha1", 96, 160),
            ("sha256", 96, 256),
            ("rmd160", 96, 160),
            ("sm3", 256, 256),
        ];
        assert_eq!(table.collect::<Vec<_>>(), want);
    }

    #[test]
    fn an_algorithm_is_shown_by_its_long_name() {
        assert_eq!((Enc::CbcAes.name(), Auth::HmacSha1.name()), ("cbc(aes)", "hmac(sha1)"));
        assert_eq!(Algorithm::null().name(), "ecb(cipher_null)");
    }

    #[test]
    fn the_bits_of_a_key_are_those_without_its_salt() {
        let key = |len: usize| Key::new(vec![0; len].into());
        let aead = |name, len| Algorithm::Aead { name, key: key(len), icv_bits: 128 }.key_bits();
        assert_eq!([aead(Aead::GcmAes, 36), aead(Aead::CcmAes, 35), aead(Aead::ChaCha20Poly1305, 36)], [256; 3]);
        let enc = |enc, len| Algorithm::Separate { enc, key: key(len), auth: None }.key_bits();
        assert_eq!([enc(Enc::CbcAes, 24), enc(Enc::CtrAes, 28), enc(Enc::Null, 0)], [192, 192, 0]);
    }
}
