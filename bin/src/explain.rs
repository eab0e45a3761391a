//! `fatpath explain`: cause and remedy of reasons for drops.

use std::fmt::Write as _;

use base::DropReason;
use client::{CliError, print};

use crate::cli::ExplainArgs;

/// Prints cause and remedy of a reason, or the causes of all.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn main(args: &ExplainArgs) -> Result<(), CliError> {
    let text = args.reason.map_or_else(all, one);
    print(text.as_bytes())
}

/// Reads the name of a reason, in upper or lower case.
///
/// # Errors
/// No reason has that name; the text names those that contain it.
pub(crate) fn reason(name: &str) -> Result<DropReason, String> {
    let near = |known: &&DropReason| known.name().to_lowercase().contains(&name.to_lowercase());
    DropReason::by_name(name).ok_or_else(|| {
        let near: Vec<_> = DropReason::ALL.iter().filter(near).map(|known| known.name()).collect();
        match near[..] {
            [] => "no such reason; `fatpath explain` lists all".to_owned(),
            _ => format!("no such reason; there are {}", near.join(", ")),
        }
    })
}

fn one(reason: DropReason) -> String {
    format!("{}\n  cause:  {}\n  remedy: {}\n", reason.name(), reason.cause(), reason.remedy())
}

fn all() -> String {
    DropReason::ALL.iter().fold(String::new(), |mut text, reason| {
        let _ = writeln!(text, "{:<24} {}", reason.name(), reason.short_cause());
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_read_in_any_case_or_refused_by_name() {
        assert_eq!(reason("espicv"), Ok(DropReason::EspIcv));
        assert_eq!(reason("Icv"), Err("no such reason; there are EspIcv".to_owned()));
        assert_eq!(reason("x25"), Err("no such reason; `fatpath explain` lists all".to_owned()));
    }

    #[test]
    fn texts_have_cause_and_remedy() {
        let text = one(DropReason::RouteBlackhole);
        let want = "RouteBlackhole\n  cause:  A blackhole route.\n  remedy: remove the route";
        assert!(text.starts_with(want), "{text}");
        assert_eq!(all().lines().count(), DropReason::COUNT);
    }
}
