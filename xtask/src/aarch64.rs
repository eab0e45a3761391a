//! The tree compiled for aarch64, and tests of it under emulation (qemu-user).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::Report;
use crate::workspace::{cargo, has_program, has_standard_library, root};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Compiler of the crates' C sources, and linker.
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Directory of the C library for [`TARGET`].
const SYSTEM_ROOT: &str = "/usr/aarch64-linux-gnu";

/// Crates whose tests need no network: those without an operating system, and the two of `fatpath exec`.
const EMULATED: [&str; 25] = [
    "fatpath-base",
    "fatpath-sync",
    "fatpath-packet",
    "fatpath-wire",
    "fatpath-offload",
    "fatpath-reassembly",
    "fatpath-xfrm",
    "fatpath-ipsec",
    "fatpath-ila",
    "fatpath-fib",
    "fatpath-switch",
    "fatpath-host",
    "fatpath-qdisc",
    "fatpath-datapath",
    "fatpath-nlsock",
    "fatpath-launch",
    "fatpath-preload",
    "fatpath-driver",
    "fatpath-config",
    "fatpath-ctl",
    "fatpath-netlink",
    "fatpath-sim",
    "fatpath-plot",
    "fatpath-fleet-core",
    "fatpath-ibmveth",
];

/// Tests that emulation cannot run, by a part of their names, and why.
const NOT_EMULATED: &[(&str, &str)] = &[
    ("filter_set_on_a_thread_refuses_its_calls_alone", NO_SECCOMP),
    ("sandbox_filters_all_threads_of_a_process", NO_SECCOMP),
    ("sandbox_trapped_call_is_named_and_ends_the_process", NO_SECCOMP),
    ("long_datagrams_of_a_socket_arrive_by_a_ring_of_256_frames", NO_ETHTOOL),
    ("ring_of_256_frames_is_exhausted_without_coalescing", NO_ETHTOOL),
];

const NO_SECCOMP: &str = "qemu-user has no seccomp filters; other tests interpret the filter for aarch64";
const NO_ETHTOOL: &str = "qemu-user has no requests of ethtool, by which AF_XDP finds the queues";

/// Cases of each property that does not say how many: emulation is ten to thirty times slower.
const PROPERTY_CASES: &str = "64";

/// Types and lints of the compiler for all crates.
pub(crate) fn check(report: &mut Report) {
    const STAGE: &str = "all crates compile for aarch64";
    match lack() {
        Some(lack) => report.missing(STAGE, lack),
        None => {
            report.run(STAGE, &mut cargo_for_target("check --locked --workspace"));
        }
    }
}

/// Tests of [`EMULATED`]. Without a prerequisite the chore fails.
pub(crate) fn test(report: &mut Report) {
    const STAGE: &str = "tests on aarch64, by emulation";
    let emulator = emulator();
    if let Some(lack) = lack() {
        return report.unable(STAGE, lack);
    }
    if !emulator.exists() {
        return report.unable(STAGE, "needs qemu-aarch64-static of Debian's qemu-user-static: scripts/setup aarch64");
    }
    let mut tests = cargo_for_target("test --locked --no-fail-fast --lib --tests");
    for package in EMULATED {
        tests.args(["--package", package]);
    }
    tests.arg("--");
    for (name, _) in NOT_EMULATED {
        tests.args(["--skip", name]);
    }
    tests.env("PROPTEST_CASES", PROPERTY_CASES);
    // Cargo splits the value at spaces.
    let runner = format!("{} -L {SYSTEM_ROOT}", emulator.display());
    report.run(STAGE, tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner));
    for (name, why) in NOT_EMULATED {
        report.left_out(name, why);
    }
}

/// First missing prerequisite of a build.
fn lack() -> Option<&'static str> {
    if !has_standard_library(TARGET) {
        return Some("needs Rust's standard library for it: rustup target add aarch64-unknown-linux-gnu");
    }
    if !has_program(COMPILER) {
        return Some("needs the Debian package gcc-aarch64-linux-gnu");
    }
    let headers = Path::new(SYSTEM_ROOT).join("include/stdio.h");
    (!headers.exists()).then_some("needs the Debian package libc6-dev-arm64-cross")
}

/// Emulator of processors, which `scripts/setup` unpacks.
fn emulator() -> PathBuf {
    root().join("target/unpacked/usr/bin/qemu-aarch64-static")
}

/// Cargo for [`TARGET`].
fn cargo_for_target(words: &str) -> Command {
    let mut command = cargo(words);
    command.args(["--target", TARGET]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER);
    command.env("CC_aarch64_unknown_linux_gnu", COMPILER);
    command
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conformance::sources;

    /// Directory of a package. A program has the name of its core's directory.
    fn directory(package: &str) -> &str {
        package.trim_start_matches("fatpath-").trim_end_matches("-core")
    }

    #[test]
    fn tests_left_out_of_emulation_exist_once() {
        let mut files = Vec::new();
        for package in EMULATED {
            let name = directory(package);
            let parents = ["crates", "models"].map(|parent| root().join(parent).join(name));
            sources(parents.iter().find(|path| path.exists()).unwrap(), &mut files);
        }
        let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        for (name, _) in NOT_EMULATED {
            // `--skip` leaves out each test whose name has this part.
            assert_eq!(text.matches(name).count(), 1, "{name}");
        }
    }

    #[test]
    fn crates_without_an_operating_system_are_emulated() {
        let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| [")?.strip_suffix(" | |"));
        let crates: Vec<&str> = rows.filter_map(|row| row.split_once("](crates/")).map(|(name, _)| name).collect();
        assert!(crates.len() > 15, "{crates:?}");
        for name in crates.into_iter().chain(["launch", "preload"]) {
            assert!(EMULATED.iter().any(|package| directory(package) == name), "{name}");
        }
    }
}
