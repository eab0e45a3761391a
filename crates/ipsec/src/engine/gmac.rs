//! AES-GMAC: the authentication of AES-GCM without its encryption (RFC 4543).

use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use subtle::ConstantTimeEq;
use wire::esp::EspHeader;

use super::aead::{FULL_ICV, SALT_LEN};
use super::open_error::OpenError;

/// Bytes of initialisation vector in each packet.
pub(super) const IV_LEN: usize = 8;

/// A key and the salt of its nonces. AWS-LC's, which authenticates several times as fast as `ring`.
pub(super) struct Gmac {
    key: LessSafeKey,
    salt: [u8; SALT_LEN],
}

impl Gmac {
    /// Cipher of an AES key and four bytes of salt; `None` for another length.
    pub(super) fn new(material: &[u8]) -> Option<Self> {
        let (key, &salt) = material.split_last_chunk()?;
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            _ => return None,
        };
        Some(Self { key: LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?), salt })
    }

    pub(super) fn seal(&self, packet: &mut [u8], iv: [u8; IV_LEN], high: Option<u32>) {
        packet[EspHeader::LEN..][..IV_LEN].copy_from_slice(&iv);
        let icv = self.icv(packet, iv, high);
        if let Some(room) = packet.last_chunk_mut() {
            *room = icv;
        }
    }

    /// Tells whether a packet that holds a header, an initialisation vector and an ICV at least is authentic.
    pub(super) fn verify(&self, packet: &mut [u8], high: Option<u32>) -> Result<(), OpenError> {
        let iv = packet.get(EspHeader::LEN..).and_then(<[u8]>::first_chunk).copied();
        let (Some(iv), Some(&icv)) = (iv, packet.last_chunk::<FULL_ICV>()) else { return Err(OpenError::IcvWrong) };
        if bool::from(self.icv(packet, iv, high).ct_eq(&icv)) { Ok(()) } else { Err(OpenError::IcvWrong) }
    }

    /// The ICV of the bytes in front of it. With ESN the upper half is authenticated between SPI and sequence number:
    /// the bytes behind it are moved for the duration of the call, into the room of the ICV, whose value is lost.
    fn icv(&self, packet: &mut [u8], iv: [u8; IV_LEN], high: Option<u32>) -> [u8; FULL_ICV] {
        let end = packet.len() - FULL_ICV;
        match high {
            None => self.code(&packet[..end], iv),
            Some(high) => {
                packet.copy_within(4..end, 8);
                packet[4..8].copy_from_slice(&high.to_be_bytes());
                let icv = self.code(&packet[..end + 4], iv);
                packet.copy_within(8..end + 4, 4);
                icv
            }
        }
    }

    fn code(&self, bytes: &[u8], iv: [u8; IV_LEN]) -> [u8; FULL_ICV] {
        let mut nonce = [0; SALT_LEN + IV_LEN];
        nonce[..SALT_LEN].copy_from_slice(&self.salt);
        nonce[SALT_LEN..].copy_from_slice(&iv);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag =
            self.key.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []).expect("a packet within 64 GiB");
        let mut icv = [0; FULL_ICV];
        icv.copy_from_slice(tag.as_ref());
        icv
    }
}
