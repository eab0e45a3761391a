//! Standard output, whose reader may go before everything is written.

use std::io::{self, Write};

use crate::error::CliError;

/// Prints `bytes`. A reader that has gone, as `head` does, has what it wanted: that is no failure.
pub(crate) fn print(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(CliError::failed(format!("standard output: {err}"))),
        _ => Ok(()),
    }
}
