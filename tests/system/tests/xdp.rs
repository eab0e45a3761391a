//! The router deployment by AF_XDP: the tests of packet sockets with rings of frames, in the driver and in the stack.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use libtest_mimic::Trial;
use serde_json::Value;
use system::{Capture, Gateway, Need, Netns, Outcome, Scratch, fatpath, ping_script, run, transfer, trial};

use crate::router::{A_V4, A_V6, B_V4, B_V6, EspSite, PlainSite, Port, judge_checksums, ping_both_ways};

const NEEDS: &[Need] = &[Need::Namespaces, Need::PING, Need::ETHTOOL];
const CAPTURE_NEEDS: &[Need] = &[Need::Namespaces, Need::PING, Need::ETHTOOL, Need::TCPDUMP];

/// The longest ICMP echo request (RFC 791 §3.1).
const LONGEST_PING: &str = "65507";

pub(crate) fn trials() -> Vec<Trial> {
    let modes = ["native", "generic"].into_iter().flat_map(|mode| {
        [
            trial(format!("xdp/{mode}/pings_and_tcp_cross_both_ways_in_raw_esp"), NEEDS, move || in_esp(mode)),
            trial(format!("xdp/{mode}/forwarded_tcp_has_right_checksums_on_the_wire"), CAPTURE_NEEDS, move || {
                forwarded(mode)
            }),
            trial(format!("xdp/{mode}/a_killed_gateway_leaves_its_interfaces_to_the_host"), NEEDS, move || {
                killed(mode)
            }),
        ]
    });
    let others = [
        trial("xdp/fragments_that_wait_hold_no_frame_of_the_ring", NEEDS, fragments_wait),
        trial("xdp/a_link_that_goes_down_comes_back", NEEDS, down_and_up),
        trial("xdp/missing_privileges_and_memory_are_named_with_their_remedies", NEEDS, unprivileged),
        trial("xdp/chosen_mode_is_logged_and_another_ring_needs_a_restart", NEEDS, logged),
    ];
    modes.chain(others).collect()
}

/// The ring of a link as `show links --json` has it.
fn ring(gateway: &Gateway, link: &str) -> Outcome<Value> {
    let links: Value = serde_json::from_str(&gateway.show("links --json")?)?;
    let found = links.as_array().into_iter().flatten().find(|found| found["name"] == link);
    Ok(found.ok_or("no such link")?["ring"].clone())
}

fn in_esp(mode: &'static str) -> Outcome {
    let site = EspSite::by(Port::Xdp(mode, 512))?;
    for (a, b) in [(A_V4, B_V4), (A_V6, B_V6)] {
        ping_both_ways(&site.a, b.parse()?, &site.b, a.parse()?)?;
        transfer(&site.a, (&site.b, b.parse()?), 8 << 20)?;
        transfer(&site.b, (&site.a, a.parse()?), 8 << 20)?;
    }
    for gateway in &site.gateways {
        for link in ["lan0", "wan0"] {
            let ring = ring(gateway, link)?;
            assert_eq!(
                (&ring["mode"], &ring["frames"], &ring["held"]),
                (&mode.into(), &512.into(), &0.into()),
                "{ring}"
            );
        }
        let copied: Value = serde_json::from_str(&gateway.show("counters --json")?)?;
        assert!(copied.to_string().contains("device-frame"), "{copied}");
    }
    Ok(())
}

fn forwarded(mode: &'static str) -> Outcome {
    let site = PlainSite::by(Port::Xdp(mode, 1024))?;
    let capture = Capture::start(&site.b, "eth0", "src 10.1.0.2 or src fd01::2", &site.scratch)?;
    judge_checksums(&site, capture)
}

fn killed(mode: &'static str) -> Outcome {
    let site = PlainSite::by(Port::Xdp(mode, 256))?;
    site.a.sh(&ping_script(B_V4.parse()?, &[56]))?;
    let attached = |netns: &Netns| Ok::<_, libtest_mimic::Failed>(netns.sh("ip -d link")?.contains("xdp"));
    assert!(attached(&site.gateway_ns)?);
    let PlainSite { gateway, gateway_ns, a, .. } = site;
    // Dropped, it is killed.
    drop(gateway);
    system::wait_until("the programs are gone", std::time::Duration::from_secs(20), || {
        attached(&gateway_ns).is_ok_and(|attached| !attached)
    })?;
    gateway_ns.sh("ip addr add 10.1.0.1/24 dev left")?;
    a.sh("ip neigh flush all; ping -n -c 1 -W 10 10.1.0.1").map(drop)
}

