//! Standard output, whose reader may close it before everything is written.

use std::io::{self, Write};

use crate::CliError;

/// Prints `bytes`. A reader that closes the pipe early, as `head` does, is no failure.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(CliError::failed(format!("standard output: {err}"))),
        _ => Ok(()),
    }
}
