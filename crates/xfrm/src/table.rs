//! Table of ESP's algorithms: Linux's names, lengths of keys, salts and ICVs (`net/xfrm/xfrm_algo.c`).

/// Maximum length in bytes of a key for an algorithm without fixed lengths. HMAC hashes a key of more than 64 or 128
/// bytes first (RFC 2104 §3), and a netlink message that shows an SA contains its key twice.
pub const MAX_KEY: usize = 4096;

/// Minimum length in bits of an authentication algorithm's integrity check value.
pub const MIN_ICV_BITS: u16 = 32;

/// Row of the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Spec {
    /// Linux's names, the canonical one first.
    pub names: &'static [&'static str],
    /// Lengths of the key in bytes, with the salt at its end; empty if every length from 1 to [`MAX_KEY`] is valid.
    pub key_lens: &'static [usize],
    /// Bytes of salt or nonce at the end of the key: the first bytes of each packet's nonce.
    pub salt_len: usize,
    /// Lengths of the ICV in bits: all lengths of an AEAD; for an authentication algorithm Linux's default and the full
    /// code.
    pub icv_bits: &'static [u16],
}

/// Algorithms of one kind.
pub trait Name: Copy + PartialEq + 'static {
    /// Name of the kind in the kernel's error messages.
    const KIND: &'static str;
    /// Every algorithm, in the order of listings.
    const ALL: &'static [Self];
    /// Names of algorithms that Linux supports and this program does not.
    const MISSING: &'static [&'static str];

    /// Row of the table.
    fn spec(self) -> &'static Spec;

    /// Linux's name, as `ip xfrm state` shows it.
    fn name(self) -> &'static str {
        self.spec().names[0]
    }

    /// Algorithm with a name (Linux `xfrm_aead_get_byname` and the like).
    fn by_name(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.spec().names.contains(&text))
    }

    /// Tells whether a key may have this length in bytes.
    fn takes_key_of(self, len: usize) -> bool {
        match self.spec().key_lens {
            [] => (1..=MAX_KEY).contains(&len),
            lens => lens.contains(&len),
        }
    }
}

