//! `ip xfrm`, word for word: the same lines under `fatpath exec` and in a Linux kernel. Their output, on either stream,
//! and their exit codes are compared, but for times and policies' numbers, which each side chooses itself.

use std::fs;

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, LINE_RUNNER, Need, Netns, Outcome, Scratch, trial};

use crate::alike::compare_lines;

const NEEDS: &[Need] = &[Need::Namespaces, Need::UML, Need::MODPROBE];

/// The lines. Each is a command for a shell.
const LINES: &str = include_str!("ip_xfrm.lines");

/// A program that the lines name.
const AE_MESSAGES: &str = include_str!("ae_messages.py");

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fatpath/output_of_ip_xfrm_is_the_same_as_on_linux", NEEDS, compare)]
}

fn compare() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("near")?);
    let mut linux = Uml::boot(&netns, &[])?;
    linux.put("runner", LINE_RUNNER.as_bytes())?;
    linux.put("ae_messages.py", AE_MESSAGES.as_bytes())?;
    let mut want = String::new();
    // A guest starts programs slowly, so the lines are run in chunks, each with its own timeout.
    for some in LINES.lines().collect::<Vec<_>>().chunks(25) {
        linux.put("lines", (some.join("\n") + "\n").as_bytes())?;
        want += &linux.sh("sh ./runner lines")?;
    }
    let _gateway = Gateway::start(&netns, &scratch, "near", "")?;
    fs::write(scratch.file("ae_messages.py"), AE_MESSAGES)?;
    compare_lines(&scratch, LINES, &want, normal)
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
