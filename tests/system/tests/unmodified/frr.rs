//! FRR: zebra, and staticd with it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use system::{Need, Outcome, Process, trial, unpacked, wait_until};

use super::{Node, PATIENCE};

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::PING,
    Need::Unpacked { path: "usr/lib/frr/zebra", package: "frr" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libyang.so.2", package: "libyang2" },
];

/// Number of consecutive starts of zebra, each of which must have all interfaces.
const STARTS: usize = 24;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/zebra_sees_all_interfaces_in_each_start", NEEDS, interfaces),
        trial("unmodified/staticd_installs_plain_routes", NEEDS, routes),
        trial("unmodified/frr_installs_routes_without_being_root", NEEDS, as_user),
        trial("unmodified/zebra_goes_on_over_a_restart", NEEDS, restart),
    ]
}

/// An account under which FRR runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    user: &'static str,
    group: &'static str,
}

pub(super) const ROOT: Account = Account { user: "root", group: "root" };

/// The account of Debian's package, which keeps `CAP_NET_ADMIN` in its permitted set.
const FRR: Account = Account { user: "frr", group: "frr" };
/// User and group number of [`FRR`], as the accounts of a [`Node`] have them.
const FRR_ID: u32 = 64001;

/// FRR's files on a node. The daemons end with their [`Process`].
pub(super) struct Frr<'a> {
    node: &'a Node,
    directory: PathBuf,
    account: Account,
}

impl<'a> Frr<'a> {
    pub(super) fn new(node: &'a Node, account: Account) -> Outcome<Self> {
        let directory = node.scratch.file("frr");
        fs::create_dir_all(&directory)?;
        if account.user == FRR.user {
            chown(&directory, Some(FRR_ID), Some(FRR_ID))?;
            fs::set_permissions(node.scratch.path(), fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { node, directory, account })
    }

    /// Starts a daemon with the configuration `lines`, and waits until it answers.
    pub(super) fn start(&self, daemon: &str, lines: &str) -> Outcome<Process> {
        let (mut command, socket) = self.command(daemon, lines)?;
        let mut process = Process::spawn(&mut command, &self.node.scratch)?;
        // The file is there a moment before the daemon listens.
        let answers = || UnixStream::connect(&socket).is_ok() || !process.is_running();
        wait_until(&format!("{daemon} listens"), PATIENCE, answers)?;
        if process.is_running() {
            Ok(process)
        } else {
            Err(format!("{daemon} has ended:\n{}", process.output()).into())
        }
    }

    /// Same as [`start`](Self::start), as a service starts it: the daemon leaves its first process by `fork`.
    fn start_detached(&self, daemon: &str, lines: &str) -> Outcome<Detached> {
        let (mut command, socket) = self.command(daemon, lines)?;
        let mut first = Process::spawn(command.arg("-d"), &self.node.scratch)?;
        let status = first.wait(PATIENCE)?;
        if !status.success() {
            return Err(format!("{daemon}: {status}:\n{}", first.output()).into());
        }
        let pid = fs::read_to_string(self.directory.join(format!("{daemon}.pid")))?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw).ok_or("no process number")?;
        let detached = Detached(pid);
        wait_until(&format!("{daemon} listens"), PATIENCE, || UnixStream::connect(&socket).is_ok())?;
        Ok(detached)
    }

    /// Command that starts a daemon with the configuration `lines`, and the socket where it answers.
    fn command(&self, daemon: &str, lines: &str) -> Outcome<(Command, PathBuf)> {
        let directory = &self.directory;
        self.node.file(&format!("frr/{daemon}.conf"), lines)?;
        let socket = directory.join(format!("{daemon}.vty"));
        let _ = fs::remove_file(&socket);
        let mut command = self.node.exec(unpacked(&format!("usr/lib/frr/{daemon}")));
        command.args([
            "-u",
            self.account.user,
            "-g",
            self.account.group,
            "-A",
            "127.0.0.1",
            "-P",
            "0",
            "--log",
            "stdout",
        ]);
        for (option, name) in
            [("-f", format!("{daemon}.conf")), ("-i", format!("{daemon}.pid")), ("-z", "api".to_owned())]
        {
            command.arg(option).arg(directory.join(name));
        }
        command.arg("--vty_socket").arg(directory);
        Ok((command, socket))
    }

    /// Answer of a daemon to `show WHAT`, as to `vtysh`: text, and behind it three zero bytes and a status.
    pub(super) fn show(&self, daemon: &str, what: &str) -> Outcome<String> {
        let mut socket = UnixStream::connect(self.directory.join(format!("{daemon}.vty")))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(format!("show {what}\0").as_bytes())?;
        let (mut answer, mut room) = (Vec::new(), [0; 4096]);
        loop {
            let len = socket.read(&mut room)?;
            answer.extend_from_slice(&room[..len]);
            if let [text @ .., 0, 0, 0, status] = answer.as_slice() {
                let text = String::from_utf8_lossy(text).into_owned();
                return if *status == 0 { Ok(text) } else { Err(format!("show {what}: {status}: {text}").into()) };
            }
            if len == 0 {
                return Err(format!("show {what}: {daemon} has closed the connection").into());
            }
        }
    }
}

/// A daemon that is no child of this process; killed when dropped.
struct Detached(Pid);

