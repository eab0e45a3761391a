//! Comparison of the results of lines in a Linux kernel under user-mode-linux and on a gateway.

use std::fs;
use std::process::Command;

use system::{LINE_RUNNER, Outcome, Scratch, fatpath, run};

/// Runs `lines` on the gateway `near`, and compares the result of each with that on Linux, without the parts of a line
/// that `normal` removes.
pub(crate) fn compare_lines(scratch: &Scratch, lines: &str, want: &str, normal: fn(&str) -> String) -> Outcome {
    fs::write(scratch.file("lines"), lines)?;
    fs::write(scratch.file("runner"), LINE_RUNNER)?;
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", "near", "--", "sh", "./runner", "lines"]);
    let got = run(command.current_dir(scratch.path()).env("FATPATH_RUNDIR", scratch.path()))?;
    let (want, got) = (blocks(want, normal), blocks(&got, normal));
    assert_eq!((want.len(), got.len()), (lines.lines().count(), lines.lines().count()), "lines that were run");
    let differ = want.iter().zip(&got).filter(|(want, got)| want != got);
    let report: Vec<String> = differ.map(|(want, got)| format!("Linux: {want}\nfatpath: {got}\n")).collect();
    if report.is_empty() { Ok(()) } else { Err(report.concat().into()) }
}

/// Result of each line.
fn blocks(text: &str, normal: fn(&str) -> String) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    for line in text.lines() {
        match blocks.last_mut().filter(|_| !line.starts_with("$ ")) {
            None => blocks.push(line.to_owned()),
            Some(block) => *block += &format!("\n{}", normal(line)),
        }
    }
    blocks
}
