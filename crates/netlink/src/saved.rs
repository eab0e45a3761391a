//! Saved state of a node: netlink requests that restore its objects.

use zeroize::Zeroizing;

use super::message::{HEADER_LEN, Header, Writer, align, flag};

/// Capacity in bytes, larger than any saved request.
const CAPACITY: usize = 4096;

/// Request that restores one object, with the name of the object for messages.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Saved {
    /// Kind of object, such as `route`.
    pub noun: &'static str,
    /// Label, such as `route 10.2.0.0/24`.
    pub label: String,
    /// The message, which may contain keys.
    pub message: Zeroizing<Vec<u8>>,
}

impl Saved {
    /// Tells whether a request of this noun sets all properties of the labelled object. If a configuration file and a
    /// client both have such a request, only the file's is applied.
    pub fn is_alone(&self) -> bool {
        matches!(self.noun, "link" | "link of a VRF" | "port of a bridge" | "VLAN list" | "port setting")
    }

    /// Request of type `kind`; `body` writes its payload.
    pub(super) fn new(
        noun: &'static str,
        label: String,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer),
    ) -> Self {
        // The capacity suffices for any request: a reallocation would leave part of a key in freed memory.
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

/// Replaces the flags of a message.
pub fn set_flags(message: &mut [u8], flags: u16) {
    if let Some(field) = message.get_mut(6..8) {
        field.copy_from_slice(&flags.to_ne_bytes());
    }
}

/// Replaces a number at offset `at` of the payload.
pub(super) fn renumber_field(message: &mut [u8], at: usize, now: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
    let field = message.get_mut(HEADER_LEN + at..).and_then(<[u8]>::first_chunk_mut);
    let Some(field) = field else { return Ok(()) };
    let old = u32::from_ne_bytes(*field);
    *field = now(old).ok_or(old)?.to_ne_bytes();
    Ok(())
}

/// Replaces a number in an attribute behind a fixed part of `fixed` bytes, if the attribute is present.
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

/// Offset of the value of the first attribute of type `kind`, behind a fixed part of `fixed` bytes.
pub(super) fn find(message: &[u8], fixed: usize, kind: u16) -> Option<usize> {
    let mut at = HEADER_LEN + align(fixed);
    loop {
        let [l0, l1, k0, k1] = *message.get(at..)?.first_chunk()?;
        if u16::from_ne_bytes([k0, k1]) == kind {
            return Some(at + 4);
        }
        // A length below 4, the attribute header's, ends the attributes.
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        at = at.checked_add(align(len)).filter(|_| len >= 4)?;
    }
}
