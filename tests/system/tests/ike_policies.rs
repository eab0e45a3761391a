//! Policies of a `[[tunnel]]` with `keys = "ike"` over an interface of the gateway: no packet passes in clear while they
//! wait for a key manager, and when its policies and SAs are removed or expire. A script of `ip xfrm` is the manager.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{
    Cable, Capture, Esp, Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, macvlan, numbered, run, trial, veth,
    wait_until,
};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::TCPDUMP];

/// Longest time until a change is seen.
const PATIENCE: Duration = Duration::from_secs(20);

const FILE: &str = r#"[[link]]
name = "wan"
kind = "packet"
interface = "eth0"
addresses = ["192.0.2.1/24"]

[[tunnel]]
name = "tun0"
local = { address = "192.0.2.1", nets = ["10.1.0.0/24"], addresses = ["10.1.0.1/24"] }
remote = { address = "192.0.2.2", nets = ["10.2.0.0/24"] }
keys = "ike"
"#;

/// Address behind the peer.
const FAR: &str = "10.2.0.9";

/// Packets to the peer's network on the wire, and ARP requests for neighbours there.
const SENT: &str = "ip dst net 10.2.0.0/24 or (arp[6:2] = 1 and arp dst net 10.2.0.0/24)";

/// Address of the host that is in no network of the tunnel.
const OTHER: &str = "198.51.100.5";

/// Packets of the peer's network on the host's device.
const RECEIVED: &str = "ip src net 10.2.0.0/24";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("ike_policies/nothing_passes_in_clear_on_a_veth", NEEDS, || nothing_in_clear(veth)),
        trial("ike_policies/nothing_passes_in_clear_on_a_macvlan", NEEDS, || nothing_in_clear(macvlan)),
    ]
}

/// A host with its gateway, and a peer without ESP, whose packets to the host's network are in clear.
struct Site {
    gateway: Gateway,
    scratch: Scratch,
    host: Netns,
    peer: Netns,
}

impl Site {
    fn new(cable: Cable) -> Outcome<Self> {
        let (scratch, host, peer) = (Scratch::new()?, Netns::new("host")?, Netns::new("peer")?);
        cable((&host, "eth0"), (&peer, "eth0"))?;
        // The host's kernel has no address there, and its own packets would be no gateway's.
        host.sh(&format!(
            "echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6; ip link set lo up; ip addr add {OTHER}/32 dev lo"
        ))?;
        peer.sh(&format!(
            "ip addr add 192.0.2.2/24 dev eth0; ip link set lo up; ip addr add {FAR}/32 dev lo
            ip route add 10.1.0.0/24 via 192.0.2.1"
        ))?;
        let gateway = Gateway::start(&host, &scratch, "gw", FILE)?;
        Ok(Self { gateway, scratch, host, peer })
    }

    /// Runs lines of `ip xfrm` on the gateway.
    fn xfrm(&self, lines: &[String]) -> Outcome {
        let file = self.scratch.file("lines");
        fs::write(&file, lines.iter().map(|line| format!("xfrm {line}\n")).collect::<String>())?;
        let mut command = Command::new(fatpath());
        command.args(["-i", "gw", "ip", "-batch"]).arg(&file).env("FATPATH_RUNDIR", self.scratch.path());
        run(&mut command).map(drop)
    }

    /// Waits until packets to the peer are encrypted.
    fn wait_for_esp(&self) -> Outcome {
        let sent = || self.gateway.link("wan").ok().and_then(|link| link["stats"]["tx_packets"].as_u64());
        let before = sent();
        wait_until("packets are encrypted", PATIENCE, || sent() > before.map(|before| before + 200))
            .map_err(|err| self.explain(&err))
    }

    /// Waits until the gateway has the policies of its file, and no others.
    fn wait_for_waiting(&self) -> Outcome {
        let shown = || self.gateway.show("policies").unwrap_or_default();
        let waits = || shown().matches("priority 4294967294").count() == 3 && shown().matches("dir ").count() == 4;
        wait_until("the policies of the file are back", PATIENCE, waits).map_err(|err| self.explain(&err))
    }

    fn explain(&self, err: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        let [policies, sas] = ["policies", "sa"].map(|what| self.gateway.show(what).unwrap_or_default());
        format!("{}\n{policies}\n{sas}\n{}", err.message().unwrap_or_default(), self.gateway.log()).into()
    }

    /// Captures on the wire and on the host's device what passes in clear during `meanwhile`, under packets both ways.
    fn in_clear(&self, meanwhile: impl FnOnce() -> Outcome) -> Outcome<InClear> {
        let sent = Capture::start(&self.peer, "eth0", SENT, &self.scratch)?;
        let received = Capture::start(&self.host, "tun0", RECEIVED, &self.scratch)?;
        let mut ping = self.peer.command("ping");
        let ping = Process::spawn(ping.args(["-n", "-q", "-i", "0.01", "-I", FAR, "10.1.0.1"]), &self.scratch)?;
        let mut other = self.host.command("ping");
        let other = Process::spawn(other.args(["-n", "-q", "-i", "0.01", "-I", OTHER, FAR]), &self.scratch)?;
        let counts = numbered(&self.host, (&self.peer, FAR.parse()?), (200, 3000), meanwhile)?;
        drop((ping, other));
        assert!(counts.len() > 300, "{} datagrams were sent", counts.len());
        let packets = |capture: Capture| run(Command::new("tcpdump").args(["-nr"]).arg(capture.finish()?));
        let arrived = counts.into_iter().filter(|count| *count > 0).count();
        Ok(InClear { sent: packets(sent)?, received: packets(received)?, arrived })
    }
}