/// 65 507 bytes are 45 fragments: six such requests that lack one fragment each would hold all frames of a ring of 256.
fn fragments_wait() -> Outcome {
    let site = PlainSite::by(Port::Xdp("auto", 256))?;
    let ours = "10.1.0.1";
    site.a.sh(&format!("ping -n -c 5 -i 0.2 -W 10 -s {LONGEST_PING} {ours}"))?;
    assert_eq!(ring(&site.gateway, "left")?["held"], 0);
    // The sender's own firewall would drop a fragment for the test; without a firewall, the script sends all fragments
    // but the last.
    let script = "
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for number in range(200):
    for n in range(44):
        head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 0, 1000 + number, 0x2000 | n * 185, 64, 1, 0,
                           socket.inet_aton('10.1.0.2'), socket.inet_aton('10.1.0.1'))
        s.sendto(head + bytes(1480), ('10.1.0.1', 0))
";
    run(site.a.command("python3").args(["-c", script]))?;
    let state = ring(&site.gateway, "left")?;
    assert_eq!((&state["held"], &state["rx_no_buffer"]), (&0.into(), &0.into()), "{state}");
    let counters: Value = serde_json::from_str(&site.gateway.show("counters --json")?)?;
    let counters = counters.to_string();
    assert!(counters.contains("IpReasmReqds") && counters.contains("coalesce"), "{counters}");
    // The gateway still handles complete datagrams.
    site.a.sh(&format!("ping -n -c 5 -i 0.2 -W 10 -s {LONGEST_PING} {ours}")).map(drop)
}

fn down_and_up() -> Outcome {
    let mut site = PlainSite::by(Port::Xdp("auto", 256))?;
    site.a.sh(&ping_script(B_V4.parse()?, &[56]))?;
    let is = |up: bool| {
        move |gateway: &mut Gateway| {
            let line =
                |links: String| links.lines().find(|line| line.contains("right")).map(|line| line.contains("<UP>"));
            gateway.show("links").is_ok_and(|links| line(links) == Some(up))
        }
    };
    site.gateway_ns.sh("ip link set right down")?;
    site.gateway.wait_until("the link is logged as down", is(false))?;
    site.gateway_ns.sh("ip link set right up")?;
    site.gateway.wait_until("the link is logged as up", is(true))?;
    site.a.sh(&ping_script(B_V4.parse()?, &[56, 4000]))?;
    site.gateway_ns.sh("ip link del spare")?;
    site.gateway.wait_until("the other link is logged as down", |gateway| {
        gateway
            .show("links")
            .is_ok_and(|links| links.lines().any(|line| line.contains("spare") && line.contains("DOWN")))
    })?;
    site.a.sh(&ping_script(B_V6.parse()?, &[56, 4000])).map(drop)
}

fn logged() -> Outcome {
    let mut site = PlainSite::by(Port::Xdp("generic", 256))?;
    let log = site.gateway.log();
    assert!(log.contains("left: generic XDP, copy; xdp-native: mode = \"generic\""), "{log}");
    let before = log.len();
    site.gateway.reload(&PlainSite::config_by(true, Port::Xdp("generic", 512)))?;
    site.gateway.wait_until("the reason is logged", |gateway| {
        gateway.log()[before..].contains("link left is open with other `ring`")
    })?;
    site.a.sh(&ping_script(B_V4.parse()?, &[56])).map(drop)
}

fn unprivileged() -> Outcome {
    let (netns, scratch) = (Netns::new("nobody")?, Scratch::new()?);
    netns.sh("ip link add eth0 type veth peer name other; ip link set eth0 up")?;
    let program = scratch.file("fatpath");
    fs::copy(fatpath(), &program)?;
    let file = scratch.file("nobody.toml");
    fs::write(&file, "[[link]]\nname = \"a\"\nkind = \"xdp\"\ninterface = \"eth0\"\nring = 4096\n")?;
    for (path, mode) in [(scratch.path(), 0o777), (&program, 0o755), (&file, 0o644)] {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    let printed = |capabilities: &str| {
        let of = |kind: &str| format!("--{kind}-caps=-all{capabilities}");
        netns.sh(&format!(
            "ulimit -l 1024; FATPATH_RUNDIR={} timeout 5 setpriv --reuid=65534 --regid=65534 --clear-groups {} {} \
             {} run -c {} 2>&1 || true",
            scratch.path().display(),
            of("inh"),
            of("ambient"),
            program.display(),
            file.display()
        ))
    };
    let cases = [
        ("", "eth0: socket AF_PACKET: Operation not permitted (needs CAP_NET_RAW"),
        (",+net_raw", "eth0: BPF_MAP_CREATE: Operation not permitted (needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"),
        (",+net_raw,+bpf,+net_admin", "eth0: XDP_UMEM_REG: No buffer space available (more memory than RLIMIT_MEMLOCK"),
    ];
    for (capabilities, want) in cases {
        let printed = printed(capabilities)?;
        assert!(printed.contains(want), "with {capabilities:?}: {printed}");
    }
    Ok(())
}
