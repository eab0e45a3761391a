//! Lines on standard error about refused operations.

use std::fmt::{self, Arguments, Write};

use crate::sys;

/// Maximum length of a line.
const MAX_LEN: usize = 1024;

/// Name of the program, without its directory.
pub(crate) fn program() -> &'static str {
    sys::program_invocation_short_name.get().unwrap_or_default().to_str().unwrap_or_default()
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
    // Without a reader the call fails.
    let _ = sys::write(libc::STDERR_FILENO, &line.bytes[..=end]);
}
