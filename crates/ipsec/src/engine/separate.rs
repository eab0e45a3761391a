//! Encrypt-then-authenticate: a cipher, and an authentication code over its output (RFC 4303 §3.3.2).

use aws_lc_rs::hmac;
use subtle::ConstantTimeEq;
use wire::esp::EspHeader;
use xfrm::{AuthConfig, Enc, Key};

use super::aes::{BLOCK_LEN, Block, DecryptingKey, EncryptingKey};
use super::auth::Authenticator;
use super::open_error::OpenError;

/// Bytes of a CTR initialisation vector, and of the nonce in front of it.
const CTR_IV_LEN: usize = 8;
const CTR_NONCE_LEN: usize = 4;

/// A cipher with its key, and an authentication code with its key.
pub(super) struct Separate {
    cipher: Cipher,
    auth: Option<Authenticator>,
}

enum Cipher {
    Null,
    Cbc(Cbc),
    Ctr(EncryptingKey, [u8; CTR_NONCE_LEN]),
}

/// AES-CBC.
struct Cbc {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
    /// Encrypts a counter to unpredictable initialisation vectors (NIST SP 800-38A App. C). This key is derived from
    /// the SA's, so that no vector equals a ciphertext block of the SA's key.
    vectors: EncryptingKey,
}

impl Separate {
    /// `None` for a key of a length that the algorithm does not have.
    pub(super) fn new(enc: Enc, key: &Key, auth: Option<&AuthConfig>) -> Option<Self> {
        let cipher = match enc {
            Enc::Null => Cipher::Null,
            Enc::CbcAes => Cipher::Cbc(Cbc::new(key.bytes())?),
            Enc::CtrAes => ctr(key.bytes())?,
        };
        let auth = match auth {
            Some(auth) => Some(Authenticator::new(auth)?),
            None => None,
        };
        Some(Self { cipher, auth })
    }

    pub(super) fn iv_len(&self) -> usize {
        match self.cipher {
            Cipher::Null => 0,
            Cipher::Cbc(_) => BLOCK_LEN,
            Cipher::Ctr(..) => CTR_IV_LEN,
        }
    }

    /// Alignment of the text.
    pub(super) fn block_len(&self) -> usize {
        if matches!(self.cipher, Cipher::Cbc(_)) { BLOCK_LEN } else { 1 }
    }

    pub(super) fn seal(&self, packet: &mut [u8], iv: [u8; 8], high: Option<u32>, icv_len: usize) {
        let (protected, icv) = packet.split_at_mut(packet.len() - icv_len);
        let (room, text) = protected[EspHeader::LEN..].split_at_mut(self.iv_len());
        match &self.cipher {
            Cipher::Null => {}
            Cipher::Cbc(cbc) => cbc.seal(iv, room, text),
            Cipher::Ctr(key, nonce) => {
                room.copy_from_slice(&iv);
                key_stream(key, *nonce, iv, text);
            }
        }
        if let Some(auth) = &self.auth {
            icv.copy_from_slice(&auth.code(protected, high)[..icv_len]);
        }
    }

    /// Tells whether [`seal_from`](Self::seal_from) encrypts.
    pub(super) const fn reads_elsewhere(&self) -> bool {
        !matches!(self.cipher, Cipher::Null)
    }

    /// As [`seal`](Self::seal), for a text in two other buffers, one behind the other.
    pub(super) fn seal_from(
        &self,
        packet: &mut [u8],
        text: (&[u8], &[u8]),
        iv: [u8; 8],
        high: Option<u32>,
        icv_len: usize,
    ) {
        let (protected, icv) = packet.split_at_mut(packet.len() - icv_len);
        let (room, to) = protected[EspHeader::LEN..].split_at_mut(self.iv_len());
        match &self.cipher {
            Cipher::Null => unreachable!("checked before"),
            Cipher::Cbc(cbc) => {
                let iv = cbc.vector(iv);
                room.copy_from_slice(&iv);
                cbc.encrypting.cbc_from(iv, text, to);
            }
            Cipher::Ctr(key, nonce) => {
                room.copy_from_slice(&iv);
                key.ctr_from(ctr_counter(*nonce, iv), text, to);
            }
        }
        if let Some(auth) = &self.auth {
            icv.copy_from_slice(&auth.code(protected, high)[..icv_len]);
        }
    }

