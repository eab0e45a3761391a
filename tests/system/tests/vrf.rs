//! Two VRFs on one router, with equal addresses, between hosts that are kernels: what `examples/vrf.toml` says.

use std::fs;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, trial, wait_until};

const EXAMPLE: &str = include_str!("../../../examples/vrf.toml");

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("vrf/two_with_equal_addresses_stay_apart", &[Need::Namespaces, Need::PING], apart)]
}

fn apart() -> Outcome {
    let (scratch, router) = (Scratch::new()?, Netns::new("router")?);
    let roles = ["red-lan", "red-wan", "blue-lan", "blue-wan"];
    let mut hosts = Vec::new();
    for (at, role) in roles.into_iter().enumerate() {
        let host = Netns::new(role)?;
        let eth = format!("eth{}", at + 1);
        router.sh(&format!("ip link add {eth} type veth peer name eth0 netns {}", host.name()))?;
        router.sh(&format!("ip link set {eth} addrgenmode none up"))?;
        host.sh("ip link set lo up; ip link set eth0 up")?;
        if role.ends_with("lan") {
            host.sh("ip addr add 10.0.0.2/24 dev eth0; ip route add default via 10.0.0.1")?;
            host.sh("ip addr add fd00::2/64 dev eth0 nodad")?;
        } else {
            host.sh("ip addr add 192.0.2.254/24 dev eth0; ip route add 10.0.0.0/24 via 192.0.2.1")?;
        }
        hosts.push(host);
    }
    let [red_lan, red_wan, blue_lan, blue_wan] = &hosts[..] else { return Err("four hosts".into()) };
    // What red's provider has, and blue's does not.
    red_wan.sh("ip addr add 203.0.113.9/32 dev lo")?;
    let gateway = Gateway::start(&router, &scratch, "router", EXAMPLE)?;
    for lan in [red_lan, blue_lan] {
        lan.sh("ping -n -q -c 1 -W 5 192.0.2.254")?;
        lan.sh("ping -n -q -c 1 -W 5 10.0.0.1; ping -n -q -c 1 -W 5 fd00::1")?;
        lan.sh("ping -n -q -c 3 -i 0.2 -W 5 -s 4000 10.0.0.1; ping -n -q -c 3 -i 0.2 -W 5 -s 4000 fd00::1")?;
    }
    red_lan.sh("ping -n -q -c 1 -W 5 203.0.113.9")?;
    assert!(blue_lan.sh("ping -n -q -c 2 -i 0.2 -W 1 203.0.113.9").is_err(), "blue reaches what red has");
    // Errors come back to who sent, from the router's address there.
    let hops = red_lan.sh("ping -n -c 1 -W 5 -t 1 203.0.113.9 || true")?;
    assert!(hops.contains("From 10.0.0.1 icmp_seq=1 Time to live exceeded"), "{hops}");
    let none = blue_lan.sh("ping -n -c 1 -W 5 -6 2001:db8::9 || true")?;
    assert!(!none.contains("1 received"), "{none}");
    // Each knows its own neighbours alone.
    assert!(blue_wan.sh("ip neigh show")?.contains("192.0.2.1"));
    looked_at(&gateway, red_lan, &scratch)
}

/// The devices of the VRFs count, are captured, and are in the traces of their packets.
fn looked_at(gateway: &Gateway, red_lan: &Netns, scratch: &Scratch) -> Outcome {
    const PATIENCE: Duration = Duration::from_secs(20);
    let links = gateway.show("links")?;
    let (_, red) = links.split_once(": red:").ok_or_else(|| format!("no red: {links}"))?;
    let counted = red.lines().skip_while(|line| !line.trim_start().starts_with("RX:")).nth(1).unwrap_or_default();
    let numbers: Vec<u64> = counted.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() >= 2 && numbers[..2].iter().all(|&n| n > 0), "{links}");
    let of_gateway = |words: &[&str]| {
        let mut command = Command::new(fatpath());
        command.args(words).args(["--instance", "router"]).env("FATPATH_RUNDIR", gateway.socket().parent().unwrap());
        command
    };
    let ping = || red_lan.sh("ping -n -q -c 1 -W 5 203.0.113.9").is_ok();
    let filter = "icmp and src host 10.0.0.2 and dst net 203.0.113.0/24";
    let mut trace = Process::spawn(&mut of_gateway(&["trace", "--filter", filter, "-c", "1"]), scratch)?;
    wait_until("a ping is traced", PATIENCE, || ping() && !trace.is_running())?;
    let text = trace.output();
    let want = ["packet 1: 10.0.0.2 > 203.0.113.9", "hook pre-routing red-lan", "hook pre-routing red ", "table 10 "];
    let more = ["vrf red", "forward red-wan via 192.0.2.254", "queued red-wan", "csum none"];
    assert!(want.iter().chain(&more).all(|words| text.contains(words)), "{text}");
    for (words, told) in [
        (["trace", "--filter", "no such"], "\"no\" is no term"),
        (["trace", "--filter", "dev eth9"], "no link is named eth9"),
    ] {
        let refused = of_gateway(&words).output()?;
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains(told), "{refused:?}");
    }
    let file = scratch.file("red.pcapng");
    let mut capture = Process::spawn(of_gateway(&["capture", "red"]).arg("-w").arg(&file), scratch)?;
    let len = || fs::metadata(&file).map_or(0, |file| file.len());
    // A header comes first, and a ping is longer than nothing else.
    wait_until("pings are captured", PATIENCE, || ping() && len() > 1000)?;
    capture.signal(Signal::INT)?;
    assert!(capture.wait(PATIENCE)?.success(), "{}", capture.output());
    let address = [203, 0, 113, 9];
    let bytes = fs::read(&file)?;
    assert!(bytes.windows(4).any(|window| window == address), "no ping in {} bytes", bytes.len());
    Ok(())
}
