//! Ciphers: what seals and opens the inside of one ESP packet, in place.
//!
//! The primitives come from two kept libraries, of which the faster one on this processor is taken ([`Library`]). No
//! other module of this crate is `unsafe`, and this one only to zero key schedules that `ring` leaves behind.

use std::fmt;
use std::mem::MaybeUninit;

use aws_lc_rs::aead as aws_lc;
use ring::aead as ring;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of salt at the end of the keying material of RFC 4106 §8.1, the first ones of each nonce.
const SALT_LEN: usize = 4;

/// Bytes of the integrity check value that AES-GCM makes; fewer may be sent.
const FULL_ICV: usize = 16;

/// How an SA protects, with its key.
#[derive(Clone)]
pub enum Algorithm {
    /// `rfc4106(gcm(aes))` (RFC 4106).
    GcmAes {
        /// AES key and salt: 20, 28 or 36 bytes.
        key: Zeroizing<Vec<u8>>,
        /// Bytes of the integrity check value: 8, 12 or 16.
        icv_len: usize,
    },
    /// `ecb(cipher_null)` without integrity (RFC 2410), for measuring.
    Null,
}

/// Why there is no such algorithm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AlgorithmError {
    /// Keying material of this many bytes.
    KeyLen(usize),
    /// An integrity check value of this many bytes.
    IcvLen(usize),
}

/// The integrity check value does not match: the packet is forged or damaged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IcvWrong;

/// A cipher with the key of one SA. The key is zeroed on drop and shown by nothing.
pub struct Aead {
    cipher: Cipher,
    salt: [u8; SALT_LEN],
    icv_len: usize,
    /// Tells this key from others in the register of nonces.
    #[cfg(debug_assertions)]
    fingerprint: u64,
}

enum Cipher {
    Null,
    Ring(Secret<ring::LessSafeKey>),
    /// Zeroed by the library when it is freed.
    AwsLc(aws_lc::LessSafeKey),
}

/// Whose AES-GCM is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Library {
    /// `ring`, ahead where vectors have 256 bits. It has no 192-bit keys.
    Ring,
    /// AWS-LC, ahead where they have 512.
    AwsLc,
}

impl Library {
    /// The faster one on this processor.
    pub fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
        {
            return Self::AwsLc;
        }
        Self::Ring
    }
}

impl Aead {
    /// The cipher of `algorithm`, by the fastest library.
    ///
    /// # Errors
    /// A length that the algorithm does not have.
    pub fn new(algorithm: &Algorithm) -> Result<Self, AlgorithmError> {
        Self::with_library(algorithm, Library::fastest())
    }

    /// The cipher of `algorithm`, by `library` if it has it.
    ///
    /// # Errors
    /// A length that the algorithm does not have.
    pub fn with_library(algorithm: &Algorithm, library: Library) -> Result<Self, AlgorithmError> {
        let (key, icv_len) = match algorithm {
            Algorithm::GcmAes { icv_len, .. } if !matches!(*icv_len, 8 | 12 | FULL_ICV) => {
                return Err(AlgorithmError::IcvLen(*icv_len));
            }
            Algorithm::GcmAes { key, icv_len } => (key.as_slice(), *icv_len),
            Algorithm::Null => (&[0; SALT_LEN][..], 0),
        };
        let wrong = AlgorithmError::KeyLen(key.len());
        let (aes, &salt) = key.split_last_chunk().ok_or(wrong)?;
        let cipher = match algorithm {
            Algorithm::Null => Cipher::Null,
            Algorithm::GcmAes { .. } => Cipher::gcm(aes, library).ok_or(wrong)?,
        };
        Ok(Self {
            cipher,
            salt,
            icv_len,
            #[cfg(debug_assertions)]
            fingerprint: crate::nonces::fingerprint(key),
        })
    }

    /// Bytes of initialisation vector in each packet.
    pub const fn iv_len(&self) -> usize {
        if matches!(self.cipher, Cipher::Null) { 0 } else { 8 }
    }

    /// Bytes of integrity check value in each packet.
    pub const fn icv_len(&self) -> usize {
        self.icv_len
    }

    /// What the encrypted bytes are a multiple of: the larger of the cipher's block and ESP's own 4 (RFC 4303 §2.4).
    pub const fn align(&self) -> usize {
        4
    }

    /// Encrypts `text` in place and writes the integrity check value to `icv`, which is [`icv_len`](Self::icv_len)
    /// bytes. The pair of key and `iv` must never come again: [`OutSequence`](crate::sequence::OutSequence) sees to it.
    ///
    /// # Panics
    /// When `text` is longer than the cipher can take, which is 64 GiB.
    #[inline]
    pub fn seal(&self, iv: [u8; 8], aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
        if let Some(full) = self.cipher.seal(self.nonce(iv), aad, text) {
            icv.copy_from_slice(&full[..self.icv_len]);
        }
    }

