//! `fatpath load`: applies a configuration file to a running gateway.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path;

use client::{CliError, Client, print};
use ctl::{Reply, Request};

use crate::cli::LoadArgs;

/// Checks the file, makes the gateway load it, and prints a summary.
///
/// # Errors
/// Exit code 2 if the file is invalid; 1 if the gateway does not reply, or cannot apply the file.
pub(crate) fn main(args: &LoadArgs, instance: &str) -> Result<(), CliError> {
    if args.config.as_os_str() == "-" {
        return Err(CliError::failed(
            "-c -: the gateway reads the file itself, and again at each SIGHUP; name a file.",
        ));
    }
    let (_, warnings) = daemon::load_config(&args.config)?;
    for warning in &warnings {
        // With standard error closed, the exit code is the only report.
        let _ = writeln!(io::stderr(), "{}", warning.line());
    }
    let named = |why: &dyn std::fmt::Display| CliError::failed(format!("{}: {why}", args.config.display()));
    let file = path::absolute(&args.config).map_err(|err| named(&err))?;
    let file = file.into_os_string().into_string().map_err(|_| named(&"its path is not UTF-8; rename it."))?;
    // The gateway's sandbox may not let it open the file.
    let opened = File::open(&args.config).map_err(|err| named(&err))?;
    let mut client = Client::connect(instance)?;
    let Reply::Loaded { running } = client.ask_with(&Request::Load { file }, &[opened.as_fd()])? else {
        return Err(client.confused());
    };
    print(format!("{instance}: running with {running}\n").as_bytes())
}
