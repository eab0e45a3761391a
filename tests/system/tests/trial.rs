//! `fatpath try` and `fatpath exec -c`: gateways that end with one command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Need, Netns, Outcome, Process, Scratch, fatpath, trial, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("try/pings_through_esp_and_leaves_nothing", NEEDS, pings),
        trial("try/works_without_privilege", NEEDS, pings_as_a_user),
        trial("exec_c/exit_code_is_the_programs_and_the_gateway_ends", NEEDS, exit_code),
        trial("exec_c/is_refused_beside_a_gateway_of_that_name", NEEDS, second),
        trial("exec_c/gateway_ends_if_the_command_is_killed", NEEDS, killed),
        trial("doctor/names_what_is_missing", &[], doctor),
    ]
}

/// Number of gateways whose command line contains `text`.
fn gateways(text: &str) -> usize {
    let files = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let lines = files.filter_map(|dir| fs::read(dir.path().join("cmdline")).ok());
    let is_gateway = |line: &Vec<u8>| {
        let line = String::from_utf8_lossy(line).replace('\0', " ");
        line.contains(" run --instance") && line.contains(text)
    };
    lines.filter(is_gateway).count()
}

fn checked(output: &std::process::Output) -> Outcome {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("3 received, 0% packet loss"), "{text}");
    assert!(text.contains("192.0.2.2:4500  up"), "{text}");
    wait_until("both gateways end", Duration::from_secs(5), || gateways("/run/fatpath-try/") == 0)
}

fn pings() -> Outcome {
    let output = Command::new(fatpath()).arg("try").stdin(Stdio::null()).output()?;
    checked(&output)
}

fn pings_as_a_user() -> Outcome {
    let scratch = Scratch::new()?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
    // The user may not enter the directory of the build.
    for name in ["fatpath", "libfatpath_preload.so"] {
        fs::copy(fatpath().with_file_name(name), scratch.file(name))?;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all"]);
    let output = command.arg(scratch.file("fatpath")).arg("try").current_dir("/").stdin(Stdio::null()).output()?;
    checked(&output)
}

const EMPTY: &str = "[host]\nside = \"auto\"\n";

/// A namespace, a directory, and a command for `fatpath exec -c` with an empty configuration.
fn site() -> Outcome<(Netns, Scratch)> {
    let scratch = Scratch::new()?;
    fs::write(scratch.file("empty.toml"), EMPTY)?;
    Ok((Netns::new("a")?, scratch))
}

fn exec(netns: &Netns, scratch: &Scratch, name: &str, program: &[&str]) -> Command {
    let mut command = netns.command(fatpath());
    command.args(["exec", "-c"]).arg(scratch.file("empty.toml")).args(["--instance", name, "--"]);
    command.args(program).env("FATPATH_RUNDIR", scratch.path());
    command
}

fn exit_code() -> Outcome {
    let (netns, scratch) = site()?;
    let script = "ip link show lo >/dev/null && ip link add red type vrf table 7 && ip link show red && exit 7";
    let output = exec(&netns, &scratch, "x", &["sh", "-c", script]).output()?;
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(!scratch.file("x.sock").exists(), "the gateway has not ended");
    let output = exec(&netns, &scratch, "x", &["sh", "-c", "kill -KILL $$"]).output()?;
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    let output = exec(&netns, &scratch, "x", &["no-such-program"]).output()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "Error: no-such-program: no such program.\n");
    fs::write(scratch.file("empty.toml"), "[[link]]\nname = 3\n")?;
    let output = exec(&netns, &scratch, "x", &["true"]).output()?;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{output:?}");
    Ok(())
}

fn second() -> Outcome {
    let (netns, scratch) = site()?;
    let _first = Process::spawn(&mut exec(&netns, &scratch, "x", &["sleep", "60"]), &scratch)?;
    wait_until("the gateway runs", Duration::from_secs(20), || scratch.file("x.sock").exists())?;
    let output = exec(&netns, &scratch, "x", &["true"]).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.lines().count() == 1 && text.contains("x.sock"), "{output:?}");
    assert!(scratch.file("x.sock").exists(), "the first gateway is gone");
    Ok(())
}

fn killed() -> Outcome {
    let (netns, scratch) = site()?;
    let process = Process::spawn(&mut exec(&netns, &scratch, "killed", &["sleep", "60"]), &scratch)?;
    let place = scratch.path().display().to_string();
    wait_until("the gateway runs", Duration::from_secs(20), || scratch.file("killed.sock").exists())?;
    assert_eq!(gateways(&place), 1);
    process.signal(Signal::KILL)?;
    wait_until("the gateway ends", Duration::from_secs(20), || gateways(&place) == 0)
}

fn doctor() -> Outcome {
    let output = Command::new(fatpath()).arg("doctor").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    for subject in ["kernel", "/dev/net/tun", "user namespaces", "preload library"] {
        assert!(text.lines().any(|line| line.contains(subject)), "{text}");
    }
    let output = Command::new(fatpath()).arg("doctor").env("FATPATH_PRELOAD", "/no/such.so").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.lines().any(|line| line.starts_with("missing") && line.contains("preload library")), "{text}");
    Ok(())
}
