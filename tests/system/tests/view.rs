//! The view socket: members of its group look at a gateway, and change nothing.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

/// Number of the group in the tests.
const GROUP: u32 = 47_113;

/// Limit of clients.
const MAX_CLIENTS: usize = 16;

/// Longest time without a request.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

const LAN: &str = "[[link]]\nname = \"lan\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces];
    vec![
        trial("view/member_of_the_group_looks_and_changes_nothing", NEEDS, of_group),
        trial("view/socket_without_the_group_is_the_users_alone", NEEDS, without_group),
        trial("view/seventeenth_client_is_refused", NEEDS, clients),
        trial("view/trace_of_a_client_ends_with_it", NEEDS, trace),
        trial("view/socket_outlives_a_replaced_gateway", NEEDS, replaced),
    ]
}

/// A command in `host` whose `/etc/group` has the lines `groups`, and that takes the program's arguments.
fn with_groups(scratch: &Scratch, host: &Netns, groups: &str) -> Outcome<Command> {
    let file = scratch.file("group");
    fs::write(&file, groups)?;
    // A user without privilege runs a copy, as the directory of the build need not be open to all.
    let program = scratch.file("fatpath");
    if !program.exists() {
        fs::copy(fatpath(), &program)?;
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
    }
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/group && exec \"$@\""]).arg(file).arg(program);
    Ok(command)
}

fn with_the_group(scratch: &Scratch, host: &Netns) -> Outcome<Command> {
    with_groups(scratch, host, &format!("root:x:0:\nfatpath:x:{GROUP}:\n"))
}

/// The program as a user without privilege, with these groups.
fn as_user(scratch: &Scratch, groups: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", groups]).arg(scratch.file("fatpath"));
    command.env("FATPATH_RUNDIR", scratch.path());
    command
}

fn member(scratch: &Scratch) -> Command {
    as_user(scratch, &format!("--groups={GROUP}"))
}

fn mode_and_group(scratch: &Scratch, socket: &str) -> Outcome<(u32, u32)> {
    let data = fs::symlink_metadata(scratch.file(socket))?;
    Ok((data.mode() & 0o777, data.gid()))
}

