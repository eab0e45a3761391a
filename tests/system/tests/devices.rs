//! Devices that are deleted while a gateway runs, and created again.

use std::fs;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, ping_script, run, transfer, trial, wait_until};

use crate::router::{B_V4, B_V6, PlainSite, Port, finishes_its_checksums, host};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::ETHTOOL];

const STEPS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::PYTHON];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("devices/packet_interface_made_again_carries_packets", NEEDS, || made_again(Port::Packet)),
        trial("devices/native_xdp_interface_made_again_carries_packets", NEEDS, || {
            made_again(Port::Xdp("native", 256))
        }),
        trial("devices/generic_xdp_interface_made_again_carries_packets", NEEDS, || {
            made_again(Port::Xdp("generic", 256))
        }),
        trial("devices/packet_interface_moved_and_back_carries_packets", NEEDS, || moved(Port::Packet)),
        trial("devices/xdp_interface_moved_and_back_carries_packets", NEEDS, || moved(Port::Xdp("auto", 256))),
        trial("devices/tun_and_tap_made_again_carry_packets", NEEDS, tun_and_tap),
        trial("devices/exclusive_interfaces_carry_packets_past_the_stack", NEEDS, exclusive),
        trial("devices/interface_set_by_an_operator_stays_so", NEEDS, set_by_an_operator),
        trial("devices/interface_of_another_kind_keeps_its_link_down", NEEDS, another_kind),
        trial("devices/reload_names_the_links_that_are_down", NEEDS, reload_names_links),
        trial("devices/steps_of_an_operator_are_logged_as_no_errors", STEPS, steps_of_an_operator),
    ]
}

/// Waits until the link is up, or down.
fn wait_for(gateway: &mut Gateway, name: &str, up: bool) -> Outcome {
    gateway.wait_until(&format!("{name} is {}", if up { "up" } else { "down" }), |gateway| {
        gateway.link(name).is_ok_and(|link| link["up"] == up)
    })
}

/// Output of `fatpath ip`.
fn ip(site: &PlainSite, words: &str) -> Outcome<String> {
    let mut command = Command::new(fatpath());
    command.args(["ip", "--instance", "plain"]).args(words.split(' ')).env("FATPATH_RUNDIR", site.scratch.path());
    run(&mut command)
}

/// Connects the first host to the gateway again.
fn connect(site: &PlainSite, port: Port) -> Outcome {
    host(&site.a, &site.gateway_ns, "left", 1)?;
    if port == Port::Packet { Ok(()) } else { finishes_its_checksums(&site.a) }
}

/// The host's stack receives nothing on interfaces of exclusive links, until the links are no longer exclusive.
fn exclusive() -> Outcome {
    let site = PlainSite::new(true)?;
    let shared = PlainSite::config(true);
    let exclusive = shared.replace("kind = \"packet\"\n", "kind = \"packet\"\nexclusive = true\n");
    let received = |site: &PlainSite| -> Outcome<u64> {
        let text = site.gateway_ns.sh("grep ^Ip: /proc/net/snmp")?;
        let counted = text.lines().nth(1).and_then(|line| line.split(' ').nth(3)?.parse().ok());
        counted.ok_or_else(|| text.into())
    };
    for (toml, is_exclusive) in [(&exclusive, true), (&shared, false)] {
        site.gateway.reload(toml)?;
        // Both links are opened anew, one after the other.
        let ping = format!("ping -n -q -c 1 -W 1 {B_V4}");
        wait_until("a packet passes, and the stack receives it or not", Duration::from_secs(20), || {
            let Ok(before) = received(&site) else { return false };
            site.a.sh(&ping).is_ok() && received(&site).is_ok_and(|now| (now == before) == is_exclusive)
        })?;
        let before = received(&site)?;
        site.a.sh(&format!("ping -n -q -c 20 -i 0.01 -W 5 {B_V4}"))?;
        transfer(&site.a, (&site.b, B_V6.parse()?), 1 << 20)?;
        let seen = received(&site)? - before;
        assert!(if is_exclusive { seen == 0 } else { seen >= 20 }, "{seen} packets, exclusive: {is_exclusive}");
    }
    Ok(())
}

