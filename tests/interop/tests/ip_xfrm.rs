//! `ip xfrm`, word for word: the same lines under `fatpath exec` and in a Linux kernel, and what they print, on either
//! stream, and their exit codes are compared. Times and policies' numbers are what each makes up itself.

use std::fs;
use std::process::Command;

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, LINE_RUNNER, Need, Netns, Outcome, Scratch, fatpath, run, trial};

const NEEDS: &[Need] = &[Need::Namespaces, Need::UML, Need::MODPROBE];

/// The lines. Each is a command for a shell.
const LINES: &str = include_str!("ip_xfrm.lines");

/// A program that the lines name.
const AE_MESSAGES: &str = include_str!("ae_messages.py");

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fatpath/ip_xfrm_prints_what_it_prints_of_linux", NEEDS, compare)]
}

fn compare() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("near")?);
    let mut linux = Uml::boot(&netns, &[])?;
    linux.put("runner", LINE_RUNNER.as_bytes())?;
    linux.put("ae_messages.py", AE_MESSAGES.as_bytes())?;
    let mut want = String::new();
    // A guest takes its time for each program; so it is not asked for all at once.
    for some in LINES.lines().collect::<Vec<_>>().chunks(25) {
        linux.put("lines", (some.join("\n") + "\n").as_bytes())?;
        want += &linux.sh("sh ./runner lines")?;
    }
    let _gateway = Gateway::start(&netns, &scratch, "near", "")?;
    fs::write(scratch.file("lines"), LINES)?;
    fs::write(scratch.file("runner"), LINE_RUNNER)?;
    fs::write(scratch.file("ae_messages.py"), AE_MESSAGES)?;
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", "near", "--", "sh", "./runner", "lines"]);
    let got = run(command.current_dir(scratch.path()).env("FATPATH_RUNDIR", scratch.path()))?;
    let (want, got) = (blocks(&want), blocks(&got));
    assert_eq!((want.len(), got.len()), (LINES.lines().count(), LINES.lines().count()), "lines that were run");
    let differ = want.iter().zip(&got).filter(|(want, got)| want != got);
    let report: Vec<String> = differ.map(|(want, got)| format!("Linux: {want}\nfatpath: {got}\n")).collect();
    if report.is_empty() { Ok(()) } else { Err(report.concat().into()) }
}

/// What each line came to, without what is made up.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    for line in text.lines() {
        match blocks.last_mut().filter(|_| !line.starts_with("$ ")) {
            None => blocks.push(line.to_owned()),
            Some(block) => *block += &format!("\n{}", normal(line)),
        }
    }
    blocks
}

/// A line with words in place of its time and its policy's number.
fn normal(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    for at in 0..words.len() {
        let is_date = words[at].len() == 10 && words[at].bytes().filter(|&byte| byte == b'-').count() == 2;
        if is_date && at + 1 < words.len() {
            (words[at], words[at + 1]) = ("DATE", "TIME");
        }
        if words[at] == "index" && at + 1 < words.len() {
            words[at + 1] = "N";
        }
    }
    words.join(" ")
}
