//! Commands of programs beside this one: `fatpath demo`, `bench` and `plot` of `fatpath-bench`, `fatpath metrics`, `top` and `web` of
//! `fatpath-see`.

use std::convert::Infallible;
use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use client::{BenchCommand, CliError, PROGRAM_VARIABLE, SeeCommand, find_sibling};

use crate::isolation;

/// Executes the program for measurements in this process, with this process's validated arguments. The demo of a user
/// without root runs in namespaces of its own.
///
/// # Errors
/// The program is missing or does not start.
pub(crate) fn main(command: &BenchCommand) -> Result<Infallible, CliError> {
    if matches!(command, BenchCommand::Demo(_)) && !rustix::process::geteuid().is_root() {
        isolation::enter("fatpath demo")?;
    }
    become_program("fatpath-bench")
}

/// Executes the program for views of gateways, in the same way.
///
/// # Errors
/// The program is missing or does not start.
pub(crate) fn see(_: &SeeCommand) -> Result<Infallible, CliError> {
    become_program("fatpath-see")
}

fn become_program(name: &str) -> Result<Infallible, CliError> {
    let program = find_sibling(name).ok_or_else(|| {
        CliError::failed(format!(
            "{name} is neither beside fatpath nor in PATH; install the package {name}, or build it with `cargo build --release -p \
             {name}`."
        ))
    })?;
    let own = env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
    let mut command = Command::new(&program);
    let failed = command.args(env::args_os().skip(1)).env(PROGRAM_VARIABLE, own).exec();
    Err(CliError::system(&program.display().to_string(), &failed))
}
