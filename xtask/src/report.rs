//! Runs one command after the other and adds up the tests they report.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Tests counted from the `test result:` lines of libtest and its look-alikes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// Reads `test result: ok. 4 passed; 0 failed; 2 ignored; …`; any other line is `None`.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = Self::default();
        for count in counts.split("; ") {
            let (number, what) = count.split_once(' ')?;
            match what {
                "passed" => tally.passed = number.parse().ok()?,
                "failed" => tally.failed = number.parse().ok()?,
                "ignored" => tally.skipped = number.parse().ok()?,
                _ => {}
            }
        }
        Some(tally)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Outcome of one stage.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Outcome {
    Ok,
    Failed,
    Skipped(String),
}

/// Lines of a failed test's output in the summary.
const SHORT: usize = 4;

/// Results of the stages of one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tally: Tally,
    stages: Vec<(String, Outcome, Duration)>,
    /// Output of failed tests, repeated at the end.
    failures: String,
}

/// Output of one command, as far as it is kept.
#[derive(Debug, Default)]
struct Output {
    tally: Tally,
    /// From each `failures:` to its `test result:`.
    failures: String,
    in_failures: bool,
}

impl Output {
    fn line(&mut self, line: &str) {
        if let Some(counted) = Tally::from_line(line) {
            self.tally += counted;
            self.in_failures = false;
        }
        self.in_failures |= line == "failures:";
        if self.in_failures {
            self.failures += line;
            self.failures.push('\n');
        }
    }
}

impl Report {
    /// Runs `command` as the stage `name`, its standard output shown and counted as it comes. Tells whether it
    /// succeeded. A stage that fails without a failed test of its own counts as one.
    pub(crate) fn run(&mut self, name: &str, command: &mut Command) -> bool {
        let started = begin(name);
        let (output, succeeded) = stream(command).unwrap_or_else(|error| {
            println!("{name}: {}: {error}", command.get_program().display());
            (Output::default(), false)
        });
        let mut tally = output.tally;
        if !succeeded && tally.failed == 0 {
            tally.failed = 1;
        }
        self.tally += tally;
        self.failures += &output.failures;
        self.end(name, if succeeded { Outcome::Ok } else { Outcome::Failed }, started.elapsed());
        succeeded
    }

    /// Runs `command` as the stage `name`, unless its error output holds `sign` of a need that this machine lacks:
    /// then nothing is recorded, and the result is false.
    pub(crate) fn run_unless(&mut self, name: &str, command: &mut Command, sign: &str) -> bool {
        let started = begin(name);
        match command.output() {
            Ok(output) if output.status.success() => self.end(name, Outcome::Ok, started.elapsed()),
            Ok(output) => {
                let errors = String::from_utf8_lossy(&output.stderr);
                if errors.contains(sign) {
                    println!("{errors}");
                    return false;
                }
                self.fail(name, &errors, started);
            }
            Err(error) => self.fail(name, &error.to_string(), started),
        }
        true
    }

    /// Records that the stage `name` cannot run because `what` is missing: skipped, or in continuous integration
    /// failed.
    pub(crate) fn missing(&mut self, name: &str, what: &str) {
        let started = begin(name);
        if env::var_os("CI").is_some_and(|value| value == "true") {
            self.fail(name, what, started);
        } else {
            self.skip(name, what, started);
        }
    }

    /// Records that the stage `name` has failed because `what` is missing.
    pub(crate) fn unable(&mut self, name: &str, what: &str) {
        let started = begin(name);
        self.fail(name, what, started);
    }

    /// Records that the test `name` was not run for `reason`, also in continuous integration.
    pub(crate) fn left_out(&mut self, name: &str, reason: &str) {
        let started = begin(name);
        self.skip(name, reason, started);
    }

