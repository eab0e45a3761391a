//! The system's own `ethtool` on a gateway and on this host's kernel; the offloads that it switches; its counters.

use std::fs;
use std::process::Command;

use libtest_mimic::Trial;
use system::{Gateway, LINE_RUNNER, Need, Netns, Outcome, Scratch, fatpath, run, transfer, trial};

use crate::ip::near;
use crate::router::{B_V4, PlainSite};

const PYTHON: Need = Need::Program { name: "python3", package: "python3-minimal" };
const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::ETHTOOL, PYTHON];

/// The commands, for a shell, about a packet link or a veth, eth0, and a TUN device that is down, tun0.
const LINES: &str = include_str!("ethtool.lines");

const LINKS: &str = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n\n\
                     [[link]]\nname = \"tun0\"\nkind = \"tun\"\n";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("ethtool/output_is_the_same_as_on_linux", NEEDS, compare),
        trial("ethtool/offload_switched_off_is_no_longer_used", NEEDS, switched),
        trial("ethtool/statistics_are_those_of_fatpath_show", NEEDS, counts),
        trial("ethtool/a_block_of_memory_is_answered_as_linux_does", NEEDS, blocks),
        trial("ethtool/switched_offloads_are_saved_and_survive_a_reload", NEEDS, kept),
    ]
}

/// A program on the gateway of that name.
fn exec(scratch: &Scratch, instance: &str, words: &[&str]) -> Command {
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", instance, "--"]).args(words);
    command.current_dir(scratch.path()).env("FATPATH_RUNDIR", scratch.path());
    command
}

fn ethtool(scratch: &Scratch, instance: &str, line: &str) -> Outcome<String> {
    run(&mut exec(scratch, instance, &["sh", "-c", &format!("ethtool {line}")]))
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
    linux.sh("ip tuntap add tun0 mode tun")?;
    let _gateway = Gateway::start(&ours, &scratch, "ours", LINKS)?;
    run(&mut exec(&scratch, "ours", &["ip", "link", "set", "tun0", "down"]))?;
    fs::write(scratch.file("lines"), LINES)?;
    fs::write(scratch.file("runner"), LINE_RUNNER)?;
    let by_ioctl = scratch.file("without_netlink.py");
    fs::write(&by_ioctl, include_str!("without_netlink.py"))?;
    let mut of_linux = linux.command("python3");
    let want = run(of_linux.arg(&by_ioctl).args(["sh", "./runner", "lines"]).current_dir(scratch.path()))?;
    let got = run(&mut exec(&scratch, "ours", &["sh", "./runner", "lines"]))?;
    let (want, got) = (commands(&want), commands(&got));
    assert_eq!((want.len(), got.len()), (LINES.lines().count(), LINES.lines().count()), "lines that were run");
    let differ = want.iter().zip(&got).filter(|(want, got)| want != got);
    let report: Vec<String> = differ.map(|(want, got)| format!("Linux: {want}\nfatpath: {got}\n")).collect();
    if report.is_empty() { Ok(()) } else { Err(report.concat().into()) }
}

/// Result of each command, without the features that a veth has and a packet link does not, and those of Linux's TUN.
fn commands(text: &str) -> Vec<String> {
    const OTHERS: [&str; 6] =
        ["sctp", "mangleid", "accecn", "generic-segmentation", "Current message level", "\t\t\t       "];
    let mut commands: Vec<String> = Vec::new();
    for line in text.lines() {
        let lists = commands.last().is_some_and(|command| command.starts_with("$ ethtool -k"));
        match commands.last_mut().filter(|_| !line.starts_with("$ ")) {
            None => commands.push(line.to_owned()),
            // A feature of fatpath without a name in Linux.
            Some(_) if lists && line.starts_with("rx-esp-gro:") => {}
            // The names of all features of Linux 6.18 are the same; their states are not.
            Some(command) if lists => *command += &format!("\n{}", line.split(':').next().unwrap_or(line)),
            Some(_) if OTHERS.iter().any(|other| line.contains(other)) => {}
            Some(command) => *command += &format!("\n{line}"),
        }
    }
    commands
}

/// The counters of `ethtool -S` by their names.
fn statistics(scratch: &Scratch, instance: &str, link: &str) -> Outcome<Vec<(String, u64)>> {
    let printed = ethtool(scratch, instance, &format!("-S {link}"))?;
    let lines = printed.lines().skip(1).map(|line| {
        let (name, count) = line.trim().split_once(": ").ok_or_else(|| format!("{line}: {printed}"))?;
        Ok((name.to_owned(), count.parse()?))
    });
    lines.collect()
}

fn counted(of: &[(String, u64)], name: &str) -> Outcome<u64> {
    let found = of.iter().find(|(own, _)| own == name).ok_or_else(|| format!("no {name} in {of:?}"))?;
    Ok(found.1)
}

