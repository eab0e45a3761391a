//! The view socket: members of its group look at a gateway, and change nothing.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_uid};
use serde_json::Value;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, wait_until};

use crate::large_file;

const PATIENCE: Duration = Duration::from_secs(20);

/// Number of the group in the tests.
pub(crate) const GROUP: u32 = 47_113;

/// Limit of clients, and of those of one user.
const MAX_CLIENTS: usize = 16;
const MAX_OF_USER: usize = 4;

/// Longest time without a request.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

const LAN: &str = "[[link]]\nname = \"lan\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces];
    vec![
        trial("view/member_of_the_group_looks_and_changes_nothing", NEEDS, of_group),
        trial("view/gateway_of_another_user_has_the_groups_socket", NEEDS, of_another_user),
        trial("view/socket_without_the_group_is_the_users_alone", NEEDS, without_group),
        trial("view/seventeenth_client_is_refused", NEEDS, clients),
        trial("view/trace_of_a_client_ends_with_it", &[Need::Namespaces, Need::Tun, Need::PING], trace),
        trial("view/streams_are_limited_in_total_and_by_user", NEEDS, streams),
        trial("view/readers_have_a_pace_in_common", NEEDS, busy_readers),
        trial("view/long_table_is_for_the_control_socket", NEEDS, long_table),
        trial("view/status_says_that_it_leaves_out_tunnels", &[Need::Namespaces, Need::Tun], many_tunnels),
        trial(
            "view/drops_and_path_mtus_are_made_in_short_slices",
            &[Need::Namespaces, Need::Tun, Need::PYTHON],
            short_slices,
        ),
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

pub(crate) fn with_the_group(scratch: &Scratch, host: &Netns) -> Outcome<Command> {
    with_groups(scratch, host, &format!("root:x:0:\nfatpath:x:{GROUP}:\n"))
}

/// A program as a user without privilege, with these groups.
pub(crate) fn run_as(program: &Path, scratch: &Scratch, groups: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", groups]).arg(program);
    command.env("FATPATH_RUNDIR", scratch.path());
    command
}

fn as_user(scratch: &Scratch, groups: &str) -> Command {
    run_as(&scratch.file("fatpath"), scratch, groups)
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
    let config = scratch.file("other.toml");
    fs::write(&config, LAN)?;
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

/// The gateway's own user can give no file to the group: its opener does.
fn of_another_user() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = Gateway::spawn(with_the_group(&scratch, &host)?, &scratch, "x", LAN, &["--user", "61234"])?;
    gateway.wait_until("it runs", |gateway| gateway.show("links").is_ok())?;
    assert!(gateway.show("sandbox")?.contains(", user 61234\n"), "{}", gateway.log());
    let before = fs::symlink_metadata(scratch.file("x.view.sock"))?;
    assert_eq!((before.mode() & 0o777, before.uid(), before.gid()), (0o660, 0, GROUP), "{}", gateway.log());
    run(member(&scratch).args(["show", "links", "-i", "x"]))?;
    drop(gateway.replace(with_the_group(&scratch, &host)?, &scratch, LAN, PATIENCE)?);
    assert_eq!(fs::symlink_metadata(scratch.file("x.view.sock"))?.ino(), before.ino());
    run(member(&scratch).args(["show", "links", "-i", "x"]))?;
    assert!(gateway.terminate()?.success() && !scratch.file("x.view.sock").exists(), "{}", gateway.log());
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

/// Connects as user number `user`, a member of the group.
fn connect_as(user: u32, path: &Path) -> Outcome<UnixStream> {
    let connect = || -> Outcome<UnixStream> {
        // Of this thread alone.
        set_thread_groups(&[Gid::from_raw(GROUP)])?;
        let uid = Uid::from_raw(user);
        set_thread_res_uid(uid, uid, uid)?;
        Ok(UnixStream::connect(path)?)
    };
    thread::scope(|scope| scope.spawn(connect).join().unwrap_or_else(|_| Err("the thread panicked".into())))
}

fn clients() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", LAN)?;
    let path = scratch.file("x.view.sock");
    // Clients that ask for nothing, or for half a line, have places.
    let users = (0..MAX_CLIENTS).map(|at| 1000 + (at / MAX_OF_USER) as u32);
    let held = users.map(|user| connect_as(user, &path)).collect::<Result<Vec<_>, _>>()?;
    (&held[0]).write_all(b"{\"request\":")?;
    assert!(next_line(&connect_as(1000, &path)?)?.contains("4 clients of this user are connected already"));
    assert!(next_line(&connect_as(2000, &path)?)?.contains("16 clients are connected already"));
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

const TRACE: &str = r#"{"request":"trace","filter":"","packets":5}"#;

fn trace() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", LAN)?;
    let [view, control] = ["x.view.sock", "x.sock"].map(|name| scratch.file(name));
    let first = UnixStream::connect(&view)?;
    assert!(reply(&first, TRACE)?.contains("tracing"));
    let trace = |path: &Path| -> Outcome<(UnixStream, String)> {
        let stream = UnixStream::connect(path)?;
        let answer = reply(&stream, TRACE)?;
        Ok((stream, answer))
    };
    assert!(trace(&view)?.1.contains("another trace is running"));
    drop(first);
    let mut second = None;
    wait_until("the trace ends with its client", PATIENCE, || {
        second = trace(&view).ok().filter(|(_, answer)| answer.contains("tracing"));
        second.is_some()
    })?;
    // One of the control socket takes the place of a viewer's, and not the other way round.
    let (own, answer) = trace(&control)?;
    assert!(answer.contains("tracing"), "{answer}");
    let (viewers, _) = second.ok_or("no trace")?;
    assert_eq!(next_line(&viewers)?, "", "the viewer's has ended");
    for _ in 0..20 {
        assert!(trace(&view)?.1.contains("another trace is running"));
    }
    host.sh("ip addr add 10.1.0.2/24 dev lan; ip link set lan up; ping -c 1 -W 1 10.1.0.1")?;
    assert!(next_line(&own)?.contains("\"step\":"), "the other goes on");
    Ok(())
}

fn streams() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", LAN)?;
    let path = scratch.file("x.view.sock");
    let monitor = |user: u32| -> Outcome<(UnixStream, String)> {
        let stream = connect_as(user, &path)?;
        let answer = reply(&stream, r#"{"request":"monitor"}"#)?;
        Ok((stream, answer))
    };
    let mut held = Vec::new();
    for user in 1000..1004 {
        for _ in 0..2 {
            let (stream, answer) = monitor(user)?;
            assert!(answer.contains("monitoring"), "{answer}");
            held.push(stream);
        }
        // A user's further client asks, and streams nothing.
        let (stream, answer) = monitor(user)?;
        assert!(answer.contains("2 clients of this user monitor or trace already"), "{answer}");
        assert!(reply(&stream, r#"{"request":"ping"}"#)?.contains("pong"));
    }
    let (_, answer) = monitor(1004)?;
    assert!(answer.contains("8 clients of this socket monitor or trace already"), "{answer}");
    let own = UnixStream::connect(scratch.file("x.sock"))?;
    assert!(reply(&own, r#"{"request":"monitor"}"#)?.contains("monitoring"));
    drop(held);
    wait_until("places are free again", PATIENCE, || {
        monitor(1004).is_ok_and(|(_, answer)| answer.contains("monitoring"))
    })
}

/// Clients of several users that ask for tables again and again.
fn busy_readers() -> Outcome {
    const TIME: Duration = Duration::from_secs(3);
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut file = LAN.to_owned();
    for at in 0..3000_u32 {
        let to = format!("10.{}.{}.0/24", 16 + at / 250, at % 250);
        file += &format!("[[policy]]\ndir = \"out\"\nsrc = \"10.1.0.0/24\"\ndst = \"{to}\"\naction = \"block\"\n");
    }
    let gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", &file)?;
    let path = scratch.file("x.view.sock");
    let slices = || -> Outcome<[u64; 2]> {
        let shown: Value = serde_json::from_str(&gateway.show("--json counters")?)?;
        let all = shown["counters"].as_array().ok_or("no counters")?;
        let of = |name: &str| all.iter().find(|it| it["name"] == name).and_then(|it| it["value"].as_u64());
        Ok([of("ShowSlices").ok_or("no slices")?, of("ShowSliceMaxMicros").ok_or("no longest slice")?])
    };
    let streams = (1000..1012).map(|user| connect_as(user, &path)).collect::<Result<Vec<_>, _>>()?;
    let [before, _] = slices()?;
    let began = Instant::now();
    let whats = ["policies", "links", "counters", "sa-sums"];
    let read: Vec<Outcome<usize>> = thread::scope(|scope| {
        let reader = |(at, stream): (usize, UnixStream)| {
            scope.spawn(move || -> Outcome<usize> {
                let mut replies = 0;
                while began.elapsed() < TIME {
                    let answer = reply(&stream, &format!(r#"{{"request":"show","what":"{}"}}"#, whats[at % 4]))?;
                    assert!(answer.starts_with(r#"{"reply":"show""#), "{}", &answer[..answer.len().min(200)]);
                    replies += 1;
                }
                Ok(replies)
            })
        };
        let threads: Vec<_> = streams.into_iter().enumerate().map(reader).collect();
        threads.into_iter().map(|it| it.join().unwrap_or_else(|_| Err("a reader panicked".into()))).collect()
    });
    for replies in read {
        assert!(replies? > 0, "each has its turns");
    }
    // One in 400 µs, however many ask.
    let ([after, longest], took) = (slices()?, began.elapsed());
    let most = took.as_micros() as u64 / 400 + 100;
    assert!(
        after - before <= most && after - before > most / 20,
        "{} slices in {took:?}, {longest} µs",
        after - before
    );
    // Processor time, which a busy machine makes longer: 40 µs became 4.8 ms beside two builds.
    assert!(longest < 10_000, "a slice took {longest} µs");
    Ok(())
}

fn many_tunnels() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let toml = large_file::large(0, 33_000);
    let gateway = Gateway::start_under(with_the_group(&scratch, &host)?, &scratch, "x", &toml)?;
    let output = member(&scratch).args(["status", "-i", "x"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    assert!(text.starts_with("x: running, 1 link (tun0), tunnels left out\n"), "{text}");
    let why = "the tunnels are left out: 33000 SAs and 0 policies: the view socket shows 32768 of a kind at most";
    assert!(text.contains(why), "{text}");
    // A tunnel may be down.
    assert_eq!(output.status.code(), Some(1), "{text}");
    drop(gateway);
    Ok(())
}

/// Links of the node of [`short_slices`].
const LINKS: u32 = 1024;

/// Requests of a scrape take no longer with a thousand links. `FATPATH_TEST_MICROS` is another limit, for a release build on an idle
/// machine: 100.
fn short_slices() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut toml = "[host]\nside = \"off\"\n[[link]]\nname = \"tap0\"\nkind = \"tap\"\n".to_owned();
    for id in 1..LINKS {
        toml += &format!("[[link]]\nname = \"tap0.{id}\"\nkind = \"vlan\"\nlink = \"tap0\"\nid = {id}\n");
    }
    let gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    host.sh("ip link set tap0 up")?;
    // Frames of protocols that the node does not know, in each VLAN, for drops of each link. The device's queue does not take all at once.
    wait_until("each link has a drop", PATIENCE, || {
        let _ = host.sh(
            "python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((\"tap0\", 0))
for vid in range(1, 1024):
    s.send(b\"\\xff\" * 6 + b\"\\x02\" + b\"\\0\" * 5 + b\"\\x81\\0\" + vid.to_bytes(2, \"big\") + b\"\\x12\\x34\" + b\"\\0\" * 46)
'",
        );
        let drops = gateway.show("--json drops").unwrap_or_default();
        let drops: Value = serde_json::from_str(&drops).unwrap_or_default();
        let of_links = |drops: &Vec<Value>| drops.iter().filter(|drop| drop["link"].is_string()).count();
        drops.as_array().map_or(0, of_links) >= LINKS as usize - 1
    })?;
    let stream = UnixStream::connect(scratch.file("x.view.sock"))?;
    for what in ["summary", "links", "drops", "counters", "pmtus"] {
        let answer = reply(&stream, &format!(r#"{{"request":"show","what":"{what}"}}"#))?;
        assert!(answer.starts_with(r#"{"reply":"show""#), "{}", &answer[..answer.len().min(200)]);
    }
    let counters = reply(&stream, r#"{"request":"show","what":"counters"}"#)?;
    let (_, rest) = counters.split_once(r#""ViewSliceMaxMicros","value":"#).ok_or("no such counter")?;
    let longest: u64 = rest.split('}').next().unwrap_or_default().parse()?;
    let limit = std::env::var("FATPATH_TEST_MICROS").ok().and_then(|limit| limit.parse().ok()).unwrap_or(10_000);
    println!("view/short_slices: the longest slice of {LINKS} links: {longest} us");
    assert!(longest <= limit, "the longest slice took {longest} us");
    Ok(())
}

fn long_table() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&host, &scratch, "x", LAN)?;
    let mut lines = String::new();
    for at in 0..33_000_u32 {
        lines += &format!("route add 10.{}.{}.{}/32 dev lan\n", 64 + (at >> 16), (at >> 8) & 255, at & 255);
    }
    let batch = scratch.file("routes");
    fs::write(&batch, lines)?;
    let mut command = Command::new(fatpath());
    command.args(["ip", "--instance", "x", "-batch"]).arg(&batch).env("FATPATH_RUNDIR", scratch.path());
    run(&mut command)?;
    let stream = UnixStream::connect(scratch.file("x.view.sock"))?;
    let answer = reply(&stream, r#"{"request":"show","what":"routes"}"#)?;
    assert!(answer.contains("the table has more than 32768 rows"), "{}", &answer[..answer.len().min(200)]);
    assert!(reply(&stream, r#"{"request":"show","what":"summary"}"#)?.contains("33"));
    assert!(gateway.show("routes")?.lines().count() > 33_000);
    Ok(())
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
