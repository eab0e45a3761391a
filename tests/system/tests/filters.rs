//! Interfaces that filter frames by their destination: macvlan here, as network cards and virtio do.

use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use system::{
    Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, macvlan, ping_script, run, trial, veth, wait_until,
};

use crate::bridge::{bridge, guest, tap};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
const PYTHON: &[Need] = &[Need::Namespaces, Need::Tun, Need::PYTHON];

const PATIENCE: Duration = Duration::from_secs(20);

const ETH0: &str = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n";
const XDP0: &str = "[[link]]\nname = \"eth0\"\nkind = \"xdp\"\ninterface = \"eth0\"\nmode = \"generic\"\n";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("filters/socket_of_the_host_side_receives_its_groups", PYTHON, groups),
        trial("filters/packet_interface_of_a_bridge_is_promiscuous", NEEDS, || promiscuous(ETH0)),
        trial("filters/xdp_interface_of_a_bridge_is_promiscuous", NEEDS, || promiscuous(XDP0)),
        trial("filters/guest_behind_macvlan_passthru_is_reached", NEEDS, passthru),
    ]
}

/// Output of a program about the gateway.
fn exec(scratch: &Scratch, words: &[&str]) -> Outcome<String> {
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", "x", "--"]).args(words).env("FATPATH_RUNDIR", scratch.path());
    run(&mut command)
}

/// Receives a datagram to each of two groups.
const RECEIVER: &str = "import socket
v4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
v4.bind(('', 7000))
v4.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.7.7.7') + socket.inet_aton('10.1.0.1'))
v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
v6.bind(('::', 7001))
group = socket.inet_pton(socket.AF_INET6, 'ff05::7:7') + socket.if_nametoindex('eth0').to_bytes(4, 'little')
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
print('ready', flush=True)
for own in (v4, v6):
    print(own.recvfrom(100)[0].decode(), flush=True)
";

const SENDER: &str = "import socket
v4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
v4.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('10.1.0.2'))
v4.sendto(b'over IPv4', ('239.7.7.7', 7000))
v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex('eth0'))
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 2)
v6.sendto(b'over IPv6', ('ff05::7:7', 7001))
";

fn groups() -> Outcome {
    let (scratch, host, far) = (Scratch::new()?, Netns::new("host")?, Netns::new("far")?);
    macvlan((&host, "eth0"), (&far, "eth0"))?;
    far.sh("ip addr add 10.1.0.2/24 dev eth0; ip addr add fd00:1::2/64 dev eth0")?;
    let toml = format!("{ETH0}addresses = [\"10.1.0.1/24\", \"fd00:1::1/64\"]\n");
    let gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", "x", "--", "python3", "-c", RECEIVER]).env("FATPATH_RUNDIR", scratch.path());
    let mut receiver = Process::spawn(&mut command, &scratch)?;
    wait_until("the receiver has joined", PATIENCE, || receiver.output().contains("ready"))?;
    run(far.command("python3").args(["-c", SENDER]))?;
    let both = || receiver.output() == "ready\nover IPv4\nover IPv6\n";
    wait_until("both datagrams arrive", PATIENCE, both)
        .map_err(|_| format!("{}\n{}", receiver.output(), gateway.show("drops").unwrap_or_default()))?;
    receiver.wait(PATIENCE).map(drop)
}

/// Counts of reasons for promiscuous and all-multicast mode, as `ip -d -j link show` prints them.
fn counts(shown: &str) -> Outcome<[u64; 2]> {
    let shown: Value = serde_json::from_str(shown)?;
    let count = |name: &str| shown[0][name].as_u64().ok_or_else(|| format!("no {name} in {shown}"));
    Ok([count("promiscuity")?, count("allmulti")?])
}

