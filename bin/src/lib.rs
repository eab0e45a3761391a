//! The `fatpath` program, as a library: [`main`] is the daemon and its command line, for `src/main.rs` and for the fuzz
//! targets that need a node.
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod check;
mod cli;
mod client;
mod config_file;
mod demo;
mod enter;
mod error;
mod exec;
mod figures;
mod ip_batch;
mod load;
mod man_pages;
mod monitor;
mod output;
mod passing;
mod progress;
mod run;
mod save;
mod show;
mod stream;
mod trace;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command};
use error::CliError;

#[cfg(any(test, feature = "fuzzing"))]
pub use run::Alone;

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => return usage(&err),
    };
    let result = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Load(args) => load::main(&args),
        Command::Save(args) => save::main(&args),
        Command::Show(args) => show::main(&args),
        Command::Demo(args) => demo::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::VhostBackEnd(args) => bench::vhost_back_end(&args),
        Command::Capture(args) => capture::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Monitor(args) => monitor::main(&args),
        Command::Exec(args) => exec::main(&args),
        Command::Ip(args) => exec::ip(&args),
        Command::HostMaker => run::make_host_side(),
        Command::Completions(args) => man_pages::completions(&args),
        Command::Man(args) => man_pages::man(&args),
    };
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
