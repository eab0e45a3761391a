//! `fatpath check`: validates configuration files, and tells whether a state can be read.

use std::io::{self, Write as _};

use client::{CliError, print};
use daemon::ObjectCounts;

use crate::cli::CheckArgs;

/// Validates the files and prints warnings, and the number of objects in the files or their tables.
///
/// # Errors
/// The files' errors, and those of the state.
pub(crate) fn main(args: &CheckArgs) -> Result<(), CliError> {
    let (made, warnings) = daemon::check(&args.config)?;
    for warning in &warnings {
        // With standard error closed, the exit code is the only report.
        let _ = writeln!(io::stderr(), "{}", warning.line());
    }
    if args.expand {
        let [file] = args.config.as_slice() else {
            return Err(CliError::failed("--expand takes one file"));
        };
        return print(daemon::expand_config(file, args.with_keys)?.as_bytes());
    }
    if let Some(state) = &args.state {
        daemon::check_state(state)?;
        print(format!("{}: ok\n", state.display()).as_bytes())?;
    }
    let names: Vec<_> = args.config.iter().map(|path| path.display().to_string()).collect();
    print(format!("{}: {}: ok\n", names.join(", "), summary(&made)).as_bytes())
}

/// Formats counts, as `2 links, 1 route, 2 SAs, 3 policies`.
fn summary(made: &ObjectCounts) -> String {
    let counts = [
        (made.links, "link", "links"),
        (made.routes, "route", "routes"),
        (made.sas, "SA", "SAs"),
        (made.policies, "policy", "policies"),
    ];
    counts.map(|(n, one, many)| format!("{n} {}", if n == 1 { one } else { many })).join(", ")
}
