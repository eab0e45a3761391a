//! Bridges: output of `ip` and `bridge` about them, and guests of a switch.

use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use system::{
    Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, run, transfer, trial, veth,
    wait_until,
};

use crate::ip::{ETH0, compare_lines, exec, near_with};

/// Commands, for a shell, about one Ethernet interface: eth0, number 2.
const LINES: &str = include_str!("bridge.lines");

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

const WIRE_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::ETHTOOL];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bridge/output_of_ip_and_bridge_is_the_same_as_on_linux", &[Need::Namespaces], compare),
        trial("bridge/guests_of_a_vlan_talk_across_a_trunk_uncut", NEEDS, trunk),
        trial("bridge/example_has_two_guests_a_trunk_and_a_tunnel", NEEDS, example),
        trial("bridge/guests_talk_across_a_trunk_by_af_xdp", NEEDS, xdp_trunk),
        trial("bridge/wire_of_small_frames_reaches_a_guest_as_large_ones", WIRE_NEEDS, thin_wire),
        trial("bridge/lines_of_the_documentation_make_the_example", NEEDS, documented),
        trial("bridge/guest_behind_bridge_device_uses_a_tunnel", NEEDS, tunnel),
        trial("bridge/two_switches_are_joined_by_vhost_user", NEEDS, vhost),
        trial("bridge/port_without_a_guest_has_no_carrier", &[Need::Namespaces, Need::Tun], carrier),
        trial("bridge/address_follows_a_guest_that_moves", NEEDS, moved),
        trial("bridge/guest_that_invents_addresses_fills_its_own_share", NEEDS, flood),
        trial("bridge/loop_is_logged_and_counted", &[Need::Namespaces], looped),
        trial("bridge/monitor_prints_addresses_as_on_linux", &[Need::Namespaces], monitored),
        trial("bridge/saved_state_and_reload_make_it_again", &[Need::Namespaces, Need::Tun], kept),
    ]
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let near = |role: &str| {
        let netns = near_with(role, &far, "")?;
        netns.sh("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6")?;
        Ok::<_, libtest_mimic::Failed>(netns)
    };
    let (linux, ours) = (near("linux")?, near("ours")?);
    let _gateway = Gateway::start(&ours, &scratch, "ours", ETH0)?;
    compare_lines(&scratch, LINES, linux.command("sh"), exec(&ours, "ours"))
}

/// Both ports lead to one wire: an address of its hosts moves between them. The frames carry the wire's load to the end of
/// the test.
fn looped() -> Outcome {
    const FILE: &str = "[[link]]\nname = \"br0\"\nkind = \"bridge\"\n\
        [[link]]\nname = \"up0\"\nkind = \"packet\"\ninterface = \"up0\"\nmaster = \"br0\"\n\
        [[link]]\nname = \"up1\"\nkind = \"packet\"\ninterface = \"up1\"\nmaster = \"br0\"\n";
    let (scratch, host, lan) = (Scratch::new()?, Netns::new("host")?, Netns::new("lan")?);
    lan.sh("ip link add lan0 type bridge; ip link set lan0 up; ip addr add 10.9.0.1/24 dev lan0")?;
    for port in ["up0", "up1"] {
        veth((&host, port), (&lan, port))?;
        lan.sh(&format!("ip link set {port} master lan0"))?;
    }
    let mut gateway = Gateway::start(&host, &scratch, "gw", FILE)?;
    let moves = |gateway: &Gateway| {
        let log = gateway.log();
        log.lines().filter(|line| line.contains("moves between ports")).count()
    };
    gateway.wait_until("the loop is logged", |gateway| {
        // The address of a guest that does not answer: a broadcast.
        let _ = lan.sh("ping -c 1 -W 1 10.9.0.77 || true");
        moves(gateway) > 0
    })?;
    let warning = gateway.log().lines().find(|line| line.contains("moves between ports")).map(str::to_owned);
    let warning = warning.unwrap_or_default();
    assert!(warning.contains("WARN br0: ") && warning.ends_with("is there a loop?"), "{warning}");
    assert_eq!(moves(&gateway), 1, "once in ten seconds");
    let links = gateway.show("links")?;
    let moved = links.lines().filter(|line| line.contains("port of br0") && line.contains(" moved "));
    assert_eq!(moved.count(), 2, "{links}");
    Ok(())
}

/// A guest: a namespace with a TAP device of a gateway in `gateway`.
pub(crate) fn guest(role: &str, gateway: &Netns, tap: &str, addr: &str) -> Outcome<Netns> {
    let netns = Netns::new(role)?;
    gateway.sh(&format!("ip link set {tap} netns {}", netns.name()))?;
    netns.sh(&format!(
        "echo 1 >/proc/sys/net/ipv6/conf/{tap}/accept_dad
        ip addr add {addr} dev {tap}
        ip link set {tap} up"
    ))?;
    Ok(netns)
}

pub(crate) fn bridge(name: &str, rest: &str) -> String {
    format!("[[link]]\nname = \"{name}\"\nkind = \"bridge\"\n{rest}\n")
}