    /// Decrypts in place what `sealed` begins with, if the integrity check value at its end is right, and gives it.
    ///
    /// A shortened value costs a second pass and a copy to `scratch`: no library compares less than it computes, so
    /// the value is computed anew from the ciphertext and its front compared.
    ///
    /// # Errors
    /// [`IcvWrong`]; what is in `sealed` is then of no use, and not the plaintext.
    #[inline]
    pub fn open<'a>(
        &self,
        iv: [u8; 8],
        aad: &[u8],
        sealed: &'a mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<&'a mut [u8], IcvWrong> {
        let nonce = self.nonce(iv);
        match &self.cipher {
            Cipher::Null => Ok(sealed),
            cipher if self.icv_len < FULL_ICV => cipher.open_short(nonce, aad, sealed, self.icv_len, scratch),
            Cipher::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                key.get().open_in_place(nonce, ring::Aad::from(aad), sealed).map_err(|_| IcvWrong)
            }
            Cipher::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, aws_lc::Aad::from(aad), sealed).map_err(|_| IcvWrong)
            }
        }
    }

    /// Notes that this key is about to seal with `iv`; panics if it has before.
    #[cfg(debug_assertions)]
    pub(crate) fn register(&self, iv: [u8; 8]) {
        if !matches!(self.cipher, Cipher::Null) {
            crate::nonces::register(self.fingerprint, self.nonce(iv));
        }
    }

    /// Salt and initialisation vector (RFC 4106 §4).
    fn nonce(&self, iv: [u8; 8]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..SALT_LEN].copy_from_slice(&self.salt);
        nonce[SALT_LEN..].copy_from_slice(&iv);
        nonce
    }
}

impl Cipher {
    /// AES-GCM with `key`; `None` for a length that AES does not have.
    fn gcm(key: &[u8], library: Library) -> Option<Self> {
        let ring = |algorithm| {
            let key = ring::LessSafeKey::new(ring::UnboundKey::new(algorithm, key).ok()?);
            Some(Self::Ring(Secret::new(key)))
        };
        let aws_lc = |algorithm| {
            let key = aws_lc::LessSafeKey::new(aws_lc::UnboundKey::new(algorithm, key).ok()?);
            Some(Self::AwsLc(key))
        };
        match (key.len(), library) {
            (16, Library::Ring) => ring(&ring::AES_128_GCM),
            (32, Library::Ring) => ring(&ring::AES_256_GCM),
            (16, Library::AwsLc) => aws_lc(&aws_lc::AES_128_GCM),
            (24, _) => aws_lc(&aws_lc::AES_192_GCM),
            (32, Library::AwsLc) => aws_lc(&aws_lc::AES_256_GCM),
            _ => None,
        }
    }

    /// Encrypts in place and gives the whole integrity check value; `None` when there is none.
    #[inline]
    fn seal(&self, nonce: [u8; 12], aad: &[u8], text: &mut [u8]) -> Option<[u8; FULL_ICV]> {
        match self {
            Self::Null => None,
            Self::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let tag = key.get().seal_in_place_separate_tag(nonce, ring::Aad::from(aad), text);
                tag.expect("AES-GCM takes 64 GiB").as_ref().first_chunk().copied()
            }
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, aws_lc::Aad::from(aad), text);
                tag.expect("AES-GCM takes 64 GiB").as_ref().first_chunk().copied()
            }
        }
    }

    /// Opens a packet whose integrity check value is the front of the whole one. GCM encrypts by a key stream
    /// (NIST SP 800-38D §7), so sealing the ciphertext gives the plaintext, and sealing that gives the ciphertext
    /// again, together with the value that it should have come with.
    fn open_short<'a>(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        sealed: &'a mut [u8],
        icv_len: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<&'a mut [u8], IcvWrong> {
        let at = sealed.len().checked_sub(icv_len).ok_or(IcvWrong)?;
        let (text, icv) = sealed.split_at_mut(at);
        self.seal(nonce, aad, text);
        scratch.clear();
        scratch.extend_from_slice(text);
        let full = self.seal(nonce, aad, scratch).ok_or(IcvWrong)?;
        if bool::from(full[..icv_len].ct_eq(icv)) {
            return Ok(text);
        }
        text.copy_from_slice(scratch);
        Err(IcvWrong)
    }
}

/// A value without drop glue or pointers to memory of its own, whose bytes are zeroed when it goes.
///
/// Invariant: the box is initialised from `new` to `drop`.
struct Secret<T>(Box<MaybeUninit<T>>);

impl<T> Secret<T> {
    fn new(value: T) -> Self {
        const { assert!(!std::mem::needs_drop::<T>()) }
        Self(Box::new(MaybeUninit::new(value)))
    }

    fn get(&self) -> &T {
        // SAFETY: initialised, by the invariant.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: the box is valid for writes of a `T`; nothing reads it as one again, this being its drop, and it has
        // no drop glue that would.
        unsafe { zeroize::zeroize_flat_type(&raw mut *self.0) }
    }
}

impl fmt::Debug for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.cipher {
            Cipher::Null => "ecb(cipher_null)",
            Cipher::Ring(_) | Cipher::AwsLc(_) => "rfc4106(gcm(aes))",
        };
        write!(f, "Aead({name} <hidden>, icv of {} bytes)", self.icv_len)
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GcmAes { key, icv_len } => {
                let bits = key.len().saturating_sub(SALT_LEN) * 8;
                write!(f, "rfc4106(gcm(aes)) <{bits} bits hidden> icv of {icv_len} bytes")
            }
            Self::Null => f.write_str("ecb(cipher_null)"),
        }
    }
}

impl fmt::Display for AlgorithmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyLen(len) => {
                write!(f, "rfc4106(gcm(aes)) takes a key of 20, 28 or 36 bytes with its salt, not {len}")
            }
            Self::IcvLen(len) => write!(f, "rfc4106(gcm(aes)) takes an ICV of 64, 96 or 128 bits, not {}", len * 8),
        }
    }
}

impl std::error::Error for AlgorithmError {}
