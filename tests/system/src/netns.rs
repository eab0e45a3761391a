//! Network namespaces by name, as `ip netns` keeps them.

use std::fs;
use std::path::Path;
use std::process::{self, Command};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testbed::Namespace;

use crate::{Outcome, run, wait_until};

/// First part of every name; the process that made the namespace follows.
const PREFIX: &str = "fpt-";

const PATIENCE: Duration = Duration::from_secs(20);

/// A network namespace of its own, deleted when dropped.
#[derive(Debug)]
pub struct Netns(Namespace);

impl Netns {
    /// Makes a namespace whose loopback is up and whose IPv6 addresses can be used at once. Its name ends in `role`.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn new(role: &str) -> Outcome<Self> {
        static TIDY: Once = Once::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        TIDY.call_once(remove_leftovers);
        let name = format!("{PREFIX}{}-{}-{role}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let netns = Self(Namespace::create(name)?);
        netns.sh("for scope in all default; do
                echo 0 >/proc/sys/net/ipv6/conf/$scope/accept_dad
                echo 0 >/proc/sys/net/ipv6/conf/$scope/accept_ra
            done")?;
        Ok(netns)
    }

    /// Name of the namespace, as `ip netns` has it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The command `program`, to run in it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name()]).arg(program.as_ref());
        command
    }

    /// Runs a shell script in it, up to the first command that fails, and returns its standard output.
    ///
    /// # Errors
    /// The script fails; the message holds everything it printed.
    pub fn sh(&self, script: &str) -> Outcome<String> {
        run(self.command("sh").args(["-ec", script]))
    }

    /// Waits until an interface whose other end was brought up has a carrier. Until then it silently drops packets.
    ///
    /// # Errors
    /// It has none in time.
    pub fn wait_for_carrier(&self, interface: &str) -> Outcome {
        // The kernel has begun to send before it answers so.
        let is_up = || self.sh(&format!("ip link show dev {interface}")).is_ok_and(|seen| seen.contains("state UP"));
        wait_until(&format!("{interface} has a carrier"), PATIENCE, is_up)
    }

    /// Runs `action` on a thread in it. Sockets made there stay in it for good.
    ///
    /// # Panics
    /// `action` does, or the namespace cannot be entered.
    pub fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        self.0.enter(|| Ok(action())).unwrap_or_else(|failure| panic!("{failure}"))
    }
}

/// Way to join an interface of a gateway's namespace with an interface of another.
pub type Cable = fn((&Netns, &str), (&Netns, &str)) -> Outcome;

/// Joins two namespaces by a virtual cable of MTU 1500, both ends up.
///
/// # Errors
/// The error of `ip`.
pub fn veth((a, a_name): (&Netns, &str), (b, b_name): (&Netns, &str)) -> Outcome {
    a.sh(&format!("ip link add {a_name} type veth peer name {b_name} netns {}; ip link set {a_name} up", b.name()))?;
    b.sh(&format!("ip link set {b_name} up"))?;
    a.wait_for_carrier(a_name)
}

/// Same as [`veth`], with a macvlan device as the interface of the first namespace, on the cable's end `NAME.low`. Like a network card, and
/// unlike a veth, it passes up only frames to its own address and to groups that were joined on it.
///
/// # Errors
/// The error of `ip`.
pub fn macvlan((a, a_name): (&Netns, &str), b: (&Netns, &str)) -> Outcome {
    let lower = format!("{a_name}.low");
    veth((a, &lower), b)?;
    a.sh(&format!(
        "echo 1 >/proc/sys/net/ipv6/conf/{lower}/disable_ipv6
        ip link add link {lower} name {a_name} type macvlan mode bridge
        ip link set {a_name} up"
    ))?;
    a.wait_for_carrier(a_name)
}

/// Joins two namespaces that reach each other at these addresses by VXLAN of MTU 1350, with the addresses 172.31.0.1
/// and 172.31.0.2. VXLAN's datagrams have a checksum or not.
///
/// # Errors
/// The error of `ip`.
pub fn vxlan((a, a_addr): (&Netns, &str), (b, b_addr): (&Netns, &str), is_checked: bool) -> Outcome<[&'static str; 2]> {
    const ENDS: [&str; 2] = ["172.31.0.1", "172.31.0.2"];
    let check = if is_checked { "udpcsum" } else { "noudpcsum" };
    for (netns, own, peer, addr) in [(a, a_addr, b_addr, ENDS[0]), (b, b_addr, a_addr, ENDS[1])] {
        netns.sh(&format!(
            "ip link add vx0 mtu 1350 type vxlan id 5 local {own} remote {peer} dstport 4789 {check}
            ip addr add {addr}/24 dev vx0
            ip link set vx0 up"
        ))?;
    }
    Ok(ENDS)
}

/// Removes the namespaces, and the programs in them, of test runs that were killed.
fn remove_leftovers() {
    let list = run(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    for name in list.lines().filter_map(|line| line.split_whitespace().next()) {
        let Some(owner) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if fs::exists(format!("/proc/{owner}")).unwrap_or(true) {
            continue;
        }
        let inside = run(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
        for pid in inside.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = run(Command::new("ip").args(["netns", "del", name]));
    }
}
