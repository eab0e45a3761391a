//! VLAN devices: `eth0.5` of `ip link add link eth0 name eth0.5 type vlan id 5`.

use std::process::Command;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, transfer, trial, veth};

use crate::bridge::{bridge, guest, tap};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("vlan/streams_cross_single_and_double_tags_uncut", NEEDS, routed),
        trial("vlan/devices_above_and_below_a_bridge_have_their_vlan", NEEDS, bridged),
        trial("vlan/ip_makes_saves_and_removes_devices", &[Need::Namespaces, Need::Tun], kept),
    ]
}

const UP0: &str = "[[link]]\nname = \"up0\"\nkind = \"packet\"\ninterface = \"up0\"\n";

fn vlan(name: &str, below: &str, id: u16, rest: &str) -> String {
    format!("[[link]]\nname = \"{name}\"\nkind = \"vlan\"\nlink = \"{below}\"\nid = {id}\n{rest}")
}

/// Two routers with a wire between them, whose frames have a tag or two. IPv4 has one tag, IPv6 two.
fn routed() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "up0"), (&right, "up0"))?;
    let config = |own: u8| {
        let peer = 3 - own;
        [
            UP0.to_owned(),
            vlan("up0.5", "up0", 5, &format!("addresses = [\"10.5.0.{own}/24\"]\n")),
            vlan("up0.5.7", "up0.5", 7, &format!("addresses = [\"fd57::{own}/64\"]\n")),
            vlan("other", "up0", 6, ""),
            format!(
                "[[link]]\nname = \"tap0\"\nkind = \"tap\"\naddresses = [\"10.{own}.0.254/24\", \"fd0{own}::fe/64\"]\n\
                 [[route]]\nto = \"10.{peer}.0.0/24\"\nvia = \"10.5.0.{peer}\"\n\
                 [[route]]\nto = \"fd0{peer}::/64\"\nvia = \"fd57::{peer}\"\n"
            ),
        ]
        .concat()
    };
    let gateways =
        [Gateway::start(&left, &scratch, "left", &config(1))?, Gateway::start(&right, &scratch, "right", &config(2))?];
    let guests = [guest("a", &left, "tap0", "10.1.0.2/24")?, guest("b", &right, "tap0", "10.2.0.2/24")?];
    for (guest, own) in guests.iter().zip(1..) {
        guest.sh(&format!(
            "ip addr add fd0{own}::2/64 dev tap0 nodad
            ip route add default via 10.{own}.0.254; ip route add default via fd0{own}::fe"
        ))?;
    }
    for (from, to, addr) in [(0, 1, "10.2.0.2"), (1, 0, "fd01::2")] {
        transfer(&guests[from], (&guests[to], addr.parse()?), 16 << 20).map_err(|failed| {
            let [left, right] = gateways.each_ref().map(|gateway| gateway.show("drops").unwrap_or_default());
            format!("{addr}: {failed:?}\nleft: {left}right: {right}")
        })?;
    }
    for gateway in &gateways {
        let size = gateway.sent_size("up0")?;
        assert!(size > 1514, "{size} bytes a frame\n{}", gateway.show("links")?);
        for (link, least) in [("up0.5", 1000), ("up0.5.7", 500)] {
            let shown = gateway.link(link)?;
            let counted = shown["stats"]["rx_packets"].as_u64();
            assert!(counted >= Some(least / 10), "{shown}");
        }
        assert_eq!(gateway.link("up0.5.7")?["mtu"], 1496, "room for the second tag");
        let other = gateway.link("other")?;
        assert_eq!(other["stats"]["rx_packets"], 0, "{other}");
    }
    // Without the tags no neighbour answers.
    let mut ping = Command::new(fatpath());
    ping.args(["exec", "--instance", "left", "--", "ping", "-c", "1", "-W", "2", "10.5.0.2"]);
    run(ping.env("FATPATH_RUNDIR", scratch.path()))?;
    let neighbours = gateways[0].show("neighbours")?;
    assert!(neighbours.contains("10.5.0.2 dev up0.5 ") && neighbours.contains("fd57::2 dev up0.5.7 "), "{neighbours}");
    assert!(!neighbours.contains("dev up0 ") && !neighbours.contains("dev other "), "{neighbours}");
    Ok(())
}

