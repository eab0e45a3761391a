//! Streams of the C library that write such files.
//!
//! One that is opened by a file's name writes by a function of this library. One whose descriptor was opened before, such as
//! standard output, is written by the C library alone: what came of it is asked for when the program would hear of it, at
//! `fflush(3)` and `fclose(3)`.

use std::ptr;

use libc::{FILE, c_char, c_int, c_void, iovec, size_t, ssize_t};

use super::settle;
use crate::errno::{Errno, returned};
use crate::fd::Fd;
use crate::stream_functions::Functions;
use crate::{next, table};

/// A stream that writes the file `fd`, and is told at once what comes of it.
pub(crate) fn of(fd: c_int) -> *mut FILE {
    let functions = Functions { read: ptr::null(), write, seek: ptr::null(), close };
    // SAFETY: the functions take such a cookie, and the mode is a C string.
    let stream = unsafe { next::fopencookie(ptr::without_provenance_mut(fd as usize), c"w".as_ptr(), functions) };
    if stream.is_null() {
        drop(Fd(fd));
    }
    stream
}

/// # Safety
/// There are as many bytes as `len` says.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, bytes: *const c_char, len: size_t) -> ssize_t {
    let piece = iovec { iov_base: bytes.cast_mut().cast(), iov_len: len };
    // SAFETY: the caller's word.
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

/// The file that a stream writes, if it does.
///
/// # Safety
/// `stream`, if not null, is open.
unsafe fn written(stream: *mut FILE) -> Option<c_int> {
    if stream.is_null() {
        return None;
    }
    let before = Errno::last();
    // SAFETY: the caller's word.
    let fd = unsafe { libc::fileno(stream) };
    // It says so of a stream that has none.
    before.set();
    table::is_file(fd).then_some(fd)
}

/// Result of a flush that the C library has `done`, with that of all that was written before.
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
        /// As the manual page says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(stream: *mut FILE) -> c_int {
            // SAFETY: passed on.
            let done = unsafe { next::$name(stream) };
            // SAFETY: the caller's word.
            match unsafe { written(stream) } {
                // SAFETY: the caller's word.
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
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's word.
    let flushed = unsafe { written(stream) }.map(|fd| {
        // SAFETY: the caller's word.
        let done = unsafe { next::fflush(stream) };
        // SAFETY: the caller's word.
        unsafe { flushed(stream, fd, done) }
    });
    // SAFETY: passed on.
    let closed = unsafe { next::fclose(stream) };
    match flushed {
        Some(Err(errno)) => returned(Err(errno)),
        _ => closed,
    }
}
