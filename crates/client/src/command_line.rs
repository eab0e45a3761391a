//! The command line of a program, its failures and its exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::CliError;

/// Parses the command line of this process.
///
/// # Errors
/// The exit code, if the command line is wrong, or only requests help or the version, which are then printed.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|err| usage(&err))
}

/// Exit code of a command; a failure is printed as one line on standard error.
pub fn exit_code(result: Result<ExitCode, CliError>) -> ExitCode {
    result.unwrap_or_else(|err| fail(&err))
}

/// Prints help and the version to standard output unchanged, and a wrong command line as one line, like any other
/// error.
fn usage(err: &clap::Error) -> ExitCode {
    match err.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed standard output is no failure.
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
    // With standard error closed, the exit code is the only report.
    let _ = writeln!(std::io::stderr(), "{err}");
    err.code()
}

/// Joins clap's message of several lines into one, without its usage.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information")).collect();
    let line = lines.join(" ");
    format!("{}; try --help.", line.strip_prefix("error: ").unwrap_or(&line))
}
