//! The system's own `ip`, word for word: the same commands under `fatpath exec` and on this host's kernel. Their
//! output, on either stream, and their exit codes are compared.

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use system::{Gateway, LINE_RUNNER, Need, Netns, Outcome, Process, Scratch, fatpath, ping_script, run, trial};

use crate::router;

const NEEDS: &[Need] = &[Need::Namespaces];

/// The commands, for a shell, about one Ethernet interface: eth0, number 2.
const LINES: &str = include_str!("ip.lines");

/// A gateway on eth0.
pub(crate) const ETH0: &str = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("ip/output_is_the_same_as_on_linux", NEEDS, compare),
        trial("ip/link_deleted_while_up_is_notified_in_linux_order", NEEDS, deleted),
        trial("ip/nexthop_is_refused_as_not_supported", &[Need::Namespaces], nexthop),
        trial("ip/100k_routes_are_loaded_and_listed_while_others_change", NEEDS, many_routes),
        trial(
            "ip/a_link_is_found_by_the_address_that_it_is_given",
            &[Need::Namespaces, Need::Tun, Need::PING],
            address,
        ),
        trial("ip/a_storm_of_routes_costs_no_packet_of_others", &[Need::Namespaces, Need::Tun, Need::PING], storm),
    ]
}

/// A namespace with eth0, whose other end is in `far`.
pub(crate) fn near(role: &str, far: &Netns) -> Outcome<Netns> {
    near_with(role, far, "")
}

/// As [`near`], with more options for eth0.
pub(crate) fn near_with(role: &str, far: &Netns, words: &str) -> Outcome<Netns> {
    let netns = Netns::new(role)?;
    // Until now the namespace's first interface, lo, has been changed; ours never is.
    netns.sh("ip addr flush dev lo; ip link set lo down")?;
    // A forwarding node has the subnet-router anycast addresses, as fatpath always does.
    netns.sh("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")?;
    let mac = "02:00:00:00:01:01";
    let peer = format!("type veth peer name {role} netns {}", far.name());
    netns.sh(&format!("ip link add eth0 {words} address {mac} {peer}; ip link set eth0 addrgenmode none up"))?;
    far.sh(&format!("ip link set {role} addrgenmode none up"))?;
    netns.sh("until grep -q up /sys/class/net/eth0/operstate; do sleep 0.1; done")?;
    Ok(netns)
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
    let _gateway = Gateway::start(&ours, &scratch, "ours", ETH0)?;
    compare_lines(&scratch, LINES, linux.command("sh"), exec(&ours, "ours"))
}

/// Deletes eth0, set up or down, and writes the messages of `ip monitor` about links, addresses and routes to a file.
/// lo has an address until the monitor listens.
const DELETE: &str = r#"
set -e
ip link set eth0 up
ip addr add 10.1.0.1/24 dev eth0
ip addr add 10.1.0.2/24 dev eth0
ip -6 addr add 2001:db8::1/64 dev eth0 nodad
ip -6 addr add 2001:db8::2/128 dev eth0 nodad
ip route add 10.9.0.0/16 via 10.1.0.9
ip -6 route add 2001:db8:9::/48 via 2001:db8::9
ip link set eth0 $1
ip -o monitor link address route > $2 &
until ip addr add 10.3.0.1/32 dev lo; ip addr del 10.3.0.1/32 dev lo; grep -q 10.3.0.1 $2; do sleep 0.05; done
sleep 0.5
ip link del eth0
until grep -q "^Deleted .*: eth0.*link/ether" $2; do sleep 0.05; done
kill $!
"#;

fn deleted() -> Outcome {
    for state in ["up", "down"] {
        let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
        let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
        let _gateway = Gateway::start(&ours, &scratch, "ours", ETH0)?;
        let script = scratch.file("delete");
        fs::write(&script, DELETE)?;
        let route_lines = |mut shell: Command, name: &str| -> Outcome<Vec<String>> {
            let file = scratch.file(name);
            run(shell.arg(&script).arg(state).arg(&file).env("FATPATH_RUNDIR", scratch.path()))?;
            let text = fs::read_to_string(&file)?;
            let (_, text) = text.rsplit_once("10.3.0.1").ok_or("no notification")?;
            Ok(text.lines().map(event).filter(|line| line.contains("eth0")).collect())
        };
        let (want, got) = (route_lines(linux.command("sh"), "linux")?, route_lines(exec(&ours, "ours"), "ours")?);
        assert_eq!(got, want, "{state}");
        let links: Vec<&String> = want.iter().filter(|line| line.contains(": eth0: <")).collect();
        assert_eq!(links.len(), if state == "up" { 2 } else { 1 }, "{links:?}");
    }
    Ok(())
}

