//! Devices of TUN and TAP links on the host: their addresses and routes, and that no packet leaves in clear while the
//! gateway is away.

use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{
    Capture, Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, have_several_workers, run, trial, veth,
    wait_until,
};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

/// Longest time until a change is seen.
const PATIENCE: Duration = Duration::from_secs(10);

const DEVICE: &str =
    "device = { addresses = [\"10.1.0.1/24\", \"fd00:1::1/64\"], routes = [\"10.2.0.0/24\", \"fd00:2::/64\"] }";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("walls/nothing_leaves_in_clear_while_the_gateway_is_away", NEEDS, || {
            away(Wire::Veth, "tun", 1500, false)
        }),
        trial("walls/nothing_leaves_in_clear_by_routes_without_carrier", NEEDS, || away(Wire::Veth, "tun", 1500, true)),
        trial("walls/nothing_leaves_in_clear_by_a_macvlan", NEEDS, || away(Wire::Macvlan, "tun", 1280, false)),
        trial("walls/nothing_leaves_in_clear_by_a_bridge", NEEDS, || away(Wire::Bridge, "tun", 9000, false)),
        trial("walls/nothing_leaves_in_clear_beside_a_tap", NEEDS, || away(Wire::Veth, "tap", 1500, false)),
        trial("walls/nothing_leaves_in_clear_by_a_tap_and_a_macvlan", NEEDS, || away(Wire::Macvlan, "tap", 9000, true)),
        trial("walls/ephemeral_gateway_leaves_nothing", NEEDS, ephemeral),
        trial("walls/walls_follow_routes_of_other_programs", NEEDS, follow),
        trial("walls/device_settings_are_reloaded_as_a_whole", NEEDS, settings),
        trial("walls/device_made_again_has_the_files_settings", NEEDS, made_again),
        trial("walls/restart_takes_the_device_of_the_gateway_alone", NEEDS, owners),
        trial("walls/moved_device_ends_with_the_gateway", NEEDS, moved),
        trial("walls/device_of_another_program_stays", NEEDS, foreign),
        trial("walls/gateway_without_net_admin_warns", NEEDS, without_privilege),
    ]
}

fn toml(device: &str) -> String {
    toml_of("tun", device)
}

fn toml_of(kind: &str, device: &str) -> String {
    format!(
        "[[link]]\nname = \"tun0\"\nkind = \"{kind}\"\naddresses = [\"10.1.0.254/24\", \"fd00:1::fe/64\"]\n{device}\n"
    )
}

/// Kind of the host's interface `wire`, which has its addresses and default routes. Frames are captured where they leave.
#[derive(Clone, Copy)]
enum Wire {
    Veth,
    /// Over one end of a veth pair, `under`.
    Macvlan,
    /// With one end of a veth pair, `under`, as its only port.
    Bridge,
}

impl Wire {
    /// Interface by which frames leave the host.
    const fn exit(self) -> &'static str {
        match self {
            Self::Veth => "wire",
            Self::Macvlan | Self::Bridge => "under",
        }
    }
}

/// A host whose default routes lead over a wire to another.
struct Host {
    netns: Netns,
    _other: Netns,
    scratch: Scratch,
}

impl Host {
    fn new() -> Outcome<Self> {
        Self::over(Wire::Veth, 1500)
    }

