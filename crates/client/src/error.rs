//! Failures of a command: a line for each on standard error, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Failure of a command, displayed as `Error: <message>`, in one line, and a line for each further one.
#[derive(Debug)]
pub struct CliError {
    /// Description of the failure and, if possible, of its remedy.
    pub message: String,
    /// Further failures, each in a line of its own.
    pub further: Vec<String>,
    /// The exit code.
    pub exit_code: u8,
}

impl CliError {
    /// The command line is wrong, or the command failed: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), further: Vec::new(), exit_code: 1 }
    }

    /// The system refused `what`: exit code 1.
    pub fn system(what: &str, err: &io::Error) -> Self {
        Self::failed(format!("{what}: {err}"))
    }

    /// The configuration is invalid and nothing was changed: exit code 2.
    pub fn bad_config(message: impl Into<String>) -> Self {
        Self { message: message.into(), further: Vec::new(), exit_code: 2 }
    }

    /// The configuration is invalid for several reasons, and nothing was changed: exit code 2.
    pub fn bad_configs(messages: Vec<String>) -> Self {
        let mut messages = messages.into_iter();
        let message = messages.next().unwrap_or_default();
        Self { message, further: messages.collect(), exit_code: 2 }
    }

    /// All messages, with a line feed between two of them.
    pub fn messages(&self) -> String {
        let all: Vec<&str> = std::iter::once(&self.message).chain(&self.further).map(String::as_str).collect();
        all.join("\n")
    }

    /// Exit code of the process.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, "Error: ", &self.message)?;
        self.further.iter().try_for_each(|message| {
            let start = if message.starts_with('…') { "\n" } else { "\nError: " };
            write_line(f, start, message)
        })
    }
}

/// Writes a message in one line behind `start`.
fn write_line(f: &mut fmt::Formatter<'_>, start: &str, message: &str) -> fmt::Result {
    f.write_str(start)?;
    for part in message.split_inclusive(['\n', '\r']) {
        f.write_str(part.trim_end_matches(['\n', '\r']))?;
        if part.ends_with(['\n', '\r']) {
            f.write_str(" ")?;
        }
    }
    Ok(())
}

impl std::error::Error for CliError {}
