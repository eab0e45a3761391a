//! The gateway as one static program, and tests of it in a root of its own.

use crate::report::Report;
use crate::workspace::{cargo, has_program, has_standard_library, target_dir};

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Compiler of the crates' C sources.
const COMPILER: &str = "musl-gcc";

/// Tests of the static program. Without a prerequisite the chore fails.
pub(crate) fn test(report: &mut Report) {
    const BUILD: &str = "static build";
    if !has_standard_library(TARGET) {
        return report
            .unable(BUILD, "needs Rust's standard library for it: rustup target add x86_64-unknown-linux-musl");
    }
    if !has_program(COMPILER) {
        return report.unable(BUILD, "needs the Debian package musl-tools");
    }
    let is_built = report.run(BUILD, cargo("build --locked --package fatpath").args(["--target", TARGET]));
    let peer = "build --locked --package fatpath --package fatpath-bench --package fatpath-preload";
    if is_built && report.run("build of the peer", &mut cargo(peer)) {
        let mut tests = cargo("test --locked --package fatpath-system-tests --test static_root");
        tests.env("FATPATH_BIN", target_dir().join("debug/fatpath"));
        tests.env("FATPATH_STATIC", target_dir().join(TARGET).join("debug/fatpath"));
        // A test without its prerequisites has failed: the chore has no other tests.
        report.run("static program in a root of its own", tests.env("CI", "true"));
    }
}