/// An event of `ip -o monitor`; of a link only its name and flags, as a veth is another kind of link than the
/// gateway's.
fn event(line: &str) -> String {
    let line = normal(line).replace("eth0@NONE", "eth0");
    line.split_once('>').map_or_else(|| line.trim().to_owned(), |(begin, _)| format!("{begin}>"))
}

/// `fatpath exec -- sh` on the gateway of that name, in its namespace.
pub(crate) fn exec(netns: &Netns, instance: &str) -> Command {
    let mut exec = netns.command(fatpath());
    exec.args(["exec", "--instance", instance, "--", "sh"]);
    exec
}

/// Runs each of `lines` in two shells, and lists those whose result with `ours` differs from that with `linux`.
pub(crate) fn compare_lines(scratch: &Scratch, lines: &str, mut linux: Command, mut ours: Command) -> Outcome {
    fs::write(scratch.file("lines"), lines)?;
    fs::write(scratch.file("runner"), LINE_RUNNER)?;
    let in_scratch = |command: &mut Command| {
        run(command.args(["./runner", "lines"]).current_dir(scratch.path()).env("FATPATH_RUNDIR", scratch.path()))
    };
    let (want, got) = (blocks(&in_scratch(&mut linux)?), blocks(&in_scratch(&mut ours)?));
    assert_eq!((want.len(), got.len()), (lines.lines().count(), lines.lines().count()), "lines that were run");
    let differ = want.iter().zip(&got).filter(|(want, got)| want != got);
    let report: Vec<String> = differ.map(|(want, got)| format!("Linux: {want}\nfatpath: {got}\n")).collect();
    if report.is_empty() { Ok(()) } else { Err(report.concat().into()) }
}

/// `ip` on the gateway of that name.
fn ip(scratch: &Scratch, instance: &str, words: &[&str]) -> Command {
    let mut command = Command::new(fatpath());
    command.args(["ip", "--instance", instance]).args(words).env("FATPATH_RUNDIR", scratch.path());
    command
}

/// A file of `verb` for each of `count` routes to `10.NET.x.y`.
fn batch(scratch: &Scratch, verb: &str, net: u32, count: u32, rest: &str) -> Outcome<String> {
    let line = |n: u32| format!("route {verb} 10.{}.{}.{}/32 {rest}\n", net + (n >> 16), (n >> 8) & 255, n & 255);
    let file = scratch.file(&format!("{verb}-{net}"));
    fs::write(&file, (0..count).map(line).collect::<String>())?;
    Ok(file.display().to_string())
}

fn nexthop() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&netns, &scratch, "x", "")?;
    // `ip` prints no more than the error number of a dump.
    let (dump, named) = ("Operation not supported", "Error: fatpath has no next hop objects");
    for (line, want) in [
        ("nexthop show", dump),
        ("nexthop show id 5", named),
        ("nexthop bucket show", dump),
        ("nexthop add id 5 dev lo", named),
        ("nexthop replace id 5 blackhole", named),
        ("nexthop del id 5", named),
    ] {
        let output = ip(&scratch, "x", &line.split(' ').collect::<Vec<_>>()).output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains(want) && !output.status.success() && output.stdout.is_empty(), "{line}: {output:?}");
    }
    Ok(())
}

fn address() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("host")?);
    let _gateway = Gateway::start(&host, &scratch, "gw", "")?;
    let command = |line: &str| ip(&scratch, "gw", &line.split(' ').collect::<Vec<_>>());
    let ip = |line: &str| run(&mut command(line));
    let answers_from = |mac: &str| -> Outcome {
        host.sh("ip neigh flush dev tap0; ping -n -c 1 -W 5 10.1.0.1")?;
        let seen = host.sh("ip neigh show 10.1.0.1 dev tap0")?;
        if seen.contains(mac) { Ok(()) } else { Err(format!("{mac}: {seen}").into()) }
    };
    ip("link add tap0 address 02:00:00:00:00:11 type tap")?;
    ip("link set tap0 up")?;
    ip("addr add 10.1.0.1/24 dev tap0")?;
    host.sh("ip addr add 10.1.0.2/24 dev tap0")?;
    answers_from("02:00:00:00:00:11")?;
    ip("link set tap0 address 02:00:00:00:00:12")?;
    answers_from("02:00:00:00:00:12")?;
    assert!(ip("-o link show tap0")?.contains("link/ether 02:00:00:00:00:12"));
    let refused = |line: &str, why: &str| -> Outcome {
        let output = command(line).output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && printed.contains(why) {
            Ok(())
        } else {
            Err(format!("{line}: {printed}").into())
        }
    };
    refused("link set tap0 address 01:00:00:00:00:12", "Cannot assign requested address")?;
    refused("link add tap1 address 00:00:00:00:00:00 type tap", "Cannot assign requested address")?;
    assert!(host.sh("ip link show tap1").is_err(), "what was refused is left");
    ip("link add tun0 type tun")?;
    refused("link set tun0 address 02:00:00:00:00:13", "Operation not supported")?;
    Ok(())
}

