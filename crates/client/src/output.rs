//! Standard output, with a reader that may close it early.

use std::io::{self, Write};

use crate::CliError;

/// Prints `bytes`. A reader that closes the pipe early, such as `head`, is no failure.
///
/// # Errors
/// Writing to standard output fails.
pub fn print(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(CliError::failed(format!("standard output: {err}"))),
        _ => Ok(()),
    }
}
