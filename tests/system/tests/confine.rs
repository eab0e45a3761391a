//! Restrictions of a gateway's process: no inherited descriptors, no core file, no reading of its memory by its user.

use std::fs;
use std::process::Command;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, trial};

const NEEDS: &[Need] = &[Need::Namespaces];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("confine/inherited_descriptors_are_closed_but_a_managers", NEEDS, descriptors),
        trial("confine/crash_leaves_no_core_file", NEEDS, core_file),
    ]
}

/// A gateway that a shell starts after `script`, in the directory of `scratch`.
fn gateway(scratch: &Scratch, host: &Netns, script: &str) -> Outcome<Gateway> {
    let mut command = host.command("bash");
    command.args(["-c", &format!("{script}; exec \"$@\""), "bash"]).arg(fatpath()).current_dir(scratch.path());
    Gateway::start_under(command, scratch, "x", "")
}

fn descriptors() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let kept = scratch.file("kept");
    fs::write(&kept, "")?;
    fs::write(scratch.file("closed"), "")?;
    let inherited = |gateway: &Gateway| {
        let open = fs::read_dir(format!("/proc/{}/fd", gateway.id()))?.filter_map(Result::ok);
        let files = open.filter_map(|fd| fs::read_link(fd.path()).ok()).filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            (name == "kept" || name == "closed").then_some(name)
        });
        Outcome::Ok(files.collect::<Vec<_>>())
    };
    let plain = gateway(&scratch, &host, "exec 3<kept 4<closed 77<closed")?;
    assert!(inherited(&plain)?.is_empty(), "{:?}", inherited(&plain)?);
    drop(plain);
    let by_manager = "export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<kept 4<closed 77<closed";
    let managed = gateway(&scratch, &host, by_manager)?;
    assert_eq!(inherited(&managed)?, ["kept"]);
    assert_eq!(fs::read_link(format!("/proc/{}/fd/3", managed.id()))?, kept);
    Ok(())
}

fn core_file() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = gateway(&scratch, &host, "ulimit -c unlimited")?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.id()))?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).ok_or("no such limit")?;
    assert_eq!(limit.split_whitespace().take(2).collect::<Vec<_>>(), ["0", "0"], "{limits}");
    let pid = Pid::from_raw(gateway.id() as i32).ok_or("no process number")?;
    kill_process(pid, Signal::ABORT)?;
    gateway.wait_until("it ends", |gateway| gateway.show("links").is_err())?;
    drop(gateway);
    let files: Vec<_> = fs::read_dir(scratch.path())?.filter_map(Result::ok).map(|file| file.file_name()).collect();
    assert!(!files.iter().any(|name| name.to_string_lossy().starts_with("core")), "{files:?}");
    // The shell's limit lets other programs leave one, where the kernel writes files.
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    if pattern.trim() == "core" {
        let script = "ulimit -c unlimited; sh -c 'kill -ABRT $$'; ls";
        let output = Command::new("bash").args(["-c", script]).current_dir(scratch.path()).output()?;
        assert!(String::from_utf8_lossy(&output.stdout).contains("core"), "{output:?}");
    }
    Ok(())
}
