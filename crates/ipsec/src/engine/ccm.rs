//! AES-CCM (RFC 4309).

use aes::{Aes128, Aes192, Aes256};
use ccm::Ccm;
use ccm::aead::consts::{U8, U11, U12, U16};
use ccm::aead::{AeadInOut, KeyInit};
use wire::esp::Header;

use super::OpenError;
use super::aead::Aad;

/// Bytes of initialisation vector in each packet.
pub(super) const IV_LEN: usize = 8;

/// Bytes of salt at the end of the keying material (RFC 4309 §7.1), the first ones of each nonce.
const SALT_LEN: usize = 3;

type Nonce = [u8; SALT_LEN + IV_LEN];

/// A key and the salt of its nonces.
pub(super) struct CcmAes {
    key: Box<dyn Key>,
    salt: [u8; SALT_LEN],
}

/// AES-CCM with a key and an ICV of one length. Zeroed on drop.
trait Key: Send + Sync {
    fn seal(&self, nonce: Nonce, aad: &[u8], text: &mut [u8], icv: &mut [u8]);
    fn open(&self, nonce: Nonce, aad: &[u8], text: &mut [u8], icv: &[u8]) -> Result<(), OpenError>;
}

macro_rules! key {
    ($($aes:ty, $icv:ty;)*) => {
        $(impl Key for Ccm<$aes, $icv, U11> {
            fn seal(&self, nonce: Nonce, aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
                let tag = self.encrypt_inout_detached(&nonce.into(), aad, text.into()).expect("a packet within 4 GiB");
                icv.copy_from_slice(&tag);
            }

            fn open(&self, nonce: Nonce, aad: &[u8], text: &mut [u8], icv: &[u8]) -> Result<(), OpenError> {
                let tag = icv.try_into().map_err(|_| OpenError::IcvWrong)?;
                self.decrypt_inout_detached(&nonce.into(), aad, text.into(), tag).map_err(|_| OpenError::IcvWrong)
            }
        })*
    };
}

key! {
    Aes128, U8; Aes128, U12; Aes128, U16;
    Aes192, U8; Aes192, U12; Aes192, U16;
    Aes256, U8; Aes256, U12; Aes256, U16;
}

fn boxed<K: Key + KeyInit + 'static>(key: &[u8]) -> Option<Box<dyn Key>> {
    Some(Box::new(K::new_from_slice(key).ok()?))
}

impl CcmAes {
    /// Of an AES key and three bytes of salt; `None` for a length that there is not.
    pub(super) fn new(material: &[u8], icv_len: usize) -> Option<Self> {
        let (key, &salt) = material.split_last_chunk()?;
        let key = match (key.len(), icv_len) {
            (16, 8) => boxed::<Ccm<Aes128, U8, U11>>(key),
            (16, 12) => boxed::<Ccm<Aes128, U12, U11>>(key),
            (16, 16) => boxed::<Ccm<Aes128, U16, U11>>(key),
            (24, 8) => boxed::<Ccm<Aes192, U8, U11>>(key),
            (24, 12) => boxed::<Ccm<Aes192, U12, U11>>(key),
            (24, 16) => boxed::<Ccm<Aes192, U16, U11>>(key),
            (32, 8) => boxed::<Ccm<Aes256, U8, U11>>(key),
            (32, 12) => boxed::<Ccm<Aes256, U12, U11>>(key),
            (32, 16) => boxed::<Ccm<Aes256, U16, U11>>(key),
            _ => None,
        };
        Some(Self { key: key?, salt })
    }

    pub(super) fn seal(&self, packet: &mut [u8], iv: [u8; IV_LEN], high: Option<u32>, icv_len: usize) {
        let (front, rest) = packet.split_at_mut(Header::LEN + IV_LEN);
        let (header, iv_room) = front.split_at_mut(Header::LEN);
        iv_room.copy_from_slice(&iv);
        let (text, icv) = rest.split_at_mut(rest.len() - icv_len);
        self.key.seal(self.nonce(&iv), Aad::new(header, high).bytes(), text, icv);
    }

    /// Opens a packet that holds a header, an initialisation vector and an ICV at least.
    pub(super) fn open<'a>(
        &self,
        packet: &'a mut [u8],
        high: Option<u32>,
        icv_len: usize,
    ) -> Result<&'a mut [u8], OpenError> {
        let (front, rest) = packet.split_at_mut(Header::LEN + IV_LEN);
        let (header, iv) = front.split_at(Header::LEN);
        let (text, icv) = rest.split_at_mut(rest.len() - icv_len);
        self.key.open(self.nonce(iv), Aad::new(header, high).bytes(), text, icv)?;
        Ok(text)
    }

    /// Salt and initialisation vector (RFC 4309 §4).
    fn nonce(&self, iv: &[u8]) -> Nonce {
        let mut nonce = [0; SALT_LEN + IV_LEN];
        nonce[..SALT_LEN].copy_from_slice(&self.salt);
        nonce[SALT_LEN..].copy_from_slice(iv);
        nonce
    }
}
