//! Guests with a kernel of their own by vhost-user: Linux in QEMU, on a bridge of the gateway.

use std::path::Path;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use system::{
    Gateway, Guest, GuestDevice, Initramfs, Netns, Outcome, Process, QEMU_NEEDS, Scratch, trial, veth, wait_until,
};

use crate::bridge::{bridge, guest, mirrored};

/// Program that makes the traffic, in guests and on the host.
const PEER: &str = env!("CARGO_BIN_EXE_guest-peer");

/// Bytes of the long stream from one guest to the other.
const LONG: u64 = 100 << 20;

/// Timeout of a reconnection between guests and gateway.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("guests/qemu_guests_talk_to_each_other_and_the_uplink", QEMU_NEEDS, talk),
        trial("guests/qemu_guests_reboot_and_the_gateway_restarts", QEMU_NEEDS, restart),
        trial("guests/example_has_two_qemu_guests_and_a_tunnel", QEMU_NEEDS, example),
    ]
}

/// A gateway with two guests, and a host behind its uplink.
///
/// VLAN 10 is that of the first guest and of the gateway; VLAN 20 that of the second one and of the gateway; VLAN 30 is
/// common, also to the uplink. Frames of VLAN 30 have a tag at the first guest and none at the second one, those of
/// VLAN 20 have one.
struct Site {
    gateway: Option<Gateway>,
    guests: [Guest; 2],
    far: Netns,
    node: Netns,
    initramfs: Initramfs,
    toml: String,
    _server: Process,
    // Removed last.
    scratch: Scratch,
}

const MACS: [&str; 2] = ["02:00:00:00:0a:01", "02:00:00:00:0a:02"];

/// Pairs of queues of the guests.
const QUEUES: [u16; 2] = [1, 2];

/// Configures the first guest and the second one.
const SETUP: [&str; 2] = [
    "ip link set eth0 up; ip link add link eth0 name eth0.30 type vlan id 30; ip link set eth0.30 up
    ip addr add 10.0.10.1/24 dev eth0; ip addr add fd10::1/64 dev eth0
    ip addr add 10.0.30.1/24 dev eth0.30; ip addr add fd30::1/64 dev eth0.30",
    "ip link set eth0 up; ip link add link eth0 name eth0.20 type vlan id 20; ip link set eth0.20 up
    ip addr add 10.0.30.2/24 dev eth0; ip addr add fd30::2/64 dev eth0
    ip addr add 10.0.20.2/24 dev eth0.20; ip addr add fd20::2/64 dev eth0.20",
];

/// Starts the server, and waits until it answers.
const SERVE: &str = "guest-peer serve >serve.log 2>&1 &
    guest-peer ask 127.0.0.1";

/// Properties of a device without offloads, whose frames are in one buffer each.
#[rustfmt::skip]
const PLAIN: [&str; 12] = [
    "csum=off", "host_tso4=off", "host_tso6=off", "host_ecn=off", "host_ufo=off", "guest_csum=off", "guest_tso4=off", "guest_tso6=off",
    "guest_ecn=off", "mrg_rxbuf=off", "indirect_desc=off", "event_idx=off",
];

fn start(scratch: &Scratch, initramfs: &Initramfs, at: usize, properties: &[&str]) -> Outcome<Guest> {
    let name = format!("vm{at}");
    let device = GuestDevice { socket: &scratch.file(&name), mac: MACS[at], queues: QUEUES[at], properties };
    Guest::start(scratch, initramfs, &name, device)
}

