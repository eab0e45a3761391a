//! Open vSwitch's userspace datapath, with the guests' TAP devices as its ports.
//!
//! Set up as documented, with its defaults; with or without `userspace-tso-enable`, which enables large segments.

use std::time::Duration;

use testbed::{Daemon, Failure, Scratch, command, tool};

use super::machine::program;
use super::meter::Usage;
use super::site::Site;
use super::topology::Side;

/// Limit of the time until a daemon accepts commands.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Seconds that `ovs-vsctl` waits until the switch has applied its changes.
const APPLIED_LIMIT: &str = "--timeout=10";

/// A running switch, ended on drop: the daemon first, then its database.
#[derive(Debug)]
pub(super) struct OpenVswitch {
    switch: Daemon,
    _database: Daemon,
}

/// Fails with the first missing program.
pub(super) fn check() -> Result<(), Failure> {
    let how = "apt-get install openvswitch-switch";
    ["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-vswitchd"]
        .into_iter()
        .try_for_each(|name| program(name, "--version", name, how))
}

impl OpenVswitch {
    /// Starts the switch in the sender's namespace, with a bridge of these TAP devices, which the switch creates.
    pub(super) fn start(site: &Site, taps: [&str; 2], tso: bool) -> Result<Self, Failure> {
        let Site { topology, scratch, stop, .. } = site;
        let file = |name: &str| scratch.path().join(name).display().to_string();
        let (database, socket) = (file("ovs.db"), file("ovsdb.sock"));
        // Files of an earlier switch.
        for left in [&database, &socket].into_iter().filter(|path| std::fs::exists(path).unwrap_or(false)) {
            std::fs::remove_file(left).map_err(|err| Failure::step(left, err))?;
        }
        tool("ovsdb-tool", &["create", &database], stop)?;
        let inside = topology.host(Side::A);
        let run = |name: &str, args: &[&str]| {
            let mut command = command(name);
            command.args(args).args(["--unixctl", &file(&format!("{name}.ctl")), "-vconsole:warn"]);
            command.env("OVS_RUNDIR", scratch.path()).env("OVS_LOGDIR", scratch.path());
            command
        };
        let start = |scratch: &Scratch, name: &str, args: &[&str]| {
            Daemon::start(name.to_owned(), name, scratch, inside, || run(name, args))
        };
        let remote = format!("--remote=punix:{socket}");
        let mut server = start(scratch, "ovsdb-server", &[&database, &remote])?;
        stop.wait("ovsdb-server to listen", START_LIMIT, || {
            server.check()?;
            Ok(std::fs::exists(&socket).unwrap_or(false).then_some(()))
        })?;
        let target = format!("unix:{socket}");
        let at = format!("--db={target}");
        let enable = format!("other_config:userspace-tso-enable={tso}");
        tool("ovs-vsctl", &[&at, "--no-wait", "--", "init", "--", "set", "Open_vSwitch", ".", &enable], stop)?;
        let mut switch = start(scratch, "ovs-vswitchd", &[&target, "--disable-system"])?;
        let mut words = vec![&*at, APPLIED_LIMIT];
        words.extend(["--", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"]);
        for tap in taps {
            words.extend(["--", "add-port", "br0", tap, "--", "set", "interface", tap, "type=tap"]);
        }
        tool("ovs-vsctl", &words, stop).map_err(|failure| switch.explain(failure))?;
        Ok(Self { switch, _database: server })
    }

    /// Usage of the daemon so far.
    pub(super) fn usage(&self) -> Result<Usage, Failure> {
        Usage::of(self.switch.pid())
    }

    /// Adds the daemon's log to a failure.
    pub(super) fn explain(&mut self, failure: Failure) -> Failure {
        self.switch.explain(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_reported_with_their_packages() {
        match check() {
            Ok(()) => {}
            Err(Failure::Missing { how, .. }) => assert!(how.contains("openvswitch-switch"), "{how}"),
            Err(other) => panic!("{other}"),
        }
    }
}
