//! keepalived.

use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Cable, Capture, Need, Outcome, Process, macvlan, run, trial, unpacked, veth, wait_until};

use super::{Node, PATIENCE};

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::PING,
    Need::TCPDUMP,
    Need::Unpacked { path: "usr/sbin/keepalived", package: "keepalived" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libnetsnmp.so.40", package: "libsnmp40" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libpci.so.3", package: "libpci3" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libsensors.so.5", package: "libsensors5" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libwrap.so.0", package: "libwrap0" },
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/keepalived_acts_on_the_link_alone", NEEDS, address),
        trial("unmodified/keepalived_keeps_its_address_over_a_kill_of_the_gateway", NEEDS, killed_gateway),
        trial("unmodified/keepalived_takes_over_from_a_plain_neighbour", NEEDS, || failover(veth)),
        trial("unmodified/keepalived_takes_over_on_macvlan", NEEDS, || failover(macvlan)),
    ]
}

/// A virtual router without a peer, so it becomes the master.
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

/// A virtual router at an end of the wire, of that priority.
fn router(own: &str, priority: u8) -> String {
    format!(
        "
global_defs {{
  vrrp_garp_master_delay 1
}}
vrrp_instance one {{
  state BACKUP
  interface eth0
  virtual_router_id 51
  priority {priority}
  advert_int 1
  mcast_src_ip {own}
  virtual_ipaddress {{ 10.1.0.99/24 dev eth0 }}
}}
"
    )
}

/// Adds keepalived's options for files of its own, whose names begin with `end`.
fn with_files(mut command: Command, node: &Node, end: &str, config: &str) -> Outcome<Command> {
    let config = node.file(&format!("{end}.conf"), config)?;
    command.args(["--dont-fork", "--log-console", "--use-file"]).arg(config);
    for (option, name) in [("--pid", "pid"), ("--vrrp_pid", "vrrp"), ("--checkers_pid", "checkers")] {
        command.arg(option).arg(node.scratch.file(&format!("{end}.{name}")));
    }
    Ok(command)
}

/// Packets that a capture of an interface has so far.
fn seen(node: &Node, interface: &str) -> Outcome<String> {
    run(Command::new("tcpdump").args(["-nr"]).arg(node.scratch.file(&format!("{interface}.pcap"))))
}

fn address() -> Outcome {
    let node = Node::new()?;
    let before = node.host_state()?;
    let mut command = with_files(node.exec(unpacked("usr/sbin/keepalived")), &node, "ka", CONFIG)?;
    // keepalived sends by sockets of the host, only by the interface of the node's link.
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
    // It removes the addresses that it has added. The child process ends with its parent.
    keepalived.signal(Signal::TERM)?;
    keepalived.wait(PATIENCE)?;
    wait_until("the address goes", PATIENCE, || node.ip("addr").is_ok_and(|printed| !printed.contains("10.1.0.99")))?;
    let left = node.ip("route")?;
    assert!(!left.contains("keepalived"), "{left}");
    assert_eq!(node.host_state()?, before, "the host is as it was");
    Ok(())
}

/// keepalived is master all the time, and does not look whether its address is there.
fn killed_gateway() -> Outcome {
    let node = Node::new()?;
    node.kill_gateway();
    node.start_gateway_with_state()?;
    let mut command = with_files(node.exec(unpacked("usr/sbin/keepalived")), &node, "ka", CONFIG)?;
    let mut keepalived = Process::spawn(&mut command, &node.scratch)?;
    node.wait_for_ip("addr show dev eth0", "inet 10.1.0.99/32 scope global eth0\n")?;
    node.wait_for_ip("route", "10.6.0.0/16 via 10.1.0.2 dev eth0 proto keepalived \n")?;
    for _ in 0..2 {
        node.kill_gateway();
        node.start_gateway_with_state()?;
        let (addresses, routes) = (node.ip("addr show dev eth0")?, node.ip("route")?);
        assert!(addresses.contains("inet 10.1.0.99/32 scope global eth0\n"), "{addresses}");
        assert!(routes.contains("10.6.0.0/16 via 10.1.0.2 dev eth0 proto keepalived \n"), "{routes}");
        let pings = || node.far.sh("ping -q -c 1 -W 1 10.1.0.99").is_ok();
        wait_until("the address answers", PATIENCE, pings)?;
    }
    assert!(keepalived.is_running(), "{}", keepalived.output());
    // It begins as a backup, and is master from then on.
    let log = keepalived.output();
    let states: Vec<&str> =
        log.lines().filter_map(|line| line.split_once("Entering ")).map(|(_, state)| state).collect();
    assert_eq!(states, ["BACKUP STATE (init)", "MASTER STATE"], "{log}");
    Ok(())
}

/// The neighbour has the address until it is killed; then the gateway has it, and announces it to the neighbour's
/// kernel.
fn failover(cable: Cable) -> Outcome {
    let node = Node::by(cable)?;
    let program = unpacked("usr/sbin/keepalived");
    let neighbour = router("10.1.0.2", 200);
    let mut neighbour =
        Process::spawn(&mut with_files(node.on_far(&program), &node, "far", &neighbour)?, &node.scratch)?;
    wait_until("the neighbour is master", PATIENCE, || {
        node.far.sh("ip addr show dev eth0").is_ok_and(|printed| printed.contains("10.1.0.99/24"))
    })?;
    let own = router("10.1.0.1", 100);
    let mut keepalived = Process::spawn(&mut with_files(node.exec(&program), &node, "ka", &own)?, &node.scratch)?;
    let explain = |failed: libtest_mimic::Failed| -> libtest_mimic::Failed {
        format!("{}:\n{}", failed.message().unwrap_or_default(), keepalived.output()).into()
    };
    wait_until("it is a backup", PATIENCE, || keepalived.output().contains("Entering BACKUP STATE"))
        .map_err(explain)?;
    thread::sleep(Duration::from_secs(4));
    assert!(
        !node.ip("addr show dev eth0")?.contains("10.1.0.99"),
        "it receives the neighbour's advertisements: {}",
        keepalived.output()
    );
    // Both at once: the parent would restart the child, and the child would announce its end.
    let child = std::fs::read_to_string(node.scratch.file("far.vrrp"))?;
    run(Command::new("kill").args(["-KILL", child.trim(), &neighbour.id().to_string()]))?;
    neighbour.wait(PATIENCE)?;
    node.far.sh(
        "ip addr del 10.1.0.99/24 dev eth0; ip neigh replace 10.1.0.99 lladdr 02:00:00:00:00:99 dev eth0 nud stale",
    )?;
    node.wait_for_ip("addr show dev eth0", "inet 10.1.0.99/24 scope global secondary eth0\n").map_err(explain)?;
    let link = node.ip("-o link show eth0")?;
    let ours = link.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    wait_until("the neighbour's kernel has the announcement", PATIENCE, || {
        node.far.sh("ip neigh show 10.1.0.99").is_ok_and(|printed| printed.contains(ours))
    })
    .map_err(explain)?;
    node.far.sh("ping -n -q -c 1 -W 5 10.1.0.99")?;
    // The child process ends with its parent.
    keepalived.signal(Signal::TERM)?;
    keepalived.wait(PATIENCE).map(drop)
}
