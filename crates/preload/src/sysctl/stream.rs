//! Streams of the C library that write files of `/proc/sys/net`.
//!
//! A stream opened by a file's name writes through a callback of this library. A stream whose descriptor was opened
//! before, such as standard output, is written by the C library alone: results are fetched at `fflush(3)` and
//! `fclose(3)`, which can report them.

use std::ptr;

use libc::{c_char, c_int, c_void, size_t, ssize_t};

use super::settle;
use crate::callbacks::Functions;
use crate::errno::{Errno, returned};
use crate::fd::Fd;
use crate::program_memory::{Bytes, Stream};
use crate::replaced::replaced;
use crate::{libc_next, sys, table};

/// Stream that writes to the file `fd`, and reports results at once.
pub(crate) fn of(fd: c_int) -> Stream<'static> {
    let functions = Functions { read: ptr::null(), write, seek: ptr::null(), close };
    // SAFETY: the functions take such a cookie, and the mode is a C string.
    let stream = unsafe { libc_next::fopencookie(ptr::without_provenance_mut(fd as usize), c"w".into(), functions) };
    if stream.is_null() {
        drop(Fd(fd));
    }
    stream
}

/// # Safety
/// `bytes` points to `len` readable bytes.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, bytes: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    match super::write(cookie.addr() as c_int, &[unsafe { Bytes::new(bytes, len) }]) {
        Ok(len) => len,
        Err(errno) => {
            let _: c_int = returned(Err(errno));
            // Zero reports a failure of this callback (fopencookie(3)).
            0
        }
    }
}

extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    drop(Fd(cookie.addr() as c_int));
    0
}

/// `_IO_ERR_SEEN`, in the first word of a stream: part of the C library's ABI, since `ferror_unlocked` was a macro.
const SEEN: c_int = 0x20;

/// File that a stream writes to, if it is of `/proc/sys/net`.
fn written(stream: Stream<'_>) -> Option<c_int> {
    let before = Errno::last();
    let fd = sys::number(stream)?;
    // `fileno` has set `errno` for a stream without a descriptor.
    before.set();
    table::is_file(fd).then_some(fd)
}

/// Result of a flush, from the C library's result `done` and the results of all earlier writes.
fn flushed(stream: Stream<'_>, fd: c_int, done: c_int) -> Result<c_int, Errno> {
    if done != 0 {
        return Err(Errno::last());
    }
    settle(fd).map(|()| 0).inspect_err(|_| {
        let flags = stream.address().cast::<c_int>();
        // SAFETY: an open stream begins with its flags.
        unsafe { *flags |= SEEN };
    })
}

macro_rules! flushes {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(3)`.")]
            fn $name(stream: Stream<'_>) -> c_int, next {
                let done = next();
                written(stream).map_or(done, |fd| returned(flushed(stream, fd, done)))
            }
        )*}
    };
}

flushes! { fflush; fflush_unlocked; }

replaced! {
    /// `fclose(3)`.
    fn fclose(stream: Stream<'_>) -> c_int, next {
        let flushed = written(stream).map(|fd| {
            // SAFETY: the stream is open.
            let done = unsafe { libc_next::fflush(stream) };
            flushed(stream, fd, done)
        });
        let closed = next();
        match flushed {
            Some(Err(errno)) => returned(Err(errno)),
            _ => closed,
        }
    }
}
