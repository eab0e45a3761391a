//! Paths of such files without `.`, `..` and links, as `realpath(3)` gives them.

use std::ptr;

use libc::{c_char, size_t};

use super::Name;
use crate::errno::{Errno, returned};
use crate::next;

/// Length of the longest path, with its zero byte.
const MAX_LEN: usize = libc::PATH_MAX as usize;

/// Path of a file that the gateway has; `None` if it is none of those.
///
/// # Safety
/// `path` is null or a C string; `into` is null or has room for the longest path.
unsafe fn resolved(path: *const c_char, into: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: the caller's word.
    let name = unsafe { Name::of(libc::AT_FDCWD, path) }?;
    // SAFETY: the caller's word.
    let written = returned(name.mode().and_then(|_| unsafe { write(&name, into) }));
    if !written.is_null() {
        // The C library has found by `readlink(2)` that it is no link, and `sysctl` tells what is left of that.
        Errno(libc::EINVAL).set();
    }
    Some(written)
}

/// Writes the path, into memory of its own if `into` is null.
///
/// # Safety
/// `into` is null or has room for the longest path.
unsafe fn write(name: &Name, into: *mut c_char) -> Result<*mut c_char, Errno> {
    let Name(name) = name;
    let separator: &[u8] = if name.is_empty() { b"" } else { b"/" };
    let path = [b"/proc/sys/net", separator, name, b"\0"].concat();
    if path.len() > MAX_LEN {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    // SAFETY: it takes no pointers.
    let into = if into.is_null() { unsafe { libc::malloc(path.len()) }.cast() } else { into };
    if into.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: there is room, the caller's or that of the length.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr().cast(), into, path.len()) };
    Ok(into)
}

/// `realpath(3)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's word.
    match unsafe { resolved(path, into) } {
        Some(path) => path,
        // SAFETY: passed on.
        None => unsafe { next::realpath(path, into) },
    }
}

/// `realpath(3)` of a program that was built with checks of its buffers.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn __realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    room: size_t,
) -> *mut c_char {
    // SAFETY: the C library ends the program if there is less room than that.
    match (room >= MAX_LEN).then(|| unsafe { resolved(path, into) }).flatten() {
        Some(path) => path,
        // SAFETY: passed on.
        None => unsafe { next::__realpath_chk(path, into, room) },
    }
}
