//! The stages of each chore, in the order they run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::aarch64;
use crate::report::Report;
use crate::workspace::{cargo, root, target_dir};

/// The test crates that need root, namespaces and Debian packages; each prints its missing needs.
const PRIVILEGED: [&str; 2] = ["fatpath-system-tests", "fatpath-interop-tests"];

/// Compiler flags for libFuzzer: coverage counters and AddressSanitizer, both behind unstable flags.
const FUZZ_RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions -Ccodegen-units=1";

/// Options of AddressSanitizer in a fuzzer: without places of their own for variables of functions that have returned, which safe
/// code cannot reach, with short traces of allocations, and with less freed memory kept aside. A run of a finding has all of them.
const FUZZ_ASAN_OPTIONS: &str = "detect_stack_use_after_return=0:malloc_context_size=2:quarantine_size_mb=16";

/// Toolchain with Miri, the standard library's sources and `-Zbuild-std`: `scripts/setup` installs it.
const NIGHTLY: &str = "nightly-2026-03-15";

/// Packages that Miri runs, each with the tests that it can run: without system calls that it does not know, and without
/// libraries in C.
const INTERPRETED: [(&str, &str); 5] = [
    ("fatpath-packet", ""),
    ("fatpath-offload", ""),
    ("fatpath-nlsock", ""),
    ("fatpath-launch", "calls_are_allowed"),
    ("fatpath-ipsec", "engine::secret"),
];

/// Seconds of each fuzz target in a run of all tests.
const FUZZ_SECONDS: u32 = 60;

/// Stage of the known flaws of dependencies.
const ADVISORIES: &str = "cargo deny advisories";

/// The target the fuzz programs are built for; naming it keeps the sanitizer out of build scripts.
const FUZZ_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Formatting, lints, documentation and the tests that need no privilege.
pub(crate) fn check(report: &mut Report) {
    report.run("fmt", &mut cargo("fmt --all --check"));
    report.run("clippy", &mut cargo("clippy --locked --workspace --all-targets -- -D warnings"));
    report.run("doc", cargo("doc --locked --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings"));
    let mut tests = cargo("test --locked --workspace --no-fail-fast");
    for package in PRIVILEGED {
        tests.args(["--exclude", package]);
    }
    report.run("unit, property and simulation tests", &mut tests);
}

/// Mutations of the inputs of a third of the fuzz targets, in two processes, in the programs of the unit tests.
fn mutations(report: &mut Report) {
    const TESTS: &str = "cargo test --locked --workspace --no-fail-fast --test corpora";
    let excluded: String = PRIVILEGED.iter().map(|package| format!(" --exclude {package}")).collect();
    let half = |half: usize| format!("FATPATH_FUZZ_PART={}/6 {TESTS}{excluded}", third_of_today() + 3 * half);
    let script = format!("{} & {}; status=$?; wait $! && exit $status", half(0), half(1));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(root()).env("FATPATH_FUZZ_SECONDS", FUZZ_SECONDS.to_string());
    report.run("a third of the fuzz targets with mutations of their corpora", &mut command);
}

/// All stages: `check`, each benchmark once, the tests against real kernels, crates built on demand, another
/// processor, and the dependencies.
pub(crate) fn test(report: &mut Report) {
    check(report);
    mutations(report);
    report.run("benchmarks, each once", cargo("test --locked --workspace").args(["--bench", "*"]));
    if report.run(
        "release build",
        &mut cargo(
            "build --locked --release -p fatpath -p fatpath-bench -p fatpath-preload -p fatpath-see -p fatpath-fleet",
        ),
    ) {
        let mut tests = cargo("test --locked --no-fail-fast");
        for package in PRIVILEGED {
            tests.args(["--package", package]);
        }
        report.run("system and interop tests", tests.env("FATPATH_BIN", target_dir().join("release/fatpath")));
        let mut tests = cargo("test --locked --no-fail-fast --package fatpath-system-tests --test system");
        tests.env("FATPATH_BIN", target_dir().join("release/fatpath")).env("FATPATH_TEST_WORKERS", "2");
        report.run(
            "a third of the system tests with two workers",
            tests.env("FATPATH_TEST_THIRD", third_of_today().to_string()),
        );
    }
    loom(report);
    miri(report);
    intel(report);
    aarch64::check(report);
    report.run("dependencies of the fuzz programs", &mut fuzz_cargo("tree --locked --depth 0"));
    let peers = "clippy --locked --manifest-path bench/peers/Cargo.toml --target-dir target/peers-check -- -D warnings";
    report.run("the benchmark beside peers", &mut cargo(peers));
    deny(report);
}

