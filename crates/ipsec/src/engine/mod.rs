//! Ciphers: sealing and opening of one ESP packet, in place or from another buffer.
//!
//! A [`Cipher`] gets the whole packet; it alone decides which bytes are encrypted and which authenticated, and in which
//! order. It has no mutable state, so several threads may use one at once. The primitives are those of maintained
//! libraries, the fastest on this processor ([`Library`]).

mod aead;
#[expect(unsafe_code, reason = "calls the library's block cipher with key schedules that stay in place")]
mod aes;
mod auth;
mod cbc_mac;
mod ccm;
mod gmac;
#[cfg(feature = "ipsec-mb")]
#[expect(unsafe_code, reason = "calls a library that is written in C")]
mod ipsec_mb;
mod library;
mod open_error;
#[expect(unsafe_code, reason = "zeroes the key schedules that libraries leave behind")]
mod secret;
mod separate;
#[expect(unsafe_code, reason = "calls the library's streaming interface")]
mod stream;

use std::fmt;

use wire::esp::EspHeader;
use xfrm::{Aead, Algorithm, AlgorithmError, Overhead, SaConfig};

pub use library::Library;
pub use open_error::OpenError;

use aead::SaltedKey;
use ccm::CcmAes;
use gmac::Gmac;
use separate::Separate;

/// Least alignment of every text (RFC 4303 §2.4).
const MIN_ALIGN: usize = 4;

/// A cipher with the key of one SA. The key is zeroed on drop and never printed.
///
/// Aligned to a cache line: a thread that changes its reference count does not invalidate data that another thread
/// reads.
#[repr(align(64))]
pub struct Cipher {
    engine: Engine,
    iv_len: usize,
    icv_len: usize,
    align: usize,
    /// Identifies this key in the register of nonces.
    #[cfg(debug_assertions)]
    fingerprint: u64,
}

enum Engine {
    /// No key: another shard seals and opens.
    Elsewhere,
    Null,
    Aead(SaltedKey),
    Gmac(Box<Gmac>),
    Ccm(CcmAes),
    Separate(Box<Separate>),
}

impl Engine {
    /// The engine of `algorithm`. Parts of the key that it keeps are in allocations of its own, so it may be moved. `None` for a
    /// key of a length that the algorithm does not have.
    #[inline(never)]
    fn new(algorithm: &Algorithm, library: Library) -> Option<Self> {
        match algorithm {
            Algorithm::Aead { name, key, .. } => match name {
                Aead::GcmAes => SaltedKey::gcm(key.bytes(), library).map(Self::Aead),
                Aead::ChaCha20Poly1305 => SaltedKey::chacha20_poly1305(key.bytes()).map(Self::Aead),
                Aead::GmacAes => Gmac::new(key.bytes()).map(|gmac| Self::Gmac(Box::new(gmac))),
                Aead::CcmAes => CcmAes::new(key.bytes()).map(Self::Ccm),
            },
            Algorithm::Separate { .. } if algorithm.is_null() => Some(Self::Null),
            Algorithm::Separate { enc, key, auth } => {
                Separate::new(*enc, key, auth.as_ref()).map(|separate| Self::Separate(Box::new(separate)))
            }
        }
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
        algorithm.check()?;
        let engine = Engine::new(algorithm, library);
        // Some libraries make a schedule on the stack and move it to its place.
        secret::wipe_stack();
        let engine = engine.expect("an engine takes the lengths of the table of algorithms");
        let (iv_len, align) = match &engine {
            Engine::Elsewhere | Engine::Null => (0, MIN_ALIGN),
            Engine::Aead(_) => (aead::IV_LEN, MIN_ALIGN),
            Engine::Gmac(_) => (gmac::IV_LEN, MIN_ALIGN),
            Engine::Ccm(_) => (ccm::IV_LEN, MIN_ALIGN),
            Engine::Separate(separate) => (separate.iv_len(), separate.block_len().max(MIN_ALIGN)),
        };
        Ok(Self {
            engine,
            iv_len,
            icv_len: usize::from(algorithm.icv_bits() / 8),
            align,
            #[cfg(debug_assertions)]
            fingerprint: crate::nonces::fingerprint(algorithm.key().bytes()),
        })
    }

    /// Lengths of the packets of `config` without its key, for a shard that does not own the SA.
    pub(crate) fn elsewhere(config: &SaConfig) -> Self {
        let Overhead { iv_len, icv_len, align, .. } = Overhead::of(config);
        Self {
            engine: Engine::Elsewhere,
            iv_len,
            icv_len,
            align,
            #[cfg(debug_assertions)]
            fingerprint: 0,
        }
    }

    /// Bytes of initialisation vector in each packet.
    pub const fn iv_len(&self) -> usize {
        self.iv_len
    }

    /// Bytes of integrity check value in each packet.
    pub const fn icv_len(&self) -> usize {
        self.icv_len
    }

    /// Alignment of the encrypted bytes: the larger of the cipher's block and ESP's own 4 (RFC 4303 §2.4).
    pub const fn align(&self) -> usize {
        self.align
    }

    /// The bytes of a packet that are neither text nor trailer: ESP header, initialisation vector, ICV.
    pub const fn overhead(&self) -> usize {
        EspHeader::LEN + self.iv_len + self.icv_len
    }