    /// Prints what failed, the stages, what failed in short, since some look at the end alone, and as the last line the
    /// count of tests.
    pub(crate) fn finish(self) -> ExitCode {
        if !self.failures.is_empty() {
            println!("\n== once more, what failed\n{}", self.failures);
        }
        println!("\nstages:");
        for (name, outcome, time) in &self.stages {
            println!("  {:>6.1} s  {name}: {}", time.as_secs_f64(), outcome.describe());
        }
        print!("{}", in_short(&self.failures));
        let Tally { passed, failed, skipped } = self.tally;
        println!("fatpath: {passed} passed, {failed} failed, {skipped} skipped");
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn skip(&mut self, name: &str, reason: &str, started: Instant) {
        self.tally.skipped += 1;
        self.end(name, Outcome::Skipped(reason.to_owned()), started.elapsed());
    }

    fn fail(&mut self, name: &str, why: &str, started: Instant) {
        println!("{why}");
        self.tally.failed += 1;
        self.end(name, Outcome::Failed, started.elapsed());
    }

    fn end(&mut self, name: &str, outcome: Outcome, time: Duration) {
        println!("== {name}: {} in {:.1} s", outcome.describe(), time.as_secs_f64());
        self.stages.push((name.to_owned(), outcome, time));
    }
}

impl Outcome {
    fn describe(&self) -> String {
        match self {
            Self::Ok => "ok".to_owned(),
            Self::Failed => "FAILED".to_owned(),
            Self::Skipped(reason) => format!("skipped ({reason})"),
        }
    }
}

/// The names of failed tests, each with the first lines of its output.
fn in_short(failures: &str) -> String {
    let (mut short, mut left) = (String::new(), 0);
    for line in failures.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" ----")) {
            short += &format!("{name}:\n");
            left = SHORT;
        } else if line == "failures:" {
            left = 0;
        } else if left > 0 && !line.is_empty() {
            short += &format!("  {line}\n");
            left -= 1;
        }
    }
    short
}

fn begin(name: &str) -> Instant {
    println!("\n== {name}");
    Instant::now()
}

/// Runs `command` to its end, passing its standard output on line by line. Returns the kept output and whether it
/// succeeded.
fn stream(command: &mut Command) -> io::Result<(Output, bool)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut output = Output::default();
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        io::stdout().write_all(&line)?;
        output.line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok((output, child.wait()?.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_is_counted_and_no_other() {
        let lines = [
            (
                "test result: ok. 4 passed; 0 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.00s",
                Some(Tally { passed: 4, failed: 0, skipped: 2 }),
            ),
            (
                "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
                Some(Tally { passed: 12, failed: 3, skipped: 0 }),
            ),
            ("test a_result_line ... ok", None),
            ("test result: ok", None),
            ("test result: ok. many passed; 0 failed", None),
            ("", None),
        ];
        for (line, want) in lines {
            assert_eq!(Tally::from_line(line), want, "{line}");
        }
    }

    #[test]
    fn output_of_failed_tests_alone_is_kept() {
        let mut output = Output::default();
        let printed = "running 2 tests\ntest a ... FAILED\nfailures:\n---- a ----\nwhy\n\nfailures:\n    a\n\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\nrunning 0 tests\n";
        printed.lines().for_each(|line| output.line(line));
        assert_eq!(output.failures, "failures:\n---- a ----\nwhy\n\nfailures:\n    a\n\n");
        assert_eq!(output.tally, Tally { passed: 1, failed: 1, skipped: 0 });
    }

    #[test]
    fn failed_test_is_reported_in_short() {
        let failures = "failures:\n---- a ----\n1\n\n2\n3\n4\n5\n---- b stdout ----\nwhy\n\nfailures:\n    a\n    b\n";
        assert_eq!(in_short(failures), "a:\n  1\n  2\n  3\n  4\nb stdout:\n  why\n");
    }

    #[test]
    fn a_stage_that_fails_without_a_test_counts_as_one_failure() {
        let mut report = Report::default();
        assert!(!report.run("false", &mut Command::new("false")));
        assert_eq!(report.tally, Tally { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn a_stage_is_left_out_only_for_the_sign_it_names() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo 'no network' >&2; exit 1"]);
        let mut report = Report::default();
        assert!(!report.run_unless("lucky", &mut shell, "no network"));
        assert_eq!(report.tally, Tally::default());
        assert!(report.run_unless("broken", &mut shell, "no disk"));
        assert!(report.run_unless("missing", &mut Command::new("/no/such/program"), "no disk"));
        assert_eq!(report.tally, Tally { passed: 0, failed: 2, skipped: 0 });
    }
}
