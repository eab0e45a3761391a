//! Guests of a bridge with kernels of their own, on TAP devices with virtio-net headers: one whose frames are untagged,
//! on devices of the bridge; one whose frames are tagged, on a device of its own; and hosts behind the uplink and the
//! bridge device.

use std::time::Duration;

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, trial, veth, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::UML, Need::MODPROBE, Need::PING, Need::PYTHON];
const SCRIPT: &str = include_str!("bridge_guest.py");

/// `vm2` is where the guest of `vm0` moves to.
const NODE: &str = r#"
[[link]]
name = "br0"
kind = "bridge"
vlan-filtering = true
default-pvid = 10
addresses = ["10.9.0.254/24", "fd09::fe/64"]

[[link]]
name = "vm0"
kind = "tap"
master = "br0"

[[link]]
name = "vm2"
kind = "tap"
master = "br0"

[[link]]
name = "vm1"
kind = "packet"
interface = "vm1"
master = "br0"
port = { pvid = 0, tagged = [10] }

[[link]]
name = "up0"
kind = "packet"
interface = "up0"
master = "br0"
"#;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fatpath/guests_with_own_kernels_talk_across_a_bridge", NEEDS, talk)]
}

fn talk() -> Outcome {
    let (scratch, node, far) = (Scratch::new()?, Netns::new("node")?, Netns::new("far")?);
    // The host's stack receives the guests' packets, too.
    node.sh("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")?;
    veth((&node, "up0"), (&far, "up0"))?;
    far.sh("ip addr add 10.9.0.9/24 dev up0; ip addr add fd09::9/64 dev up0 nodad; ip link set up0 up")?;
    far.wait_for_carrier("up0")?;
    let mut tagged = Uml::boot(&node, &["vm1"])?;
    // Every frame of this guest is tagged.
    tagged.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
    let gateway = Gateway::start(&node, &scratch, "node", NODE)?;
    let mut plain = Uml::boot(&node, &["vm0", "vm2"])?;
    plain.sh("ip link set eth1 down; ip link set eth1 address $(cat /sys/class/net/eth0/address)
        ip addr add 10.9.0.1/24 dev eth0; ip addr add fd09::1/64 dev eth0 nodad")?;
    tagged.sh("/run/modprobe 8021q; ip link add link eth0 name eth0.10 type vlan id 10; ip link set eth0.10 up
        ip addr add 10.9.0.2/24 dev eth0.10; ip addr add fd09::2/64 dev eth0.10 nodad")?;
    let script = scratch.file("bridge_guest.py");
    std::fs::write(&script, SCRIPT)?;
    let script = script.display();
    for (guest, own) in [(&mut plain, 1), (&mut tagged, 2)] {
        guest.put("bridge_guest.py", SCRIPT.as_bytes())?;
        guest.sh(&format!("python3 bridge_guest.py serve 10.9.0.{own} fd09::{own} >serve.log 2>&1 &"))?;
    }
    let mut serve = far.command("python3");
    let _server = Process::spawn(serve.args([&script.to_string(), "serve", "10.9.0.9", "fd09::9"]), &scratch)?;
    let is_served = |addr: &str| far.sh(&format!("python3 {script} ask {addr} 1")).is_ok();
    for addr in ["10.9.0.1", "10.9.0.2", "10.9.0.9"] {
        wait_until(&format!("a server at {addr}"), Duration::from_secs(30), || is_served(addr))?;
    }
    let bridge_device = "ping -c 2 -i 0.2 -W 2 10.9.0.254 && ping -c 2 -i 0.2 -W 2 fd09::fe";
    let ask = |peer: u8| {
        let addrs = [format!("10.9.0.{peer}"), format!("fd09::{peer}")];
        let each = addrs.map(|addr| format!("ping -c 3 -i 0.2 -W 2 {addr}; python3 SCRIPT ask {addr} {}\n", 4 << 20));
        format!("set -e; {}", each.concat())
    };
    plain.sh(&format!("{}{bridge_device}", ask(2).replace("SCRIPT", "bridge_guest.py")))?;
    plain.sh(&ask(9).replace("SCRIPT", "bridge_guest.py"))?;
    tagged.sh(&format!("{}{bridge_device}", ask(9).replace("SCRIPT", "bridge_guest.py")))?;
    far.sh(&ask(1).replace("SCRIPT", &script.to_string()))?;
    // Counts one TCP stream over IPv4: datagrams, and this guest's streams over IPv6, which have no large send, are of
    // smaller frames.
    let sent = || {
        let stats = gateway.link("vm0")?["stats"].clone();
        let counted = |name: &str| stats[name].as_u64().ok_or_else(|| format!("no {name} in {stats}"));
        Ok::<_, libtest_mimic::Failed>((counted("tx_bytes")?, counted("tx_packets")?))
    };
    let before = sent()?;
    far.sh(&format!("python3 {script} stream 10.9.0.1 {}", 16 << 20))?;
    let after = sent()?;
    let size = (after.0 - before.0) / (after.1 - before.1).max(1);
    println!("{size} bytes a frame to the guest");
    assert!(size > 2 * 1500, "{size} bytes a frame to the guest\n{}", gateway.show("links")?);

    // The guest moves to another port while it sends.
    let port_of = |mac: &str| {
        let shown = gateway.show("fdb")?;
        let found = shown.lines().find(|line| line.starts_with(mac)).map(ToOwned::to_owned);
        Ok::<_, libtest_mimic::Failed>(found.unwrap_or_else(|| format!("no {mac}: {shown}")))
    };
    let mac = plain.sh("cat /sys/class/net/eth0/address")?.trim().to_owned();
    assert!(port_of(&mac)?.contains("vm0"), "{}", port_of(&mac)?);
    let moved = plain.sh("python3 bridge_guest.py keep 10.9.0.2 6 >keep.log 2>&1 & keep=$!
        for try in $(seq 200); do grep -q begun keep.log && break; sleep 0.1; done
        sleep 1
        ip link set eth0 down; ip addr flush dev eth0
        ip addr add 10.9.0.1/24 dev eth1; ip link set eth1 up
        wait $keep || { cat keep.log; exit 1; }
        cat keep.log")?;
    println!("{moved}");
    assert!(port_of(&mac)?.contains("vm2"), "{}", port_of(&mac)?);
    let last = moved.lines().last().and_then(|line| line.split(' ').next());
    let parts: u32 = last.and_then(|parts| parts.parse().ok()).ok_or("no parts")?;
    assert!(parts > 20, "{moved}");
    let drops = gateway.show("drops")?;
    assert!(!["TooBig", "BridgeVlan", "Checksum"].iter().any(|word| drops.contains(word)), "{drops}");
    Ok(())
}