/// Standard error of a command that fails.
fn refusal(command: &mut Command) -> Outcome<String> {
    let output = command.output()?;
    if output.status.success() {
        return Err(format!("{command:?} succeeds").into());
    }
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Reply to one line of a client.
fn reply(mut stream: &UnixStream, line: &str) -> Outcome<String> {
    stream.write_all(format!("{line}\n").as_bytes())?;
    next_line(stream)
}

fn next_line(stream: &UnixStream) -> Outcome<String> {
    let mut line = String::new();
    stream.set_read_timeout(Some(PATIENCE))?;
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

fn of_group() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", LAN)?;
    assert_eq!(mode_and_group(&scratch, "x.view.sock")?, (0o660, GROUP));
    let (mode, group) = mode_and_group(&scratch, "x.sock")?;
    assert_eq!((mode & 0o077, group), (0, 0));
    for what in [&["show", "links"][..], &["show", "--json", "sa"], &["show", "host"]] {
        run(member(&scratch).args(what).args(["-i", "x"]))?;
    }
    // Without a name, all gateways that this user sees: one, and not its view socket as another.
    let status = run(member(&scratch).arg("status"))?;
    assert!(status.starts_with("x") && !status.contains("view"), "{status}");
    let mut monitor = Process::spawn(member(&scratch).args(["monitor", "-i", "x"]), &scratch)?;
    assert!(monitor.is_running());
    // All that changes the gateway, or shows what packets carry, is refused by the control socket, and by name by the view socket.
    let config = scratch.file("x.toml");
    let denied = refusal(member(&scratch).args(["load", "-i", "x", "-c"]).arg(&config))?;
    assert!(denied.contains("x.sock: permission denied"), "{denied}");
    let stream = UnixStream::connect(scratch.file("x.view.sock"))?;
    for (name, line) in [
        ("load", format!(r#"{{"request":"load","file":"{}"}}"#, config.display())),
        ("save", r#"{"request":"save"}"#.to_owned()),
        ("replace", r#"{"request":"replace","format":1}"#.to_owned()),
        ("enter-host", r#"{"request":"enter-host"}"#.to_owned()),
        ("capture", r#"{"request":"capture","link":"lan","after_gro":false}"#.to_owned()),
    ] {
        let answer = reply(&stream, &line)?;
        assert!(answer.contains(&format!("{name}: refused by this socket, which only shows")), "{answer}");
    }
    assert!(reply(&stream, r#"{"request":"ping"}"#)?.contains("pong"));
    let denied = refusal(as_user(&scratch, "--clear-groups").args(["show", "links", "-i", "x"]))?;
    assert!(denied.contains("x.sock: permission denied"), "{denied}");
    Ok(())
}

fn without_group() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let of_root = Gateway::start_under(with_groups(&scratch, &host, "root:x:0:\n")?, &scratch, "x", "")?;
    assert_eq!(mode_and_group(&scratch, "x.view.sock")?, (0o600, 0));
    drop(of_root);
    // A user whose group it is not gives it to none.
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777))?;
    let mut command = host.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(scratch.file("fatpath"));
    let gateway = Gateway::start_under(command, &scratch, "y", "")?;
    assert_eq!(mode_and_group(&scratch, "y.view.sock")?, (0o600, 65_534));
    gateway.show("links")?;
    Ok(())
}

fn clients() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    let path = scratch.file("x.view.sock");
    // Clients that ask for nothing, or for half a line, have places.
    let held = (0..MAX_CLIENTS).map(|_| UnixStream::connect(&path)).collect::<Result<Vec<_>, _>>()?;
    (&held[0]).write_all(b"{\"request\":")?;
    let refused = UnixStream::connect(&path)?;
    assert!(next_line(&refused)?.contains("16 clients are connected already"));
    // Those of the control socket do not wait for them.
    gateway.show("links")?;
    // After half a minute without a request their places are free.
    let is_served = || {
        let stream = UnixStream::connect(&path);
        stream.is_ok_and(|stream| reply(&stream, r#"{"request":"ping"}"#).is_ok_and(|answer| answer.contains("pong")))
    };
    wait_until("places are free again", IDLE_LIMIT + PATIENCE, is_served)?;
    drop(held);
    // A client that does not read what it asks for is disconnected.
    let slow = UnixStream::connect(&path)?;
    let requests = "{\"request\":\"show\",\"what\":\"counters\"}\n".repeat(200);
    (&slow).write_all(requests.as_bytes())?;
    wait_until("the slow client is disconnected", PATIENCE, || (&slow).write_all(b"\n").is_err())
}

fn trace() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", LAN)?;
    let first = UnixStream::connect(scratch.file("x.view.sock"))?;
    const TRACE: &str = r#"{"request":"trace","filter":"","packets":5}"#;
    assert!(reply(&first, TRACE)?.contains("tracing"));
    let second = || -> Outcome<String> { reply(&UnixStream::connect(scratch.file("x.view.sock"))?, TRACE) };
    assert!(second()?.contains("another trace is running"));
    drop(first);
    wait_until("the trace ends with its client", PATIENCE, || second().is_ok_and(|answer| answer.contains("tracing")))
}

fn replaced() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", LAN)?;
    let before = fs::symlink_metadata(scratch.file("x.view.sock"))?.ino();
    drop(gateway.replace(with_the_group(&scratch, &host)?, &scratch, LAN, PATIENCE)?);
    let data = fs::symlink_metadata(scratch.file("x.view.sock"))?;
    assert_eq!((data.ino(), data.mode() & 0o777, data.gid()), (before, 0o660, GROUP));
    run(member(&scratch).args(["show", "links", "-i", "x"]))?;
    drop(gateway);
    Ok(())
}
