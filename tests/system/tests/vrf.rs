//! Two VRFs on one router, with equal addresses, between hosts that are kernels: what `examples/vrf.toml` says.

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, trial};

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
    let _gateway = Gateway::start(&router, &scratch, "router", EXAMPLE)?;
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
    Ok(())
}
