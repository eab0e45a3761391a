//! `fatpath check`: is this file right?

use control::Config;

use crate::cli::CheckArgs;
use crate::config_file;
use crate::error::CliError;
use crate::output::print;

/// Checks the file and says what is in it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn main(args: &CheckArgs) -> Result<(), CliError> {
    let config = config_file::load(&args.config)?;
    print(format!("{}: {}: ok\n", args.config.display(), summary(&config)).as_bytes())
}

/// `2 links, 1 route, 2 SAs, 3 policies`.
fn summary(config: &Config) -> String {
    let counts = [
        (config.links.len(), "link", "links"),
        (config.routes.len(), "route", "routes"),
        (config.sas.len(), "SA", "SAs"),
        (config.policies.len(), "policy", "policies"),
    ];
    counts.map(|(n, one, many)| format!("{n} {}", if n == 1 { one } else { many })).join(", ")
}
