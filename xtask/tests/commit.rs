//! The last commit: one of more than a screenful says why.

use std::path::Path;
use std::process::Command;

/// Changed lines up to which the subject says enough.
const SMALL: usize = 50;

/// Fault of a commit, or of a merge against its first parent.
fn fault(subject: &str, body: &str, changed: usize) -> Option<String> {
    let is_trailer = |line: &str| {
        line.split_once(": ")
            .is_some_and(|(key, _)| key.contains('-') && key.chars().all(|c| c == '-' || c.is_alphabetic()))
    };
    let says_why = body.lines().any(|line| !line.trim().is_empty() && !is_trailer(line));
    let is_bare = changed > SMALL && !says_why;
    is_bare.then(|| format!("{subject:?} changes {changed} lines, and its body does not say why"))
}

/// Sum of a `git diff --numstat`; a binary file counts as one line.
fn changed_lines(numstat: &str) -> usize {
    let count = |field: &str| field.parse().unwrap_or(1);
    let lines = numstat.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        Some(count(fields.next()?) + count(fields.next()?))
    });
    lines.sum()
}

#[test]
fn last_commit_says_why_if_it_is_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // An export of the tree may lie below another repository.
    if !root.join(".git").exists() {
        return eprintln!("not checked: the last commit, as there is no .git");
    }
    let Some(message) = git(&["log", "-1", "--format=%s%n%b"]) else {
        return eprintln!("not checked: the last commit, as git cannot read it");
    };
    let Some(numstat) = git(&["diff", "--numstat", "HEAD^1", "HEAD"]) else {
        return eprintln!("not checked: the last commit, as its parent is not in this clone");
    };
    let (subject, body) = message.split_once('\n').unwrap_or((&message, ""));
    let found = fault(subject, body, changed_lines(&numstat));
    assert!(found.is_none(), "CONTRIBUTING.md, \"Commits\": {}", found.unwrap_or_default());
}

#[test]
fn commit_of_many_lines_needs_a_body() {
    for (body, changed, is_fault) in [
        ("", SMALL, false),
        ("", SMALL + 1, true),
        ("\n  \n", SMALL + 1, true),
        ("Signed-off-by: A <a@example.org>\n", SMALL + 1, true),
        ("Linux does so: see ip_rcv.\n", SMALL + 1, false),
        ("Why.\n\nSigned-off-by: A <a@example.org>\n", 10_000, false),
    ] {
        assert_eq!(fault("area: what", body, changed).is_some(), is_fault, "{body:?} {changed}");
    }
}

#[test]
fn changed_lines_are_those_added_and_removed() {
    assert_eq!(changed_lines("3\t4\ta.rs\n-\t-\tb.bin\n0\t10\tc d.md\n"), 19);
    assert_eq!(changed_lines(""), 0);
}
