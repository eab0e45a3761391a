//! Callbacks of a custom stream of the C library (fopencookie(3)).

use libc::{c_char, c_int, c_void, size_t, ssize_t};

/// `cookie_io_functions_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) read: *const c_void,
    pub(crate) write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    pub(crate) seek: *const c_void,
    pub(crate) close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}
