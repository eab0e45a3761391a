//! Progress of a measurement: one line that changes on a terminal, plain lines elsewhere, on standard error.

use std::io::{self, IsTerminal, Write};

/// Printer of progress.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
}

impl Progress {
    /// Progress on standard error, terminal or not.
    pub(crate) fn on_stderr() -> Self {
        Self { terminal: io::stderr().is_terminal() }
    }

    /// Prints a line that stays.
    pub(crate) fn announce(&self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Prints the current step. A closed standard error is no reason to fail.
    pub(crate) fn say(&self, text: &str) {
        let mut stderr = io::stderr();
        let _ = match self.terminal {
            // Back to the first column, erase to the end of the line (ECMA-48).
            true => write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush()),
            false => writeln!(stderr, "{text}"),
        };
    }
}

impl Drop for Progress {
    /// Clears the terminal's line for later output.
    fn drop(&mut self) {
        if self.terminal {
            self.say("");
        }
    }
}