fn switched() -> Outcome {
    const LEN: usize = 8 << 20;
    let site = PlainSite::new(true)?;
    let ethtool = |line: &str| ethtool(&site.scratch, "plain", line);
    // Received frames have wire size.
    site.a.sh("ethtool -K eth0 tx off tso off gso off >/dev/null")?;
    site.gateway_ns.sh("ethtool -K left gro off >/dev/null")?;
    // Counters of GRO, then of GSO.
    let gro_and_gso_counts = || -> Outcome<[u64; 3]> {
        let (left, right) = (statistics(&site.scratch, "plain", "left")?, statistics(&site.scratch, "plain", "right")?);
        Ok([counted(&left, "rx_gro_segs")?, counted(&right, "tx_gso_segs")?, counted(&right, "tx_gso_cut_segs")?])
    };
    let grown = |before: [u64; 3]| -> Outcome<[bool; 3]> {
        let now = gro_and_gso_counts()?;
        Ok([0, 1, 2].map(|at| now[at] > before[at] + LEN as u64 / 15_000))
    };
    // Wire packets for each super-packet sent by the link to b.
    let fatness = || -> Outcome<f64> {
        let now = || statistics(&site.scratch, "plain", "right");
        let before = now()?;
        transfer(&site.a, (&site.b, B_V4.parse()?), LEN)?;
        let after = now()?;
        let more = |name: &str| Outcome::Ok(counted(&after, name)? - counted(&before, name)?);
        let (packets, wire) = (more("tx_packets")?, more("tx_wire_packets")?);
        assert!(wire >= LEN as u64 / 1500, "{wire} wire packets");
        Ok(wire as f64 / packets as f64)
    };
    let is = |fat: bool, what: &str| -> Outcome {
        let found = fatness()?;
        if (found > 1.5) == fat { Ok(()) } else { Err(format!("{what}: {found} wire packets in a packet").into()) }
    };
    let before = gro_and_gso_counts()?;
    is(true, "as it is")?;
    assert_eq!(grown(before)?, [true, true, false]);
    // GRO merges nothing, and so GSO has nothing to segment.
    ethtool("-K left gro off")?;
    assert!(ethtool("-k left")?.contains("generic-receive-offload: off\n"));
    let before = gro_and_gso_counts()?;
    is(false, "gro off")?;
    assert_eq!(grown(before)?, [false; 3]);
    ethtool("-K left gro on")?;
    is(true, "gro on")?;
    // Packets that GRO merged are segmented here.
    ethtool("-K right tso off")?;
    let before = gro_and_gso_counts()?;
    is(false, "tso off")?;
    assert_eq!(grown(before)?, [true, false, true]);
    let shown = site.gateway.show("links")?;
    assert!(shown.contains("tx-tso4 off (switched off)"), "{shown}");
    ethtool("-K right tso on")?;
    is(true, "tso on")?;
    for off in ["tx", "sg"] {
        let printed = ethtool(&format!("-K right {off} off"))?;
        assert!(printed.contains("tx-tcp-segmentation: off [requested on]"), "{printed}");
        is(false, off)?;
        ethtool(&format!("-K right {off} on"))?;
        is(true, off)?;
    }
    // A file that is loaded describes links as a whole.
    ethtool("-K left gro off")?;
    site.gateway.reload(&PlainSite::config(true))?;
    system::wait_until("the file holds", std::time::Duration::from_secs(20), || {
        ethtool("-k left").is_ok_and(|printed| printed.contains("generic-receive-offload: on\n"))
    })?;
    is(true, "reloaded")
}