    /// Seals an ESP packet: in `packet` are the header, room for the initialisation vector, the text with its trailer,
    /// and room for the ICV. The initialisation vector is derived from `iv`; a pair of key and `iv` must never repeat,
    /// which [`OutSequence`](crate::sequence::OutSequence) ensures. `high` is the upper half of an extended sequence
    /// number, which is authenticated and not sent (RFC 4303 §2.2.1).
    ///
    /// # Panics
    /// When `packet` is shorter than [`overhead`](Self::overhead), its text no multiple of [`align`](Self::align), or
    /// longer than the cipher can take, which is 4 GiB.
    #[inline]
    pub fn seal(&self, packet: &mut [u8], iv: [u8; 8], high: Option<u32>) {
        match &self.engine {
            Engine::Aead(key) => key.seal(packet, iv, high, self.icv_len),
            Engine::Elsewhere => unreachable!("its owner seals"),
            Engine::Null => {}
            Engine::Gmac(key) => key.seal(packet, iv, high),
            Engine::Ccm(key) => key.seal(packet, iv, high, self.icv_len),
            Engine::Separate(keys) => keys.seal(packet, iv, high, self.icv_len),
        }
    }

    /// Tells whether this is NULL without authentication: packets are sealed and opened as they are.
    pub const fn is_null(&self) -> bool {
        matches!(self.engine, Engine::Null)
    }

    /// Tells whether [`seal_from`](Self::seal_from) reads the text in place, in the pass that encrypts it. A cipher that encrypts
    /// nothing copies it.
    pub const fn reads_elsewhere(&self) -> bool {
        match &self.engine {
            Engine::Aead(key) => key.reads_elsewhere(),
            Engine::Ccm(_) => true,
            Engine::Separate(keys) => keys.reads_elsewhere(),
            Engine::Elsewhere | Engine::Null | Engine::Gmac(_) => false,
        }
    }

    /// As [`seal`](Self::seal), for a packet that has only its header: reads `text` and the `trailer` behind it from
    /// their own buffers; the packet has room for both.
    ///
    /// # Panics
    /// As [`seal`](Self::seal), and when the packet has another length, or the trailer more than 257 bytes.
    #[inline]
    pub fn seal_from(&self, packet: &mut [u8], text: &[u8], trailer: &[u8], iv: [u8; 8], high: Option<u32>) {
        match &self.engine {
            Engine::Aead(key) if key.reads_elsewhere() => {
                return key.seal_from(packet, text, trailer, iv, high, self.icv_len);
            }
            Engine::Ccm(key) => return key.seal_from(packet, (text, trailer), iv, high, self.icv_len),
            Engine::Separate(keys) if keys.reads_elsewhere() => {
                return keys.seal_from(packet, (text, trailer), iv, high, self.icv_len);
            }
            Engine::Aead(_) | Engine::Separate(_) | Engine::Null | Engine::Gmac(_) | Engine::Elsewhere => {}
        }
        let end = packet.len() - self.icv_len;
        let (to, trailer_to) = packet[EspHeader::LEN + self.iv_len..end].split_at_mut(text.len());
        to.copy_from_slice(text);
        trailer_to.copy_from_slice(trailer);
        self.seal(packet, iv, high);
    }

    /// Opens an ESP packet in place, from SPI to ICV, if its ICV is right, and gives its text with the trailer. `high`
    /// as in [`seal`](Self::seal).
    ///
    /// # Errors
    /// [`OpenError`].
    #[inline]
    pub fn open<'a>(&self, packet: &'a mut [u8], high: Option<u32>) -> Result<&'a mut [u8], OpenError> {
        if packet.len() < self.overhead() {
            return Err(OpenError::IcvWrong);
        }
        match &self.engine {
            Engine::Aead(key) => key.open(packet, high, self.icv_len),
            Engine::Elsewhere => unreachable!("its owner opens"),
            Engine::Null => Ok(&mut packet[EspHeader::LEN..]),
            Engine::Gmac(key) => {
                key.verify(packet, high)?;
                let end = packet.len() - self.icv_len;
                Ok(&mut packet[EspHeader::LEN + self.iv_len..end])
            }
            Engine::Ccm(key) => key.open(packet, high, self.icv_len),
            Engine::Separate(keys) => keys.open(packet, high, self.icv_len),
        }
    }

    /// Tells whether [`open_from`](Self::open_from) reads pieces in place, in the pass that decrypts them.
    pub const fn opens_elsewhere(&self) -> bool {
        match &self.engine {
            Engine::Aead(key) => key.opens_elsewhere(),
            Engine::Elsewhere | Engine::Null | Engine::Gmac(_) | Engine::Ccm(_) | Engine::Separate(_) => false,
        }
    }

    /// As [`open`](Self::open), for a packet in pieces, which are not changed. `packet` has the packet's length; the
    /// text goes to the text's place in it, and the other bytes of `packet` stay.
    ///
    /// # Errors
    /// [`OpenError`]; the text's place in `packet` is unchanged or zeroed.
    ///
    /// # Panics
    /// Unless it [opens elsewhere](Self::opens_elsewhere).
    pub fn open_from<'a, 'p>(
        &self,
        pieces: impl Iterator<Item = &'p [u8]>,
        packet: &'a mut [u8],
        high: Option<u32>,
    ) -> Result<&'a mut [u8], OpenError> {
        let Engine::Aead(key) = &self.engine else { unreachable!("checked before") };
        key.open_from(pieces, packet, high, self.icv_len)?;
        let end = packet.len() - self.icv_len;
        Ok(&mut packet[EspHeader::LEN + self.iv_len..end])
    }

    /// Registers that this key is about to seal with `iv`; panics on a repetition.
    #[cfg(debug_assertions)]
    pub(crate) fn register(&self, iv: [u8; 8]) {
        if self.iv_len > 0 {
            crate::nonces::register(self.fingerprint, iv);
        }
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cipher(<hidden>, iv of {} bytes, icv of {} bytes)", self.iv_len, self.icv_len)
    }
}
