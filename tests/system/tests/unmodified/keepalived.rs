//! keepalived.

use std::process::Command;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Capture, Need, Outcome, Process, run, trial, unpacked, wait_until};

use super::{Node, PATIENCE};

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::TCPDUMP,
    Need::Unpacked { path: "usr/sbin/keepalived", package: "keepalived" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libnetsnmp.so.40", package: "libsnmp40" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libpci.so.3", package: "libpci3" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libsensors.so.5", package: "libsensors5" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libwrap.so.0", package: "libwrap0" },
];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("unmodified/keepalived_acts_on_the_link_alone", NEEDS, address)]
}

/// A virtual router that finds no other, so becomes the master.
const CONFIG: &str = "
global_defs {
  vrrp_garp_master_delay 1
}
vrrp_instance one {
  state MASTER
  interface eth0
  virtual_router_id 51
  priority 200
  advert_int 1
  mcast_src_ip 10.1.0.1
  virtual_ipaddress { 10.1.0.99/32 dev eth0 }
  virtual_routes { 10.6.0.0/16 via 10.1.0.2 dev eth0 }
}
";

/// What a capture of an interface has seen so far.
fn seen(node: &Node, interface: &str) -> Outcome<String> {
    run(Command::new("tcpdump").args(["-nr"]).arg(node.scratch.file(&format!("{interface}.pcap"))))
}

fn address() -> Outcome {
    let node = Node::new()?;
    let before = node.host_state()?;
    let config = node.file("keepalived.conf", CONFIG)?;
    let mut command = node.exec(unpacked("usr/sbin/keepalived"));
    command.args(["--dont-fork", "--log-console", "--use-file"]).arg(config);
    for (option, name) in [("--pid", "ka.pid"), ("--vrrp_pid", "ka.vrrp"), ("--checkers_pid", "ka.checkers")] {
        command.arg(option).arg(node.scratch.file(name));
    }
    // It sends by sockets of the host: to the interface that is the link of the node, and to no other.
    let on_eth0 = Capture::start(&node.far, "eth0", "arp or ip proto 112", &node.scratch)?;
    let on_mgmt = Capture::start(&node.far, "mgmt", "arp or ip proto 112", &node.scratch)?;
    let mut keepalived = Process::spawn(&mut command, &node.scratch)?;
    let outcome = node
        .wait_for_ip("addr show dev eth0", "inet 10.1.0.99/32 scope global eth0\n")
        .and_then(|()| node.wait_for_ip("route", "10.6.0.0/16 via 10.1.0.2 dev eth0 proto keepalived \n"));
    outcome.map_err(|failed| format!("{}:\n{}", failed.message().unwrap_or_default(), keepalived.output()))?;
    let is_sent = || {
        let seen = seen(&node, "eth0").unwrap_or_default();
        let announced = seen.contains("who-has 10.1.0.99") && seen.contains("tell 10.1.0.99");
        announced && seen.contains("10.1.0.1 > 224.0.0.18: VRRPv2, Advertisement")
    };
    wait_until("it announces the address and itself by eth0", PATIENCE, is_sent)
        .map_err(|failed| format!("{}:\n{}", failed.message().unwrap_or_default(), keepalived.output()))?;
    on_eth0.finish()?;
    on_mgmt.finish()?;
    assert_eq!(seen(&node, "mgmt")?, "", "by mgmt");
    // It takes back what it has added. Its child ends with it.
    keepalived.signal(Signal::TERM)?;
    keepalived.wait(PATIENCE)?;
    wait_until("the address goes", PATIENCE, || node.ip("addr").is_ok_and(|said| !said.contains("10.1.0.99")))?;
    let left = node.ip("route")?;
    assert!(!left.contains("keepalived"), "{left}");
    assert_eq!(node.host_state()?, before, "the host is as it was");
    Ok(())
}