pub(crate) fn tap(name: &str, port: &str) -> String {
    format!("[[link]]\nname = \"{name}\"\nkind = \"tap\"\nmaster = \"br0\"\nport = {{ {port} }}\n")
}

fn uplink(port: &str) -> String {
    format!("[[link]]\nname = \"up0\"\nkind = \"packet\"\ninterface = \"up0\"\nmaster = \"br0\"\nport = {{ {port} }}\n")
}

/// Two switches with a trunk between them, and a guest of either of two VLANs at each. The guests of one VLAN have the
/// addresses of those of the other.
fn trunk() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "up0"), (&right, "up0"))?;
    let toml = [
        bridge("br0", "vlan-filtering = true\nvlan-stats = true"),
        tap("red0", "pvid = 10"),
        tap("blue0", "pvid = 20"),
        uplink("pvid = 0, tagged = [10, \"20-29\"], trunk = 5"),
    ]
    .concat();
    let gateways = [Gateway::start(&left, &scratch, "left", &toml)?, Gateway::start(&right, &scratch, "right", &toml)?];
    let guests = |gateway: &Netns, host: u8| {
        let addr = |host: u8| format!("10.9.0.{host}/24");
        let red = guest("red", gateway, "red0", &addr(host))?;
        let blue = guest("blue", gateway, "blue0", &addr(host))?;
        Ok::<_, libtest_mimic::Failed>((red, blue))
    };
    let ((red_1, blue_1), (red_2, blue_2)) = (guests(&left, 1)?, guests(&right, 2)?);
    for (from, to) in [(&red_1, &red_2), (&blue_2, &blue_1)] {
        let addr = if std::ptr::eq(to, &blue_1) { "10.9.0.1" } else { "10.9.0.2" };
        transfer(from, (to, addr.parse()?), 32 << 20)?;
    }
    for (gateway, link) in [(&gateways[0], "blue0"), (&gateways[1], "red0"), (&gateways[0], "up0")] {
        let size = gateway.sent_size(link)?;
        assert!(size > 4 * 1500, "{link}: {size} bytes a frame\n{}", gateway.show("links")?);
    }
    // Both VLANs are counted, in the bridge and at its ports; its device is in neither.
    let mut command = exec(&left, "left");
    let counted = run(command.args(["-c", "bridge -s -j vlan"]).env("FATPATH_RUNDIR", scratch.path()))?;
    let counted: Value = serde_json::from_str(&counted)?;
    for (port, vid) in [("red0", 10), ("blue0", 20), ("up0", 10), ("up0", 29)] {
        let port = counted.as_array().into_iter().flatten().find(|link| link["ifname"] == port);
        let vlan = port.and_then(|port| port["vlans"].as_array()?.iter().find(|vlan| vlan["vid"] == vid));
        let vlan = vlan.ok_or_else(|| format!("no VLAN {vid}: {counted:#}"))?;
        for key in ["rx_bytes", "tx_bytes"] {
            assert!((vlan[key].as_u64() > Some(32 << 20)) == (vid != 29), "{key} of {vid}: {counted:#}");
        }
    }
    // A third guest with the same address in the other VLAN receives no packet of the stream.
    red_2.sh("ip addr add 10.9.0.7/24 dev red0")?;
    assert!(blue_1.sh("ping -c 1 -W 1 10.9.0.7").is_err(), "VLANs are apart");
    red_1.sh("ping -c 1 -W 2 10.9.0.7")?;
    for gateway in &gateways {
        let drops = gateway.show("drops")?;
        assert!(!drops.contains("VlanTagged") && !drops.contains("TooBig"), "{drops}");
        let learnt = gateway.show("fdb")?;
        assert!(learnt.contains("vlan 10") && learnt.contains("vlan 20"), "{learnt}");
    }
    Ok(())
}

/// A guest whose traffic leaves by the bridge's device and a tunnel to another gateway.
fn tunnel() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "wan0"), (&right, "wan0"))?;
    let esp = Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]);
    let config = |esp: &Esp, own: u8| {
        let peer = 3 - own;
        [
            bridge("br0", &format!("addresses = [\"10.{own}.0.1/24\"]")),
            tap("tap0", ""),
            format!(
                "[[link]]\nname = \"wan0\"\nkind = \"packet\"\ninterface = \"wan0\"\naddresses = [\"{}/24\"]\n\n\
                 [[route]]\nto = \"10.{peer}.0.0/24\"\nvia = \"{}\"\n\n{}",
                esp.own,
                esp.peer,
                esp.to_toml()
            ),
        ]
        .concat()
    };
    let gateways = [
        Gateway::start(&left, &scratch, "left", &config(&esp, 1))?,
        Gateway::start(&right, &scratch, "right", &config(&esp.reversed(), 2))?,
    ];
    let guests = [guest("a", &left, "tap0", "10.1.0.2/24")?, guest("b", &right, "tap0", "10.2.0.2/24")?];
    guests[0].sh("ip route add default via 10.1.0.1")?;
    guests[1].sh("ip route add default via 10.2.0.1")?;
    transfer(&guests[0], (&guests[1], "10.2.0.2".parse()?), 16 << 20)?;
    transfer(&guests[1], (&guests[0], "10.1.0.2".parse()?), 16 << 20)?;
    let size = gateways[1].sent_size("tap0")?;
    assert!(size > 3 * 1500, "{size} bytes a frame");
    // Sockets of the gateway itself are on the bridge, too.
    let mut ping = Command::new(fatpath());
    ping.args(["exec", "--instance", "left", "--", "ping", "-c", "1", "-W", "2", "10.1.0.2"]);
    run(ping.env("FATPATH_RUNDIR", scratch.path()))?;
    Ok(())
}