impl Drop for Detached {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Names of the interfaces that `show interface brief` lists, in order.
fn interfaces_of(brief: &str) -> Vec<String> {
    // Each VRF has a table of its own, with two lines of heading. Addresses that stand alone are indented.
    let names = brief.lines().filter(|line| !line.starts_with([' ', '-'])).filter_map(|line| line.split(' ').next());
    let mut names: Vec<_> = names.filter(|name| !matches!(*name, "" | "Interface")).map(str::to_owned).collect();
    names.sort_unstable();
    names
}

fn interfaces() -> Outcome {
    let node = Node::new()?;
    let frr = Frr::new(&node, ROOT)?;
    let before = node.host_state()?;
    for start in 1..=STARTS {
        let mut zebra = frr.start("zebra", "")?;
        let brief = frr.show("zebra", "interface brief")?;
        assert_eq!(interfaces_of(&brief), ["eth0", "lo", "red", "tun0", "wan"], "start {start}:\n{brief}");
        for address in ["10.1.0.1/24", "fd00:1::1/64", "10.3.0.1/24"] {
            assert!(brief.contains(address), "start {start} has no {address}:\n{brief}");
        }
        zebra.signal(Signal::TERM)?;
        zebra.wait(PATIENCE)?;
    }
    assert_eq!(node.host_state()?, before, "the host is as it was");
    Ok(())
}

fn routes() -> Outcome {
    let node = Node::new()?;
    let frr = Frr::new(&node, ROOT)?;
    let before = node.host_state()?;
    let _zebra = frr.start("zebra", "")?;
    let lines = "ip route 10.5.0.0/16 10.1.0.2\nip route 10.6.0.0/16 blackhole\nipv6 route fd00:5::/32 fd00:1::2\n";
    let mut staticd = frr.start("staticd", lines)?;
    // Routes of FRR's own protocol for static ones, 196, without next hop objects.
    node.wait_for_ip("route", "10.5.0.0/16 via 10.1.0.2 dev eth0 proto 196 metric 20 \n")?;
    node.wait_for_ip("route", "blackhole 10.6.0.0/16 proto 196 metric 20 \n")?;
    node.wait_for_ip("-6 route", "fd00:5::/32 via fd00:1::2 dev eth0 proto 196 metric 20 pref medium\n")?;
    let shown = frr.show("zebra", "ip route")?;
    assert!(shown.contains("S>* 10.5.0.0/16 [1/0] via 10.1.0.2, eth0"), "{shown}");
    // The node forwards by it.
    node.far.sh("ip route add 10.3.0.0/24 via 10.1.0.1; ip addr add 10.5.0.1/32 dev lo")?;
    node.host.sh(
        "ip addr add 10.3.0.2/24 dev tun0; ip route add 10.5.0.0/16 dev tun0; ping -c 1 -W 5 -I 10.3.0.2 10.5.0.1",
    )?;
    node.host.sh("ip route del 10.5.0.0/16 dev tun0; ip addr del 10.3.0.2/24 dev tun0")?;
    staticd.signal(Signal::TERM)?;
    staticd.wait(PATIENCE)?;
    wait_until("the routes go with staticd", PATIENCE, || {
        node.ip("route").is_ok_and(|printed| !printed.contains("proto 196"))
    })?;
    assert_eq!(node.host_state()?, before, "the host is as it was");
    Ok(())
}

fn as_user() -> Outcome {
    let node = Node::new()?;
    let frr = Frr::new(&node, FRR)?;
    let is_of_user = || {
        let pid = fs::read_to_string(frr.directory.join("zebra.pid"))?;
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()))?;
        assert!(status.contains(&format!("\nUid:\t{FRR_ID}\t{FRR_ID}\t")), "{status}");
        Outcome::Ok(())
    };
    let mut zebra = frr.start("zebra", "")?;
    let mut staticd = frr.start("staticd", "ip route 10.5.0.0/16 10.1.0.2\n")?;
    node.wait_for_ip("route", "10.5.0.0/16 via 10.1.0.2 dev eth0 proto 196 metric 20 \n")?;
    is_of_user()?;
    for process in [&mut staticd, &mut zebra] {
        process.signal(Signal::TERM)?;
        process.wait(PATIENCE)?;
    }
    // As a service: zebra opens its sockets, and then sends by them from a child.
    let _zebra = frr.start_detached("zebra", "")?;
    let _staticd = frr.start_detached("staticd", "ip route 10.6.0.0/16 10.1.0.2\n")?;
    node.wait_for_ip("route", "10.6.0.0/16 via 10.1.0.2 dev eth0 proto 196 metric 20 \n")?;
    is_of_user()
}

fn restart() -> Outcome {
    let node = Node::new()?;
    let frr = Frr::new(&node, ROOT)?;
    let mut zebra = frr.start("zebra", "")?;
    let before = zebra.output();
    // zebra has blocked once when it answers, and the gateway has registered that a moment later.
    frr.show("zebra", "interface brief")?;
    thread::sleep(Duration::from_millis(500));
    node.kill_gateway();
    // Time in which it would fill its log if its sockets were ready all the time.
    thread::sleep(Duration::from_secs(2));
    node.start_gateway()?;
    // The event socket has its group memberships again. The time this takes is the library's.
    let mut number = 0;
    let heard = wait_until("zebra gets an address event", PATIENCE, || {
        number += 1;
        let address = format!("10.4.{number}.1/24");
        thread::sleep(Duration::from_millis(200));
        // A TUN device is a new interface, with a new number, unless `--state` keeps it.
        node.ip(&format!("addr add {address} dev eth0")).is_ok()
            && frr.show("zebra", "interface eth0").is_ok_and(|printed| printed.contains("10.4."))
    });
    heard.map_err(|failed| format!("{}:\n{}", failed.message().unwrap_or_default(), zebra.output()))?;
    let _staticd = frr.start("staticd", "ip route 10.5.0.0/16 10.1.0.2\n")?;
    node.wait_for_ip("route", "10.5.0.0/16 via 10.1.0.2 dev eth0 proto 196 metric 20 \n")?;
    assert!(zebra.is_running());
    let printed = zebra.output();
    assert!(printed.len() < before.len() + 4096, "{printed}");
    Ok(())
}
