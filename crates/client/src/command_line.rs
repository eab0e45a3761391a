//! The command line of a program, its failures and its exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::CliError;

/// Reads the command line of this process.
///
/// # Errors
/// The exit code, if the command line is wrong or asks for help or the version alone, which is then printed.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|err| usage(&err))
}

/// The exit code of a command; its failure becomes one line on standard error.
pub fn exit_code(result: Result<(), CliError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => fail(&err),
    }
}

/// Help and the version go to standard output as they are; a wrong command line is one line like any other error.
fn usage(err: &clap::Error) -> ExitCode {
    match err.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed standard output is no reason to fail.
            let _ = err.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = err.print();
            CliError::failed("no command").code()
        }
        _ => fail(&CliError::failed(one_line(&err.render().to_string()))),
    }
}

fn fail(err: &CliError) -> ExitCode {
    // If standard error is closed, the exit code has to do.
    let _ = writeln!(std::io::stderr(), "{err}");
    err.code()
}

/// Clap's message of several lines as one line, without its usage.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information")).collect();
    let line = lines.join(" ");
    format!("{}; try --help.", line.strip_prefix("error: ").unwrap_or(&line))
}
