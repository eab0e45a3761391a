//! Limit of open descriptors of this process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit of descriptors to the maximum.
///
/// # Errors
/// Errors of setrlimit(2).
pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).map_err(io::Error::from)
}