impl Site {
    fn new() -> Outcome<Self> {
        let (scratch, node, far) = (Scratch::new()?, Netns::new("node")?, Netns::new("far")?);
        veth((&node, "up0"), (&far, "up0"))?;
        far.sh("ip addr add 10.0.30.9/24 dev up0; ip addr add fd30::9/64 dev up0")?;
        // The host's stack receives the guests' packets, too.
        node.sh("echo 1 >/proc/sys/net/ipv6/conf/up0/disable_ipv6")?;
        let port = |name: &str, queues: u16, vlans: &str| {
            let socket = scratch.file(name).display().to_string();
            format!(
                "[[link]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\nqueues = {queues}\n\
                 master = \"br0\"\nport = {{ {vlans} }}\n"
            )
        };
        let own = "vlan-filtering = true\naddresses = [\"10.0.10.254/24\", \"fd10::fe/64\"]\n\
                   port = { pvid = 10, tagged = [20] }";
        let toml = [
            bridge("br0", own),
            "[[link]]\nname = \"br0.20\"\nkind = \"vlan\"\nlink = \"br0\"\nid = 20\n\
             addresses = [\"10.0.20.254/24\", \"fd20::fe/64\"]\n"
                .to_owned(),
            port("vm0", QUEUES[0], "pvid = 10, tagged = [30]"),
            port("vm1", QUEUES[1], "pvid = 30, tagged = [20]"),
            "[[link]]\nname = \"up0\"\nkind = \"packet\"\ninterface = \"up0\"\nmaster = \"br0\"\nport = { pvid = 30 }\n"
                .to_owned(),
        ]
        .concat();
        let gateway = Gateway::start(&node, &scratch, "node", &toml)?;
        let initramfs = Initramfs::new(&scratch, &[Path::new(PEER)])?;
        let guests = [start(&scratch, &initramfs, 0, &[])?, start(&scratch, &initramfs, 1, &[])?];
        let server = Process::spawn(far.command(PEER).arg("serve"), &scratch)?;
        let mut site = Self { gateway: Some(gateway), guests, far, node, initramfs, toml, _server: server, scratch };
        for at in [0, 1] {
            site.set_up(at)?;
        }
        site.far.sh(&format!("{PEER} ask 10.0.30.9"))?;
        Ok(site)
    }

    fn gateway(&self) -> Outcome<&Gateway> {
        self.gateway.as_ref().ok_or_else(|| "no gateway".into())
    }

    /// Waits for a guest that boots, and configures it.
    fn set_up(&mut self, at: usize) -> Outcome {
        self.guests[at].wait_for_boot()?;
        self.guests[at].sh(SETUP[at])?;
        self.guests[at].sh(SERVE).map(drop)
    }

    /// Kills a guest, and starts it again, its device with these properties.
    fn start_again(&mut self, at: usize, properties: &[&str]) -> Outcome {
        self.guests[at].kill()?;
        self.guests[at] = start(&self.scratch, &self.initramfs, at, properties)?;
        Ok(())
    }

    /// A value of `fatpath show --json links`.
    fn counter(&self, link: &str, path: &str) -> Outcome<u64> {
        let shown = self.gateway()?.link(link)?;
        shown.pointer(path).and_then(Value::as_u64).ok_or_else(|| format!("no {path} in {shown}").into())
    }

    /// Average length of the frames that the link sends while `action` runs, in bytes.
    fn frame_size(&mut self, link: &str, action: impl FnOnce(&mut Self) -> Outcome) -> Outcome<u64> {
        let counted = |site: &Self| {
            Ok::<_, Failed>((site.counter(link, "/stats/tx_bytes")?, site.counter(link, "/stats/tx_packets")?))
        };
        let before = counted(self)?;
        action(self)?;
        let after = counted(self)?;
        Ok((after.0 - before.0) / (after.1 - before.1).max(1))
    }
}

/// Shell commands that send all kinds of traffic to these addresses, and `bytes` by each stream.
fn traffic(peer: &str, addrs: &[&str], bytes: u64) -> String {
    let each = addrs.iter().map(|addr| {
        format!(
            "ping -c 1 -W 5 {addr} >/dev/null; ping -c 1 -W 5 -s 1473 {addr} >/dev/null; ping -c 1 -W 5 -s 9000 {addr} >/dev/null
            {peer} ask {addr}; {peer} send {addr} {bytes}; {peer} fetch {addr} {bytes}\n"
        )
    });
    each.collect()
}

fn pings(addrs: &[&str]) -> String {
    addrs
        .iter()
        .map(|addr| format!("for size in 56 1473 9000; do ping -c 1 -W 5 -s $size {addr} >/dev/null; done\n"))
        .collect()
}

