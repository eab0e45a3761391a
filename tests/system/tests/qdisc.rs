//! Queueing disciplines: the system's own `tc`, word for word, and packets through them.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, numbered, run, transfer, trial, wait_until};

use crate::ip::{ETH0, compare_lines, exec, near_with};
use crate::router::{B_V4, PlainSite};

/// Commands, for a shell, about one Ethernet interface: eth0, number 2.
const LINES: &str = include_str!("qdisc.lines");

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("qdisc/output_of_tc_is_the_same_as_on_linux", &[Need::Namespaces], compare),
        trial("qdisc/tbf_shapes_a_stream_and_counts_it", &[Need::Namespaces], shape),
        trial("qdisc/tbf_with_a_small_bucket_reaches_its_rate", &[Need::Namespaces], small_bucket),
        trial("qdisc/change_in_mid_flow_counts_all_lost_packets", &[Need::Namespaces], mid_flow),
        trial("qdisc/saved_state_and_reload_set_it_again", &[Need::Namespaces, Need::Tun], kept),
    ]
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let near = |role: &str| {
        let netns = near_with(role, &far, "numtxqueues 1 numrxqueues 1")?;
        // No packet is sent, so counters stay zero.
        netns.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
        Ok::<_, libtest_mimic::Failed>(netns)
    };
    let (linux, ours) = (near("linux")?, near("ours")?);
    let _gateway = Gateway::start(&ours, &scratch, "ours", ETH0)?;
    compare_lines(&scratch, LINES, linux.command("sh"), exec(&ours, "ours"))
}

/// A shell's `line` on the gateway of that name.
fn sh(scratch: &Scratch, instance: &str, line: &str) -> Outcome<String> {
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", instance, "--", "sh", "-c", line]);
    run(command.env("FATPATH_RUNDIR", scratch.path()))
}

fn shape() -> Outcome {
    const LEN: usize = 4 << 20;
    let site = PlainSite::new(true)?;
    let tc = |line: &str| sh(&site.scratch, "plain", &format!("tc {line}"));
    // 5 MB/s: the stream takes 0.84 s, less the time for the burst that passes at once.
    tc("qdisc add dev right root handle 1: tbf rate 40mbit burst 32k limit 1m")?;
    assert!(sh(&site.scratch, "plain", "ip link show dev right")?.contains(" qdisc tbf "));
    let start = Instant::now();
    transfer(&site.a, (&site.b, B_V4.parse()?), LEN)?;
    let taken = start.elapsed();
    assert!(taken > Duration::from_millis(750), "{taken:?}");
    let shown: serde_json::Value = serde_json::from_str(&tc("-j -s qdisc show dev right")?)?;
    let counted = |name: &str| shown[0][name].as_u64().ok_or_else(|| format!("no {name} in {shown}"));
    let (bytes, packets) = (counted("bytes")?, counted("packets")?);
    assert!((LEN as u64..LEN as u64 * 5 / 4).contains(&bytes), "{shown}");
    assert!(packets > LEN as u64 / 1500 && counted("overlimits")? > 0, "{shown}");
    assert_eq!((counted("qlen")?, counted("backlog")?), (0, 0), "{shown}");
    let text = tc("-s qdisc show dev right")?;
    assert!(text.contains(" Sent ") && !text.contains(" Sent 0 bytes"), "{text}");
    let links = site.gateway.show("links")?;
    assert!(links.contains(&format!("bytes {bytes} packets {packets} dropped ")), "{links}");
    tc("qdisc del dev right root")?;
    assert_eq!(tc("qdisc show dev right")?, "qdisc noqueue 0: root refcnt 2 \n");
    transfer(&site.a, (&site.b, B_V4.parse()?), LEN)
}

fn small_bucket() -> Outcome {
    const LEN: usize = 1_000_000;
    let site = PlainSite::new(true)?;
    // A bucket of one packet fills in 1.2 ms: a wait that is rounded to milliseconds halves the rate.
    sh(&site.scratch, "plain", "tc qdisc add dev right root tbf rate 10mbit burst 1600b limit 30k")?;
    let start = Instant::now();
    transfer(&site.a, (&site.b, B_V4.parse()?), LEN)?;
    let taken = start.elapsed();
    // 10 Mb/s take 0.8 s for the payload, 0.84 s with headers.
    assert!((Duration::from_millis(780)..Duration::from_millis(1150)).contains(&taken), "{taken:?}");
    Ok(())
}

