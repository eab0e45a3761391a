//! AES-GCM (RFC 4106) and ChaCha20-Poly1305 (RFC 7634): one key, four bytes of salt, an 8-byte initialisation vector.

use aws_lc_rs::aead as aws_lc;
use ring::aead as ring;
use wire::esp::EspHeader;

#[cfg(feature = "ipsec-mb")]
use super::ipsec_mb::Gcm;
use super::library::Library;
use super::open_error::OpenError;
use super::secret::Secret;
use super::stream::{GcmStream, StreamPieces};

/// Bytes of salt at the end of the keying material of RFC 4106 §8.1, the first ones of each nonce.
pub(super) const SALT_LEN: usize = 4;

/// Bytes of initialisation vector in each packet, the last ones of its nonce.
pub(super) const IV_LEN: usize = 8;

/// Bytes of the ciphers' whole integrity check value; fewer may be sent.
pub(super) const FULL_ICV: usize = 16;

/// Most bytes of an ESP trailer (RFC 4303 §2).
const MAX_TRAILER: usize = 255 + 2;

/// Bytes in front of the text.
const FRONT: usize = EspHeader::LEN + IV_LEN;

/// A key and the salt of its nonces.
pub(super) struct SaltedKey {
    key: AeadKey,
    salt: [u8; SALT_LEN],
    /// Cipher for texts in pieces and shortened ICVs, if the algorithm has one.
    stream: Option<Box<GcmStream>>,
}

/// A library's key.
pub(super) enum AeadKey {
    Ring(Secret<ring::LessSafeKey>),
    /// Zeroed by the library when it is freed.
    AwsLc(aws_lc::LessSafeKey),
    #[cfg(feature = "ipsec-mb")]
    IpsecMb(Gcm),
}

impl SaltedKey {
    /// AES-GCM with a key and, in the last four bytes, the salt; `None` for a length that AES does not have.
    pub(super) fn gcm(material: &[u8], library: Library) -> Option<Self> {
        let (key, &salt) = material.split_last_chunk()?;
        Some(Self { key: AeadKey::gcm(key, library)?, salt, stream: Some(Box::new(GcmStream::new(key)?)) })
    }

    /// ChaCha20-Poly1305 with a key of 32 bytes and the salt, by AWS-LC: `ring` copies the key to the stack for each
    /// packet, and leaves it there.
    pub(super) fn chacha20_poly1305(material: &[u8]) -> Option<Self> {
        let (key, &salt) = material.split_last_chunk()?;
        Some(Self { key: AeadKey::aws_lc(&aws_lc::CHACHA20_POLY1305, key)?, salt, stream: None })
    }

    #[inline]
    pub(super) fn seal(&self, packet: &mut [u8], iv: [u8; IV_LEN], high: Option<u32>, icv_len: usize) {
        let (front, rest) = packet.split_at_mut(FRONT);
        let (header, iv_room) = front.split_at_mut(EspHeader::LEN);
        iv_room.copy_from_slice(&iv);
        let (text, icv) = rest.split_at_mut(rest.len() - icv_len);
        self.key.seal(self.nonce(iv), Aad::new(header, high).bytes(), text, icv);
    }

    /// Tells whether [`seal_from`](Self::seal_from) can be used: `ring` encrypts in place alone.
    pub(super) const fn reads_elsewhere(&self) -> bool {
        match self.key {
            AeadKey::Ring(_) => false,
            AeadKey::AwsLc(_) => true,
            #[cfg(feature = "ipsec-mb")]
            AeadKey::IpsecMb(_) => true,
        }
    }

