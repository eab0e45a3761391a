//! The workspace, and cargo in it.

use std::env;
use std::path::Path;
use std::process::Command;

/// Cargo in the workspace.
pub(crate) fn cargo(words: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(words.split_whitespace());
    command
}

/// Root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}
