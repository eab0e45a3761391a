//! AES-CCM (RFC 4309): a CBC-MAC over everything, and counter mode over the text and that (RFC 3610).

use subtle::ConstantTimeEq;
use wire::esp::EspHeader;

use super::aead::Aad;
use super::aes::{BLOCK_LEN, Block, EncryptingKey};
use super::open_error::{OpenError, release_or_erase};

/// Bytes of initialisation vector in each packet.
pub(super) const IV_LEN: usize = 8;

/// Bytes of salt at the end of the keying material (RFC 4309 §7.1), the first ones of each nonce.
const SALT_LEN: usize = 3;

/// Bytes of the length field and the counter: a block without flags and nonce (RFC 3610 §2.1, L).
const LENGTH_LEN: usize = BLOCK_LEN - 1 - SALT_LEN - IV_LEN;

type Nonce = [u8; SALT_LEN + IV_LEN];

/// A key and the salt of its nonces.
pub(super) struct CcmAes {
    key: EncryptingKey,
    salt: [u8; SALT_LEN],
}

impl CcmAes {
    /// AES-CCM with an AES key and, in the last three bytes of `material`, the salt; `None` for a length that AES does
    /// not have.
    pub(super) fn new(material: &[u8]) -> Option<Self> {
        let (key, &salt) = material.split_last_chunk()?;
        Some(Self { key: EncryptingKey::new(key)?, salt })
    }

    pub(super) fn seal(&self, packet: &mut [u8], iv: [u8; IV_LEN], high: Option<u32>, icv_len: usize) {
        let (front, rest) = packet.split_at_mut(EspHeader::LEN + IV_LEN);
        let (header, iv_room) = front.split_at_mut(EspHeader::LEN);
        iv_room.copy_from_slice(&iv);
        let (text, icv) = rest.split_at_mut(rest.len() - icv_len);
        let nonce = self.nonce(&iv);
        let tag = self.tag(nonce, &Aad::new(header, high), (text, &[]), icv_len);
        self.key.ctr(counter(nonce, 1), text);
        icv.copy_from_slice(&tag[..icv_len]);
    }

    /// As [`seal`](Self::seal), for a text in two other buffers, one behind the other.
    pub(super) fn seal_from(
        &self,
        packet: &mut [u8],
        text: (&[u8], &[u8]),
        iv: [u8; IV_LEN],
        high: Option<u32>,
        icv_len: usize,
    ) {
        let (front, rest) = packet.split_at_mut(EspHeader::LEN + IV_LEN);
        let (header, iv_room) = front.split_at_mut(EspHeader::LEN);
        iv_room.copy_from_slice(&iv);
        let (to, icv) = rest.split_at_mut(rest.len() - icv_len);
        let nonce = self.nonce(&iv);
        let tag = self.tag(nonce, &Aad::new(header, high), text, icv_len);
        self.key.ctr_from(counter(nonce, 1), text, to);
        icv.copy_from_slice(&tag[..icv_len]);
    }

    /// Opens a packet that holds a header, an initialisation vector and an ICV at least.
    pub(super) fn open<'a>(
        &self,
        packet: &'a mut [u8],
        high: Option<u32>,
        icv_len: usize,
    ) -> Result<&'a mut [u8], OpenError> {
        let (front, rest) = packet.split_at_mut(EspHeader::LEN + IV_LEN);
        let (header, iv) = front.split_at(EspHeader::LEN);
        let (text, icv) = rest.split_at_mut(rest.len() - icv_len);
        let nonce = self.nonce(iv);
        self.key.ctr(counter(nonce, 1), text);
        let tag = self.tag(nonce, &Aad::new(header, high), (text, &[]), icv_len);
        release_or_erase(tag[..icv_len].ct_eq(icv).into(), text)?;
        Ok(text)
    }

    /// The encrypted integrity check value of a text in two buffers; the first `icv_len` bytes are sent (RFC 3610 §2.2, §2.3).
    fn tag(&self, nonce: Nonce, aad: &Aad, (text, behind): (&[u8], &[u8]), icv_len: usize) -> Block {
        let text_len = u32::try_from(text.len() + behind.len()).expect("a packet within 4 GiB");
        let mut first = counter(nonce, text_len);
        first[0] |= 1 << 6 | (((icv_len - 2) / 2) << 3) as u8;
        // The additional authenticated data has fewer than 14 bytes, so it fills one block together with its length.
        let aad = aad.bytes();
        let mut beside = [0; BLOCK_LEN];
        beside[1] = aad.len() as u8;
        beside[2..2 + aad.len()].copy_from_slice(aad);
        let (blocks, tail) = text.split_at(text.len() / BLOCK_LEN * BLOCK_LEN);
        let mut mac = [0; BLOCK_LEN];
        self.key.chain(&mut mac, &first);
        self.key.chain(&mut mac, &beside);
        self.key.chain(&mut mac, blocks);
        // The last block of the first buffer is filled up from the second.
        let (filling, behind) = behind.split_at(behind.len().min((BLOCK_LEN - tail.len()) % BLOCK_LEN));
        if !tail.is_empty() {
            let mut padded = [0; BLOCK_LEN];
            padded[..tail.len()].copy_from_slice(tail);
            padded[tail.len()..tail.len() + filling.len()].copy_from_slice(filling);
            self.key.chain(&mut mac, &padded);
        }
        for part in behind.chunks(BLOCK_LEN) {
            let mut padded = [0; BLOCK_LEN];
            padded[..part.len()].copy_from_slice(part);
            self.key.chain(&mut mac, &padded);
        }
        self.key.ctr(counter(nonce, 0), &mut mac);
        mac
    }

    /// Salt and initialisation vector (RFC 4309 §4).
    fn nonce(&self, iv: &[u8]) -> Nonce {
        let mut nonce = [0; SALT_LEN + IV_LEN];
        nonce[..SALT_LEN].copy_from_slice(&self.salt);
        nonce[SALT_LEN..].copy_from_slice(iv);
        nonce
    }
}

/// The block of key stream `number` before it is encrypted (RFC 3610 §2.3, A_i): 0 is for the tag, the text begins with 1.
fn counter(nonce: Nonce, number: u32) -> Block {
    let mut block = [0; BLOCK_LEN];
    block[0] = (LENGTH_LEN - 1) as u8;
    block[1..][..nonce.len()].copy_from_slice(&nonce);
    block[1 + nonce.len()..].copy_from_slice(&number.to_be_bytes());
    block
}
