//! Canonical paths of files of `/proc/sys/net`, for `realpath(3)`.

use std::ptr;

use libc::{c_char, size_t};

use super::Name;
use crate::errno::{Errno, returned};
use crate::libc_next;

/// Maximum length of a path, with its zero byte.
const MAX_LEN: usize = libc::PATH_MAX as usize;

/// Canonical path of a file of the gateway; `None` for other files.
///
/// # Safety
/// `path` is null or a C string; `into` is null or has `PATH_MAX` bytes.
unsafe fn resolved(path: *const c_char, into: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: as the caller promises.
    let name = unsafe { Name::of(libc::AT_FDCWD, path) }?;
    // SAFETY: as the caller promises.
    let written = returned(name.mode().and_then(|_| unsafe { write(&name, into) }));
    if !written.is_null() {
        // The C library's `readlink(2)` fails with this `errno` for a file that is no link, and `sysctl` prints it.
        Errno(libc::EINVAL).set();
    }
    Some(written)
}

/// Writes the path, into a new allocation if `into` is null.
///
/// # Safety
/// `into` is null or has `PATH_MAX` bytes.
unsafe fn write(name: &Name, into: *mut c_char) -> Result<*mut c_char, Errno> {
    let Name(name) = name;
    let separator: &[u8] = if name.is_empty() { b"" } else { b"/" };
    let path = [b"/proc/sys/net", separator, name, b"\0"].concat();
    if path.len() > MAX_LEN {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    // SAFETY: the call takes no pointers.
    let into = if into.is_null() { unsafe { libc::malloc(path.len()) }.cast() } else { into };
    if into.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the caller's buffer or the allocation is long enough.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr().cast(), into, path.len()) };
    Ok(into)
}

/// `realpath(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    // SAFETY: as the caller promises.
    match unsafe { resolved(path, into) } {
        Some(path) => path,
        // SAFETY: passed on.
        None => unsafe { libc_next::realpath(path, into) },
    }
}

/// `realpath(3)` of a program that was built with fortified functions.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn __realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    room: size_t,
) -> *mut c_char {
    // SAFETY: as the caller promises; with a smaller buffer the C library ends the program.
    match (room >= MAX_LEN).then(|| unsafe { resolved(path, into) }).flatten() {
        Some(path) => path,
        // SAFETY: passed on.
        None => unsafe { libc_next::__realpath_chk(path, into, room) },
    }
}
