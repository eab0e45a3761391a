//! Lines on standard error about refused operations.

use std::ffi::CStr;
use std::fmt::{self, Arguments, Write};

use libc::{c_char, c_int};

/// Maximum length of a line.
const MAX_LEN: usize = 1024;

unsafe extern "C" {
    /// The program's name.
    static program_invocation_short_name: *const c_char;
}

/// Name of the program, without its directory.
pub(crate) fn program() -> &'static str {
    // SAFETY: the C library's variable always exists.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: the variable points to a C string.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    name.to_str().unwrap_or_default()
}

struct Line {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is reserved for the newline.
        let room = self.bytes.get_mut(self.len..MAX_LEN - 1).unwrap_or_default();
        let len = text.len().min(room.len());
        room.iter_mut().zip(text.as_bytes()).for_each(|(to, &byte)| *to = byte);
        self.len += len;
        Ok(())
    }
}

/// Prints a line, truncated to the limit. Allocates no memory.
pub(crate) fn line(text: Arguments<'_>) {
    let mut line = Line { bytes: [0; MAX_LEN], len: 0 };
    // Writing cannot fail: a longer text is truncated.
    let _ = line.write_fmt(format_args!("fatpath exec: {text}"));
    let end = line.len.min(MAX_LEN - 1);
    line.bytes[end] = b'\n';
    // SAFETY: the buffer is that long. Without a reader the call fails.
    unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO as c_int, line.bytes.as_ptr(), end + 1) };
}
