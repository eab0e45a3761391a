//! Chores of this repository, run as `cargo xtask CHORE`.
#![forbid(unsafe_code)]

mod conformance;
mod prose;
mod report;
mod stages;
mod words;

use std::env;
use std::fs;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask CHORE
  check             fmt, clippy, doc and every test that needs no privilege
  test              check, benchmarks once, system and interop tests, fuzz targets built, cargo deny
  conformance       write docs/conformance.md, which check compares
  words             lower the numbers of xtask/src/words_allowed.txt
  fuzz [SECONDS]    run each fuzz target for that long (default 20)";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut report = report::Report::default();
    match words[..] {
        ["check"] => stages::check(&mut report),
        ["test"] => stages::test(&mut report),
        ["conformance"] => return write_conformance(),
        ["words"] if words::lower(stages::root()) => return ExitCode::SUCCESS,
        ["words"] => return ExitCode::FAILURE,
        ["fuzz"] => stages::fuzz(&mut report, 20),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => stages::fuzz(&mut report, seconds),
            Err(error) => return usage(&format!("{seconds}: {error}")),
        },
        _ => return usage("unknown chore"),
    }
    report.finish()
}

/// Writes the document of the RFC rules, if every annotation is right.
fn write_conformance() -> ExitCode {
    let annotations = conformance::Annotations::of_tree(stages::root());
    let faults = annotations.faults();
    if !faults.is_empty() {
        eprintln!("{}", faults.join("\n"));
        return ExitCode::FAILURE;
    }
    let path = stages::root().join("docs/conformance.md");
    if let Err(error) = fs::write(&path, annotations.document()) {
        eprintln!("xtask: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n{USAGE}");
    ExitCode::FAILURE
}
