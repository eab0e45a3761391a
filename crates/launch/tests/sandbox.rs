//! The filter of a gateway on a process with threads: calls of the list work, and others fail or end the process.

use std::io::{Error, ErrorKind};
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::thread;

use launch::sandbox::{Role, Unlisted, set_for_all_threads};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs the ignored test `name` of this file in a process of its own, which the filter may end.
fn child(name: &str) -> Output {
    let own = std::env::current_exe().unwrap();
    Command::new(own).args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).output().unwrap()
}

#[test]
fn sandbox_filters_all_threads_of_a_process() {
    let output = child("child_that_is_filtered");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

#[test]
fn sandbox_trapped_call_is_named_and_ends_the_process() {
    let output = child("child_whose_call_is_trapped");
    let text = String::from_utf8_lossy(&output.stderr);
    let line = format!("fatpath: system call {} (", libc::SYS_setns);
    assert!(text.contains(&line) && text.contains("is not in the list of the sandbox\n"), "{output:?}");
    assert_eq!(output.status.code(), Some(128 + libc::SIGSYS), "{output:?}");
}

fn is_refused<T>(call: Result<T, Error>) -> bool {
    matches!(call, Err(err) if err.kind() == ErrorKind::PermissionDenied)
}

#[test]
#[ignore = "a process of its own runs it"]
fn child_that_is_filtered() {
    let (go, waits) = channel::<()>();
    // A thread from before the filter.
    let before = thread::spawn(move || {
        waits.recv().unwrap();
        Command::new("/bin/true").status()
    });
    set_for_all_threads(Role::Gateway, Unlisted::Fails).unwrap();
    go.send(()).unwrap();
    assert!(is_refused(before.join().unwrap()), "a thread from before the filter starts a program");
    let after = thread::spawn(|| Command::new("/bin/true").status());
    assert!(is_refused(after.join().unwrap()), "a later thread starts a program");
    assert!(std::fs::read("/proc/self/status").is_ok());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
}

#[test]
#[ignore = "a process of its own runs it"]
fn child_whose_call_is_trapped() {
    let own = std::fs::File::open("/proc/self/ns/net").unwrap();
    set_for_all_threads(Role::Gateway, Unlisted::Ends).unwrap();
    let _ = move_into_link_name_space(std::os::fd::AsFd::as_fd(&own), Some(LinkNameSpaceType::Network));
    panic!("the call has returned");
}