    /// As [`seal`](Self::seal), for a text and a trailer in other buffers.
    #[inline]
    pub(super) fn seal_from(
        &self,
        packet: &mut [u8],
        text: &[u8],
        trailer: &[u8],
        iv: [u8; IV_LEN],
        high: Option<u32>,
        icv_len: usize,
    ) {
        let (front, rest) = packet.split_at_mut(FRONT);
        let (header, iv_room) = front.split_at_mut(EspHeader::LEN);
        iv_room.copy_from_slice(&iv);
        let (nonce, aad) = (self.nonce(iv), Aad::new(header, high));
        match &self.key {
            AeadKey::Ring(_) => unreachable!("checked before"),
            AeadKey::AwsLc(key) => {
                let (to, behind) = rest.split_at_mut(text.len());
                let seal = |to: &mut [u8], behind: &mut [u8]| {
                    let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                    key.seal_out_of_place_scatter(nonce, aws_lc::Aad::from(aad.bytes()), text, to, trailer, behind)
                        .expect("a packet within 64 GiB, with room for trailer and ICV");
                };
                if icv_len == FULL_ICV {
                    return seal(to, behind);
                }
                // The library writes whole ICVs only: this one is shortened on its way to the packet.
                let mut whole = [0; FULL_ICV];
                if trailer.is_empty() {
                    seal(to, &mut whole);
                    return behind.copy_from_slice(&whole[..icv_len]);
                }
                let mut whole = [0; MAX_TRAILER + FULL_ICV];
                seal(to, &mut whole[..trailer.len() + FULL_ICV]);
                behind.copy_from_slice(&whole[..trailer.len() + icv_len]);
            }
            #[cfg(feature = "ipsec-mb")]
            AeadKey::IpsecMb(key) => {
                let (to, icv) = rest.split_at_mut(rest.len() - icv_len);
                key.seal_from(nonce, aad.bytes(), (text, trailer), to, icv);
            }
        }
    }

    #[inline]
    pub(super) fn open<'a>(
        &self,
        packet: &'a mut [u8],
        high: Option<u32>,
        icv_len: usize,
    ) -> Result<&'a mut [u8], OpenError> {
        let (front, sealed) = packet.split_at_mut_checked(FRONT).ok_or(OpenError::IcvWrong)?;
        let (header, iv) = front.split_at(EspHeader::LEN);
        let (nonce, aad) = (self.nonce(iv.try_into().map_err(|_| OpenError::IcvWrong)?), Aad::new(header, high));
        match (&self.key, &self.stream) {
            #[cfg(feature = "ipsec-mb")]
            (AeadKey::IpsecMb(key), _) => {
                let (text, icv) = split_icv(sealed, icv_len)?;
                key.open(nonce, aad.bytes(), text, icv).map(|()| text)
            }
            (_, Some(stream)) if icv_len < FULL_ICV => {
                let (text, icv) = split_icv(sealed, icv_len)?;
                stream.open(nonce, aad.bytes(), text, icv).map(|()| text)
            }
            (AeadKey::Ring(key), _) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                key.get().open_in_place(nonce, ring::Aad::from(aad.bytes()), sealed).map_err(|_| OpenError::IcvWrong)
            }
            (AeadKey::AwsLc(key), _) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let (text, icv) = sealed.split_last_chunk_mut::<FULL_ICV>().ok_or(OpenError::IcvWrong)?;
                // Without the ICV behind it, the text needs no move.
                let opened = key.open_in_place_separate_tag(nonce, aws_lc::Aad::from(aad.bytes()), icv, text);
                opened.map_err(|_| OpenError::IcvWrong)
            }
        }
    }

    /// Tells whether [`open_from`](Self::open_from) can be used.
    pub(super) const fn opens_elsewhere(&self) -> bool {
        self.stream.is_some()
    }

    /// Opens the packet that lies in `pieces`. Its text goes to the text's place in `packet`, which has the packet's
    /// length.
    pub(super) fn open_from<'p>(
        &self,
        pieces: impl Iterator<Item = &'p [u8]>,
        packet: &mut [u8],
        high: Option<u32>,
        icv_len: usize,
    ) -> Result<(), OpenError> {
        let end = packet.len().checked_sub(icv_len).ok_or(OpenError::IcvWrong)?;
        let (mut pieces, mut front) = (StreamPieces::new(pieces), [0; FRONT]);
        pieces.read(&mut front, |from, to| to.copy_from_slice(from));
        let (header, iv) = front.split_at(EspHeader::LEN);
        let (nonce, aad) = (self.nonce(iv.try_into().map_err(|_| OpenError::IcvWrong)?), Aad::new(header, high));
        let (Some(stream), Some(text)) = (&self.stream, packet.get_mut(FRONT..end)) else {
            return Err(OpenError::IcvWrong);
        };
        stream.open_from(nonce, aad.bytes(), &mut pieces, text, icv_len)
    }

    /// Salt and initialisation vector (RFC 4106 §4).
    #[inline]
    fn nonce(&self, iv: [u8; IV_LEN]) -> [u8; SALT_LEN + IV_LEN] {
        // Assembled in a register: a load that spans two recent stores would wait for the cache.
        let nonce = u128::from(u32::from_le_bytes(self.salt)) | u128::from(u64::from_le_bytes(iv)) << (8 * SALT_LEN);
        let [nonce @ .., _, _, _, _] = nonce.to_le_bytes();
        nonce
    }
}