/// Two switches in two processes, the one a device of the other, and a guest of each. Each process may end and restart.
fn vhost() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    let socket = scratch.file("vm0.sock").display().to_string();
    let config = |kind: &str| {
        [
            bridge("br0", "vlan-filtering = true"),
            tap("tap0", "pvid = 10"),
            format!(
                "[[link]]\nname = \"vm0\"\nkind = \"{kind}\"\nsocket = \"{socket}\"\nqueues = 2\nmaster = \"br0\"\n\
                 port = {{ pvid = 0, tagged = [10] }}\n"
            ),
        ]
        .concat()
    };
    let (back, front) = (config("vhost-user"), config("virtio-user"));
    let start = |netns: &Netns, name: &str, toml: &str| Gateway::start(netns, &scratch, name, toml);
    let (mut one, mut other) = (start(&left, "left", &back)?, start(&right, "right", &front)?);
    let mut guests = [guest("a", &left, "tap0", "10.9.0.1/24")?, guest("b", &right, "tap0", "10.9.0.2/24")?];
    let talk = |guests: &[Netns; 2], len: usize| {
        // The other guest's device may have been created again.
        guests.iter().try_for_each(|guest| guest.sh("ip neigh flush all").map(drop))?;
        guests[0].sh("for try in $(seq 50); do ping -c 1 -W 1 10.9.0.2 >/dev/null && exit; done; exit 1")?;
        transfer(&guests[0], (&guests[1], "10.9.0.2".parse()?), len)?;
        transfer(&guests[1], (&guests[0], "10.9.0.1".parse()?), len)
    };
    talk(&guests, 32 << 20)?;
    for gateway in [&one, &other] {
        let size = gateway.sent_size("vm0")?;
        let shown = gateway.show("links")?;
        assert!(size > 3 * 1500, "{size} bytes a frame\n{shown}");
    }
    let guest_of = |gateway: &Gateway| Ok::<_, libtest_mimic::Failed>(gateway.link("vm0")?["guest"].clone());
    let shown = guest_of(&one)?;
    let features = shown["features"].to_string();
    for feature in ["mrg_rxbuf", "guest_tso4", "host_tso4", "event_idx"] {
        assert!(features.contains(feature), "no {feature} in {shown}");
    }
    assert!(shown["connected"] == true && shown["queues"].as_array().map(Vec::len) == Some(4), "{shown}");
    // The front end ends, and another one connects.
    other.terminate()?;
    other = start(&right, "right", &front)?;
    guests[1] = guest("b", &right, "tap0", "10.9.0.2/24")?;
    talk(&guests, 1 << 20)?;
    assert!(guest_of(&one)?["connections"] == 2, "{}", one.show("links")?);
    // The back end is killed, and another one starts.
    one.kill()?;
    one = start(&left, "left", &back)?;
    guests[0] = guest("a", &left, "tap0", "10.9.0.1/24")?;
    talk(&guests, 1 << 20)?;
    for gateway in [&one, &other] {
        let shown = guest_of(gateway)?;
        assert!(shown["violations"] == 0 && shown["copied"].as_u64() > Some(1 << 20), "{shown}");
    }
    Ok(())
}

/// A guest's port without a guest, and a kernel's TAP device that no program reads: neither has a carrier, and its
/// bridge does not forward to it.
fn carrier() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let socket = scratch.file("vm0.sock").display().to_string();
    let start = |instance: &str, kind: &str| {
        let link = format!("[[link]]\nname = \"vm0\"\nkind = \"{kind}\"\nsocket = \"{socket}\"\nmaster = \"br0\"\n");
        Gateway::start(&netns, &scratch, instance, &[bridge("br0", ""), link].concat())
    };
    let states = |text: &str| {
        let flags = text.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        let states = words.windows(2).filter(|pair| pair[0] == "state").map(|pair| pair[1].to_owned());
        std::iter::once(flags).chain(states).collect::<Vec<_>>()
    };
    let ours = |instance: &str| {
        let line = "ip link show vm0; bridge link show dev vm0";
        let text = run(exec(&netns, instance).args(["-c", line]).env("FATPATH_RUNDIR", scratch.path()))?;
        Ok::<_, libtest_mimic::Failed>(states(&text))
    };
    let linux = netns.sh("ip link add br9 type bridge; ip tuntap add tap9 mode tap; ip link set tap9 master br9
        ip link set br9 up; ip link set tap9 up; ip link show tap9; bridge link show dev tap9")?;
    let down = states(&linux);
    assert_eq!(down[1..], ["DOWN", "disabled"], "{linux}");
    let back = start("back", "vhost-user")?;
    assert_eq!(ours("back")?, down);
    assert_eq!(back.link("vm0")?["why_down"], "no carrier");
    let mut front = start("front", "virtio-user")?;
    let up = ["BROADCAST,MULTICAST,UP,LOWER_UP", "UP", "forwarding"];
    for instance in ["front", "back"] {
        wait_until(instance, Duration::from_secs(10), || ours(instance).is_ok_and(|states| states == up))?;
    }
    front.terminate()?;
    wait_until("down", Duration::from_secs(10), || {
        ours("back").is_ok_and(|states| states == down)
            && back.link("vm0").is_ok_and(|link| link["why_down"] == "no carrier")
    })?;
    Ok(())
}

