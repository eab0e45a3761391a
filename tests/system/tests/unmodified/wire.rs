//! Programs that speak frames: arping, and tshark on each kind of link.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Need, Outcome, Process, run, trial, unpacked, wait_until};

use super::{Node, PATIENCE};

const ARPING: &[Need] =
    &[Need::Namespaces, Need::Tun, Need::Unpacked { path: "usr/bin/arping", package: "iputils-arping" }];
const TSHARK: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::TSHARK];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/arping_asks_and_announces_on_the_wire", ARPING, arping),
        trial("unmodified/tshark_sees_pings_on_each_kind_of_link", TSHARK, tshark),
    ]
}

fn arping() -> Outcome {
    let node = Node::new()?;
    let arping = |words: &str| {
        let mut command = node.exec(unpacked("usr/bin/arping"));
        run(command.args(words.split(' ')))
    };
    let mac = node.far.sh("cat /sys/class/net/eth0/address")?.trim().to_uppercase();
    let said = arping("-c 3 -w 10 -I eth0 -s 10.1.0.1 10.1.0.2")?;
    assert!(said.contains(&format!("Unicast reply from 10.1.0.2 [{mac}]")) && said.contains("Received 3 res"), "{said}");
    // Nobody has it: duplicate address detection as scripts do it.
    assert!(arping("-D -c 2 -w 3 -I eth0 10.1.0.77")?.contains("Received 0 res"));
    assert!(arping("-D -c 2 -w 3 -I eth0 10.1.0.2").is_err(), "the far end has it");
    // An announcement changes what the far end knows.
    let ours = node.ip("-o link show eth0")?;
    let ours = ours.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned();
    node.far.sh("ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud stale")?;
    arping("-U -c 1 -w 3 -I eth0 -s 10.1.0.1 10.1.0.1").or_else(|_| Outcome::Ok(String::new()))?;
    wait_until("the far end knows the gateway's address", PATIENCE, || {
        node.far.sh("ip neigh show 10.1.0.1").is_ok_and(|said| said.contains(&ours))
    })?;
    Ok(())
}

/// A capture of a link, of what was pinged from where.
fn tshark() -> Outcome {
    let node = Node::new()?;
    node.host.sh("ip addr add 10.3.0.2/24 dev tun0; ip link set tun0 up")?;
    node.ip("link set red up")?;
    let ping = "ping -n -q -c 1 -W 5";
    // The device, how to have an echo request and reply pass there, and what is in it.
    let cases = [
        ("eth0", "far", format!("{ping} 10.1.0.1"), "10.1.0.2"),
        ("tun0", "host", format!("{ping} 10.3.0.1"), "10.3.0.2"),
    ];
    for (link, from, script, source) in cases {
        let mut command = node.exec("tshark");
        command.args(["-n", "-l", "-i", link, "-Y", "icmp", "-T", "fields", "-e", "ip.src", "-e", "icmp.type"]);
        let mut tshark = Process::spawn(&mut command, &node.scratch)?;
        let netns = if from == "far" { &node.far } else { &node.host };
        let want = [format!("{source}\t8"), format!("{}\t0", if link == "eth0" { "10.1.0.1" } else { "10.3.0.1" })];
        // The gateway hears of the capture a moment after it has begun.
        wait_until(&format!("tshark sees both packets on {link}"), PATIENCE, || {
            thread::sleep(Duration::from_millis(200));
            let pinged = netns.sh(&script);
            let said = tshark.output();
            pinged.is_ok() && want.iter().all(|want| said.lines().any(|line| line == want))
        })
        .map_err(|failed| format!("{}:\n{}", failed.message().unwrap_or_default(), tshark.output()))?;
        tshark.signal(Signal::INT)?;
        tshark.wait(PATIENCE)?;
    }
    Ok(())
}
