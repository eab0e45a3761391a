//! Daemons of Debian under `fatpath exec`, unmodified, on a host whose interfaces have other numbers than a gateway
//! with as many links would give them by itself.
//!
//! The packages are unpacked below the target directory and never installed, since some of them start a service.

mod bird;
mod dhcp;
mod frr;
mod keepalived;
mod numbers;
mod routing;
mod streams;
mod wire;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Cable, Gateway, Netns, Outcome, Scratch, fatpath, run, unpacked, veth, wait_until};

/// Longest time that a daemon may take for one step.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host with an interface `mgmt`, number 2, that is not the gateway's, and `eth0`, which is. Both lead to `far`.
struct Node {
    gateway: RefCell<Option<Gateway>>,
    host: Netns,
    far: Netns,
    scratch: Scratch,
}

pub(crate) fn trials() -> Vec<Trial> {
    let trials = [
        frr::trials(),
        bird::trials(),
        routing::trials(),
        keepalived::trials(),
        numbers::trials(),
        streams::trials(),
        dhcp::trials(),
        wire::trials(),
    ];
    trials.into_iter().flatten().collect()
}

/// The gateway's links: one of each kind that needs no other resource of the host, and a VRF.
const LINKS: &str = r#"
[[link]]
name = "wan"
kind = "udp"
bind = "127.0.0.1:4500"

[[link]]
name = "eth0"
kind = "packet"
interface = "eth0"
addresses = ["10.1.0.1/24", "fd00:1::1/64"]

[[link]]
name = "tun0"
kind = "tun"
addresses = ["10.3.0.1/24"]

[[link]]
name = "red"
kind = "vrf"
table = 10
"#;

/// `LD_LIBRARY_PATH` for programs of unpacked packages.
fn libraries() -> OsString {
    let libraries = unpacked("usr/lib/x86_64-linux-gnu");
    std::env::join_paths([libraries.join("frr"), libraries]).unwrap_or_default()
}

impl Node {
    fn new() -> Outcome<Self> {
        Self::by(veth)
    }

    /// A node whose `eth0` is an interface of that kind.
    fn by(cable: Cable) -> Outcome<Self> {
        let (scratch, host, far) = (Scratch::new()?, Netns::new("host")?, Netns::new("far")?);
        veth((&host, "mgmt"), (&far, "mgmt"))?;
        cable((&host, "eth0"), (&far, "eth0"))?;
        host.sh("ip addr add 10.9.0.1/24 dev mgmt")?;
        far.sh(
            "ip addr add 10.9.0.2/24 dev mgmt; ip addr add 10.1.0.2/24 dev eth0; ip addr add fd00:1::2/64 dev eth0",
        )?;
        let accounts = "root:x:0:0::/:/bin/sh\nfrr:x:64001:64001::/:/bin/false\nsshd:x:64003:64003::/:/bin/false\n";
        fs::write(scratch.file("passwd"), accounts)?;
        fs::write(scratch.file("shadow"), "root:*:1::::::\n")?;
        // The last group is the one that Debian's FRR is built for.
        fs::write(scratch.file("group"), "root:x:0:\nfrr:x:64001:\nfrrvty:x:64002:frr,root\n")?;
        let node = Self { gateway: RefCell::default(), host, far, scratch };
        node.start_gateway()?;
        Ok(node)
    }

    fn start_gateway(&self) -> Outcome {
        self.start_gateway_with("")
    }

    /// Starts the gateway with its usual links and more configuration.
    fn start_gateway_with(&self, more: &str) -> Outcome {
        self.gateway.replace(Some(Gateway::start(&self.host, &self.scratch, "x", &format!("{LINKS}{more}"))?));
        Ok(())
    }

    /// Starts the gateway with its usual links, and with the state of those before it.
    fn start_gateway_with_state(&self) -> Outcome {
        let state = self.scratch.file("x.state");
        let mut command = self.host.command("sh");
        let script = format!("exec {} \"$@\" --state {}", fatpath().display(), state.display());
        command.args(["-c", &script, "sh"]);
        self.gateway.replace(Some(Gateway::start_under(command, &self.scratch, "x", LINKS)?));
        Ok(())
    }

    /// Ends the gateway by SIGKILL.
    fn kill_gateway(&self) {
        self.gateway.take();
    }

    /// `fatpath exec -- PROGRAM`, where libraries of unpacked packages are found.
    fn exec(&self, program: impl AsRef<OsStr>) -> Command {
        self.exec_with(&[], program)
    }

    /// The same with options of `fatpath exec`.
    fn exec_with(&self, options: &[&str], program: impl AsRef<OsStr>) -> Command {
        let mut command = self.with_accounts(self.unpacked("unshare"));
        command.arg(fatpath()).args(["exec", "--instance", "x"]).args(options).arg("--").arg(program);
        command
    }

    /// The command `program` at the far end, where libraries of unpacked packages are found.
    fn on_far(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.far.command("unshare");
        command.env("LD_LIBRARY_PATH", libraries());
        let mut command = self.with_accounts(command);
        command.arg(program);
        command
    }

    /// `unshare` in a mount namespace with a node's accounts, since this host may not have the accounts that a daemon
    /// needs.
    fn with_accounts(&self, mut unshare: Command) -> Command {
        let accounts = "for file in passwd group shadow; do mount --bind \"$0/$file\" /etc/$file; done; exec \"$@\"";
        unshare.args(["--mount", "sh", "-ec", accounts]).arg(self.scratch.path());
        unshare
    }

    /// The command `program` on the host, where libraries of unpacked packages are found.
    fn unpacked(&self, program: impl AsRef<std::path::Path>) -> Command {
        let mut command = self.host.command(program);
        command.env("LD_LIBRARY_PATH", libraries()).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    /// Output of `ip WORDS` about the gateway.
    fn ip(&self, words: &str) -> Outcome<String> {
        let mut command = Command::new(fatpath());
        command.args(["ip", "--instance", "x"]).args(words.split(' ')).env("FATPATH_RUNDIR", self.scratch.path());
        run(&mut command)
    }

    /// Waits until `ip WORDS` prints `text` of the gateway.
    fn wait_for_ip(&self, words: &str, text: &str) -> Outcome {
        let is_there = || self.ip(words).is_ok_and(|printed| printed.contains(text));
        wait_until(&format!("`ip {words}` has {text:?}"), PATIENCE, is_there)
            .map_err(|failed| format!("{}: {:?}", failed.message().unwrap_or_default(), self.ip(words)).into())
    }

    /// The file `name` with that text, which every account may read.
    fn file(&self, name: &str, text: &str) -> Outcome<PathBuf> {
        let path = self.scratch.file(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// The state of the host that netlink can change, without counters.
    fn host_state(&self) -> Outcome<String> {
        self.host.sh("ip link; ip addr; ip route show table all; ip -6 route show table all; ip rule; ip neigh")
    }
}