/// Two switches whose trunk is an interface by AF_XDP at both ends, and a guest of each.
fn xdp_trunk() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "up0"), (&right, "up0"))?;
    let uplink = "[[link]]\nname = \"up0\"\nkind = \"xdp\"\ninterface = \"up0\"\nmaster = \"br0\"\n\
                  port = { pvid = 0, tagged = [10] }\n";
    let toml = [bridge("br0", "vlan-filtering = true"), tap("tap0", "pvid = 10"), uplink.to_owned()].concat();
    let gateways = [Gateway::start(&left, &scratch, "left", &toml)?, Gateway::start(&right, &scratch, "right", &toml)?];
    let guests = [guest("a", &left, "tap0", "10.9.0.1/24")?, guest("b", &right, "tap0", "10.9.0.2/24")?];
    transfer(&guests[0], (&guests[1], "10.9.0.2".parse()?), 8 << 20)?;
    transfer(&guests[1], (&guests[0], "10.9.0.1".parse()?), 8 << 20)?;
    for gateway in &gateways {
        assert!(gateway.show("fdb")?.contains("dev up0 vlan 10"), "{}", gateway.show("fdb")?);
        assert!(gateway.sent_size("up0")? <= 1518, "a frame of the wire at most");
        // Acknowledgements are half of what a guest receives.
        let size = gateway.sent_size("tap0")?;
        assert!(size > 2 * 1518, "{size} bytes a frame: tagged frames of the trunk are not coalesced");
    }
    Ok(())
}

/// A stream from a wire whose frames have 1500 bytes each: with GRO on the port the guest receives a fifth of the frames, or less.
/// `ethtool` switches it.
fn thin_wire() -> Outcome {
    const LEN: usize = 32 << 20;
    let (scratch, far, near) = (Scratch::new()?, Netns::new("far")?, Netns::new("near")?);
    veth((&near, "up0"), (&far, "up0"))?;
    for netns in [&near, &far] {
        netns.sh("ethtool -K up0 tx off sg off tso off gso off gro off >/dev/null")?;
    }
    far.sh("ip addr add 10.9.0.1/24 dev up0")?;
    let toml = [bridge("br0", "vlan-filtering = true"), tap("tap0", "pvid = 10"), uplink("pvid = 10")].concat();
    let gateway = Gateway::start(&near, &scratch, "near", &toml)?;
    let guest = guest("guest", &near, "tap0", "10.9.0.2/24")?;
    let frames = || -> Outcome<u64> {
        let before = gateway.link("tap0")?["stats"]["tx_packets"].as_u64().ok_or("no counter")?;
        transfer(&far, (&guest, "10.9.0.2".parse()?), LEN)?;
        Ok(gateway.link("tap0")?["stats"]["tx_packets"].as_u64().ok_or("no counter")? - before)
    };
    let ethtool = |line: &str| {
        run(exec(&near, "near").args(["-c", &format!("ethtool {line}")]).env("FATPATH_RUNDIR", scratch.path()))
    };
    let with = frames()?;
    ethtool("-K up0 gro off")?;
    let without = frames()?;
    ethtool("-K up0 gro on")?;
    assert!(without as usize > LEN / 1500, "{without} frames: not one for each of the wire");
    assert!(with * 5 < without, "{with} frames with GRO, {without} without");
    assert!(frames()? * 5 < without);
    assert!(!gateway.show("drops")?.contains("Checksum"), "{}", gateway.show("drops")?);
    Ok(())
}

