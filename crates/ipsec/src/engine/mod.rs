//! Ciphers: what seals and opens one ESP packet, in place.
//!
//! A [`Cipher`] is given the whole packet and alone knows what of it is encrypted and what authenticated, and in which
//! order. It holds nothing that changes, so several threads may use one at once. The primitives come from kept
//! libraries, of which the fastest on this processor is taken ([`Library`]).

mod aead;
#[expect(unsafe_code, reason = "zeroes the key schedules that ring leaves behind")]
mod secret;

use std::fmt;

use wire::esp::Header;
use zeroize::Zeroizing;

use aead::{FULL_ICV, Key, SaltedKey};

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
pub struct Cipher {
    engine: Engine,
    iv_len: usize,
    icv_len: usize,
    align: usize,
    /// Tells this key from others in the register of nonces.
    #[cfg(debug_assertions)]
    fingerprint: u64,
}

enum Engine {
    Null,
    Aead(SaltedKey),
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

impl Cipher {
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
        let (engine, iv_len, icv_len) = match algorithm {
            Algorithm::GcmAes { icv_len, .. } if !matches!(*icv_len, 8 | 12 | FULL_ICV) => {
                return Err(AlgorithmError::IcvLen(*icv_len));
            }
            Algorithm::GcmAes { key, icv_len } => {
                let salted = SaltedKey::new(key, |aes| Key::gcm(aes, library));
                (Engine::Aead(salted.ok_or(AlgorithmError::KeyLen(key.len()))?), 8, *icv_len)
            }
            Algorithm::Null => (Engine::Null, 0, 0),
        };
        Ok(Self {
            engine,
            iv_len,
            icv_len,
            align: 4,
            #[cfg(debug_assertions)]
            fingerprint: algorithm.fingerprint(),
        })
    }

    /// Bytes of initialisation vector in each packet.
    pub const fn iv_len(&self) -> usize {
        self.iv_len
    }

    /// Bytes of integrity check value in each packet.
    pub const fn icv_len(&self) -> usize {
        self.icv_len
    }

    /// What the encrypted bytes are a multiple of: the larger of the cipher's block and ESP's own 4 (RFC 4303 §2.4).
    pub const fn align(&self) -> usize {
        self.align
    }

    /// The bytes of a packet that are neither text nor trailer: ESP header, initialisation vector, ICV.
    pub const fn overhead(&self) -> usize {
        Header::LEN + self.iv_len + self.icv_len
    }

    /// Seals an ESP packet that has its header and, between the room for the initialisation vector and that for the
    /// ICV, its text with the trailer. `iv` is what the vector is made from; the pair of key and `iv` must never come
    /// again: [`OutSequence`](crate::sequence::OutSequence) sees to it. `high` is the upper half of an extended sequence
    /// number, which is authenticated and not sent (RFC 4303 §2.2.1).
    ///
    /// # Panics
    /// When `packet` is shorter than [`overhead`](Self::overhead), or longer than the cipher can take, which is 64 GiB.
    #[inline]
    pub fn seal(&self, packet: &mut [u8], iv: [u8; 8], high: Option<u32>) {
        match &self.engine {
            Engine::Null => {}
            Engine::Aead(key) => key.seal(packet, iv, high, self.icv_len),
        }
    }

    /// Opens an ESP packet in place, from SPI to ICV, if its ICV is right, and gives its text with the trailer. `high`
    /// as in [`seal`](Self::seal). `scratch` is room of the caller's, kept from packet to packet.
    ///
    /// # Errors
    /// [`IcvWrong`]; what is in `packet` is then of no use, and not the plaintext.
    #[inline]
    pub fn open<'a>(
        &self,
        packet: &'a mut [u8],
        high: Option<u32>,
        scratch: &mut Vec<u8>,
    ) -> Result<&'a mut [u8], IcvWrong> {
        if packet.len() < self.overhead() {
            return Err(IcvWrong);
        }
        match &self.engine {
            Engine::Null => Ok(&mut packet[Header::LEN..]),
            Engine::Aead(key) => key.open(packet, high, self.icv_len, scratch),
        }
    }

    /// Notes that this key is about to seal with `iv`; panics if it has before.
    #[cfg(debug_assertions)]
    pub(crate) fn register(&self, iv: [u8; 8]) {
        if self.iv_len > 0 {
            crate::nonces::register(self.fingerprint, iv);
        }
    }
}

impl Algorithm {
    /// A number that stands for the key.
    #[cfg(debug_assertions)]
    fn fingerprint(&self) -> u64 {
        match self {
            Self::GcmAes { key, .. } => crate::nonces::fingerprint(key),
            Self::Null => 0,
        }
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.engine {
            Engine::Null => "ecb(cipher_null)",
            Engine::Aead(_) => "rfc4106(gcm(aes))",
        };
        write!(f, "Cipher({name} <hidden>, icv of {} bytes)", self.icv_len)
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GcmAes { key, icv_len } => {
                let bits = key.len().saturating_sub(aead::SALT_LEN) * 8;
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
