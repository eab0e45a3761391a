//! Failures of calls: -1 and `errno`.

use std::cell::Cell;

use libc::{c_int, ssize_t};

/// An `errno`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    /// `errno` of the last call.
    pub(crate) fn last() -> Self {
        Self(__errno_location().get())
    }

    /// Sets `errno`, like a failed call.
    pub(crate) fn set(self) {
        __errno_location().set(self.0);
    }
}

// SAFETY: the function takes nothing, and its result is the address of the thread's `errno`, which no other thread has.
unsafe extern "C" {
    safe fn __errno_location() -> &'static Cell<c_int>;
}

/// Return type of a call.
pub(crate) trait Returned: Copy {
    /// Return value of a failed call.
    const FAILED: Self;
}

impl Returned for c_int {
    const FAILED: Self = -1;
}

impl Returned for ssize_t {
    const FAILED: Self = -1;
}

impl Returned for libc::c_long {
    const FAILED: Self = -1;
}

impl Returned for libc::c_uint {
    const FAILED: Self = 0;
}

impl Returned for *mut libc::c_char {
    const FAILED: Self = std::ptr::null_mut();
}

impl Returned for *mut libc::if_nameindex {
    const FAILED: Self = std::ptr::null_mut();
}

impl Returned for *mut libc::dirent {
    const FAILED: Self = std::ptr::null_mut();
}

impl Returned for () {
    const FAILED: Self = ();
}

/// Converts a result to the return value and `errno` of the C library.
pub(crate) fn returned<T: Returned>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|errno| {
        errno.set();
        T::FAILED
    })
}

/// Converts a return value of the C library to a result.
pub(crate) fn checked<T: Returned + PartialEq>(value: T) -> Result<T, Errno> {
    if value == T::FAILED { Err(Errno::last()) } else { Ok(value) }
}
