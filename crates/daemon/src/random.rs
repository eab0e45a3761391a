//! Random numbers from the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// A random number.
///
/// # Errors
/// Error of getrandom(2).
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // The kernel returns this few bytes completely or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
