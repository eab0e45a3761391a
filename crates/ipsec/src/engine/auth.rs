//! Message authentication codes.

use aws_lc_rs::hmac as aws_lc;
use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use ripemd::Ripemd160;
use sm3::Sm3;
use xfrm::{Auth, AuthConfig};

use super::cbc_mac::CbcMac;

/// Bytes of the longest code.
const MAX_LEN: usize = 64;

/// Key of an authentication code, ready for use. Each packet's HMAC starts with a copy of the hash states derived from
/// the key, not of the key. Zeroed on drop.
pub(super) enum Authenticator {
    AwsLc(Box<aws_lc::Key>),
    HmacMd5(Box<Hmac<Md5>>),
    HmacRipemd160(Box<Hmac<Ripemd160>>),
    HmacSm3(Box<Hmac<Sm3>>),
    Aes(CbcMac),
}

impl Authenticator {
    /// Authenticator with this key; `None` for an unsupported key length.
    pub(super) fn new(config: &AuthConfig) -> Option<Self> {
        let key = config.key.bytes();
        if key.is_empty() {
            return None;
        }
        let hmac = |algorithm| Some(Self::AwsLc(Box::new(aws_lc::Key::new(algorithm, key))));
        match config.name {
            Auth::HmacMd5 => Some(Self::HmacMd5(Box::new(KeyInit::new_from_slice(key).ok()?))),
            Auth::HmacRipemd160 => Some(Self::HmacRipemd160(Box::new(KeyInit::new_from_slice(key).ok()?))),
            Auth::HmacSm3 => Some(Self::HmacSm3(Box::new(KeyInit::new_from_slice(key).ok()?))),
            Auth::HmacSha1 => hmac(aws_lc::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
            Auth::HmacSha256 => hmac(aws_lc::HMAC_SHA256),
            Auth::HmacSha384 => hmac(aws_lc::HMAC_SHA384),
            Auth::HmacSha512 => hmac(aws_lc::HMAC_SHA512),
            Auth::CmacAes => CbcMac::cmac(key).map(Self::Aes),
            Auth::XcbcAes => CbcMac::xcbc(key).map(Self::Aes),
        }
    }

    /// The code over `packet` without its ICV and, with ESN, the upper half of its number behind it (RFC 4303 §2.8).
    pub(super) fn code(&self, packet: &[u8], high: Option<u32>) -> [u8; MAX_LEN] {
        let high = high.map(u32::to_be_bytes);
        let parts = [packet, high.as_ref().map_or(&[], <[u8; 4]>::as_slice)];
        match self {
            Self::AwsLc(key) => {
                let mut context = aws_lc::Context::with_key(key);
                parts.iter().for_each(|part| context.update(part));
                padded(context.sign().as_ref())
            }
            Self::HmacMd5(key) => digest(&**key, parts),
            Self::HmacRipemd160(key) => digest(&**key, parts),
            Self::HmacSm3(key) => digest(&**key, parts),
            Self::Aes(key) => padded(&key.code(parts)),
        }
    }
}

fn digest<M: Mac + Clone>(key: &M, parts: [&[u8]; 2]) -> [u8; MAX_LEN] {
    let mut mac = key.clone();
    parts.iter().for_each(|part| mac.update(part));
    padded(&mac.finalize().into_bytes())
}

fn padded(code: &[u8]) -> [u8; MAX_LEN] {
    let mut bytes = [0; MAX_LEN];
    bytes[..code.len()].copy_from_slice(code);
    bytes
}