fn mid_flow() -> Outcome {
    const LINES: [&str; 6] = [
        "add dev right root handle 1: pfifo",
        // A fourth of the received packets.
        "replace dev right root handle 2: tbf rate 4mbit burst 5k limit 20k",
        "change dev right root handle 2: tbf rate 5mbit burst 5k limit 30k",
        "replace dev right root handle 3: bfifo",
        "replace dev right root handle 4: tbf rate 4mbit burst 5k limit 20k",
        "del dev right root",
    ];
    // GRO is off: a dropped super-packet would be counted as one packet.
    let site = PlainSite::new(false)?;
    let dropped = || -> Outcome<u64> {
        let drops = site.gateway.show("drops")?;
        let counts = drops.lines().filter(|line| line.contains("Qdisc")).flat_map(str::split_whitespace);
        Ok(counts.filter_map(|word| word.parse::<u64>().ok()).sum())
    };
    let counts = numbered(&site.a, (&site.b, B_V4.parse()?), (1000, 2000), || {
        for line in LINES.repeat(3) {
            sh(&site.scratch, "plain", &format!("tc qdisc {line}"))?;
            sleep(Duration::from_millis(100));
        }
        Ok(())
    })?;
    assert!(counts.iter().all(|&count| count <= 1), "a datagram came twice");
    let lost = counts.iter().filter(|&&count| count == 0).count() as u64;
    assert!(lost > 100, "{lost} of {} lost", counts.len());
    assert_eq!(dropped()?, lost, "of {}:\n{}", counts.len(), site.gateway.show("drops")?);
    Ok(())
}

fn kept() -> Outcome {
    const TOML: &str = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\n";
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let state = scratch.file("state").display().to_string();
    let start = |toml: &str| {
        let mut command = netns.command("sh");
        command.args(["-c", "exec \"$0\" \"$@\" --state \"$STATE\""]).arg(fatpath()).env("STATE", &state);
        Gateway::start_under(command, &scratch, "x", toml)
    };
    let shown = || sh(&scratch, "x", "for link in tun0 tun1; do tc -d qdisc show dev $link; done");
    let mut gateway = start(TOML)?;
    sh(
        &scratch,
        "x",
        "ip link add tun1 type tun && ip link set tun1 up &&
        tc qdisc add dev tun1 root handle 7: tbf rate 10gbit burst 64k limit 1m peakrate 90gbit mtu 9k &&
        tc qdisc add dev tun0 root handle 8: pfifo limit 5",
    )?;
    let before = shown()?;
    assert!(before.contains("qdisc pfifo 8: root refcnt 2 limit 5p") && before.contains("qdisc tbf 7: "), "{before}");
    let mut save = Command::new(fatpath());
    run(save.args(["save", "--instance", "x"]).env("FATPATH_RUNDIR", scratch.path()))?;
    gateway.terminate()?;
    // A discipline of the file is kept.
    gateway = start(&format!("{TOML}qdisc = {{ kind = \"bfifo\", limit = 7000 }}\n"))?;
    let printed = shown()?;
    assert!(
        printed.contains("qdisc bfifo 8001: root refcnt 2 limit 7000b") && printed.contains("qdisc tbf 7: "),
        "{printed}"
    );
    gateway.terminate()?;
    let gateway = start(TOML)?;
    assert_eq!(shown()?, before);
    for (qdisc, want) in [
        ("{ kind = \"pfifo\", limit = 9 }", "qdisc pfifo 8: root refcnt 2 limit 9p\n"),
        ("{ kind = \"bfifo\", limit = \"1kb\" }", "qdisc bfifo 8001: root refcnt 2 limit 1Kb\n"),
        ("", "qdisc noqueue 0: root refcnt 2 \n"),
    ] {
        let key = if qdisc.is_empty() { String::new() } else { format!("qdisc = {qdisc}\n") };
        gateway.reload(&format!("{TOML}{key}"))?;
        let mut printed = String::new();
        wait_until("the file holds", Duration::from_secs(20), || {
            printed = sh(&scratch, "x", "tc qdisc show dev tun0").unwrap_or_default();
            printed == want
        })
        .map_err(|_| format!("{printed}{}", gateway.log()))?;
    }
    let made = sh(
        &scratch,
        "x",
        "ip link add tun2 type tun && tc qdisc add dev tun2 root pfifo && ip link del tun2 &&
        ip link add tun2 type tun && ip link set tun2 up && tc qdisc show dev tun2",
    )?;
    assert_eq!(made, "qdisc noqueue 0: root refcnt 2 \n", "it went with its link");
    Ok(())
}