/// The lines of `ip` and `bridge` in docs/switch.md, which turn links without a bridge into the switch of the example.
fn documented() -> Outcome {
    const PAGE: &str = include_str!("../../../docs/switch.md");
    const EXAMPLE: &str = include_str!("../../../examples/switch.toml");
    let lines = PAGE.split_once("<<'END'\n").and_then(|(_, rest)| rest.split_once("END\n")).ok_or("no lines")?.0;
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let near = |role: &str| {
        let netns = Netns::new(role)?;
        veth((&netns, "up0"), (&far, &format!("{role}up")))?;
        veth((&netns, "wan0"), (&far, &format!("{role}wan")))?;
        Ok::<_, libtest_mimic::Failed>(netns)
    };
    let (file, commands) = (near("file")?, near("lines")?);
    let plain = |name: &str, kind: &str| format!("[[link]]\nname = \"{name}\"\nkind = \"{kind}\"\n");
    let links =
        [plain("red0", "tap"), plain("blue0", "tap"), plain("up0", "packet") + "interface = \"up0\"\n"].concat();
    let _gateways =
        [Gateway::start(&file, &scratch, "file", EXAMPLE)?, Gateway::start(&commands, &scratch, "lines", &links)?];
    let sh = |netns: &Netns, instance: &str, line: &str| {
        run(exec(netns, instance).args(["-e", "-c", line]).env("FATPATH_RUNDIR", scratch.path()))
    };
    sh(&commands, "lines", lines)?;
    let show = "bridge vlan; ip -br addr show dev br0 | grep -o '10\\.[^ ]*'; ip -br link show master br0 | cut -d' ' -f1 | sort";
    assert_eq!(sh(&commands, "lines", show)?, sh(&file, "file", show)?);
    Ok(())
}

/// File of the gateway at the other end of an example's tunnel: addresses and directions are exchanged.
pub(crate) fn mirrored(example: &str) -> Outcome<String> {
    let pairs = [
        ("192.0.2.1\"", "192.0.2.2\""),
        ("192.0.2.1/", "192.0.2.2/"),
        ("10.1.0.", "10.2.0."),
        ("dir = \"in\"\nmode", "dir = \"out\"\nmode"),
    ];
    let swap = |text: String, (one, other): (&str, &str)| {
        text.split(one).map(|part| part.replace(other, one)).collect::<Vec<_>>().join(other)
    };
    let (sas, policies) = (example.find("[[sa]]").ok_or("no SA")?, example.find("[[policy]]").ok_or("no policy")?);
    let mirror =
        |part: &str, pairs: &[(&str, &str)]| pairs.iter().fold(part.to_owned(), |text, pair| swap(text, *pair));
    let links = mirror(&example[..sas], &pairs[..3]);
    // An output SA has no replay window.
    let mirrored = mirror(&example[sas..policies], &pairs[3..]).replace("replay-window = 1024\n", "");
    Ok(links + &mirrored + &mirror(&example[policies..], &pairs[..3]))
}

/// Gateway of the documentation, and one at the other end of its trunk and its tunnel.
fn example() -> Outcome {
    const EXAMPLE: &str = include_str!("../../../examples/switch.toml");
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "up0"), (&right, "up0"))?;
    veth((&left, "wan0"), (&right, "wan0"))?;
    let toml = mirrored(EXAMPLE)?;
    let gateways =
        [Gateway::start(&left, &scratch, "left", EXAMPLE)?, Gateway::start(&right, &scratch, "right", &toml)?];
    let red = [guest("red", &left, "red0", "10.1.0.2/24")?, guest("red", &right, "red0", "10.2.0.2/24")?];
    let blue = [guest("blue", &left, "blue0", "10.1.0.2/24")?, guest("blue", &right, "blue0", "10.1.0.3/24")?];
    red[0].sh("ip route add default via 10.1.0.254")?;
    red[1].sh("ip route add default via 10.2.0.254")?;
    transfer(&red[0], (&red[1], "10.2.0.2".parse()?), 8 << 20)?;
    transfer(&blue[0], (&blue[1], "10.1.0.3".parse()?), 8 << 20)?;
    let sealed = gateways[0].show("sa")?;
    assert!(sealed.contains("0x00001000") || sealed.contains("0x1000"), "{sealed}");
    let fdb = gateways[0].show("fdb")?;
    assert!(fdb.lines().any(|line| line.contains("dev up0 vlan 20") && !line.contains("permanent")), "{fdb}");
    assert!(!fdb.lines().any(|line| line.contains("dev up0 vlan 10")), "{fdb}");
    Ok(())
}

/// Two ports, and a guest whose address moves from the one to the other.
fn moved() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gw")?);
    let toml = [bridge("br0", ""), tap("tap0", ""), tap("tap1", ""), tap("tap2", "")].concat();
    let gateway = Gateway::start(&netns, &scratch, "gw", &toml)?;
    let a = guest("a", &netns, "tap0", "10.9.0.1/24")?;
    let b = Netns::new("b")?;
    netns.sh(&format!("for tap in tap1 tap2; do ip link set $tap netns {}; done", b.name()))?;
    let mac = "02:00:00:00:00:99";
    for (here, there) in [("tap1", "tap2"), ("tap2", "tap1"), ("tap1", "tap2")] {
        b.sh(&format!(
            "ip link set {there} down; ip addr flush dev {there}
            ip link set {here} down; ip link set {here} address {mac}; ip link set {here} up
            ip addr add 10.9.0.2/24 dev {here}
            until ping -c 1 -W 1 10.9.0.1 >/dev/null; do sleep 0.1; done"
        ))?;
        a.sh("ping -c 2 -i 0.2 -W 2 10.9.0.2")?;
        let fdb = gateway.show("fdb")?;
        assert!(fdb.contains(&format!("{mac} dev {here} ")), "{here}: {fdb}");
        transfer(&a, (&b, "10.9.0.2".parse()?), 4 << 20)?;
    }
    Ok(())
}

