//! Streams of the C library that write files of `/proc/sys/net`.
//!
//! A stream opened by a file's name writes through a callback of this library. A stream whose descriptor was opened
//! before, such as standard output, is written by the C library alone: results are fetched at `fflush(3)` and
//! `fclose(3)`, which can report them.

use std::ptr;

use libc::{FILE, c_char, c_int, c_void, iovec, size_t, ssize_t};

use super::settle;
use crate::errno::{Errno, returned};
use crate::fd::Fd;
use crate::stream_functions::Functions;
use crate::{libc_next, table};

/// Stream that writes to the file `fd`, and reports results at once.
pub(crate) fn of(fd: c_int) -> *mut FILE {
    let functions = Functions { read: ptr::null(), write, seek: ptr::null(), close };
    // SAFETY: the functions take such a cookie, and the mode is a C string.
    let stream = unsafe { libc_next::fopencookie(ptr::without_provenance_mut(fd as usize), c"w".as_ptr(), functions) };
    if stream.is_null() {
        drop(Fd(fd));
    }
    stream
}

/// # Safety
/// `bytes` points to `len` readable bytes.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, bytes: *const c_char, len: size_t) -> ssize_t {
    let piece = iovec { iov_base: bytes.cast_mut().cast(), iov_len: len };
    // SAFETY: as the caller promises.
    match unsafe { super::write(cookie.addr() as c_int, &[piece]) } {
        Ok(len) => len,
        Err(errno) => {
            let _: c_int = returned(Err(errno));
            // Zero reports a failure of this callback (fopencookie(3)).
            0
        }
    }
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    drop(Fd(cookie.addr() as c_int));
    0
}

/// `_IO_ERR_SEEN`, in the first word of a stream: part of the C library's ABI, since `ferror_unlocked` was a macro.
const SEEN: c_int = 0x20;

/// File that a stream writes to, if it is of `/proc/sys/net`.
///
/// # Safety
/// `stream`, if not null, is open.
unsafe fn written(stream: *mut FILE) -> Option<c_int> {
    if stream.is_null() {
        return None;
    }
    let before = Errno::last();
    // SAFETY: as the caller promises.
    let fd = unsafe { libc::fileno(stream) };
    // `fileno` has set `errno` for a stream without a descriptor.
    before.set();
    table::is_file(fd).then_some(fd)
}

/// Result of a flush, from the C library's result `done` and the results of all earlier writes.
///
/// # Safety
/// `stream` is open.
unsafe fn flushed(stream: *mut FILE, fd: c_int, done: c_int) -> Result<c_int, Errno> {
    if done != 0 {
        return Err(Errno::last());
    }
    settle(fd).map(|()| 0).inspect_err(|_| {
        let flags = stream.cast::<c_int>();
        // SAFETY: a stream begins with its flags.
        unsafe { *flags |= SEEN };
    })
}

macro_rules! flushes {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(stream: *mut FILE) -> c_int {
            // SAFETY: passed on.
            let done = unsafe { libc_next::$name(stream) };
            // SAFETY: as the caller promises.
            match unsafe { written(stream) } {
                // SAFETY: as the caller promises.
                Some(fd) => returned(unsafe { flushed(stream, fd, done) }),
                None => done,
            }
        }
    )*};
}

flushes! { fflush; fflush_unlocked; }

/// `fclose(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: as the caller promises.
    let flushed = unsafe { written(stream) }.map(|fd| {
        // SAFETY: as the caller promises.
        let done = unsafe { libc_next::fflush(stream) };
        // SAFETY: as the caller promises.
        unsafe { flushed(stream, fd, done) }
    });
    // SAFETY: passed on.
    let closed = unsafe { libc_next::fclose(stream) };
    match flushed {
        Some(Err(errno)) => returned(Err(errno)),
        _ => closed,
    }
}
