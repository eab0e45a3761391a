//! `fatpath demo` and `fatpath bench`, which the program `fatpath-bench` executes.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use client::{CliError, PROGRAM_VARIABLE, find_sibling};

/// The program for measurements.
const PROGRAM: &str = "fatpath-bench";

/// Executes the program for measurements in this process, with this process's validated arguments.
///
/// # Errors
/// The program is missing or does not start.
pub(crate) fn main() -> Result<(), CliError> {
    let program = find_sibling(PROGRAM).ok_or_else(|| {
        CliError::failed(format!(
            "{PROGRAM} is neither beside fatpath nor in PATH; build it with `cargo build --release -p {PROGRAM}`."
        ))
    })?;
    let own = env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
    let mut command = Command::new(&program);
    let failed = command.args(env::args_os().skip(1)).env(PROGRAM_VARIABLE, own).exec();
    Err(CliError::system(&program.display().to_string(), &failed))
}