/// Models of orders of memory made by hand, by loom, and their lints.
pub(crate) fn loom(report: &mut Report) {
    let lints = "clippy --locked --package fatpath-sync --all-targets --features loom -- -D warnings";
    report.run("clippy of models", &mut cargo(lints));
    let models = "test --locked --package fatpath-sync --features loom --test models";
    report.run("models of orders of memory, by loom", &mut cargo(models));
}

/// Unit tests of crates with `unsafe`, interpreted by Miri, which finds undefined behaviour and leaks.
pub(crate) fn miri(report: &mut Report) {
    let missing = format!("needs {NIGHTLY}: rustup toolchain install {NIGHTLY} --profile minimal -c miri -c rust-src");
    if !nightly("miri --version").output().is_ok_and(|output| output.status.success()) {
        return report.missing("Miri", &missing);
    }
    for (package, tests) in INTERPRETED {
        let mut command = nightly("miri test --locked --lib --package");
        command.arg(package).args(["--target-dir".as_ref(), target_dir().join("miri").as_os_str()]);
        // Clocks, and `/proc`.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        report.run(&format!("{package} by Miri"), command.arg("--").arg(tests));
    }
}

/// Tests of the daemon with ThreadSanitizer, which finds data races.
pub(crate) fn tsan(report: &mut Report) {
    let mut tests = nightly("test --locked -Zbuild-std --package fatpath-daemon --lib --target");
    tests.args([FUZZ_TARGET.as_ref(), "--target-dir".as_ref(), target_dir().join("tsan").as_os_str()]);
    report.run("tests of the daemon with ThreadSanitizer", tests.env("RUSTFLAGS", "-Zsanitizer=thread"));
}

/// Cargo of the [`NIGHTLY`] toolchain.
fn nightly(words: &str) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root()).args(["run", NIGHTLY, "cargo"]).args(words.split_whitespace());
    command
}

/// Number of the third of the tests that is run today, 0 to 2.
fn third_of_today() -> usize {
    const DAY: u64 = 24 * 60 * 60;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() / DAY % 3) as usize
}

/// Lints and tests of the feature `ipsec-mb`.
fn intel(report: &mut Report) {
    if !Path::new("/usr/include/intel-ipsec-mb.h").exists() {
        return report.missing("ciphers of Intel's library", "needs the Debian package libipsec-mb-dev");
    }
    let lints =
        "clippy --locked -p fatpath -p fatpath-bench -p fatpath-ipsec --all-targets --features ipsec-mb -- -D warnings";
    report.run("clippy with Intel's library", &mut cargo(lints));
    report.run("ciphers of Intel's library", &mut cargo("test --locked -p fatpath-ipsec --features ipsec-mb"));
}

/// Licences, sources and known flaws of the dependencies.
fn deny(report: &mut Report) {
    if !cargo("deny --version").output().is_ok_and(|output| output.status.success()) {
        return report.missing("cargo deny", "needs cargo-deny: cargo install --locked cargo-deny");
    }
    report.run("cargo deny", &mut cargo("deny --log-level error check licenses bans sources"));
    if let Err(why) = checked_advisories(report) {
        report.left_out(ADVISORIES, why);
    }
}

