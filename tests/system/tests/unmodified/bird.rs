//! BIRD.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Need, Outcome, Process, run, trial, unpacked, wait_until};

use super::{Node, PATIENCE};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::Unpacked { path: "usr/sbin/bird", package: "bird2" }];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/bird_learns_and_installs_routes", NEEDS, routes),
        trial("unmodified/bird_goes_on_over_a_restart", NEEDS, restart),
    ]
}

/// A configuration in which BIRD looks at the kernel only on netlink notifications.
const SELDOM: &str = "
log stderr all;
router id 10.1.0.1;
protocol device { scan time 3600; }
protocol kernel { ipv4 { export where source = RTS_STATIC; }; learn; scan time 3600; }
protocol static { ipv4; route 10.5.0.0/16 via 10.1.0.2; }
";

/// A configuration with each protocol that meets the kernel, and static routes to be installed.
const CONFIG: &str = "
log stderr all;
router id 10.1.0.1;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { export where source = RTS_STATIC; }; learn; scan time 1; }
protocol kernel { ipv6 { export where source = RTS_STATIC; }; learn; scan time 1; }
protocol static { ipv4; route 10.5.0.0/16 via 10.1.0.2; route 10.6.0.0/16 blackhole; }
protocol static { ipv6; route fd00:5::/32 via fd00:1::2; }
";

/// A running BIRD, killed when dropped.
pub(super) struct Bird<'a> {
    node: &'a Node,
    process: Process,
    socket: PathBuf,
}

impl<'a> Bird<'a> {
    pub(super) fn start(node: &'a Node, config: &str) -> Outcome<Self> {
        let (config, socket) = (node.file("bird.conf", config)?, node.scratch.file("bird.ctl"));
        let mut command = node.exec(unpacked("usr/sbin/bird"));
        command.arg("-f").arg("-c").arg(config).arg("-s").arg(&socket).arg("-P").arg(node.scratch.file("bird.pid"));
        let mut process = Process::spawn(&mut command, &node.scratch)?;
        wait_until("bird listens", PATIENCE, || UnixStream::connect(&socket).is_ok() || !process.is_running())?;
        if !process.is_running() {
            return Err(format!("bird has ended:\n{}", process.output()).into());
        }
        Ok(Self { node, process, socket })
    }

    /// Waits until `birdc show WHAT` has each of `wanted`.
    pub(super) fn wait_for(&self, what: &str, wanted: &[&str]) -> Outcome {
        let mut last = String::new();
        let is_there = || {
            let client = unpacked("usr/sbin/birdcl");
            last = run(self.node.unpacked(client).arg("-s").arg(&self.socket).args(["show"]).args(what.split(' ')))
                .unwrap_or_else(|failed| failed.message().unwrap_or_default().to_owned());
            wanted.iter().all(|wanted| last.contains(wanted))
        };
        let outcome = wait_until(&format!("`show {what}` has {wanted:?}"), PATIENCE, is_there);
        outcome.map_err(|failed| {
            format!("{}:\n{last}\n{}", failed.message().unwrap_or_default(), self.process.output()).into()
        })
    }
}

fn routes() -> Outcome {
    let node = Node::new()?;
    let before = node.host_state()?;
    node.ip("route add 10.7.0.0/16 via 10.1.0.2")?;
    let mut bird = Bird::start(&node, CONFIG)?;
    bird.wait_for(
        "interfaces summary",
        &["eth0       up     10.1.0.1/24        fd00:1::1/64", "tun0       up     10.3.0.1/24"],
    )?;
    // Networks of the links by the protocol direct, and other routes by the protocol kernel.
    bird.wait_for("route", &["[direct1", "10.3.0.0/24", "fd00:1::/64", "10.7.0.0/16          unicast [kernel1"])?;
    let own = "10.5.0.0/16 via 10.1.0.2 dev eth0 proto bird metric 32 \n";
    node.wait_for_ip("route", own)?;
    node.wait_for_ip("route", "blackhole 10.6.0.0/16 proto bird metric 32 \n")?;
    node.wait_for_ip("-6 route", "fd00:5::/32 via fd00:1::2 dev eth0 proto bird metric 32 pref medium\n")?;
    // It hears of routes that come, and puts back one that goes.
    node.ip("route add 10.8.0.0/16 via 10.1.0.2")?;
    bird.wait_for("route", &["10.8.0.0/16          unicast [kernel1"])?;
    node.ip("route del 10.5.0.0/16")?;
    node.wait_for_ip("route", own)?;
    // It hears of addresses, too.
    node.ip("addr add 10.4.0.1/24 dev tun0")?;
    bird.wait_for("route", &["10.4.0.0/24          unicast [direct1"])?;
    bird.process.signal(Signal::TERM)?;
    bird.process.wait(PATIENCE)?;
    let left = node.ip("route")?;
    assert!(!left.contains("proto bird"), "{left}");
    assert_eq!(node.host_state()?, before, "the host is as it was");
    Ok(())
}

fn restart() -> Outcome {
    let node = Node::new()?;
    let mut bird = Bird::start(&node, SELDOM)?;
    let own = "10.5.0.0/16 via 10.1.0.2 dev eth0 proto bird metric 32 \n";
    node.wait_for_ip("route", own)?;
    let before = bird.process.output();
    node.kill_gateway();
    // Time in which it would fill its log if its sockets were ready all the time.
    thread::sleep(Duration::from_secs(2));
    let after = bird.process.output();
    assert_eq!(after, before, "it has nothing to say while there is no gateway");
    node.start_gateway()?;
    // The loss is reported to it, and its event socket has its group memberships again.
    wait_until("bird is told", PATIENCE, || bird.process.output().contains("will resync on next scan"))?;
    node.ip("route add 10.8.0.0/16 via 10.1.0.2")?;
    bird.wait_for("route", &["10.8.0.0/16          unicast [kernel1"])?;
    // Requests on its other sockets still work.
    run(node.unpacked(unpacked("usr/sbin/birdcl")).arg("-s").arg(&bird.socket).args(["restart", "kernel1"]))?;
    node.wait_for_ip("route", own)?;
    assert!(bird.process.is_running());
    let said = bird.process.output();
    assert!(said.len() < before.len() + 4096, "{said}");
    Ok(())
}