fn many_routes() -> Outcome {
    const COUNT: u32 = 100_000;
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
    linux.sh("ip addr add 10.1.0.1/24 dev eth0")?;
    let _gateway = Gateway::start(&ours, &scratch, "ours", &format!("{ETH0}addresses = [\"10.1.0.1/24\"]\n"))?;
    let routes = batch(&scratch, "add", 100, COUNT, "via 10.1.0.9 table 100")?;
    let timed = |command: &mut Command| {
        let start = Instant::now();
        run(command).map(|_| start.elapsed())
    };
    let of_linux = timed(linux.command("ip").args(["-batch", &routes]))?;
    let of_ours = timed(&mut ip(&scratch, "ours", &["-batch", &routes]))?;
    println!("{COUNT} routes by ip -batch: Linux {of_linux:.1?}, fatpath {of_ours:.1?}");
    let others = batch(&scratch, "add", 90, 20_000, "via 10.1.0.9 table 100")?;
    let mut storm = Process::spawn(&mut ip(&scratch, "ours", &["-batch", &others]), &scratch)?;
    for _ in 0..3 {
        let listed = run(&mut ip(&scratch, "ours", &["route", "show", "table", "100"]))?;
        let stable: HashSet<&str> = listed.lines().filter(|line| line.starts_with("10.10")).collect();
        let lines = listed.lines().filter(|line| line.starts_with("10.10")).count();
        assert_eq!((lines, stable.len()), (COUNT as usize, COUNT as usize), "lines, and different ones");
    }
    storm.wait(Duration::from_secs(60))?;
    Ok(())
}

fn storm() -> Outcome {
    let site = router::PlainSite::new(true)?;
    let far = router::PlainSite::FAR;
    site.a.sh(&ping_script(far.parse()?, &[56]))?;
    let mut ping = site.a.command("ping");
    ping.args(["-q", "-i", "0.002", "-c", "1500", "-W", "5", far]);
    let mut pings = Process::spawn(&mut ping, &site.scratch)?;
    let add = batch(&site.scratch, "add", 90, 10_000, "via 10.2.0.2")?;
    let del = batch(&site.scratch, "del", 90, 10_000, "via 10.2.0.2")?;
    for file in [&add, &del, &add, &del] {
        run(&mut ip(&site.scratch, "plain", &["-batch", file]))?;
    }
    pings.wait(Duration::from_secs(60))?;
    let printed = pings.output();
    assert!(printed.contains("1500 packets transmitted, 1500 received"), "{printed}");
    Ok(())
}

/// Result of each line.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    // `ip monitor` queries every named namespace, and those of other tests appear and disappear.
    let other_tests = |line: &&str| *line == "! Error: Peer netns reference is invalid.";
    for line in text.lines().filter(|line| !other_tests(line)) {
        match blocks.last_mut().filter(|_| !line.starts_with("$ ")) {
            None => blocks.push(line.to_owned()),
            Some(block) => *block += &format!("\n{}", normal(line)),
        }
    }
    blocks
}

/// A line without the mark of a veth in place of an Ethernet interface, its other end, which makes the columns of `ip
/// -br` narrower; without the state of lo, which is down in both and was up in one of them; and without handles that a
/// kernel gives to queueing disciplines, which it counts for all its namespaces together.
fn normal(line: &str) -> String {
    let mut line = line.replace("\"link_index\":2,", "").replace("mtu 65536 qdisc noqueue", "mtu 65536 qdisc noop");
    line = line.replace("\"mtu\":65536,\"qdisc\":\"noqueue\"", "\"mtu\":65536,\"qdisc\":\"noop\"");
    for begin in [" 8", "\"8"] {
        let found: Vec<usize> = line.match_indices(begin).map(|(at, _)| at + begin.len()).collect();
        for at in found {
            if line
                .get(at..at + 4)
                .is_some_and(|rest| rest.ends_with(':') && rest[..3].chars().all(|c| c.is_ascii_hexdigit()))
            {
                line.replace_range(at..at + 3, "NNN");
            }
        }
    }
    for (begin, ends) in [("eth0@if", [' ', ':']), (" link-netns ", [' ', '\n']), (",\"link_netnsid\":", [',', '}'])] {
        while let Some(at) = line.find(begin) {
            let rest = at + begin.len();
            let end = line[rest..].find(ends).map_or(line.len(), |end| rest + end);
            line.replace_range(at..end, if begin.starts_with("eth0") { "eth0" } else { "" });
        }
    }
    if line.starts_with("eth0 ") { line.split_whitespace().collect::<Vec<_>>().join(" ") } else { line }
}