fn talk() -> Outcome {
    let mut site = Site::new()?;
    site.guests[0].sh(&traffic("guest-peer", &["10.0.30.2", "fd30::2"], 4 << 20))?;
    for guest in &mut site.guests {
        guest.sh(&traffic("guest-peer", &["10.0.30.9", "fd30::9"], 2 << 20))?;
    }
    site.far.sh(&traffic(PEER, &["10.0.30.1", "fd30::1", "10.0.30.2", "fd30::2"], 2 << 20))?;
    site.guests[0].sh(&pings(&["10.0.10.254", "fd10::fe"]))?;
    site.guests[1].sh(&pings(&["10.0.20.254", "fd20::fe"]))?;
    // An address in VLAN 10 of the first guest, which the second guest has in VLAN 30, is unreachable.
    site.guests[1].sh("ip addr add 10.0.10.2/24 dev eth0")?;
    let reached = site.guests[0].sh("if ping -c 2 -W 1 10.0.10.2; then exit 1; fi")?;
    assert!(reached.contains("100% packet loss"), "{reached}");

    for (to, stream, len) in [("vm1", "send", LONG), ("vm0", "fetch", LONG / 4)] {
        let copied = |site: &Site| {
            Ok::<_, Failed>([site.counter("vm0", "/guest/copied")?, site.counter("vm1", "/guest/copied")?])
        };
        let before = copied(&site)?;
        let mut printed = String::new();
        let size = site.frame_size(to, |site| {
            printed = site.guests[0].sh(&format!("guest-peer {stream} 10.0.30.2 {len}"))?;
            Ok(())
        })?;
        println!("{stream}: {}, {size} bytes a frame", printed.trim());
        assert!(size > 8 * 1500, "{size} bytes a frame\n{}", site.gateway()?.show("links")?);
        // Out of the one guest's memory, and into the other's.
        for (before, after) in before.into_iter().zip(copied(&site)?) {
            let copied = after - before;
            assert!((len..len + len / 10).contains(&copied), "{copied} bytes copied of {len}");
        }
    }
    let gateway = site.gateway()?;
    let drops = gateway.show("drops")?;
    assert!(!["TooBig", "BridgeVlan", "Checksum", "Ring"].iter().any(|word| drops.contains(word)), "{drops}");
    // `copied REASON N bytes, N times`: other reasons copy little.
    let counters = gateway.show("counters")?;
    let copies = counters.lines().filter_map(|line| line.strip_prefix("copied ")?.split_once(' '));
    for (reason, counted) in copies.filter(|&(reason, _)| reason != "guest") {
        let bytes: u64 = counted.split_whitespace().next().unwrap_or_default().parse()?;
        assert!(bytes < 1 << 20, "{reason}: {counters}");
    }
    for (link, queues) in [("vm0", QUEUES[0]), ("vm1", QUEUES[1])] {
        check_negotiated(&gateway.link(link)?, queues.into());
    }
    Ok(())
}