/// Sends frames of 5000 sources by a packet socket, then some that are too short, too long, or tagged with VLANs that
/// the port is not in.
const FLOOD: &str = r#"
import socket, struct, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
for n in range(5000):
    time.sleep(0 if n % 50 else 0.005)
    s.send(b"\xff" * 6 + struct.pack("!HI", 0x0200, n) + struct.pack("!H", 0x88b5) + bytes(46))
for n in range(200):
    time.sleep(0 if n % 20 else 0.005)
    source = struct.pack("!HI", 0x0600, n)
    s.send(b"\x02" * 6 + source + struct.pack("!HHH", 0x8100, n + 100, 0x88b5) + bytes(46))
    s.send(b"\x02" * 6 + source + struct.pack("!H", 0x88b5) + bytes(1))
    s.send(b"\x02" * 6 + b"\x03" * 6 + struct.pack("!H", 0x88b5) + bytes(46))
"#;

fn flood() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gw")?);
    let toml = [
        bridge("br0", "vlan-filtering = true"),
        tap("tap0", "pvid = 10, fdb-limit = 64"),
        tap("tap1", "pvid = 10"),
        tap("tap2", "pvid = 10"),
    ]
    .concat();
    let gateway = Gateway::start(&netns, &scratch, "gw", &toml)?;
    let bad = guest("bad", &netns, "tap0", "10.9.0.1/24")?;
    let a = guest("a", &netns, "tap1", "10.9.0.2/24")?;
    let b = guest("b", &netns, "tap2", "10.9.0.3/24")?;
    transfer(&a, (&b, "10.9.0.3".parse()?), 1 << 20)?;
    std::fs::write(scratch.file("flood.py"), FLOOD)?;
    bad.sh(&format!("python3 {} tap0", scratch.file("flood.py").display()))?;
    transfer(&b, (&a, "10.9.0.2".parse()?), 8 << 20)?;
    let mut port = Value::Null;
    wait_until("the flood has arrived", Duration::from_secs(20), || {
        port = gateway.link("tap0").map_or(Value::Null, |link| link["port"].clone());
        port["rx_dropped"].as_u64() >= Some(400)
    })
    .map_err(|_| format!("{port}"))?;
    assert!(gateway.link("tap0")?["stats"]["rx_dropped"].as_u64() >= Some(400), "{}", gateway.show("links")?);
    assert!(port["learnt"].as_u64() <= Some(64) && port["fdb_full"].as_u64() >= Some(4900), "{port}");
    let fdb = gateway.show("fdb")?;
    assert!(fdb.lines().count() < 100, "{fdb}");
    let drops = gateway.show("drops")?;
    for (reason, count) in [("BridgeVlan", 200), ("BridgeSource", 200)] {
        let line = drops.lines().find(|line| line.starts_with(reason) && line.contains(" dev tap0 "));
        let counted = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        assert!(counted >= Some(count), "{reason}: {drops}");
    }
    Ok(())
}

