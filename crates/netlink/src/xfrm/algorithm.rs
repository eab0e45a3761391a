//! Algorithms and keys in attributes (Linux `attach_aead`, `attach_auth_trunc`, `attach_crypt`).

use zeroize::Zeroizing;

use super::attributes::Attributes;
use super::nums::attr;
use crate::attr::Attr;
use crate::error::{Error, errno};
use crate::message::Writer;
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, Key, Name};

/// Length of a name's field in bytes.
const NAME: usize = 64;
/// Linux's name for no authentication.
const NO_AUTH: &str = "digest_null";

/// Name, length of the key in bits, and the field between length and key.
pub(super) struct Parts<'a> {
    name: &'a str,
    key_bits: u32,
    more: u32,
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Parses an attribute; `with_more`: a number precedes the key.
    fn of(attr: &Attr<'a>, with_more: bool) -> Self {
        let (name, rest) = attr.data.split_at_checked(NAME).unwrap_or((attr.data, &[]));
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        // Linux truncates the name before its last byte.
        let name = std::str::from_utf8(&name[..end.min(NAME - 1)]).unwrap_or_default();
        let mut from = super::layout::Fields(rest);
        let key_bits = from.u32();
        let more = if with_more { from.u32() } else { 0 };
        Self { name, key_bits, more, rest: from.0 }
    }

    fn key_len(&self) -> usize {
        self.key_bits.div_ceil(8) as usize
    }

    fn key(&self) -> Key {
        Key::new(Zeroizing::new(self.rest.get(..self.key_len()).unwrap_or_default().to_vec()))
    }
}

/// Tells whether an algorithm's attribute contains the key of the length that it states.
pub(super) fn has_its_key(attr: &Attr<'_>, with_more: bool) -> bool {
    let parts = Parts::of(attr, with_more);
    parts.key_len() <= parts.rest.len()
}

fn not_found(text: &'static str) -> Error {
    Error::text(errno::ENOSYS, text)
}

/// Reads the algorithm of an SA.
///
/// # Errors
/// `ENOSYS`: the algorithm is unknown; `EINVAL`: the key's length is wrong.
pub(super) fn read(attrs: &Attributes<'_>) -> Result<Algorithm, Error> {
    const CRYPTO: &str = "Kernel was unable to initialize cryptographic operations";
    if let Some(attr) = attrs.get(attr::ALG_AEAD) {
        let parts = Parts::of(attr, true);
        let name =
            Aead::by_name(parts.name).filter(|name| name.icv_bits().iter().any(|&it| u32::from(it) == parts.more));
        let name = name.ok_or(not_found("Requested AEAD algorithm not found"))?;
        let key = parts.key();
        return if name.takes_key_of(key.bytes().len()) {
            Ok(Algorithm::Aead { name, key, icv_bits: parts.more as u16 })
        } else {
            Err(Error::text(errno::EINVAL, CRYPTO))
        };
    }
    let auth = read_auth(attrs)?;
    let Some(attr) = attrs.get(attr::ALG_CRYPT) else {
        return Err(Error::text(errno::EINVAL, "CRYPT algorithm must be provided"));
    };
    let parts = Parts::of(attr, false);
    let enc = Enc::by_name(parts.name).ok_or(not_found("Requested CRYPT algorithm not found"))?;
    let key = parts.key();
    let auth_fits = auth.as_ref().is_none_or(|auth| auth.name.takes_key_of(auth.key.bytes().len()));
    if enc.takes_key_of(key.bytes().len()) && auth_fits {
        Ok(Algorithm::Separate { enc, key, auth })
    } else {
        Err(Error::new(errno::EINVAL))
    }
}

fn read_auth(attrs: &Attributes<'_>) -> Result<Option<AuthConfig>, Error> {
    let (parts, missing) = match (attrs.get(attr::ALG_AUTH_TRUNC), attrs.get(attr::ALG_AUTH)) {
        (Some(attr), _) => (Parts::of(attr, true), "Requested AUTH_TRUNC algorithm not found"),
        (None, Some(attr)) => (Parts::of(attr, false), "Requested AUTH algorithm not found"),
        (None, None) => return Ok(None),
    };
    if parts.name == NO_AUTH {
        return Ok(None);
    }
    let name = Auth::by_name(parts.name).ok_or(not_found(missing))?;
    let icv_bits = match parts.more {
        0 => name.default_icv_bits(),
        more if more > name.full_bits().into() => {
            return Err(Error::text(errno::EINVAL, "Invalid length requested for truncated ICV"));
        }
        more => more as u16,
    };
    // Linux accepts an ICV of any length, even with a partial byte.
    if !name.takes_icv_of(icv_bits) {
        return Err(Error::text(errno::EINVAL, "Truncated ICV must have at least 32 bits, in whole bytes"));
    }
    Ok(Some(AuthConfig { name, key: parts.key(), icv_bits }))
}

/// Writes an algorithm with its keys.
pub(super) fn write(algorithm: &Algorithm, w: &mut Writer) {
    match algorithm {
        Algorithm::Aead { name, key, icv_bits } => put(w, attr::ALG_AEAD, name.name(), key, Some((*icv_bits).into())),
        Algorithm::Separate { enc, key, auth } => {
            if let Some(AuthConfig { name, key, icv_bits }) = auth {
                put(w, attr::ALG_AUTH, name.name(), key, None);
                put(w, attr::ALG_AUTH_TRUNC, name.name(), key, Some((*icv_bits).into()));
            }
            put(w, attr::ALG_CRYPT, enc.name(), key, None);
        }
    }
}

fn put(w: &mut Writer, kind: u16, name: &str, key: &Key, more: Option<u32>) {
    let mut bytes = Zeroizing::new(Vec::with_capacity(NAME + 8 + key.bytes().len()));
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(NAME, 0);
    bytes.extend_from_slice(&(key.bytes().len() as u32 * 8).to_ne_bytes());
    bytes.extend(more.iter().flat_map(|more| more.to_ne_bytes()));
    bytes.extend_from_slice(key.bytes());
    w.put(kind, &bytes);
}
