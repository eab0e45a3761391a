//! The command line of `fatpath-bench` as a shell sees it: output on either stream, and exit codes.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of its own, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("fatpath-bench-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Exit code, standard output and standard error as they must be.
#[track_caller]
fn assert_output(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let got = (output.status.code(), String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(got, (Some(code), stdout.into(), stderr.into()));
}

#[test]
fn wrong_command_line_is_one_line_and_exit_code_1() {
    let cases: [(&[&str], &str); 3] = [
        (&["bench", "esp", "--only", "tx/tunnel/rot13"], "Error: bench esp: no case has tx/tunnel/rot13 in its name\n"),
        (
            &["demo", "--seconds", "0"],
            "Error: invalid value '0' for '--seconds <SECONDS>': 0 is not in 1..=3600; try --help.\n",
        ),
        (&["run"], "Error: unrecognized subcommand 'run'; try --help.\n"),
    ];
    for (args, want) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_fatpath-bench")).args(args).output().unwrap();
        assert_output(&output, 1, "", want);
    }
}

#[test]
fn demo_without_fatpath_is_one_line_with_a_remedy() {
    let dir = Dir::new("alone");
    let program = dir.0.join("fatpath-bench");
    // Copied by another process: a file that a child of another test's thread has open for writing cannot be executed.
    let mut install = Command::new("install");
    assert!(install.args(["-m", "755", env!("CARGO_BIN_EXE_fatpath-bench")]).arg(&program).status().unwrap().success());
    let output = Command::new(&program).arg("demo").env("PATH", &dir.0).env_remove("FATPATH_PROGRAM").output().unwrap();
    let want = "Error: demo needs fatpath, in the directory of fatpath-bench or in PATH: build it with `cargo build --release -p fatpath`\n";
    assert_output(&output, 1, "", want);
}
