//! Fixed part of a request: the `struct` in front of its attributes.

use crate::attr::Strictness;
use crate::error::{Error, errno};
use crate::message::{HEADER_LEN, align};
use crate::session::Request;

/// The fixed part of a request, of `N` bytes, and the attributes behind it.
///
/// # Errors
/// `EINVAL` for a shorter request.
pub(super) fn fixed<'a, const N: usize>(request: &Request<'a>) -> Result<(&'a [u8; N], &'a [u8]), Error> {
    let payload = request.payload();
    let (fixed, rest) =
        payload.split_first_chunk().ok_or_else(|| Error::text(errno::EINVAL, "Invalid header length"))?;
    Ok((fixed, rest.get(align(N) - N..).unwrap_or_default()))
}

/// Offset of the attributes behind a fixed part of `len` bytes, from the beginning of the message.
pub(super) const fn behind(len: usize) -> u32 {
    (HEADER_LEN + align(len)) as u32
}

/// Strictness for the attributes of a request (`NETLINK_GET_STRICT_CHK`).
pub(super) fn strictness(request: &Request<'_>) -> Strictness {
    if request.strict { Strictness::Strict } else { Strictness::Liberal }
}

/// First four bytes as a number in host byte order; 0 if there are fewer.
pub(super) fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}
