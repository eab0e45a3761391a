//! The workspace, and cargo in it.

use std::env;
use std::path::{Path, PathBuf};
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

/// Directory in which cargo builds: this program lies there, in `debug/`.
pub(crate) fn target_dir() -> PathBuf {
    let program = env::current_exe().expect("the running program has a path");
    program.ancestors().nth(2).expect("the program lies in target/debug").to_owned()
}

/// Whether the compiler has the standard library for `target`.
pub(crate) fn has_standard_library(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(root()).args(["--print", "target-libdir", "--target", target]);
    rustc.output().is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Whether the program `name` can be run.
pub(crate) fn has_program(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}
