//! Results of `stat(2)` and `access(2)` for files of `/proc/sys/net`.

use std::mem;

use libc::{c_char, c_int, c_uint};

use super::Name;
use crate::errno::{Errno, returned};
use crate::libc_next;

/// Status of a file, if `path` is in `/proc/sys/net`.
///
/// # Safety
/// `path`, if not null, is a C string; `into`, if not null, is writable.
unsafe fn stat_at(at: c_int, path: *const c_char, into: *mut libc::stat) -> Option<Result<c_int, Errno>> {
    // SAFETY: as the caller promises.
    let name = unsafe { Name::of(at, path) }?;
    Some(name.mode().and_then(|mode| {
        // SAFETY: as the caller promises.
        let into = unsafe { into.as_mut() }.ok_or(Errno(libc::EFAULT))?;
        // SAFETY: any bytes are valid.
        *into = unsafe { mem::zeroed() };
        (into.st_mode, into.st_nlink, into.st_blksize) = (mode, 1, 1024);
        Ok(0)
    }))
}

macro_rules! stats {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(path: *const c_char, into: *mut libc::stat) -> c_int {
            // SAFETY: as the caller promises.
            match unsafe { stat_at(libc::AT_FDCWD, path, into) } {
                Some(found) => returned(found),
                // SAFETY: passed on.
                None => unsafe { libc_next::$name(path, into) },
            }
        }
    )*};
}

macro_rules! stats_at {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(
            at: c_int,
            path: *const c_char,
            into: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: as the caller promises.
            match unsafe { stat_at(at, path, into) } {
                Some(found) => returned(found),
                // SAFETY: passed on.
                None => unsafe { libc_next::$name(at, path, into, flags) },
            }
        }
    )*};
}

// On 64-bit machines the functions for large files are the same.
stats! { stat; stat64; lstat; lstat64; }
stats_at! { fstatat; fstatat64; }

/// `statx(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn statx(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut libc::statx,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some(name) = (unsafe { Name::of(at, path) }) else {
        // SAFETY: passed on.
        return unsafe { libc_next::statx(at, path, flags, mask, into) };
    };
    returned(name.mode().and_then(|mode| {
        // SAFETY: as the caller promises.
        let into = unsafe { into.as_mut() }.ok_or(Errno(libc::EFAULT))?;
        // SAFETY: any bytes are valid.
        *into = unsafe { mem::zeroed() };
        (into.stx_mask, into.stx_mode) = (libc::STATX_BASIC_STATS, mode as u16);
        (into.stx_nlink, into.stx_blksize) = (1, 1024);
        Ok(0)
    }))
}

/// Tells whether the program may access a file with the access `mode`, if `path` is in `/proc/sys/net`.
///
/// # Safety
/// `path`, if not null, is a C string.
unsafe fn may(at: c_int, path: *const c_char, mode: c_int) -> Option<Result<c_int, Errno>> {
    // SAFETY: as the caller promises.
    let name = unsafe { Name::of(at, path) }?;
    Some(name.mode().and_then(|found| {
        let lacks = |requested, bits| mode & requested != 0 && found & bits == 0;
        let fails = lacks(libc::X_OK, 0o111) || lacks(libc::R_OK, 0o444);
        let writes = mode & libc::W_OK != 0 && name.connection(libc::SOCK_CLOEXEC).is_err();
        if fails || writes { Err(Errno(libc::EACCES)) } else { Ok(0) }
    }))
}

macro_rules! accesses {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, as `access(2)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(path: *const c_char, mode: c_int) -> c_int {
            // SAFETY: as the caller promises.
            match unsafe { may(libc::AT_FDCWD, path, mode) } {
                Some(answer) => returned(answer),
                // SAFETY: passed on.
                None => unsafe { libc_next::$name(path, mode) },
            }
        }
    )*};
}

accesses! { access; eaccess; euidaccess; }

/// `faccessat(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { may(at, path, mode) } {
        Some(answer) => returned(answer),
        // SAFETY: passed on.
        None => unsafe { libc_next::faccessat(at, path, mode, flags) },
    }
}
