//! `fatpath check`: validates configuration files.

use client::{CliError, print};
use daemon::ObjectCounts;

use crate::cli::CheckArgs;

/// Validates the files and prints the number of objects in them.
///
/// # Errors
/// The files' errors.
pub(crate) fn main(args: &CheckArgs) -> Result<(), CliError> {
    let made = daemon::check(&args.config)?;
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