/// Sends a frame of station 0x99 by a packet socket.
const SPEAK: &str = "python3 -c '
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
s.send(bytes.fromhex(\"ffffffffffff02000000009988b5\") + bytes(46))'";

/// Compares lines of `bridge monitor fdb` here and on Linux while addresses are learnt, move, age, are set and flushed.
fn monitored() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    far.sh("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6")?;
    let near = |role: &str| {
        let netns = Netns::new(role)?;
        netns.sh("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6")?;
        for port in ["1", "2"] {
            veth((&netns, &format!("p{port}")), (&far, &format!("{role}{port}")))?;
            netns.sh(&format!("ip link set p{port} address 02:00:00:00:01:0{port}"))?;
        }
        Ok::<_, libtest_mimic::Failed>(netns)
    };
    let (linux, ours) = (near("linux")?, near("ours")?);
    let toml =
        ["p1", "p2"].map(|p| format!("[[link]]\nname = \"{p}\"\nkind = \"packet\"\ninterface = \"{p}\"\n")).concat();
    let _gateway = Gateway::start(&ours, &scratch, "ours", &toml)?;
    let start = |mut shell: Command, role: &str| {
        let monitor =
            "for port in p1 p2; do ip link set $port master br0; done; echo ready; exec stdbuf -oL bridge monitor fdb";
        let script = format!(
            "ip link add br0 address 02:00:00:00:01:09 type bridge ageing_time 100; ip link set br0 up
            ip link set p1 up; ip link set p2 up; {monitor}"
        );
        let process = Process::spawn(shell.args(["-c", &script]).env("FATPATH_RUNDIR", scratch.path()), &scratch)?;
        wait_until(&format!("{role} is ready"), Duration::from_secs(10), || process.output().contains("ready"))?;
        Ok::<_, libtest_mimic::Failed>(process)
    };
    let monitors = [(start(linux.command("sh"), "linux")?, "linux"), (start(exec(&ours, "ours"), "ours")?, "ours")];
    let both = |line: &str| {
        run(linux.command("sh").args(["-c", line]))?;
        run(exec(&ours, "ours").args(["-c", line]).env("FATPATH_RUNDIR", scratch.path()))?;
        Ok::<_, libtest_mimic::Failed>(())
    };
    let send_frame =
        |port: &str| ["linux", "ours"].iter().try_for_each(|role| far.sh(&format!("{SPEAK} {role}{port}")).map(drop));
    // A listener gets only later notifications: until it listens, the station moves back and forth.
    let mut attempts = 0;
    wait_until("the monitors listen", Duration::from_secs(20), || {
        attempts += 1;
        let sent = send_frame(if attempts % 2 == 0 { "1" } else { "2" });
        std::thread::sleep(Duration::from_millis(100));
        sent.is_ok() && monitors.iter().all(|(monitor, _)| monitor.output().contains("master br0"))
    })?;
    let aged =
        |monitor: &Process| monitor.output().trim_end().lines().last().is_some_and(|line| line.starts_with("Deleted"));
    wait_until("the station has aged out", Duration::from_secs(10), || {
        monitors.iter().all(|(monitor, _)| aged(monitor))
    })?;
    let starts = [0, 1].map(|at: usize| monitors[at].0.output().len());
    let expect = |what: &str, want: &mut Vec<&'static str>, lines: &[&'static str]| {
        want.extend(lines);
        for ((monitor, role), start) in monitors.iter().zip(starts) {
            // The number of entries with a VLAN depends on the VLANs of the host's kernel.
            let lines = |printed: &str| {
                printed
                    .lines()
                    .filter(|line| !line.contains("vlan"))
                    .map(|line| line.trim_end().to_owned())
                    .collect::<Vec<_>>()
            };
            let printed = || lines(&monitor.output()[start..]);
            wait_until(what, Duration::from_secs(10), || printed().len() >= want.len())
                .map_err(|_| format!("{role}: {what}: {:?}", printed()))?;
            assert_eq!(printed(), *want, "{role}: {what}");
        }
        Ok::<_, libtest_mimic::Failed>(())
    };
    let want = &mut Vec::new();
    both("ip link set br0 type bridge ageing_time 300")?;
    send_frame("1")?;
    expect("learnt", want, &["02:00:00:00:00:99 dev p1 master br0"])?;
    send_frame("1")?;
    send_frame("2")?;
    expect("moved", want, &["02:00:00:00:00:99 dev p2 master br0"])?;
    expect("aged", want, &["Deleted 02:00:00:00:00:99 dev p2 master br0 stale"])?;
    both("ip link set br0 type bridge ageing_time 30000")?;
    for (line, lines) in [
        ("bridge fdb add 02:00:00:00:00:77 dev p1 master static", &["02:00:00:00:00:77 dev p1 master br0 static"][..]),
        ("bridge fdb replace 02:00:00:00:00:77 dev p1 master static", &["02:00:00:00:00:77 dev p1 master br0 static"]),
        ("bridge fdb replace 02:00:00:00:00:77 dev p2 master dynamic", &["02:00:00:00:00:77 dev p2 master br0"]),
        ("bridge fdb del 02:00:00:00:00:77 dev p2 master", &["Deleted 02:00:00:00:00:77 dev p2 master br0"]),
        (
            "ip link set p2 address 02:00:00:00:01:12",
            &["Deleted 02:00:00:00:01:02 dev p2 master br0 permanent", "02:00:00:00:01:12 dev p2 master br0 permanent"],
        ),
        ("ip link set p2 nomaster", &["Deleted 02:00:00:00:01:12 dev p2 master br0 permanent"]),
        (
            "ip link del br0",
            &[
                "Deleted 02:00:00:00:01:01 dev p1 master br0 permanent",
                "Deleted 02:00:00:00:01:09 dev br0 master br0 permanent",
            ],
        ),
    ] {
        both(line)?;
        expect(line, want, lines)?;
    }
    Ok(())
}

/// Output of `ip` and `bridge` about every bridge.
const SHOW: &str =
    "ip -d link show type bridge | grep -o 'ageing_time [0-9]*\\|forward_delay [0-9]*\\|vlan_filtering [01]\\|vlan_default_pvid [0-9]*\\|vlan_stats_enabled [01]'
ip -br link show type bridge | cut -d' ' -f1; ip -br link show type bridge_slave | cut -d' ' -f1
bridge -d link | sed 's/^[0-9]*: //'; bridge vlan; bridge fdb | grep 02:00:00:00:00:77";

