//! `cargo xtask advisories` with and without a network, and with and without a database of an earlier run: it passes or fails, and
//! says by what. A script stands in for cargo-deny, with the messages of version 0.20.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

const NO_NETWORK: &str = "[ERROR] failed to fetch advisory database https://github.com/RustSec/advisory-db with cli";
const NO_DATABASE: &str = "[ERROR] failed to get 'FETCH_HEAD' metadata: failed to get HEAD timestamp";
const FLAW: &str = "error[vulnerability]: a flaw";

/// Runs the chore with a cargo-deny whose checks fail with these messages, or pass.
fn run(test: &str, with_network: Option<&str>, offline: Option<&str>) -> (bool, String) {
    let [with_network, offline] = [with_network, offline].map(|message| match message {
        Some(message) => format!("echo \"{message}\" >&2; exit 1"),
        None => "exit 0".to_owned(),
    });
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n\"deny check advisories\") {with_network} ;;\n\
         \"deny --offline check advisories\") {offline} ;;\nesac\necho \"$*: unexpected\" >&2\nexit 1\n"
    );
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::write(&program, script).expect("a directory for files of tests");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("advisories").env("CARGO", &program).output();
    let output = output.expect("the program of this package");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn flaws_are_found_with_a_network() {
    let (passes, printed) = run("with-network", None, Some(NO_DATABASE));
    assert!(passes && printed.contains("cargo deny advisories: ok"), "{printed}");
    let (passes, printed) = run("with-flaw", Some(FLAW), None);
    assert!(!passes && printed.contains(FLAW) && printed.contains("cargo deny advisories: FAILED"), "{printed}");
}

#[test]
fn database_of_an_earlier_run_is_named_without_a_network() {
    let (passes, printed) = run("earlier", Some(NO_NETWORK), None);
    assert!(
        passes && printed.contains("by the database of an earlier run, as github.com is out of reach: ok"),
        "{printed}"
    );
    let (passes, printed) = run("earlier-with-flaw", Some(NO_NETWORK), Some(FLAW));
    assert!(
        !passes && printed.contains(FLAW) && printed.contains("as github.com is out of reach: FAILED"),
        "{printed}"
    );
}

#[test]
fn nothing_passes_without_a_database() {
    let (passes, printed) = run("without", Some(NO_NETWORK), Some(NO_DATABASE));
    assert!(
        !passes && printed.contains("NOT CHECKED: the advisory database at github.com is out of reach"),
        "{printed}"
    );
    assert!(printed.ends_with("fatpath: 0 passed, 1 failed, 0 skipped\n"), "{printed}");
}