/// The interface of a link is promiscuous while the link, or a VLAN device above it, is a port of a bridge, while a VLAN device has an
/// address of its own, while the host has given the interface another address, and again after the interface was made again.
fn promiscuous(eth0: &str) -> Outcome {
    let (scratch, host, far) = (Scratch::new()?, Netns::new("host")?, Netns::new("far")?);
    veth((&host, "eth0"), (&far, "eth0"))?;
    let toml = [eth0.to_owned(), bridge("br0", "")].concat();
    let mut gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    let of_interface = || counts(&host.sh("ip -d -j link show eth0")?);
    let of_link = |link: &str| counts(&exec(&scratch, &["ip", "-d", "-j", "link", "show", link])?);
    let ip = |words: &str| exec(&scratch, &["sh", "-ec", words]);
    // Promiscuity of the interface; promiscuity and all-multicast count of the link.
    let check = |step: &str, interface: u64, link: [u64; 2]| {
        assert_eq!((of_interface()?, of_link("eth0")?), ([interface, 1], link), "{step}");
        Outcome::Ok(())
    };
    check("alone", 0, [0, 0])?;
    ip("ip link set eth0 master br0")?;
    check("a port", 1, [1, 1])?;
    host.sh("ip link set eth0 down; ip link set eth0 up")?;
    check("down and up", 1, [1, 1])?;
    ip("ip link set eth0 nomaster")?;
    check("a port no longer", 0, [0, 0])?;
    ip("ip link add link eth0 name eth0.5 type vlan id 5; ip link set eth0.5 up; ip link set eth0.5 master br0")?;
    check("below a port", 1, [1, 1])?;
    assert_eq!(of_link("eth0.5")?, [1, 1]);
    ip("ip link set eth0.5 address 02:00:00:00:00:05; ip link set eth0 master br0")?;
    check("a port, below a port, and below another address", 1, [3, 2])?;
    ip("ip link set eth0 nomaster; ip link set eth0.5 nomaster")?;
    check("below another address", 1, [1, 0])?;
    ip("ip link set eth0.5 down")?;
    check("below a device that is down", 0, [0, 0])?;
    ip("ip link set eth0.5 up; ip link del eth0.5")?;
    check("below nothing", 0, [0, 0])?;
    // The host changes the address, and the link keeps its own.
    let mac = host.sh("cat /sys/class/net/eth0/address")?;
    for (address, promiscuity) in [("02:00:00:00:00:77", 1), (mac.trim(), 0)] {
        host.sh(&format!("ip link set eth0 address {address}"))?;
        wait_until(address, PATIENCE, || of_interface().is_ok_and(|counts| counts == [promiscuity, 1]))?;
        assert!(ip("ip link show eth0")?.contains(mac.trim()));
    }
    ip("ip link set eth0 master br0")?;
    host.sh("ip link del eth0")?;
    gateway.wait_until("eth0 is down", |gateway| gateway.link("eth0").is_ok_and(|link| link["up"] == false))?;
    veth((&host, "eth0"), (&far, "eth0"))?;
    gateway.wait_until("eth0 is up", |gateway| gateway.link("eth0").is_ok_and(|link| link["up"] == true))?;
    check("made again", 1, [1, 1])?;
    // Memberships end with the gateway, however it ends.
    gateway.kill()?;
    assert_eq!(of_interface()?, [0, 0]);
    // A port from the start.
    let toml = [format!("{eth0}master = \"br0\"\n"), bridge("br0", "")].concat();
    let _gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    check("a port of the file", 1, [1, 1])
}

/// A bridge whose uplink is a macvlan device of mode `passthru`, which has its lower interface for itself.
fn passthru() -> Outcome {
    let (scratch, host, far) = (Scratch::new()?, Netns::new("host")?, Netns::new("far")?);
    veth((&host, "low"), (&far, "eth0"))?;
    host.sh("echo 1 >/proc/sys/net/ipv6/conf/low/disable_ipv6
        ip link add link low name eth0 type macvlan mode passthru; ip link set eth0 up")?;
    host.wait_for_carrier("eth0")?;
    far.sh("ip addr add 10.9.0.2/24 dev eth0; ip addr add fd09::2/64 dev eth0")?;
    let toml = [bridge("br0", ""), tap("tap0", ""), format!("{ETH0}master = \"br0\"\n")].concat();
    let _gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    let guest = guest("guest", &host, "tap0", "10.9.0.1/24")?;
    guest.sh("ip addr add fd09::1/64 dev tap0 nodad")?;
    for to in ["10.9.0.1", "fd09::1"] {
        far.sh(&ping_script(to.parse()?, &[56, 1400]))?;
    }
    Ok(())
}