macro_rules! algorithms {
    ($(
        $(#[$doc:meta])*
        $type:ident, $kind:literal, without [$($missing:literal),*] {
            $($(#[$note:meta])* $variant:ident: $names:expr, key $key_lens:expr, salt $salt_len:literal, icv $icv_bits:expr;)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum $type { $($(#[$note])* $variant,)* }

        impl Name for $type {
            const KIND: &'static str = $kind;
            const ALL: &'static [Self] = &[$(Self::$variant,)*];
            const MISSING: &'static [&'static str] = &[$($missing),*];

            fn spec(self) -> &'static Spec {
                match self {
                    $(Self::$variant => const {
                        &Spec { names: &$names, key_lens: &$key_lens, salt_len: $salt_len, icv_bits: &$icv_bits }
                    },)*
                }
            }
        }
    )*};
}

algorithms! {
    /// Algorithms of `aead`: encryption and authentication in one.
    Aead, "AEAD", without [] {
        /// AES-GCM (RFC 4106).
        GcmAes: ["rfc4106(gcm(aes))"], key [20, 28, 36], salt 4, icv [64, 96, 128];
        /// AES-GMAC, which does not encrypt (RFC 4543).
        GmacAes: ["rfc4543(gcm(aes))"], key [20, 28, 36], salt 4, icv [128];
        /// AES-CCM (RFC 4309).
        CcmAes: ["rfc4309(ccm(aes))"], key [19, 27, 35], salt 3, icv [64, 96, 128];
        /// ChaCha20-Poly1305 (RFC 7634).
        ChaCha20Poly1305: ["rfc7539esp(chacha20,poly1305)"], key [36], salt 4, icv [128];
    }

    /// Algorithms of `enc`: ciphers without authentication.
    Enc, "CRYPT", without [
        "cbc(des)", "cbc(des3_ede)", "cbc(cast5)", "cbc(blowfish)", "cbc(serpent)", "cbc(camellia)", "cbc(twofish)", "cbc(sm4)",
        "des", "des3_ede", "cast5", "blowfish", "serpent", "camellia", "twofish", "sm4"
    ] {
        /// No cipher (RFC 2410).
        Null: ["ecb(cipher_null)", "cipher_null"], key [0], salt 0, icv [];
        /// AES-CBC (RFC 3602).
        CbcAes: ["cbc(aes)", "aes"], key [16, 24, 32], salt 0, icv [];
        /// AES-CTR (RFC 3686).
        CtrAes: ["rfc3686(ctr(aes))"], key [20, 28, 36], salt 4, icv [];
    }

    /// Algorithms of `auth` and `auth-trunc`: message authentication codes.
    Auth, "AUTH", without [] {
        /// HMAC-MD5 (RFC 2403).
        HmacMd5: ["hmac(md5)", "md5"], key [], salt 0, icv [96, 128];
        /// HMAC-SHA-1 (RFC 2404).
        HmacSha1: ["hmac(sha1)", "sha1"], key [], salt 0, icv [96, 160];
        /// HMAC-SHA-256 (RFC 4868); Linux's `auth` sends fewer bits than the RFC requires.
        HmacSha256: ["hmac(sha256)", "sha256"], key [], salt 0, icv [96, 256];
        /// HMAC-SHA-384 (RFC 4868).
        HmacSha384: ["hmac(sha384)"], key [], salt 0, icv [192, 384];
        /// HMAC-SHA-512 (RFC 4868).
        HmacSha512: ["hmac(sha512)"], key [], salt 0, icv [256, 512];
        /// HMAC-RIPEMD-160 (RFC 2857).
        HmacRipemd160: ["hmac(rmd160)", "rmd160"], key [], salt 0, icv [96, 160];
        /// HMAC-SM3 (GB/T 32905).
        HmacSm3: ["hmac(sm3)", "sm3"], key [], salt 0, icv [256, 256];
        /// AES-CMAC (RFC 4494).
        CmacAes: ["cmac(aes)"], key [16, 24, 32], salt 0, icv [96, 128];
        /// AES-XCBC-MAC (RFC 3566).
        XcbcAes: ["xcbc(aes)"], key [16], salt 0, icv [96, 128];
    }
}

impl Aead {
    /// Lengths of the integrity check value in bits.
    pub fn icv_bits(self) -> &'static [u16] {
        self.spec().icv_bits
    }
}

impl Auth {
    /// Bits of the code sent with `auth`; `auth-trunc` specifies a length.
    pub fn default_icv_bits(self) -> u16 {
        self.spec().icv_bits[0]
    }

    /// Length of the full code in bits.
    pub fn full_bits(self) -> u16 {
        self.spec().icv_bits[1]
    }

    /// Tells whether this number of bits of the code can be sent: full bytes, at least [`MIN_ICV_BITS`].
    pub fn takes_icv_of(self, bits: u16) -> bool {
        (MIN_ICV_BITS..=self.full_bits()).contains(&bits) && bits.is_multiple_of(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_truncates_as_xfrm_aalg_list() {
        let row = |auth: &Auth| (auth.spec().names, auth.default_icv_bits(), auth.full_bits());
        let want: [(&[&str], u16, u16); 9] = [
            (&["hmac(md5)", "md5"], 96, 128),
            (&["hmac(sha1)", "sha1"], 96, 160),
            (&["hmac(sha256)", "sha256"], 96, 256),
            (&["hmac(sha384)"], 192, 384),
            (&["hmac(sha512)"], 256, 512),
            (&["hmac(rmd160)", "rmd160"], 96, 160),
            (&["hmac(sm3)", "sm3"], 256, 256),
            (&["cmac(aes)"], 96, 128),
            (&["xcbc(aes)"], 96, 128),
        ];
        assert_eq!(Auth::ALL.iter().map(row).collect::<Vec<_>>(), want);
    }

    #[test]
    fn algorithm_is_found_by_each_name() {
        assert_eq!((Enc::CbcAes.name(), Auth::HmacSha1.name()), ("cbc(aes)", "hmac(sha1)"));
        assert_eq!((Enc::by_name("aes"), Enc::by_name("cbc(aes)")), (Some(Enc::CbcAes), Some(Enc::CbcAes)));
        assert_eq!((Enc::by_name("cbc(des)"), Auth::by_name(""), Aead::by_name("aes")), (None, None, None));
    }
}