fn counts() -> Outcome {
    let site = PlainSite::new(true)?;
    transfer(&site.a, (&site.b, B_V4.parse()?), 1 << 20)?;
    // The destination has no route.
    let _ = site.a.sh("ping -n -c 3 -i 0.2 -W 1 203.0.113.1");
    // Hosts send a packet of their own now and then, so counters are read before and after the output that shows them.
    let all = || ["left", "right", "spare", "tun9"].map(|link| statistics(&site.scratch, "plain", link));
    let before = all();
    let shown: serde_json::Value = serde_json::from_str(&site.gateway.show("links --json")?)?;
    let drops: serde_json::Value = serde_json::from_str(&site.gateway.show("drops --json")?)?;
    let links = shown.as_array().ok_or("links")?;
    for ((link, before), after) in links.iter().zip(before).zip(all()) {
        let (name, before, after) = (link["name"].as_str().ok_or("a name")?, before?, after?);
        let is_counted = |counter: &str, value: &serde_json::Value| -> Outcome {
            let (least, most) = (counted(&before, counter)?, counted(&after, counter)?);
            let value = value.as_u64().ok_or("a number")?;
            assert!(least <= value && value <= most, "{name} {counter}: {least} to {most}, and {value} is shown");
            Ok(())
        };
        for (counter, value) in link["stats"].as_object().ok_or("counters")? {
            is_counted(counter, value)?;
        }
        // The counters of one reply are of one moment.
        let dropped = |of: &[(String, u64)]| Outcome::Ok(counted(of, "rx_dropped")? + counted(of, "tx_dropped")?);
        let reasons = after.iter().filter(|(counter, _)| counter.starts_with("drop_")).map(|(_, count)| count);
        assert_eq!(dropped(&after)?, reasons.sum::<u64>(), "{after:?}");
        let ip = run(&mut exec(&site.scratch, "plain", &["ip", "-s", "-j", "link", "show", name]))?;
        let ip: serde_json::Value = serde_json::from_str(&ip)?;
        let directions = ["rx", "tx"].map(|way| ip[0]["stats64"][way]["dropped"].as_u64().unwrap_or_default());
        let (of_ip, later) = (directions.iter().sum::<u64>(), statistics(&site.scratch, "plain", name)?);
        assert!(dropped(&before)? <= of_ip && of_ip <= dropped(&later)?, "{name}: {ip}");
        for drop in drops.as_array().ok_or("drops")?.iter().filter(|drop| drop["link"] == name) {
            is_counted(&format!("drop_{}", drop["reason"].as_str().ok_or("a reason")?), &drop["count"])?;
        }
    }
    let of_left = statistics(&site.scratch, "plain", "left")?;
    assert_eq!((links.len(), counted(&of_left, "drop_NoRoute")?), (4, 3));
    assert!(counted(&of_left, "rx_dropped")? >= 3, "{of_left:?}");
    assert!(counted(&of_left, "rx_bytes")? > 1 << 20);
    let info = ethtool(&site.scratch, "plain", "-i left")?;
    assert!(info.starts_with("driver: packet\n") && info.contains("\nbus-info: left\n"), "{info}");
    assert!(ethtool(&site.scratch, "plain", "left")?.contains("Link detected: yes"));
    let channels = ethtool(&site.scratch, "plain", "-l tun9")?;
    assert_eq!(channels.matches("Combined:\t1\n").count(), 2, "{channels}");
    Ok(())
}

/// Compares the output of the same program on this host's kernel and on a gateway.
fn blocks() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let script = scratch.file("ethtool_ioctl.py");
    fs::write(&script, include_str!("ethtool_ioctl.py"))?;
    let script = script.display().to_string();
    let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
    linux.sh("ip tuntap add tun0 mode tun")?;
    let _gateway = Gateway::start(&ours, &scratch, "ours", LINKS)?;
    let want = run(linux.command("python3").arg(&script))?;
    let got = run(&mut exec(&scratch, "ours", &["python3", &script]))?;
    assert!(want.lines().count() > 40, "{want}");
    assert_eq!(want, got);
    Ok(())
}

fn kept() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let state = scratch.file("state").display().to_string();
    let start = || {
        let mut command = netns.command("sh");
        command.args(["-c", "exec \"$0\" \"$@\" --state \"$STATE\""]).arg(fatpath()).env("STATE", &state);
        Gateway::start_under(command, &scratch, "x", "[[link]]\nname = \"tun0\"\nkind = \"tun\"\n")
    };
    let fatpath_does = |words: &[&str]| {
        let mut command = Command::new(fatpath());
        run(command.args(words).args(["--instance", "x"]).env("FATPATH_RUNDIR", scratch.path()))
    };
    let features = |link: &str| -> Outcome<[bool; 3]> {
        let printed = ethtool(&scratch, "x", &format!("-k {link}"))?;
        Ok(["generic-receive-offload: on\n", "tx-udp-segmentation: on\n", "tx-tcp-segmentation: on\n"]
            .map(|feature| printed.contains(feature)))
    };
    let mut gateway = start()?;
    run(&mut exec(&scratch, "x", &["ip", "link", "add", "tun1", "type", "tun"]))?;
    let [_, uso, tso] = features("tun1")?;
    for link in ["tun0", "tun1"] {
        ethtool(&scratch, "x", &format!("-K {link} gro off tx-udp-segmentation off"))?;
        assert_eq!(features(link)?, [false, false, tso], "{link}");
    }
    fatpath_does(&["save"])?;
    gateway.terminate()?;
    let _gateway = start()?;
    assert_eq!(features("tun1")?, [false, false, tso], "a program's link is as programs have made it");
    assert_eq!(features("tun0")?, [true, uso, tso], "the configuration's link is as the configuration says");
    Ok(())
}