/// One gateway has a device above its bridge for the guest's VLAN; the other has a bridge with a device of the wire as
/// a port.
fn bridged() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "up0"), (&right, "up0"))?;
    let port = "port = { pvid = 0, tagged = [10, 20] }\n";
    let tagged = [
        bridge("br0", "vlan-filtering = true\nport = { pvid = 0, tagged = [10] }"),
        tap("tap0", "pvid = 10"),
        UP0.to_owned() + "master = \"br0\"\n" + port,
        vlan("br0.10", "br0", 10, "addresses = [\"10.9.0.254/24\"]\n"),
    ]
    .concat();
    let untagged = [
        bridge("br0", "addresses = [\"10.9.0.253/24\"]"),
        tap("tap0", ""),
        UP0.to_owned(),
        vlan("up0.10", "up0", 10, "master = \"br0\"\n"),
    ]
    .concat();
    let gateways =
        [Gateway::start(&left, &scratch, "left", &tagged)?, Gateway::start(&right, &scratch, "right", &untagged)?];
    let guests = [guest("a", &left, "tap0", "10.9.0.1/24")?, guest("b", &right, "tap0", "10.9.0.2/24")?];
    transfer(&guests[0], (&guests[1], "10.9.0.2".parse()?), 16 << 20)?;
    for guest in &guests {
        guest.sh("ping -c 1 -W 2 10.9.0.254; ping -c 1 -W 2 10.9.0.253")?;
    }
    // The device above the bridge gets an address of its own, and the guests forget the old one.
    let mut readdress = Command::new(fatpath());
    readdress.args(["ip", "--instance", "left", "link", "set", "br0.10", "address", "02:00:00:00:00:10"]);
    run(readdress.env("FATPATH_RUNDIR", scratch.path()))?;
    for guest in &guests {
        guest.sh("ip neigh flush all; ping -c 1 -W 2 10.9.0.254")?;
        assert!(guest.sh("ip neigh show 10.9.0.254")?.contains("02:00:00:00:00:10"));
    }
    let size = gateways[1].sent_size("tap0")?;
    assert!(size > 3 * 1500, "{size} bytes a frame");
    let fdb = gateways[1].show("fdb")?;
    assert!(fdb.lines().any(|line| line.contains("dev up0.10 ") && !line.contains("permanent")), "{fdb}");
    Ok(())
}

fn kept() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let state = scratch.file("state").display().to_string();
    let start = || {
        let mut command = netns.command("sh");
        command.args(["-c", "exec \"$0\" \"$@\" --state \"$STATE\""]).arg(fatpath()).env("STATE", &state);
        Gateway::start_under(command, &scratch, "x", "")
    };
    let sh = |line: &str| {
        let mut command = Command::new(fatpath());
        command.args(["exec", "--instance", "x", "--", "sh", "-c", line]);
        run(command.env("FATPATH_RUNDIR", scratch.path()))
    };
    let mut gateway = start()?;
    sh("set -e
        ip link add tap0 type tap; ip link set tap0 mtu 1400 up
        ip link add link tap0 name tap0.5 type vlan id 5
        ip link set tap0.5 up
        ip link add link tap0.5 name inner type vlan id 9
        ip addr add 10.5.0.1/24 dev tap0.5")?;
    let show =
        || sh("ip -d link show type vlan | grep -o 'tap0.5@tap0\\|inner@tap0.5\\|vlan protocol.*id [0-9]*\\|mtu 1400'");
    let before = show()?;
    for want in ["tap0.5@tap0", "inner@tap0.5", "vlan protocol 802.1Q id 5", "mtu 1400"] {
        assert!(before.contains(want), "no {want} in {before}");
    }
    for (line, want) in [
        ("ip link add link tap0 name y type vlan id 5", "VLAN device already exists"),
        ("ip link add link tap0 name y type vlan id 4095", "Invalid VLAN id"),
        ("ip link add link lo name y type vlan id 5", "VLANs not supported on device"),
        ("ip link add link tap0 name y type vlan id 6 protocol 802.1ad", "support 802.1Q only"),
        ("ip link add link tap0 name y type vlan id 6 egress-qos-map 1:2", "have no priority maps"),
        ("ip link set tap0.5 type vlan gvrp on", "have fixed settings"),
        (
            "{ ip link add br0 type bridge; ip link add link br0 name y type vlan id 5; ip link set y master br0; ip link del br0; }",
            "Can not enslave a device above the bridge",
        ),
    ] {
        let printed = sh(&format!("{line} 2>&1; true"))?;
        assert!(printed.contains(want), "{line}: {printed}");
    }
    let mut save = Command::new(fatpath());
    run(save.args(["save", "--instance", "x"]).env("FATPATH_RUNDIR", scratch.path()))?;
    gateway.terminate()?;
    gateway = start()?;
    assert_eq!(show()?, before);
    assert!(sh("ip -4 -o addr show dev tap0.5")?.contains("10.5.0.1/24"));
    // The devices go with the link below, also those of its group.
    sh("ip link set tap0 group 9; ip link set tap0.5 group 9; ip link set inner group 9; ip link del group 9")?;
    assert!(sh("ip link show inner 2>&1; true")?.contains("does not exist"), "{}", gateway.log());
    Ok(())
}
