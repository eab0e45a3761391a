//! Failures of a command: one line on standard error and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Failure of a command, displayed as `Error: <message>`, in one line.
#[derive(Debug)]
pub struct CliError {
    /// Description of the failure and, if possible, of its remedy.
    pub message: String,
    /// The exit code.
    pub exit_code: u8,
}

impl CliError {
    /// The command line is wrong, or the command failed: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: 1 }
    }

    /// The system refused `what`: exit code 1.
    pub fn system(what: &str, err: &io::Error) -> Self {
        Self::failed(format!("{what}: {err}"))
    }

    /// The configuration is invalid and nothing was changed: exit code 2.
    pub fn bad_config(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: 2 }
    }

    /// Exit code of the process.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Error: ")?;
        for part in self.message.split_inclusive(['\n', '\r']) {
            f.write_str(part.trim_end_matches(['\n', '\r']))?;
            if part.ends_with(['\n', '\r']) {
                f.write_str(" ")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for CliError {}
