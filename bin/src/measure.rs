//! `fatpath demo` and `fatpath bench`, which the program `fatpath-bench` executes.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use client::{BenchCommand, CliError, PROGRAM_VARIABLE, find_sibling};

use crate::isolation;

/// The program for measurements.
const PROGRAM: &str = "fatpath-bench";

/// Executes the program for measurements in this process, with this process's validated arguments. The demo of a user
/// without root runs in namespaces of its own.
///
/// # Errors
/// The program is missing or does not start.
pub(crate) fn main(command: &BenchCommand) -> Result<(), CliError> {
    if matches!(command, BenchCommand::Demo(_)) && !rustix::process::geteuid().is_root() {
        isolation::enter("fatpath demo")?;
    }
    let program = find_sibling(PROGRAM).ok_or_else(|| {
        CliError::failed(format!(
            "{PROGRAM} is neither beside fatpath nor in PATH; install the package {PROGRAM}, or build it with `cargo build \
             --release -p {PROGRAM}`."
        ))
    })?;
    let own = env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
    let mut command = Command::new(&program);
    let failed = command.args(env::args_os().skip(1)).env(PROGRAM_VARIABLE, own).exec();
    Err(CliError::system(&program.display().to_string(), &failed))
}