/// Packets in clear.
#[derive(Debug, Default, Eq, PartialEq)]
struct InClear {
    /// Lines of tcpdump about the wire.
    sent: String,
    /// Lines of tcpdump about the host's device.
    received: String,
    /// Number of datagrams that have arrived at the peer.
    arrived: usize,
}

/// Lines about the policies of all directions, with `verb` before the selector and `rest` behind it.
fn policies(verb: &str, rest: impl Fn(&str) -> String) -> Vec<String> {
    let of = |dir: &str| {
        let (src, dst) = if dir == "out" { ("10.1.0.0/24", "10.2.0.0/24") } else { ("10.2.0.0/24", "10.1.0.0/24") };
        format!("policy {verb} dir {dir} src {src} dst {dst} {}", rest(dir))
    };
    ["out", "fwd", "in"].map(of).to_vec()
}

/// A key manager's policies, with these limits.
fn managed(limits: &str) -> Vec<String> {
    policies("update", |dir| {
        let (src, dst) = if dir == "out" { ("192.0.2.1", "192.0.2.2") } else { ("192.0.2.2", "192.0.2.1") };
        format!("priority 1000 {limits} tmpl src {src} dst {dst} proto esp reqid 7 mode tunnel")
    })
}

/// A key manager's SA for packets to the peer, with these limits.
fn sa(spi: u32, limits: &str) -> String {
    format!(
        "state add src 192.0.2.1 dst 192.0.2.2 proto esp spi {spi:#x} reqid 7 mode tunnel {limits} \
         aead rfc4106(gcm(aes)) {} 128",
        Esp::key(spi, 36)
    )
}

/// Time in which packets would pass in clear.
fn pass() {
    thread::sleep(Duration::from_millis(300));
}

fn nothing_in_clear(cable: Cable) -> Outcome {
    let site = Site::new(cable)?;
    let one = |line: &str| vec![line.to_owned()];
    let removed = || policies("delete", |_| String::new());
    let seen = site.in_clear(|| {
        // No key manager is there yet.
        site.wait_for_waiting()?;
        pass();
        // It removes its policies, in any order and often. Its SA stays, and serves no packets.
        site.xfrm(&[one(&sa(0x1001, "")), managed("")].concat())?;
        site.wait_for_esp()?;
        let again = [managed(""), removed(), managed(""), removed().into_iter().rev().collect()].concat();
        for _ in 0..10 {
            site.xfrm(&again)?;
        }
        site.wait_for_waiting()?;
        pass();
        // They expire, before and after their SA is gone.
        for gone in [false, true] {
            site.xfrm(&managed("limit time-hard 3"))?;
            site.wait_for_esp()?;
            if gone {
                site.xfrm(&one("state flush"))?;
            }
            site.wait_for_waiting()?;
            pass();
        }
        // The SA expires, and the policies of a manager that was killed stay.
        site.xfrm(&[managed(""), one(&sa(0x1002, "limit time-hard 3"))].concat())?;
        site.wait_for_esp()?;
        let has_sa = || site.gateway.show("sa").is_ok_and(|sas| sas.contains("0x00001002"));
        wait_until("the SA expires", PATIENCE, || !has_sa())?;
        pass();
        // A manager that starts removes all that it finds, also where it finds none of its own.
        site.xfrm(
            &[one("state flush"), one("policy flush"), one("policy flush"), managed(""), one("policy flush")].concat(),
        )?;
        site.xfrm(&one("policy flush"))?;
        site.wait_for_waiting()?;
        pass();
        Ok(())
    })?;
    assert_eq!(seen, InClear::default());
    // What passes in clear is seen: a program demands it for all directions.
    let seen = site.in_clear(|| {
        site.xfrm(&policies("update", |_| "priority 1000".to_owned()))?;
        pass();
        Ok(())
    })?;
    let counts = [seen.sent.lines().count(), seen.received.lines().count(), seen.arrived];
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}: {}", site.gateway.log());
    site.xfrm(&removed())?;
    site.wait_for_waiting()?;
    // Packets that were sent before the removal.
    pass();
    let seen = site.in_clear(|| {
        pass();
        Ok(())
    })?;
    assert_eq!(seen, InClear::default(), "after the program's policies");
    // So are packets from an address in none of the tunnel's networks.
    let seen = site.in_clear(|| {
        site.xfrm(&one("policy update dir out dst 10.2.0.0/24 priority 1000"))?;
        pass();
        Ok(())
    })?;
    assert!(seen.sent.matches(&format!("IP {OTHER} > {FAR}: ICMP")).count() > 5, "{seen:?}");
    Ok(())
}