    fn over(wire: Wire, mtu: u16) -> Outcome<Self> {
        let (scratch, netns, other) = (Scratch::new()?, Netns::new("host")?, Netns::new("other")?);
        let make = match wire {
            Wire::Veth => "",
            Wire::Macvlan => "ip link add wire link under type macvlan mode bridge",
            Wire::Bridge => "ip link add wire type bridge; ip link set under master wire",
        };
        veth((&netns, wire.exit()), (&other, "wire"))?;
        other.sh(&format!("ip link set wire mtu {mtu}"))?;
        netns.sh(&format!(
            "ip link set {} mtu {mtu}; {make}
            ip link set wire mtu {mtu}; ip link set wire up",
            wire.exit()
        ))?;
        other.sh("ip addr add 192.0.2.2/24 dev wire; ip addr add 2001:db8::2/64 dev wire")?;
        netns.sh("ip addr add 192.0.2.1/24 dev wire; ip addr add 2001:db8::1/64 dev wire
            ip route add default via 192.0.2.2 metric 100; ip route add default via 2001:db8::2 metric 2000")?;
        Ok(Self { netns, _other: other, scratch })
    }

    fn gateway(&self, name: &str, toml: &str) -> Outcome<Gateway> {
        Gateway::start(&self.netns, &self.scratch, name, toml)
    }

    /// Output of `fatpath down NAME`.
    fn down(&self, name: &str) -> Outcome<String> {
        run(&mut self.command(&["down", name]))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.netns.command(fatpath());
        command.args(words).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    /// Routes that drop packets, without their marks.
    fn walls(&self) -> Outcome<Vec<String>> {
        let all =
            self.netns.sh("ip -4 route show table all type blackhole; ip -6 route show table all type blackhole")?;
        let brief = |line: &str| {
            let words = line.split_whitespace().collect::<Vec<_>>();
            let at = |word| words.iter().position(|it| *it == word).map(|at| words[at + 1]);
            assert_eq!(at("proto"), Some("104"), "{line}");
            let table = at("table").map(|table| format!(" table {table}")).unwrap_or_default();
            format!("{}{table} {}", words[1], at("metric").unwrap_or("0"))
        };
        Ok(all.lines().map(brief).collect())
    }

    fn wait_for_walls(&self, want: &[&str]) -> Outcome {
        let mut seen = Vec::new();
        wait_until("the walls", PATIENCE, || {
            seen = self.walls().unwrap_or_default();
            seen == want
        })
        .map_err(|_| format!("walls are {seen:?} instead of {want:?}").into())
    }

    fn has_device(&self) -> bool {
        self.netns.sh("ip link show dev tun0").is_ok()
    }

    /// Starts pings to each address, which end with the value.
    fn ping(&self, to: &[&str]) -> Outcome<Vec<Process>> {
        let ping =
            |to: &&str| Process::spawn(self.netns.command("ping").args(["-n", "-q", "-i", "0.02", to]), &self.scratch);
        to.iter().map(ping).collect()
    }
}

/// Number of packets in a capture file.
fn packets(file: &std::path::Path) -> Outcome<usize> {
    Ok(run(Command::new("tcpdump").args(["-nr"]).arg(file))?.lines().count())
}

/// Time in which pings would leave in clear.
fn pass() {
    thread::sleep(Duration::from_millis(400));
}

const TARGETS: [&str; 6] = ["10.1.0.9", "10.2.0.9", "fd00:2::9", "10.9.0.9", "fd09::9", "198.51.100.1"];
const FILTER: &str = "dst net 10.0.0.0/8 or dst host 198.51.100.1 or dst net fd00::/8";

/// The gateway ends, is killed and runs again under pings by routes of its file, by hand and by a default route.
fn away(wire: Wire, kind: &str, mtu: u16, ignores_linkdown: bool) -> Outcome {
    let host = Host::over(wire, mtu)?;
    let file = toml_of(kind, &format!("mtu = {mtu}\n{DEVICE}"));
    if ignores_linkdown {
        host.netns.sh("for family in ipv4 ipv6; do for scope in all default; do
                echo 1 >/proc/sys/net/$family/conf/$scope/ignore_routes_with_linkdown
            done; done")?;
    }
    let mut gateway = host.gateway("gw", &file)?;
    host.netns
        .sh("ip route add 10.9.0.0/16 dev tun0; ip route add fd09::/64 dev tun0; ip route add default dev tun0")?;
    host.wait_for_walls(&[
        "default 1",
        "10.1.0.0/24 1",
        "10.2.0.0/24 1",
        "10.9.0.0/16 1",
        "fd00:1::/64 257",
        "fd00:2::/64 1025",
        "fd09::/64 1025",
    ])?;
    let capture = Capture::start(&host.netns, wire.exit(), FILTER, &host.scratch)?;
    let pings = host.ping(&TARGETS)?;
    pass();
    for kills in [false, true, false] {
        if kills {
            gateway.kill()?;
        } else {
            gateway.terminate()?;
        }
        pass();
        assert!(host.netns.sh("ip link show dev tun0")?.contains("NO-CARRIER"));
        gateway = host.gateway("gw", &file)?;
        pass();
        assert!(host.netns.sh("ip link show dev tun0")?.contains("LOWER_UP"));
        let received = gateway.link("tun0")?["stats"]["rx_packets"].as_u64();
        // A TAP device gets few requests for neighbours, to which no host answers.
        let least = if kind == "tun" { 20 } else { 2 };
        assert!(received > Some(least), "the pings enter the gateway: {received:?}");
    }
    gateway.kill()?;
    pass();
    drop(pings);
    assert_eq!(packets(&capture.finish()?)?, 0, "packets in clear");
    // What would leave is seen.
    let capture = Capture::start(&host.netns, wire.exit(), FILTER, &host.scratch)?;
    assert_eq!(host.down("gw")?, "gw: removed tun0; removed 7 blackhole routes\n");
    let pings = host.ping(&TARGETS)?;
    pass();
    drop(pings);
    let seen = packets(&capture.finish()?)?;
    assert!(seen > 20, "{seen} packets");
    assert!(host.walls()?.is_empty() && !host.has_device());
    assert_eq!(host.down("gw")?, "gw: no gateway, no devices and no routes of it are here\n");
    Ok(())
}

fn ephemeral() -> Outcome {
    let host = Host::new()?;
    let file = host.scratch.file("e.toml");
    std::fs::write(&file, toml(DEVICE))?;
    let config = file.display().to_string();
    let start = || -> Outcome<Process> {
        let gateway = Process::spawn(
            &mut host.command(&["run", "--ephemeral", "--instance", "e", "-c", &config]),
            &host.scratch,
        )?;
        let has_routes = || host.netns.sh("ip route show 10.2.0.0/24").is_ok_and(|routes| routes.contains("tun0"));
        wait_until("the device has its routes", PATIENCE, has_routes)?;
        wait_until("the gateway runs", PATIENCE, || gateway.output().contains("running with 1 link"))?;
        Ok(gateway)
    };
    let mut gateway = start()?;
    assert_eq!(host.walls()?, Vec::<String>::new());
    gateway.signal(rustix::process::Signal::TERM)?;
    gateway.wait(PATIENCE)?;
    assert!(!host.has_device());
    // The device of another program loses what is in the file.
    host.netns.sh("ip tuntap add tun0 mode tun")?;
    let mut gateway = start()?;
    gateway.signal(rustix::process::Signal::TERM)?;
    gateway.wait(PATIENCE)?;
    let left = host
        .netns
        .sh("ip route show dev tun0; ip -6 route show dev tun0 proto 103; ip addr show dev tun0 scope global")?;
    assert_eq!(left, "");
    Ok(())
}

fn follow() -> Outcome {
    let host = Host::new()?;
    let mut gateway = host.gateway("gw", &toml(""))?;
    let ip = |line: &str| host.netns.sh(&format!("ip {line}")).map(drop);
    host.wait_for_walls(&[])?;
    ip("addr add 10.5.0.1/24 dev tun0")?;
    host.wait_for_walls(&["10.5.0.0/24 1"])?;
    ip("route add 10.9.0.0/16 dev tun0 metric 7")?;
    ip("route add default dev tun0 table 77")?;
    host.wait_for_walls(&["default table 77 1", "10.5.0.0/24 1", "10.9.0.0/16 8"])?;
    // A route of another device, of a larger metric, is not used instead.
    ip("route add 10.9.0.0/16 via 192.0.2.2 metric 50")?;
    ip("route del default dev tun0 table 77")?;
    host.wait_for_walls(&["10.5.0.0/24 1", "10.9.0.0/16 8"])?;
    ip("route add 10.8.0.0/16 via 192.0.2.2")?;
    ip("route del blackhole 10.9.0.0/16 metric 8")?;
    host.wait_for_walls(&["10.5.0.0/24 1", "10.9.0.0/16 8"])?;
    // The kernel removes the routes of a device that is down or deleted, and nothing leaves in clear.
    ip("link set tun0 down")?;
    thread::sleep(Duration::from_millis(200));
    host.wait_for_walls(&["10.5.0.0/24 1", "10.9.0.0/16 8"])?;
    ip("link set tun0 up")?;
    host.wait_for_walls(&["10.5.0.0/24 1"])?;
    ip("link del tun0")?;
    thread::sleep(Duration::from_millis(200));
    host.wait_for_walls(&["10.5.0.0/24 1"])?;
    // A link that is taken out of the file has no device and no walls.
    gateway.reload("")?;
    host.wait_for_walls(&[])?;
    gateway.wait_until("the reload is logged", |gateway| gateway.log().contains("running with no links"))?;
    // Routes that go while the gateway is away are found.
    gateway.reload(&toml(DEVICE))?;
    host.wait_for_walls(&["10.1.0.0/24 1", "10.2.0.0/24 1", "fd00:1::/64 257", "fd00:2::/64 1025"])?;
    gateway.kill()?;
    ip("route del 10.2.0.0/24")?;
    let gateway = host.gateway("gw", &toml("device = { addresses = [\"10.1.0.1/24\"] }"))?;
    assert_eq!(host.walls()?, ["10.1.0.0/24 1"], "{}", gateway.log());
    Ok(())
}

fn made_again() -> Outcome {
    let host = Host::new()?;
    let device = "device = { addresses = [\"10.1.0.1/24\"], routes = [\"10.2.0.0/24\"] }";
    let mut gateway = host.gateway("gw", &toml(device))?;
    let set = |address: &str| {
        let shown = host.netns.sh("ip -o addr show dev tun0; ip route show dev tun0 proto 103");
        shown.is_ok_and(|shown| shown.contains(address) && shown.contains("10.2.0.0/24"))
    };
    assert!(set("10.1.0.1/24"), "{}", gateway.log());
    let queues = if have_several_workers() { "multi_queue" } else { "" };
    host.netns.sh(&format!("ip link del tun0; ip tuntap add tun0 mode tun {queues}"))?;
    gateway.wait_until("address and route of the file are set again", |_| set("10.1.0.1/24"))?;
    // A reload changes those of the new device.
    gateway.reload(&toml(&device.replace("10.1.0.1", "10.1.0.9")))?;
    gateway.wait_until("the new address", |_| set("10.1.0.9/24"))?;
    assert!(!set("10.1.0.1/24"), "{}", gateway.log());
    Ok(())
}

fn settings() -> Outcome {
    let host = Host::new()?;
    let device = |routes: &str| toml(&format!("device = {{ addresses = [\"10.1.0.1/24\"], routes = [{routes}] }}"));
    let mut gateway =
        host.gateway("gw", &device("\"10.2.0.0/24\", { to = \"10.3.0.0/16\", src = \"10.1.0.1\", metric = 50 }"))?;
    let shown = || -> Outcome<Vec<String>> {
        let text = host
            .netns
            .sh("ip -o addr show dev tun0 scope global; ip route show dev tun0; ip -6 route show dev tun0")?;
        let brief = |line: &str| {
            line.split(" valid_lft").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        Ok(text
            .lines()
            .map(brief)
            .map(|line| line.replace("2: ", "").replace("3: ", "").replace("4: ", ""))
            .filter(|line| !line.contains("fe80"))
            .map(|line| line.trim_end_matches(" tun0\\").to_owned())
            .collect())
    };
    let has = |line: &str| shown().is_ok_and(|shown| shown.iter().any(|it| it.contains(line)));
    assert!(has("inet 10.1.0.1/24") && has("10.2.0.0/24 proto 103"), "{:?}", shown()?);
    assert!(has("10.3.0.0/16 proto 103 scope link src 10.1.0.1 metric 50"), "{:?}", shown()?);
    // What others have set stays, and what the file has no longer goes.
    host.netns.sh("ip addr add 10.6.0.1/24 dev tun0; ip route add 10.7.0.0/16 dev tun0; ip route del 10.2.0.0/24")?;
    gateway.reload(&toml(
        "device = { addresses = [\"10.1.0.1/24\", \"fd00:1::1/64\"], routes = [\"10.2.0.0/24\", { to = \"default\", src = \"fd00:1::1\" }] }",
    ))?;
    gateway.wait_until("the default route of IPv6", |_| has("default proto 103 src fd00:1::1 metric 1024"))?;
    assert!(has("10.2.0.0/24 proto 103") && has("10.7.0.0/16") && has("10.6.0.1/24"), "{:?}", shown()?);
    assert!(!has("10.3.0.0/16"), "{:?}", shown()?);
    // A refused file changes nothing, and the error has device, object and reason.
    let before = shown()?;
    for (routes, why) in [
        (
            "{ to = \"10.4.0.0/16\", src = \"10.99.0.1\" }",
            "tun0: route to 10.4.0.0/16 with src 10.99.0.1: Invalid argument",
        ),
        ("\"10.5.0.0/16\", { to = \"default\", metric = 100 }", "tun0: route to 0.0.0.0/0: File exists"),
    ] {
        gateway.reload(&device(routes))?;
        gateway.wait_until(why, |gateway| gateway.log().contains(why))?;
        assert_eq!(shown()?, before, "{routes}");
    }
    gateway.terminate()?;
    // A start with another file removes what an earlier run has set.
    let gateway = host.gateway("gw", &device("\"10.3.0.0/16\""))?;
    let after = shown()?;
    assert!(has("10.3.0.0/16") && has("10.7.0.0/16") && has("10.6.0.1/24"), "{after:?}");
    assert!(!has("10.2.0.0/24") && !has("fd00:1::1") && !has("default"), "{after:?} {}", gateway.log());
    Ok(())
}

fn owners() -> Outcome {
    let host = Host::new()?;
    let mut gateway = host.gateway("left", &toml(DEVICE))?;
    assert!(host.netns.sh("ip link show dev tun0")?.contains("alias fatpath left"));
    gateway.terminate()?;
    let refused = host.gateway("right", &toml(DEVICE)).err().and_then(|err| err.message().map(str::to_owned));
    let refused = refused.ok_or("the device of another gateway is taken")?;
    assert!(refused.contains("tun0: the device belongs to the gateway left"), "{refused}");
    // The same device with another mode is made anew.
    host.netns.sh("ip route add 10.9.0.0/16 dev tun0")?;
    let mut gateway = host.gateway("left", &toml("queues = 2"))?;
    assert!(host.netns.sh("ip -d link show dev tun0")?.contains("multi_queue"), "{}", gateway.log());
    assert!(!host.walls()?.is_empty(), "routes by hand have gone, and their walls stay: {}", gateway.log());
    // A link that is not in the file any more leaves no device.
    gateway.kill()?;
    let mut gateway = host.gateway("left", "")?;
    assert!(!host.has_device(), "{}", gateway.log());
    gateway.reload(&toml(DEVICE))?;
    gateway.wait_until("the device is there", |_| host.has_device())?;
    assert_eq!(host.down("left")?, "left: ended; removed tun0; removed 4 blackhole routes\n");
    assert!(!host.has_device() && host.walls()?.is_empty());
    // A file that is refused leaves nothing behind.
    let wrong = toml(&DEVICE.replace("\"10.2.0.0/24\"", "{ to = \"default\", metric = 100 }"));
    assert!(host.gateway("left", &wrong).is_err() && !host.has_device());
    Ok(())
}

fn moved() -> Outcome {
    let (host, red) = (Host::new()?, Netns::new("red")?);
    let move_it = || host.netns.sh(&format!("ip link set tun0 netns {}", red.name())).map(drop);
    let set_up = "ip link set tun0 up; ip addr add 10.1.0.1/24 dev tun0; ping -c 1 -W 5 10.1.0.254";
    for kills in [false, true] {
        let mut gateway = host.gateway("gw", &toml(DEVICE))?;
        move_it()?;
        gateway.wait_until("the link is up in the other namespace", |_| red.sh(set_up).is_ok())?;
        host.wait_for_walls(&[])?;
        if kills {
            gateway.kill()?;
        } else {
            gateway.terminate()?;
        }
        wait_until("the device is gone", PATIENCE, || red.sh("ip link show dev tun0").is_err())?;
    }
    Ok(())
}

/// A gateway has a device that was made for its user, and no right to make routes.
fn without_privilege() -> Outcome {
    let host = Host::new()?;
    host.netns.sh("ip tuntap add tun0 mode tun user 0; ip link set tun0 up; ip route add 10.2.0.0/24 dev tun0")?;
    let mut command = host.netns.command("setpriv");
    command.args(["--bounding-set", "-net_admin"]).arg(fatpath());
    let mut gateway = Gateway::start_under(command, &host.scratch, "gw", &toml(""))?;
    let warning = "WARN no routes drop packets for this gateway's devices while it is away: ";
    gateway.wait_until("the warning", |gateway| gateway.log().contains(warning))?;
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains(warning)).unwrap_or_default();
    assert!(line.ends_with("; that takes CAP_NET_ADMIN"), "{line}");
    assert_eq!(log.matches(warning).count(), 1, "{log}");
    assert!(host.walls()?.is_empty());
    Ok(())
}

fn foreign() -> Outcome {
    let host = Host::new()?;
    host.netns.sh("ip tuntap add tun0 mode tun; ip link set tun0 up; ip route add 10.9.0.0/16 dev tun0")?;
    for _ in 0..2 {
        let mut gateway = host.gateway("gw", &toml(""))?;
        host.wait_for_walls(&["10.9.0.0/16 1"])?;
        assert!(!host.netns.sh("ip link show dev tun0")?.contains("alias"));
        gateway.terminate()?;
        assert_eq!(host.walls()?, ["10.9.0.0/16 1"]);
    }
    assert_eq!(host.down("gw")?, "gw: removed 1 blackhole route\n");
    assert!(host.has_device());
    Ok(())
}