fn made_again(port: Port) -> Outcome {
    let mut site = PlainSite::by(port)?;
    let received = |site: &PlainSite| -> Outcome<u64> {
        Ok(site.gateway.link("left")?["stats"]["rx_packets"].as_u64().unwrap_or(0))
    };
    for _ in 0..2 {
        site.a.sh(&ping_script(B_V4.parse()?, &[56]))?;
        let before = received(&site)?;
        site.gateway_ns.sh("ip link del left")?;
        wait_for(&mut site.gateway, "left", false)?;
        // The other links keep working.
        site.b.sh(&ping_script("10.2.0.1".parse()?, &[56]))?;
        connect(&site, port)?;
        wait_for(&mut site.gateway, "left", true)?;
        for to in [B_V4, B_V6] {
            site.a.sh(&ping_script(to.parse()?, &[56, 4000]))?;
            transfer(&site.a, (&site.b, to.parse()?), 1 << 20)?;
        }
        assert!(received(&site)? > before, "its counters go on");
    }
    // The link has the number and the address of its new interface.
    let index = site.gateway_ns.sh("cat /sys/class/net/left/ifindex")?;
    assert!(ip(&site, "-o link show left")?.starts_with(&format!("{}: ", index.trim())), "{index}");
    let mac = site.gateway_ns.sh("cat /sys/class/net/left/address")?;
    assert!(ip(&site, "link show left")?.contains(mac.trim()), "{mac}");
    let log = site.gateway.log();
    assert_eq!(log.matches("left: its device was made again").count(), 2, "{log}");
    // Once more for a device that was opened before the host had set it up.
    assert!(log.matches("left: the link is up again").count() >= 2, "{log}");
    Ok(())
}

/// An interface that comes back from another namespace has its old index, but the sockets bound to it before are lost.
fn moved(port: Port) -> Outcome {
    let mut site = PlainSite::by(port)?;
    let elsewhere = Netns::new("elsewhere")?;
    site.gateway_ns.sh(&format!("ip link set left netns {}", elsewhere.name()))?;
    wait_for(&mut site.gateway, "left", false)?;
    let back = elsewhere.sh("cat /sys/class/net/left/ifindex")?;
    let pid = site.gateway.id();
    elsewhere.sh(&format!("ip link set left netns {pid}"))?;
    site.gateway_ns.sh("ip link set left up")?;
    assert_eq!(site.gateway_ns.sh("cat /sys/class/net/left/ifindex")?, back);
    wait_for(&mut site.gateway, "left", true)?;
    site.a.sh(&ping_script(B_V4.parse()?, &[56, 4000]))?;
    transfer(&site.b, (&site.a, "10.1.0.2".parse()?), 1 << 20)
}

fn tun_and_tap() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let toml = "[[link]]\nname = \"tun9\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n\
                [[link]]\nname = \"tap9\"\nkind = \"tap\"\naddresses = [\"10.2.0.1/24\"]\n";
    let mut gateway = Gateway::start(&netns, &scratch, "gw", toml)?;
    for (name, mode, number) in [("tun9", "tun", 1), ("tap9", "tap", 2), ("tun9", "tun", 1)] {
        let ping = format!(
            "ip addr add 10.{number}.0.2/24 dev {name}; ip link set {name} up; {}",
            ping_script(format!("10.{number}.0.1").parse()?, &[56, 4000])
        );
        if gateway.log().matches("made again").count() < 2 {
            netns.sh(&ping)?;
        }
        netns.sh(&format!("ip link del {name}"))?;
        wait_for(&mut gateway, name, false)?;
        netns.sh(&format!("ip tuntap add dev {name} mode {mode}"))?;
        wait_for(&mut gateway, name, true)?;
        netns.sh(&ping)?;
    }
    Ok(())
}

/// MTU, address and state set by an operator are set on the new device, too.
fn set_by_an_operator() -> Outcome {
    let mut site = PlainSite::new(true)?;
    ip(&site, "link set left mtu 1300")?;
    ip(&site, "link set left address 02:00:00:00:00:77")?;
    let shown = |site: &PlainSite| -> Outcome<bool> {
        let link = ip(site, "link show left")?;
        Ok(link.contains("mtu 1300") && link.contains("02:00:00:00:00:77") && link.contains(",UP"))
    };
    assert!(shown(&site)?);
    site.gateway_ns.sh("ip link del left")?;
    wait_for(&mut site.gateway, "left", false)?;
    // The link is down by an operator's command when its device is made again.
    ip(&site, "link set left down")?;
    connect(&site, Port::Packet)?;
    ip(&site, "link set left up")?;
    wait_for(&mut site.gateway, "left", true)?;
    assert!(shown(&site)?, "{}", ip(&site, "link show left")?);
    // ARP answers with the address that was set.
    site.a.sh(&ping_script("10.1.0.1".parse()?, &[56]))?;
    let seen = site.a.sh("ip neigh show 10.1.0.1 dev eth0")?;
    assert!(seen.contains("02:00:00:00:00:77"), "{seen}");
    Ok(())
}

