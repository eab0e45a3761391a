//! `fatpath completions` and `fatpath man`: what the command line knows of itself, for shells and for `man`.

use std::io;

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::error::CliError;
use crate::output::print;

/// Prints the completion script of a shell.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fatpath", &mut script);
    print(&script)
}

/// Writes `fatpath.1` and a page for each command.
///
/// # Errors
/// If the directory is not there or cannot be written to.
pub(crate) fn man(args: &ManArgs) -> Result<(), CliError> {
    let failed = |err: io::Error| CliError::failed(format!("{}: {err}", args.dir.display()));
    std::fs::read_dir(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failed)
}
