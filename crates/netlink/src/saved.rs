//! Saved state of a node: requests that bring it about again, in netlink's own words.

use zeroize::Zeroizing;

use super::message::{HEADER_LEN, Header, Writer, align, flag};

/// More than any request has.
const CAPACITY: usize = 4096;

/// Request that restores one object, with the name of the object for messages.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Saved {
    /// Kind of thing, such as `route`.
    pub noun: &'static str,
    /// Label, such as `route 10.2.0.0/24`.
    pub label: String,
    /// The message, which may have keys in it.
    pub message: Zeroizing<Vec<u8>>,
}

impl Saved {
    /// Tells whether a request of this noun sets all of what its label names, so that of a file's and a client's one alone holds: the file's.
    pub fn is_alone(&self) -> bool {
        matches!(self.noun, "link" | "link of a VRF" | "port of a bridge" | "VLAN list" | "port setting")
    }

    /// The request of that type, whose payload `body` writes.
    pub(super) fn new(
        noun: &'static str,
        label: String,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer),
    ) -> Self {
        // All fits, so that no part of a key is left behind when it grows.
        let mut w = Writer::with_capacity(CAPACITY);
        w.message(Header { kind, flags: flag::REQUEST | flags, ..Header::default() }, body);
        let written = Zeroizing::new(w.into_bytes());
        Self { noun, label, message: Zeroizing::new(written.to_vec()) }
    }
}

/// The type of a message.
pub fn kind_of(message: &[u8]) -> u16 {
    message.get(4..6).and_then(<[u8]>::first_chunk).map_or(0, |kind| u16::from_ne_bytes(*kind))
}

/// The flags of a message.
pub fn flags_of(message: &[u8]) -> u16 {
    message.get(6..8).and_then(<[u8]>::first_chunk).map_or(0, |flags| u16::from_ne_bytes(*flags))
}

/// Exchanges the flags of a message.
pub fn set_flags(message: &mut [u8], flags: u16) {
    if let Some(field) = message.get_mut(6..8) {
        field.copy_from_slice(&flags.to_ne_bytes());
    }
}

/// Exchanges a number that stands at `at` of the payload.
pub(super) fn renumber_field(message: &mut [u8], at: usize, now: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
    let field = message.get_mut(HEADER_LEN + at..).and_then(<[u8]>::first_chunk_mut);
    let Some(field) = field else { return Ok(()) };
    let old = u32::from_ne_bytes(*field);
    *field = now(old).ok_or(old)?.to_ne_bytes();
    Ok(())
}

/// Exchanges a number that is an attribute behind a fixed part of `fixed` bytes, if it is there.
pub(super) fn renumber_attribute(
    message: &mut [u8],
    fixed: usize,
    kind: u16,
    now: impl Fn(u32) -> Option<u32>,
) -> Result<(), u32> {
    match find(message, fixed, kind) {
        Some(at) => renumber_field(message, at - HEADER_LEN, now),
        None => Ok(()),
    }
}

/// Offset of the value of the first attribute of that type, behind a fixed part of `fixed` bytes.
pub(super) fn find(message: &[u8], fixed: usize, kind: u16) -> Option<usize> {
    let mut at = HEADER_LEN + align(fixed);
    loop {
        let [l0, l1, k0, k1] = *message.get(at..)?.first_chunk()?;
        if u16::from_ne_bytes([k0, k1]) == kind {
            return Some(at + 4);
        }
        // Less than its own header: it is no attribute.
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        at = at.checked_add(align(len)).filter(|_| len >= 4)?;
    }
}
