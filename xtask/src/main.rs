//! Chores of this repository, run as `cargo xtask CHORE`.
//!
//! # Decides
//! Stages of `check` and `test` and their order (`stages`), tests on another processor (`aarch64`) and of the static
//! program (`static_build`), and rules of RFCs that have a place in the source and a test (`conformance`); the page of
//! reasons for drops (`drops`).
//!
//! # Leaves to others
//! Tests themselves (each crate's; crates `system` and `interop` against real kernels), installation of packages
//! (`scripts/setup`), plain words, and the structure of the source: the tests of this crate.
//!
//! # Limits
//! A test's name has at most 60 characters (`LONGEST_NAME` in `tests/words`). `fuzz` runs each target for 20 seconds,
//! by default.
//!
//! # Standards
//! No RFC is implemented; rules of RFC 4301, RFC 4303, RFC 5722, RFC 6864 and RFC 8200 are listed.
#![forbid(unsafe_code)]

mod aarch64;
mod conformance;
mod drops;
mod report;
mod stages;
mod static_build;
mod workspace;

use std::env;
use std::fs;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask CHORE
  check             fmt, clippy, doc and every test that needs no privilege
  test              check, benchmarks once, system and interop tests, crates built on demand, cargo deny
  test-aarch64      tests without a network, built for aarch64 and run by emulation
  test-static       the gateway as one static program, in a root with busybox alone (needs root)
  conformance       write docs/conformance.md, which check compares
  loom              models of orders of memory made by hand, in all interleavings of their threads
  miri              unit tests of crates with unsafe code, interpreted by Miri
  tsan              tests of the daemon with ThreadSanitizer
  advisories        known flaws of the dependencies, which fails without a network unless an earlier run has fetched their list
  drops             write docs/drops.md, which check compares
  fuzz [SECONDS [TARGET...]]
                    run each fuzz target for that long (default 20), and keep the inputs that reach new code";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut report = report::Report::default();
    match words[..] {
        ["check"] => stages::check(&mut report),
        ["test"] => stages::test(&mut report),
        ["test-aarch64"] => aarch64::test(&mut report),
        ["test-static"] => static_build::test(&mut report),
        ["conformance"] => return write_conformance(),
        ["loom"] => stages::loom(&mut report),
        ["miri"] => stages::miri(&mut report),
        ["tsan"] => stages::tsan(&mut report),
        ["drops"] => return write(drops::DOCUMENT, &drops::document()),
        ["advisories"] => stages::advisories(&mut report),
        ["fuzz"] => stages::fuzz(&mut report, 20, &[]),
        ["fuzz", seconds, ref targets @ ..] => match seconds.parse() {
            Ok(seconds) => stages::fuzz(&mut report, seconds, targets),
            Err(error) => return usage(&format!("{seconds}: {error}")),
        },
        _ => return usage("unknown chore"),
    }
    report.finish()
}

/// Writes the document of the RFC rules, if every annotation is right.
fn write_conformance() -> ExitCode {
    let annotations = conformance::Annotations::of_tree(workspace::root());
    let faults = annotations.faults();
    if !faults.is_empty() {
        eprintln!("{}", faults.join("\n"));
        return ExitCode::FAILURE;
    }
    write("docs/conformance.md", &annotations.document())
}

/// Writes a document of the tree.
fn write(name: &str, text: &str) -> ExitCode {
    let path = workspace::root().join(name);
    if let Err(error) = fs::write(&path, text) {
        eprintln!("xtask: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n{USAGE}");
    ExitCode::FAILURE
}
