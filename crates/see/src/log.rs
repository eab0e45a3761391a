//! Log lines, in the journal or on standard error.

use tracing_subscriber::EnvFilter;

/// Starts the log.
pub(crate) fn start() {
    logging::start(EnvFilter::new("info"), "fatpath-see", None);
}