/// Known flaws of the dependencies. Without a database of them this fails.
pub(crate) fn advisories(report: &mut Report) {
    if let Err(why) = checked_advisories(report) {
        report.unable(ADVISORIES, why);
    }
}

/// Checks the dependencies by RustSec's database, as `cargo audit` does: by the one at github.com, or without a network by the
/// copy that an earlier run has fetched.
///
/// # Errors
/// There is neither.
fn checked_advisories(report: &mut Report) -> Result<(), &'static str> {
    const EARLIER: &str = "cargo deny advisories, by the database of an earlier run, as github.com is out of reach";
    let is_checked =
        report.run_unless(ADVISORIES, &mut cargo("deny check advisories"), "failed to fetch advisory database")
            || report.run_unless(EARLIER, &mut cargo("deny --offline check advisories"), "failed to get 'FETCH_HEAD'");
    if is_checked {
        return Ok(());
    }
    Err("NOT CHECKED: the advisory database at github.com is out of reach, and no earlier run has fetched it")
}

/// Runs fuzz targets, all or those of `names`, for `seconds` each. Inputs are kept in `fuzz/target/corpus`, and those that
/// reach new code in `fuzz/corpus` as well; findings in `fuzz/artifacts`.
pub(crate) fn fuzz(report: &mut Report, seconds: u32, names: &[&str]) {
    let targets = fuzz_targets();
    if let Some(unknown) = names.iter().find(|name| !targets.iter().any(|target| target == *name)) {
        return report.unable(&format!("fuzz {unknown}"), &format!("the targets are {}", targets.join(", ")));
    }
    let mut build = fuzz_cargo("build --locked --release --target-dir target");
    build.args(["--target", FUZZ_TARGET]).env("RUSTFLAGS", FUZZ_RUSTFLAGS);
    if !report.run("fuzz build", &mut build) {
        return;
    }
    for target in targets.iter().filter(|target| names.is_empty() || names.contains(&target.as_str())) {
        let kept = fuzz_dir().join("corpus").join(target);
        let found = fuzz_dir().join("target/corpus").join(target);
        let artifacts = fuzz_dir().join("artifacts").join(target);
        for directory in [&kept, &found, &artifacts] {
            fs::create_dir_all(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        }
        let program = fuzz_dir().join("target").join(FUZZ_TARGET).join("release").join(target);
        let mut command = Command::new(&program);
        command.arg(format!("-max_total_time={seconds}")).arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.arg("-print_final_stats=1").env("ASAN_OPTIONS", FUZZ_ASAN_OPTIONS);
        let dictionary = fuzz_dir().join("dictionaries").join(target).with_extension("dict");
        if dictionary.exists() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        report.run(&format!("fuzz {target}"), command.args([&found, &kept]));
        // Without counters of executions of an edge, which would keep ten times as many inputs.
        let mut merge = Command::new(program);
        merge.args(["-merge=1", "-use_counters=0"]).args([&kept, &found]).env("ASAN_OPTIONS", FUZZ_ASAN_OPTIONS);
        report.run(&format!("minimise {target}"), &mut merge);
    }
}

/// The names of the fuzz programs, in order.
fn fuzz_targets() -> Vec<String> {
    let sources = fuzz_dir().join("fuzz_targets");
    let entries = fs::read_dir(&sources).unwrap_or_else(|error| panic!("{}: {error}", sources.display()));
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned)).collect();
    names.sort();
    names
}

/// Cargo in the fuzz crate, a workspace of its own; its dependencies use unstable flags of the pinned compiler.
fn fuzz_cargo(words: &str) -> Command {
    let mut command = cargo(words);
    command.current_dir(fuzz_dir()).env("RUSTC_BOOTSTRAP", "1");
    command
}

fn fuzz_dir() -> PathBuf {
    root().join("fuzz")
}
