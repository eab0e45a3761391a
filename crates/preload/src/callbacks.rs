//! Structures of the C library with callbacks.

use libc::{c_char, c_int, c_void, size_t, ssize_t};

/// Callbacks of a custom stream, `cookie_io_functions_t` (fopencookie(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    pub(crate) read: *const c_void,
    pub(crate) write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    pub(crate) seek: *const c_void,
    pub(crate) close: extern "C-unwind" fn(*mut c_void) -> c_int,
}

/// `glob_t` of the GNU C library, which is `glob64_t` on 64-bit machines.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Glob {
    count: size_t,
    paths: *mut *mut c_char,
    offset: size_t,
    flags: c_int,
    pub(crate) closedir: *const c_void,
    pub(crate) readdir: *const c_void,
    pub(crate) opendir: *const c_void,
    pub(crate) lstat: *const c_void,
    pub(crate) stat: *const c_void,
}