    /// Opens a packet of at least a header, an initialisation vector and an ICV. It is decrypted only if it is
    /// authentic.
    pub(super) fn open<'a>(
        &self,
        packet: &'a mut [u8],
        high: Option<u32>,
        icv_len: usize,
    ) -> Result<&'a mut [u8], OpenError> {
        let (protected, icv) = packet.split_at_mut(packet.len() - icv_len);
        if let Some(auth) = &self.auth
            && !bool::from(auth.code(protected, high)[..icv_len].ct_eq(icv))
        {
            return Err(OpenError::IcvWrong);
        }
        let (iv, text) = protected[EspHeader::LEN..].split_at_mut(self.iv_len());
        match &self.cipher {
            Cipher::Null => {}
            Cipher::Cbc(cbc) => cbc.open(iv, text)?,
            Cipher::Ctr(key, nonce) => {
                let iv = iv.first_chunk().copied().ok_or(OpenError::IcvWrong)?;
                key_stream(key, *nonce, iv, text);
            }
        }
        Ok(text)
    }
}

impl Cbc {
    fn new(key: &[u8]) -> Option<Self> {
        let (encrypting, decrypting) = (EncryptingKey::new(key)?, DecryptingKey::new(key)?);
        // HKDF-Expand of no more than one HMAC's length (RFC 5869 §2.3).
        let derive = hmac::Key::new(hmac::HMAC_SHA256, key);
        let derived = hmac::sign(&derive, b"initialisation vectors of cbc(aes)\x01");
        let vectors = EncryptingKey::new(derived.as_ref().get(..BLOCK_LEN)?)?;
        Some(Self { encrypting, decrypting, vectors })
    }

    /// The initialisation vector of a packet's number.
    fn vector(&self, number: [u8; 8]) -> Block {
        let mut iv: Block = [0; BLOCK_LEN];
        iv[..8].copy_from_slice(&number);
        self.vectors.block(&mut iv);
        iv
    }

    fn seal(&self, number: [u8; 8], room: &mut [u8], text: &mut [u8]) {
        let iv = self.vector(number);
        room.copy_from_slice(&iv);
        self.encrypting.cbc(iv, text);
    }

    fn open(&self, iv: &[u8], text: &mut [u8]) -> Result<(), OpenError> {
        if !text.len().is_multiple_of(BLOCK_LEN) {
            return Err(OpenError::NotBlocks);
        }
        self.decrypting.cbc(iv.try_into().map_err(|_| OpenError::NotBlocks)?, text);
        Ok(())
    }
}

/// AES-CTR, of an AES key and four bytes of nonce.
fn ctr(material: &[u8]) -> Option<Cipher> {
    let (key, &nonce) = material.split_last_chunk()?;
    Some(Cipher::Ctr(EncryptingKey::new(key)?, nonce))
}

/// Encrypts or decrypts.
fn key_stream(key: &EncryptingKey, nonce: [u8; CTR_NONCE_LEN], iv: [u8; CTR_IV_LEN], text: &mut [u8]) {
    key.ctr(ctr_counter(nonce, iv), text);
}

/// The first block before it is encrypted; its counter is 1 (RFC 3686 §4).
fn ctr_counter(nonce: [u8; CTR_NONCE_LEN], iv: [u8; CTR_IV_LEN]) -> Block {
    let mut counter: Block = [0; BLOCK_LEN];
    counter[..4].copy_from_slice(&nonce);
    counter[4..12].copy_from_slice(&iv);
    counter[15] = 1;
    counter
}