fn kept() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let state = scratch.file("state").display().to_string();
    let start = |toml: &str| {
        let mut command = netns.command("sh");
        command.args(["-c", "exec \"$0\" \"$@\" --state \"$STATE\""]).arg(fatpath()).env("STATE", &state);
        Gateway::start_under(command, &scratch, "x", toml)
    };
    let sh = |line: &str| {
        let mut command = Command::new(fatpath());
        command.args(["exec", "--instance", "x", "--", "sh", "-c", line]);
        run(command.env("FATPATH_RUNDIR", scratch.path()))
    };
    let mut gateway = start("")?;
    sh("set -e
        ip link add br0 type bridge vlan_filtering 1 vlan_stats_enabled 1 ageing_time 5000 forward_delay 400 vlan_default_pvid 7
        ip link add tap0 type tap; ip link add tap1 type tap; ip link set br0 up; ip link set tap0 up; ip link set tap1 up
        ip link set tap0 master br0; ip link set tap1 master br0
        bridge vlan del dev tap0 vid 7; bridge vlan add dev tap0 vid 20 pvid untagged; bridge vlan add dev tap0 vid 30-40
        bridge vlan add dev br0 vid 9 self
        bridge link set dev tap1 isolated on flood off
        ip link set tap0 type bridge_slave learning off
        bridge fdb add 02:00:00:00:00:77 dev tap0 master static vlan 30
        ip addr add 10.9.0.1/24 dev br0")?;
    let before = sh(SHOW)?;
    for want in [
        "ageing_time 5000",
        "forward_delay 400",
        "vlan_stats_enabled 1",
        "isolated on",
        "learning off",
        "vlan 30 master br0 static",
        "20 PVID Egress Untagged",
    ] {
        assert!(before.contains(want), "no {want} in {before}");
    }
    let mut save = Command::new(fatpath());
    run(save.args(["save", "--instance", "x"]).env("FATPATH_RUNDIR", scratch.path()))?;
    gateway.terminate()?;
    gateway = start("")?;
    assert_eq!(sh(SHOW)?, before);
    assert!(sh("ip -4 -o addr show dev br0")?.contains("10.9.0.1/24"));
    // The ports of a deleted bridge stay links.
    sh("ip link del br0")?;
    assert!(sh("bridge link")?.is_empty() && sh("ip -br link show tap0")?.contains("tap0"));
    gateway.terminate()?;
    std::fs::remove_file(&state)?;
    // A client's change does not outlive a port setting of the file.
    let file = [bridge("br0", "vlan-filtering = true"), tap("tap0", "pvid = 10, tagged = [20]")].concat();
    gateway = start(&file)?;
    let vlans_of = |dev: &str| sh(&format!("bridge vlan show dev {dev} | tail -n +2 | tr -s ' \\n' ' '"));
    let of_file = vlans_of("tap0")?;
    assert!(of_file.contains("10 PVID Egress Untagged 20"), "{of_file}");
    sh("set -e
        bridge vlan add dev tap0 vid 30 pvid untagged; bridge vlan del dev tap0 vid 20; bridge link set dev tap0 isolated on
        ip link add tap1 type tap; ip link set tap1 master br0; bridge vlan add dev tap1 vid 40 pvid untagged")?;
    let of_client = vlans_of("tap1")?;
    let mut save = Command::new(fatpath());
    run(save.args(["save", "--instance", "x"]).env("FATPATH_RUNDIR", scratch.path()))?;
    gateway.terminate()?;
    gateway = start(&file)?;
    assert_eq!([vlans_of("tap0")?, vlans_of("tap1")?], [of_file, of_client]);
    assert!(sh("bridge -d link show dev tap0")?.contains("isolated off"));
    gateway.terminate()?;
    // Nor does a saved setting outlive the same setting in the file.
    let both = file.clone() + &tap("tap1", "pvid = 50");
    gateway = start(&both)?;
    assert!(
        vlans_of("tap1")?.contains("50 PVID Egress Untagged") && !vlans_of("tap1")?.contains("40"),
        "{}",
        vlans_of("tap1")?
    );
    gateway.terminate()?;
    std::fs::remove_file(&state)?;
    // A file, and another one.
    let toml = |rest: &str, port: &str| [bridge("br0", rest), tap("tap0", port)].concat();
    let gateway = start(&toml("vlan-filtering = true", "pvid = 10, tagged = [20]"))?;
    let vlans = |want: &[&str]| {
        let mut printed = String::new();
        wait_until("the file holds", Duration::from_secs(20), || {
            printed = sh("bridge -j vlan show dev tap0").unwrap_or_default();
            let shown: Value = serde_json::from_str(&printed).unwrap_or_default();
            let found = shown[0]["vlans"].as_array().cloned().unwrap_or_default();
            let found: Vec<_> = found.iter().map(|vlan| vlan["vlan"].to_string()).collect();
            found == want
        })
        .map_err(|_| format!("{want:?}: {printed}{}", gateway.log()))
    };
    vlans(&["10", "20"])?;
    gateway.reload(&toml("vlan-filtering = true\nageing-time = 7\nforward-delay = 0", "tagged = [\"20-22\"]"))?;
    vlans(&["1", "20", "21", "22"])?;
    let shown = sh("ip -d link show br0")?;
    assert!(shown.contains("ageing_time 700 ") && shown.contains("forward_delay 0 "), "{shown}");
    // A file that is read again undoes a client's changes of the port.
    sh("ip link set tap0 nomaster; ip link add br1 type bridge; ip link set tap0 master br1")?;
    gateway.reload(&toml("", "pvid = 30"))?;
    vlans(&["30"])?;
    assert!(sh("ip link show br1").is_err());
    Ok(())
}
