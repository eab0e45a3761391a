//! Arrays on the stack, for functions that start programs: they must not allocate memory (signal-safety(7)).

use std::ptr;

use libc::c_char;

use crate::errno::Errno;

/// Calls `then` with an array of `count` null pointers.
///
/// # Errors
/// `E2BIG`: more pointers than any program's arguments can have.
pub(crate) fn with_pointers<T>(count: usize, then: impl FnOnce(&mut [*const c_char]) -> T) -> Result<T, Errno> {
    match count {
        0..=128 => Ok(room::<128, T>(then)),
        129..=1024 => Ok(room::<1024, T>(then)),
        1025..=8192 => Ok(room::<8192, T>(then)),
        8193..=65_536 => Ok(room::<65_536, T>(then)),
        _ => Err(Errno(libc::E2BIG)),
    }
}

/// Separate function, so that only as much of the stack is used as the array needs.
#[inline(never)]
fn room<const N: usize, T>(then: impl FnOnce(&mut [*const c_char]) -> T) -> T {
    then(&mut [ptr::null(); N])
}