/// Splits off an ICV of `icv_len` bytes.
fn split_icv(sealed: &mut [u8], icv_len: usize) -> Result<(&mut [u8], &[u8]), OpenError> {
    let at = sealed.len().checked_sub(icv_len).ok_or(OpenError::IcvWrong)?;
    let (text, icv) = sealed.split_at_mut(at);
    Ok((text, icv))
}

impl AeadKey {
    /// AES-GCM with `key`; `None` for a length that AES does not have.
    pub(super) fn gcm(key: &[u8], library: Library) -> Option<Self> {
        match (key.len(), library) {
            (16, Library::Ring) => Self::ring(&ring::AES_128_GCM, key),
            (32, Library::Ring) => Self::ring(&ring::AES_256_GCM, key),
            (16, Library::AwsLc) => Self::aws_lc(&aws_lc::AES_128_GCM, key),
            (24, Library::Ring | Library::AwsLc) => Self::aws_lc(&aws_lc::AES_192_GCM, key),
            (32, Library::AwsLc) => Self::aws_lc(&aws_lc::AES_256_GCM, key),
            #[cfg(feature = "ipsec-mb")]
            (_, Library::IpsecMb) => Gcm::new(key).map(Self::IpsecMb),
            _ => None,
        }
    }

    fn ring(algorithm: &'static ring::Algorithm, key: &[u8]) -> Option<Self> {
        Some(Self::Ring(Secret::new(ring::LessSafeKey::new(ring::UnboundKey::new(algorithm, key).ok()?))))
    }

    fn aws_lc(algorithm: &'static aws_lc::Algorithm, key: &[u8]) -> Option<Self> {
        Some(Self::AwsLc(aws_lc::LessSafeKey::new(aws_lc::UnboundKey::new(algorithm, key).ok()?)))
    }

    /// Encrypts in place, and writes the front of the integrity check value to `icv`.
    #[inline]
    fn seal(&self, nonce: [u8; SALT_LEN + IV_LEN], aad: &[u8], text: &mut [u8], icv: &mut [u8]) {
        let icv_len = icv.len();
        match self {
            Self::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let tag = key.get().seal_in_place_separate_tag(nonce, ring::Aad::from(aad), text);
                icv.copy_from_slice(&tag.expect("a packet within 64 GiB").as_ref()[..icv_len]);
            }
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, aws_lc::Aad::from(aad), text);
                icv.copy_from_slice(&tag.expect("a packet within 64 GiB").as_ref()[..icv_len]);
            }
            #[cfg(feature = "ipsec-mb")]
            Self::IpsecMb(key) => key.seal(nonce, aad, text, icv),
        }
    }
}

/// Additional authenticated data (RFC 4106 §5): SPI and sequence number, all 64 bits of it with ESN.
pub(super) struct Aad {
    bytes: [u8; EspHeader::LEN + 4],
    len: usize,
}

impl Aad {
    /// AAD of an ESP header and the upper half of its sequence number.
    #[inline]
    pub(super) fn new(header: &[u8], high: Option<u32>) -> Self {
        let mut bytes = [0; EspHeader::LEN + 4];
        match high {
            None => {
                bytes[..EspHeader::LEN].copy_from_slice(header);
                Self { bytes, len: EspHeader::LEN }
            }
            Some(high) => {
                bytes[..4].copy_from_slice(&header[..4]);
                bytes[4..8].copy_from_slice(&high.to_be_bytes());
                bytes[8..].copy_from_slice(&header[4..]);
                Self { bytes, len: EspHeader::LEN + 4 }
            }
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
