//! Log lines on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::LevelFilter;

/// Starts the log.
pub(crate) fn start() {
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).log_internal_errors(false).with_target(false).init();
}
