//! Failures that end a measurement early, each as one line.

use std::fmt;
use std::io::{self, Write};

/// Number of a child's last lines that go into the one line of a failure.
const TAIL_LINES: usize = 3;

/// Reason for which a measurement ended without a report.
#[derive(Debug)]
pub enum Failure {
    /// SIGINT, SIGTERM or SIGHUP arrived.
    Interrupted,
    /// A requirement is missing on this machine.
    Missing {
        /// The missing thing, and its use.
        what: String,
        /// The remedy.
        how: &'static str,
    },
    /// A step failed.
    Step {
        /// Name of the step.
        doing: String,
        /// The reason.
        why: String,
    },
}

impl Failure {
    /// The failure of one step, from any error.
    pub fn step(doing: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Step { doing: doing.into(), why: why.to_string() }
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("demo interrupted; its namespaces and processes are gone"),
            Self::Missing { what, how } => write!(f, "demo needs {what}: {how}"),
            Self::Step { doing, why } => write!(f, "{doing}: {why}"),
        }
    }
}

/// Reports an object that could not be removed. An error of the write to standard error is ignored.
pub fn warn(what: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "Warning: {what}");
}

/// The last lines of a child's standard error, as one line. Terminal escapes become blanks.
#[must_use]
pub fn tail(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let start = lines.len().saturating_sub(TAIL_LINES);
    lines[start..].join(" | ").chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines_in_one() {
        let cases = [
            ("", ""),
            ("one\n", "one"),
            ("a\nb\n\nc\n  d  \n", "b | c | d"),
            ("Error: \u{1b}[31mred\u{1b}[0m\n", "Error:  [31mred [0m"),
        ];
        for (stderr, want) in cases {
            assert_eq!(tail(stderr), want, "{stderr:?}");
        }
    }
}
