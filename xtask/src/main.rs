//! Chores of this repository, run as `cargo xtask CHORE`.
#![forbid(unsafe_code)]

mod report;
mod stages;

use std::env;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask CHORE
  check             fmt, clippy, doc and every test that needs no privilege
  test              check, benchmarks once, system and interop tests, fuzz targets built, cargo deny
  fuzz [SECONDS]    run each fuzz target for that long (default 20)";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut report = report::Report::default();
    match words[..] {
        ["check"] => stages::check(&mut report),
        ["test"] => stages::test(&mut report),
        ["fuzz"] => stages::fuzz(&mut report, 20),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => stages::fuzz(&mut report, seconds),
            Err(error) => return usage(&format!("{seconds}: {error}")),
        },
        _ => return usage("unknown chore"),
    }
    report.finish()
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n{USAGE}");
    ExitCode::FAILURE
}
