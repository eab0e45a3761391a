//! Programs that speak frames: arping, and tshark on each kind of link.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Need, Outcome, Process, run, trial, unpacked, veth, wait_until};

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
    assert!(
        said.contains(&format!("Unicast reply from 10.1.0.2 [{mac}]")) && said.contains("Received 3 res"),
        "{said}"
    );
    // No host has it: duplicate address detection as scripts do it.
    assert!(arping("-D -c 2 -w 3 -I eth0 10.1.0.77")?.contains("Received 0 res"));
    assert!(arping("-D -c 2 -w 3 -I eth0 10.1.0.2").is_err(), "the far end has it");
    // An announcement changes the far end's neighbour entry.
    let ours = node.ip("-o link show eth0")?;
    let ours = ours.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned();
    node.far.sh("ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud stale")?;
    arping("-U -c 1 -w 3 -I eth0 -s 10.1.0.1 10.1.0.1").or_else(|_| Outcome::Ok(String::new()))?;
    wait_until("the far end knows the gateway's address", PATIENCE, || {
        node.far.sh("ip neigh show 10.1.0.1").is_ok_and(|said| said.contains(&ours))
    })?;
    Ok(())
}

fn tshark() -> Outcome {
    let node = Node::new()?;
    node.kill_gateway();
    veth((&node.host, "x0"), (&node.far, "x0"))?;
    node.start_gateway_with(
        "[[link]]\nname = \"x0\"\nkind = \"xdp\"\ninterface = \"x0\"\nmode = \"generic\"\naddresses = [\"10.4.0.1/24\"]\n",
    )?;
    node.host.sh("ip addr add 10.3.0.2/24 dev tun0; ip link set tun0 up")?;
    node.far.sh("ip addr add 10.4.0.2/24 dev x0")?;
    // The link, where it is pinged from, and the addresses of both.
    let cases = [
        ("eth0", &node.far, "10.1.0.2", "10.1.0.1"),
        ("x0", &node.far, "10.4.0.2", "10.4.0.1"),
        ("tun0", &node.host, "10.3.0.2", "10.3.0.1"),
    ];
    for (link, netns, from, to) in cases {
        let mut command = node.exec("tshark");
        command.args(["-n", "-l", "-i", link, "-Y", "icmp", "-T", "fields", "-e", "ip.src", "-e", "icmp.type"]);
        let mut tshark = Process::spawn(&mut command, &node.scratch)?;
        let want = [format!("{from}\t8"), format!("{to}\t0")];
        // The gateway hears of the capture a moment after it has begun.
        wait_until(&format!("tshark sees both packets on {link}"), PATIENCE, || {
            thread::sleep(Duration::from_millis(200));
            let pinged = netns.sh(&format!("ping -n -q -c 1 -W 5 {to}"));
            let said = tshark.output();
            pinged.is_ok() && want.iter().all(|want| said.lines().any(|line| line == want))
        })
        .map_err(|failed| format!("{}:\n{}", failed.message().unwrap_or_default(), tshark.output()))?;
        tshark.signal(Signal::INT)?;
        tshark.wait(PATIENCE)?;
    }
    Ok(())
}