fn another_kind() -> Outcome {
    let mut site = PlainSite::new(true)?;
    site.gateway_ns.sh("ip link del tun9; ip link add tun9 type bridge")?;
    site.gateway.wait_until("the reason is logged", |gateway| {
        gateway.link("tun9").is_ok_and(|link| link["why_down"].to_string().contains("of another kind"))
    })?;
    site.gateway_ns.sh("ip link del tun9; ip tuntap add dev tun9 mode tun")?;
    wait_for(&mut site.gateway, "tun9", true)?;
    let log = site.gateway.log();
    assert_eq!(log.matches("of another kind").count(), 1, "once, however often it is tried: {log}");
    Ok(())
}

/// Output of `fatpath load` with the site's file.
fn load(site: &PlainSite) -> Outcome<String> {
    let mut command = Command::new(fatpath());
    command.args(["load", "--instance", "plain", "-c"]).arg(site.scratch.config("plain.toml")?);
    run(command.env("FATPATH_RUNDIR", site.scratch.path()))
}

fn reload_names_links() -> Outcome {
    let mut site = PlainSite::new(true)?;
    let all = "plain: running with 4 links: left, right, spare, tun9";
    assert_eq!(load(&site)?, format!("{all}\n"));
    site.gateway_ns.sh("ip link del spare; ip link set right down")?;
    wait_for(&mut site.gateway, "spare", false)?;
    wait_for(&mut site.gateway, "right", false)?;
    let printed = load(&site)?;
    let (front, down) = printed.trim_end().split_once("; ").ok_or(printed.clone())?;
    assert_eq!(front, all);
    let of_each: Vec<&str> = down.split("; ").map(|link| link.split(" (").next().unwrap_or_default()).collect();
    assert_eq!(of_each, ["right is down", "spare is down"], "{printed}");
    let log = site.gateway.log();
    assert!(log.lines().any(|line| line.contains("WARN") && line.contains(down)), "{log}");
    // A link that is added by the file is checked, too.
    site.gateway_ns.sh("ip link add late type veth peer name other")?;
    let more = "[[link]]\nname = \"late\"\nkind = \"packet\"\ninterface = \"late\"\n";
    fs::write(site.scratch.config("plain.toml")?, PlainSite::config(true) + more)?;
    let printed = load(&site)?;
    assert!(printed.contains("; late is down (late: SIOCGIFFLAGS: Network is down)"), "{printed}");
    Ok(())
}

/// A front end of vhost-user that asks for the features, and leaves.
const FRONT: &str = "import socket, struct, sys
front = socket.socket(socket.AF_UNIX)
front.connect(sys.argv[1])
front.sendall(struct.pack('=III', 1, 1, 0))
assert len(front.recv(20)) == 20
";

/// A TAP that goes into a guest's namespace, interfaces that are set down and deleted, and a guest that shuts down.
fn steps_of_an_operator() -> Outcome {
    let (scratch, netns, inside) = (Scratch::new()?, Netns::new("gateway")?, Netns::new("inside")?);
    netns
        .sh("ip link add eth8 type veth peer name other; ip link set eth8 addrgenmode none up; ip link set other up")?;
    let socket = scratch.file("vm0.sock");
    let toml = format!(
        "[[link]]\nname = \"tap9\"\nkind = \"tap\"\naddresses = [\"10.2.0.1/24\"]\n\
         [[link]]\nname = \"eth8\"\nkind = \"packet\"\ninterface = \"eth8\"\n\
         [[link]]\nname = \"vm0\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n",
        socket.display()
    );
    let mut gateway = Gateway::start(&netns, &scratch, "gw", &toml)?;
    netns.sh(&format!("ip link set tap9 up; ip link set tap9 netns {}", inside.name()))?;
    inside.sh(&format!(
        "ip addr add 10.2.0.2/24 dev tap9; ip link set tap9 up; {}",
        ping_script("10.2.0.1".parse()?, &[56])
    ))?;
    run(netns.command("python3").args(["-c", FRONT]).arg(&socket))?;
    netns.sh("ip link set eth8 down")?;
    wait_for(&mut gateway, "eth8", false)?;
    netns.sh("ip link set eth8 up")?;
    wait_for(&mut gateway, "eth8", true)?;
    netns.sh("ip link del eth8")?;
    inside.sh("ip link del tap9")?;
    wait_for(&mut gateway, "eth8", false)?;
    wait_for(&mut gateway, "tap9", false)?;
    let is_logged =
        |level: &str, text: &str| gateway.log().lines().any(|line| line.contains(level) && line.contains(text));
    wait_until("the log has all of them", Duration::from_secs(10), || {
        is_logged(
            " INFO ",
            "vm0: vhost-user: the guest has shut down, or its front end has disconnected; the link is down",
        ) && is_logged(" WARN ", "eth8: ")
            && is_logged(" WARN ", "tap9: ")
    })
    .map_err(|_| gateway.log())?;
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
    Ok(())
}