/// Checks the features that a Linux guest with so many pairs of queues negotiates in QEMU 7.2, and the use of each of
/// its rings.
fn check_negotiated(link: &Value, pairs: usize) {
    let guest = &link["guest"];
    let mut features: Vec<&str> =
        guest["features"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    features.sort_unstable();
    #[rustfmt::skip]
    let want = [
        "csum", "event_idx", "guest_csum", "guest_ecn", "guest_tso4", "guest_tso6", "host_ecn", "host_tso4", "host_tso6", "indirect_desc",
        "mq", "mrg_rxbuf", "protocol_features", "version_1",
    ];
    assert_eq!(features, want, "{guest}");
    let (connected, running) = (&guest["connected"], &guest["running"]);
    assert!(*connected == true && *running == true && guest["violations"] == 0 && guest["connections"] == 1, "{guest}");
    let queues = guest["queues"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(queues.len(), 2 * pairs, "{guest}");
    let mut chains = [0, 0];
    for (queue, way) in queues.iter().zip([0, 1].into_iter().cycle()) {
        assert!(queue["running"] == true && queue["enabled"] == true && queue["size"] == 256, "{guest}");
        let counted = |name: &str| queue[name].as_u64().unwrap_or_default();
        // Of several workers each fills its own pair's ring to the guest, with what it has received for it: maybe nothing.
        let may_be_unused = way == 0 && system::have_several_workers();
        assert!(counted("chains") > 0 || may_be_unused, "{guest}");
        assert!((1.min(counted("chains"))..=counted("chains")).contains(&counted("calls")), "{guest}");
        chains[way] += counted("chains");
    }
    assert!(chains.iter().all(|&chains| chains > 1000), "{guest}");
}

/// One stream of small parts, which `keep` runs until a file is there.
struct Keep {
    /// The guest that runs the stream.
    at: usize,
    name: &'static str,
}

impl Keep {
    fn start(site: &mut Site, at: usize, name: &'static str, addr: &str) -> Outcome<Self> {
        site.guests[at].sh(&format!(
            "(guest-peer keep {addr} {name}.stop && echo status 0 || echo status 1) >{name}.log 2>&1 &"
        ))?;
        let keep = Self { at, name };
        keep.goes_on(site)?;
        Ok(keep)
    }

    fn parts(&self, site: &mut Site) -> Outcome<u64> {
        let printed = site.guests[self.at].sh(&format!("cat {}.log", self.name))?;
        if printed.contains("status") {
            return Err(format!("the stream {} has ended:\n{printed}", self.name).into());
        }
        Ok(printed.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0))
    }

    /// Waits until parts are returned that were sent after the call.
    fn goes_on(&self, site: &mut Site) -> Outcome {
        let (before, mut now) = (self.parts(site)?, Ok(0));
        wait_until(&format!("the stream {} goes on", self.name), PATIENCE, || {
            now = self.parts(site);
            now.as_ref().is_ok_and(|&now| now > before + 1) || now.is_err()
        })
        .and(now.map(drop))
        .map_err(|failed| {
            let shown = site.gateway().and_then(|gateway| gateway.show("links")).unwrap_or_default();
            format!("{}\n{shown}", failed.message().unwrap_or_default()).into()
        })
    }

    /// Ends it, and returns the longest time that a part took, in milliseconds.
    fn stop(self, site: &mut Site) -> Outcome<u64> {
        let printed = site.guests[self.at].sh(&format!(
            "touch {0}.stop; for try in $(seq 300); do grep -q status {0}.log && break; sleep 0.1; done; tail -n 2 {0}.log",
            self.name
        ))?;
        let longest =
            printed.lines().next().and_then(|line| line.strip_suffix(" ms")?.rsplit(' ').next()?.parse().ok());
        match longest {
            Some(longest) if printed.contains("status 0") => Ok(longest),
            _ => Err(format!("the stream {}: {printed}", self.name).into()),
        }
    }
}

/// Each side is restarted while streams run.
fn restart() -> Outcome {
    let mut site = Site::new()?;
    let uplink = Keep::start(&mut site, 0, "uplink", "10.0.30.9")?;
    // A stream that breaks off.
    Keep::start(&mut site, 0, "rebooted", "10.0.30.2")?;

    // The guest reboots itself while frames for it are in flight.
    site.guests[1].begin("reboot -f")?;
    site.set_up(1)?;
    uplink.goes_on(&mut site)?;
    site.guests[1].sh(&traffic("guest-peer", &["10.0.30.1", "fd30::1"], 1 << 20))?;

    // QEMU is killed, and started again with a device with few features.
    Keep::start(&mut site, 0, "killed", "10.0.30.2")?;
    site.start_again(1, &PLAIN)?;
    uplink.goes_on(&mut site)?;
    site.set_up(1)?;
    site.guests[1].sh(&traffic("guest-peer", &["10.0.30.1", "fd30::1"], 1 << 20))?;
    // The guest gets all frames, each of one segment, with a checksum and in one buffer; so are its own frames.
    let drops = site.gateway()?.show("drops")?;
    assert!(!drops.contains("TooBig"), "{drops}");
    let size = site.frame_size("vm1", |site| site.guests[1].sh("guest-peer fetch fd30::1 1000000").map(drop))?;
    assert!((1000..=1518).contains(&size), "{size} bytes a frame");
    let shown = site.gateway()?.show("links")?;
    let of_link = shown.split(": vm1: ").nth(1).ok_or("no vm1")?;
    for word in ["rx-checksum", "rx-tso4", "rx-tso6", "tx-checksum", "tx-tso4", "tx-tso6"] {
        assert!(of_link.contains(&format!("{word} off (not negotiated by the guest)")), "{word}: {shown}");
    }
    let features = site.gateway()?.link("vm1")?["guest"]["features"].to_string();
    let disabled = ["csum", "tso", "mrg_rxbuf", "indirect_desc", "event_idx"];
    assert!(disabled.iter().all(|word| !features.contains(word)), "{features}");
    assert_eq!(site.counter("vm1", "/guest/connections")?, 2);

    // The gateway ends by SIGTERM or SIGKILL and restarts: streams continue.
    let between = Keep::start(&mut site, 0, "between", "fd30::2")?;
    for orderly in [false, true] {
        let mut gateway = site.gateway.take().ok_or("no gateway")?;
        if orderly {
            gateway.terminate()?;
        } else {
            gateway.kill()?;
        }
        drop(gateway);
        site.gateway = Some(Gateway::start(&site.node, &site.scratch, "node", &site.toml)?);
        uplink.goes_on(&mut site)?;
        between.goes_on(&mut site)?;
        site.guests[1].sh(&traffic("guest-peer", &["10.0.30.1", "fd30::9"], 1 << 20))?;
    }
    // The next gateway goes on with the guests, which do not see it.
    let next = site.node.command(system::fatpath());
    let (scratch, toml) = (&site.scratch, &site.toml);
    site.gateway.as_mut().ok_or("no gateway")?.replace(next, scratch, toml, PATIENCE)?;
    uplink.goes_on(&mut site)?;
    between.goes_on(&mut site)?;
    site.guests[1].sh(&traffic("guest-peer", &["10.0.30.1", "fd30::9"], 1 << 20))?;
    for link in ["vm0", "vm1"] {
        assert_eq!(site.counter(link, "/guest/connections")?, 0, "{}", site.gateway()?.log());
    }
    for (name, keep) in [("uplink", uplink), ("between", between)] {
        println!("{name}: no part took longer than {} ms", keep.stop(&mut site)?);
    }
    for link in ["vm0", "vm1"] {
        assert_eq!(site.counter(link, "/guest/violations")?, 0, "{}", site.gateway()?.show("links")?);
    }
    Ok(())
}

/// Gateway of the documentation with its two guests, and one at the other end of its trunk and its tunnel.
fn example() -> Outcome {
    const EXAMPLE: &str = include_str!("../../../examples/guests.toml");
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "up0"), (&right, "up0"))?;
    veth((&left, "wan0"), (&right, "wan0"))?;
    // Only the paths of the sockets are changed.
    let toml = EXAMPLE.replace("/run/guests", &scratch.path().display().to_string());
    let taps = ["red", "blue"].iter().fold(mirrored(EXAMPLE)?, |toml, name| {
        toml.replace(&format!("\"vhost-user\"\nsocket = \"/run/guests/{name}.sock\""), "\"tap\"")
    });
    let gateways = [Gateway::start(&left, &scratch, "left", &toml)?, Gateway::start(&right, &scratch, "right", &taps)?];
    let far = [guest("red", &right, "red0", "10.2.0.2/24")?, guest("blue", &right, "blue0", "10.1.0.3/24")?];
    far[0].sh("ip route add default via 10.2.0.254")?;
    let mut servers = Vec::new();
    for guest in &far {
        servers.push(Process::spawn(guest.command(PEER).arg("serve"), &scratch)?);
    }
    let initramfs = Initramfs::new(&scratch, &[Path::new(PEER)])?;
    let boot = |name: &str, mac: &str| {
        let socket = scratch.file(&format!("{name}.sock"));
        Guest::start(&scratch, &initramfs, name, GuestDevice { socket: &socket, mac, queues: 1, properties: &[] })
    };
    // Both have the same address, each in its VLAN.
    let (mut red, mut blue) = (boot("red", MACS[0])?, boot("blue", MACS[1])?);
    for guest in [&mut red, &mut blue] {
        guest.wait_for_boot()?;
        guest.sh(&format!("ip link set eth0 up; ip addr add 10.1.0.2/24 dev eth0; {SERVE}"))?;
    }
    red.sh("ip route add default via 10.1.0.254")?;
    let bytes = 8 << 20;
    red.sh(&traffic("guest-peer", &["10.2.0.2"], bytes))?;
    far[0].sh(&traffic(PEER, &["10.1.0.2"], bytes))?;
    blue.sh(&traffic("guest-peer", &["10.1.0.3"], bytes))?;
    far[1].sh(&traffic(PEER, &["10.1.0.2"], bytes))?;
    let sealed: Value = serde_json::from_str(&gateways[0].show("--json sa")?)?;
    let sealed_frames =
        sealed.as_array().into_iter().flatten().filter_map(|sa| sa["oseq"].as_u64().max(sa["seq"].as_u64()));
    assert!(sealed_frames.filter(|&count| count > 2 * bytes / 1500).count() == 2, "{sealed}");
    for link in ["red0", "blue0"] {
        let size = gateways[0].sent_size(link)?;
        assert!(size > 2 * 1500, "{link}: {size} bytes a frame\n{}", gateways[0].show("links")?);
    }
    let fdb = gateways[0].show("fdb")?;
    for (mac, place) in [(MACS[0], "dev red0 vlan 10"), (MACS[1], "dev blue0 vlan 20")] {
        assert!(fdb.lines().any(|line| line.starts_with(mac) && line.contains(place)), "{fdb}");
    }
    Ok(())
}
