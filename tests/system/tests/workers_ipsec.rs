//! IPsec with several workers: each SA is one worker's, and a tunnel for each CPU (RFC 9611).

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use system::{
    Esp, Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, lossless, ping_script, run, transfer, trial, veth,
};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

const CAPTURED: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::TCPDUMP, Need::PYTHON];

/// Number of tunnels, each with a pair of SAs and a network at either end.
const TUNNELS: u8 = 8;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("workers/tunnels_are_spread_over_workers_by_their_sas", NEEDS, spread),
        trial("workers/rekeys_of_tunnels_lose_no_datagram", NEEDS, rekeys),
        trial("workers/numbers_continue_with_another_number_of_workers", NEEDS, restart),
        trial("workers/sas_for_cpus_by_raw_netlink", NEEDS, cpus),
        trial("workers/sas_for_cpus_of_a_file_have_ports", CAPTURED, ports),
    ]
}

/// SPI of a tunnel's packets to end `to`, of that generation.
fn spi(tunnel: u8, to: u8, generation: u32) -> u32 {
    0x1000 + 0x100 * generation + 2 * u32::from(tunnel) + u32::from(to) - 1
}

/// Command of `ip` that adds an SA of a tunnel.
fn state(tunnel: u8, to: u8, generation: u32) -> String {
    let spi = spi(tunnel, to, generation);
    format!(
        "xfrm state add src 192.0.2.{} dst 192.0.2.{to} proto esp spi {spi:#x} reqid {tunnel} mode tunnel replay-window 1024 flag esn \
         aead rfc4106(gcm(aes)) {} 128 encap espinudp 4500 4500 0.0.0.0",
        3 - to,
        Esp::key(spi, 36)
    )
}

/// A file of `ip` with the SAs and the policies of the end `own`: the SAs that receive first.
fn lines(own: u8) -> String {
    let peer = 3 - own;
    let mut lines = String::new();
    for tunnel in 1..=TUNNELS {
        let _ = writeln!(lines, "{}\n{}", state(tunnel, own, 0), state(tunnel, peer, 0));
        for (dir, from, to) in [("out", own, peer), ("in", peer, own), ("fwd", peer, own)] {
            let _ = writeln!(
                lines,
                "xfrm policy add dir {dir} src 10.{from}.0.0/16 dst 10.{to}.{tunnel}.0/24 \
                 tmpl src 192.0.2.{from} dst 192.0.2.{to} proto esp reqid {tunnel} mode tunnel"
            );
        }
    }
    lines
}

/// Two hosts, each with a gateway of several workers between its TUN device and a UDP socket.
struct Site {
    a: Netns,
    b: Netns,
    gateway_a: Option<Gateway>,
    gateway_b: Gateway,
    scratch: Scratch,
}

impl Site {
    fn new() -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let (a, b) = (Netns::new("a")?, Netns::new("b")?);
        veth((&a, "wan0"), (&b, "wan0"))?;
        let gateway_b = start(&b, &scratch, 2, 2, None)?;
        let gateway_a = Some(start(&a, &scratch, 1, 2, None)?);
        let site = Self { a, b, gateway_a, gateway_b, scratch };
        site.ip(1, &lines(1))?;
        site.ip(2, &lines(2))?;
        Ok(site)
    }

    /// Runs lines of `ip -batch` on the gateway of an end.
    fn ip(&self, own: u8, lines: &str) -> Outcome<String> {
        let file = self.scratch.file(&format!("lines{own}.ip"));
        std::fs::write(&file, lines)?;
        run(&mut self.command(own, &["ip", "-batch", &file.display().to_string()]))
    }

    fn command(&self, own: u8, words: &[&str]) -> Command {
        command(&self.scratch, own, words)
    }
}

fn command(scratch: &Scratch, own: u8, words: &[&str]) -> Command {
    let mut command = Command::new(fatpath());
    command.args(words).env("FATPATH_RUNDIR", scratch.path()).env("FATPATH_INSTANCE", name(own));
    command
}

const fn name(own: u8) -> &'static str {
    if own == 1 { "a" } else { "b" }
}

/// Starts the gateway of an end, which keeps its state in the file `state` if that is given.
fn start(netns: &Netns, scratch: &Scratch, own: u8, workers: u8, state: Option<&Path>) -> Outcome<Gateway> {
    start_with(netns, scratch, own, &file(own, workers), state)
}

/// File of an end without SAs and policies.
fn file(own: u8, workers: u8) -> String {
    let peer = 3 - own;
    format!(
        "[[link]]\nname = \"tun0\"\nkind = \"tun\"\nmtu = 1400\naddresses = [\"10.{own}.0.254/16\"]\n\n\
         [[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"192.0.2.{own}:4500\"\n\n\
         [[route]]\nto = \"192.0.2.{peer}/32\"\ndev = \"wan\"\n\n[[route]]\nto = \"10.{peer}.0.0/16\"\ndev = \"wan\"\n\n\
         [worker]\ncount = {workers}\n"
    )
}

fn start_with(netns: &Netns, scratch: &Scratch, own: u8, toml: &str, state: Option<&Path>) -> Outcome<Gateway> {
    let peer = 3 - own;
    // A TUN device that another number of workers has left is of another number of queues.
    netns.sh(&format!("ip addr replace 192.0.2.{own}/24 dev wan0; ip link del tun0 2>/dev/null || true"))?;
    let gateway = match state {
        None => Gateway::start(netns, scratch, name(own), toml)?,
        Some(state) => {
            let mut shell = netns.command("sh");
            shell.args(["-c", "exec \"$0\" \"$@\" --state \"$STATE\""]).arg(fatpath()).env("STATE", state);
            Gateway::start_under(shell, scratch, name(own), toml)?
        }
    };
    let mut script = format!("ip link set tun0 mtu 1400 up; ip route replace 10.{peer}.0.0/16 dev tun0\n");
    for tunnel in 1..=TUNNELS {
        let _ = writeln!(script, "ip addr replace 10.{own}.{tunnel}.1/16 dev tun0");
    }
    netns.sh(&script)?;
    Ok(gateway)
}

/// Pings through all tunnels, both ways.
fn ping_all(site: &Site, sizes: &[u16]) -> Outcome {
    for tunnel in 1..=TUNNELS {
        for (netns, own) in [(&site.a, 1), (&site.b, 2)] {
            let from = format!("10.{own}.{tunnel}.1");
            let script = ping_script(format!("10.{}.{tunnel}.1", 3 - own).parse()?, sizes);
            netns.sh(&script.replace("ping ", &format!("ping -I {from} "))).map_err(|failed| site.explain(&failed))?;
        }
    }
    Ok(())
}

/// SAs of an end, as `fatpath show --json sa` has them.
fn sas(site: &Site, own: u8) -> Outcome<Vec<Value>> {
    let shown: Value = serde_json::from_str(&run(&mut site.command(own, &["show", "--json", "sa"]))?)?;
    Ok(shown.as_array().ok_or("no list")?.clone())
}

fn number(sa: &Value, name: &str) -> u64 {
    sa[name].as_u64().unwrap_or_default()
}

fn packets(sa: &Value) -> u64 {
    number(&sa["stats"], "packets")
}

fn spread() -> Outcome {
    let site = Site::new()?;
    ping_all(&site, &[56, 1300, 4000])?;
    for tunnel in [1, 2, 3] {
        let to = format!("10.2.{tunnel}.1").parse()?;
        transfer(&site.a, (&site.b, to), 16 << 20)?;
        transfer(&site.b, (&site.a, format!("10.1.{tunnel}.1").parse()?), 16 << 20)?;
    }
    for own in [1, 2] {
        let sas = sas(&site, own)?;
        assert_eq!(sas.len(), usize::from(2 * TUNNELS));
        let workers: BTreeSet<u64> = sas.iter().map(|sa| number(sa, "worker")).collect();
        assert_eq!(workers, [0, 1].into(), "{sas:?}");
        for sa in &sas {
            assert!(packets(sa) > 0, "{sa}");
            let back =
                sas.iter().find(|other| number(other, "reqid") == number(sa, "reqid") && other["src"] != sa["src"]);
            let back = back.ok_or("no SA in the other direction")?;
            assert_eq!(number(sa, "worker"), number(back, "worker"), "both directions are one worker's: {sa} {back}");
        }
        // `ip` sees each SA as its owner does.
        let listed = run(&mut site.command(own, &["ip", "-s", "xfrm", "state"]))?;
        for sa in &sas {
            let at = listed.find(&format!("spi {:#010x}", number(sa, "spi"))).ok_or("not listed")?;
            assert!(listed[at..].contains(&format!(" {}(packets)", packets(sa))), "{sa}: {}", &listed[at..]);
        }
    }
    let drops = site.gateway_b.show("drops")?;
    assert!(!drops.contains("Esp") && !drops.contains("Policy"), "{drops}");
    Ok(())
}

fn rekeys() -> Outcome {
    let site = Site::new()?;
    ping_all(&site, &[56])?;
    let to = (&site.b, "10.2.1.1".parse()?);
    let rekey = || {
        for generation in 1..=20 {
            // The receiver has each SA before the sender uses it, and keeps the old one while packets may be on their way.
            for (own, direction) in [(2, 2), (1, 2), (1, 1), (2, 1)] {
                site.ip(own, &state(1, direction, generation))?;
            }
            thread::sleep(Duration::from_millis(60));
            for own in [1, 2] {
                let old = [1, 2].map(|to| {
                    format!("xfrm state del dst 192.0.2.{to} proto esp spi {:#x}", spi(1, to, generation - 1))
                });
                site.ip(own, &old.join("\n"))?;
            }
        }
        Ok(())
    };
    let sent = lossless(&site.a, to, (600, 2000), rekey).map_err(|failed| site.explain(&failed))?;
    assert!(sent > 1000, "{sent} datagrams");
    ping_all(&site, &[56])
}

fn restart() -> Outcome {
    let mut site = Site::new()?;
    drop(site.gateway_a.take());
    let state = site.scratch.file("a.state");
    for workers in [2, 1, 3] {
        let is_first = workers == 2;
        site.gateway_a = Some(start(&site.a, &site.scratch, 1, workers, Some(&state))?);
        if is_first {
            site.ip(1, &lines(1))?;
        }
        // More packets than the peer's window holds.
        site.a.sh("ping -I 10.1.1.1 -q -f -c 1500 10.2.1.1").map_err(|failed| site.explain(&failed))?;
        ping_all(&site, &[56])?;
        // Received numbers are saved within a second.
        thread::sleep(Duration::from_millis(2500));
        let sas = sas(&site, 1)?;
        assert_eq!(sas.len(), usize::from(2 * TUNNELS), "{workers} workers");
        let replays: u64 = sas.iter().map(|sa| number(&sa["stats"], "replay")).sum();
        assert_eq!(replays, 0);
        if let Some(mut gateway) = site.gateway_a.take() {
            gateway.kill()?;
        }
    }
    for sa in self::sas(&site, 2)? {
        let refused = ["replay", "replay_window", "integrity_failed"].map(|name| number(&sa["stats"], name));
        assert_eq!(refused, [0; 3], "the peer has got no number twice: {sa}");
    }
    Ok(())
}

/// Sends datagrams of flows that the TUN device of the first end spreads over its queues.
fn flows(site: &Site) -> Outcome<String> {
    let program = "import socket\nfor port in range(20001, 20065):\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n    \
        s.bind(('10.1.1.1', port)); s.sendto(b'x' * 100, ('10.2.1.1', 9))";
    site.a.sh(&format!("python3 -c \"{program}\""))
}

/// A file's tunnel with an SA for each worker of the first end, each from a port of its own.
fn ports() -> Outcome {
    let scratch = Scratch::new()?;
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    veth((&a, "wan0"), (&b, "wan0"))?;
    let sa = |to: u8, spi: u32, sport: u16, more: &str| {
        format!(
            "\n[[sa]]\nsrc = \"192.0.2.{}\"\ndst = \"192.0.2.{to}\"\nspi = {spi:#x}\nmode = \"tunnel\"\nreqid = 1\nreplay-window = 1024\n\
             aead = {{ name = \"rfc4106(gcm(aes))\", key = \"{}\", icv = 128 }}\n{more}\
             encap = {{ type = \"espinudp\", sport = {sport}, dport = 4500 }}\n",
            3 - to,
            Esp::key(spi, 36)
        )
    };
    let policy = |dir: &str, from: u8| {
        let to = 3 - from;
        format!(
            "\n[[policy]]\ndir = \"{dir}\"\nsrc = \"10.{from}.0.0/16\"\ndst = \"10.{to}.0.0/16\"\ntmpl = [{{ src = \"192.0.2.{from}\", \
             dst = \"192.0.2.{to}\", proto = \"esp\", mode = \"tunnel\", reqid = 1, level = \"required\" }}]\n"
        )
    };
    let toml = |own: u8| {
        let of_cpus =
            [0, 1].map(|cpu: u32| sa(2, 0x2000 + cpu, 40001 + cpu as u16, &format!("pcpu-num = {cpu}\n"))).concat();
        let policies = policy("out", own) + &policy("in", 3 - own) + &policy("fwd", 3 - own);
        file(own, 2) + &sa(1, 0x3000, 4500, "") + &of_cpus + &policies
    };
    let gateway_b = start_with(&b, &scratch, 2, &toml(2), None)?;
    let gateway_a = Some(start_with(&a, &scratch, 1, &toml(1), None)?);
    let site = Site { a, b, gateway_a, gateway_b, scratch };
    let mut tcpdump = site.b.command("tcpdump");
    tcpdump.args(["-l", "-n", "-i", "wan0", "src host 192.0.2.1 and udp"]);
    let seen = Process::spawn(&mut tcpdump, &site.scratch)?;
    system::wait_until("tcpdump listens", Duration::from_secs(20), || seen.output().contains("listening on"))?;
    flows(&site)?;
    site.a.sh("ping -I 10.1.1.1 -c 3 -i 0.2 -W 5 10.2.1.1").map_err(|failed| site.explain(&failed))?;
    let both =
        || [40001, 40002].iter().all(|port| seen.output().contains(&format!("192.0.2.1.{port} > 192.0.2.2.4500")));
    system::wait_until("a packet from each SA's port", Duration::from_secs(20), both)
        .map_err(|failed| site.explain(&failed))?;
    assert!(!seen.output().contains("192.0.2.1.4500 >"), "{}", seen.output());
    for sa in sas(&site, 1)?.iter().filter(|sa| number(sa, "spi") < 0x3000) {
        assert_eq!(number(sa, "cpu"), number(sa, "worker"), "{sa}");
        assert!(packets(sa) > 0, "{sa}");
    }
    Ok(())
}

fn cpus() -> Outcome {
    let site = Site::new()?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/netlink_cpus.py");
    let raw = |own: u8, words: &str| {
        let words: Vec<&str> = ["exec", "--", "python3", script].into_iter().chain(words.split(' ')).collect();
        site.command(own, &words)
    };
    let (out, copies) = (spi(1, 2, 0), [0x7000, 0x7001]);
    assert_eq!(
        run(&mut raw(1, &format!("add 192.0.2.2 {out:#x} 0x7040 64")))?,
        "Numerical result out of range: pCPU number too big\n"
    );
    site.ip(
        1,
        "xfrm policy update dir out src 10.1.0.0/16 dst 10.2.1.0/24 priority 77 \
        tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel",
    )?;
    assert_eq!(run(&mut raw(1, "ask 77"))?, "ok\n");
    let mut listener = Process::spawn(&mut raw(1, "listen 2"), &site.scratch)?;
    system::wait_until("the listener listens", Duration::from_secs(10), || listener.output().contains("listening"))?;
    flows(&site)?;
    listener.wait(Duration::from_secs(20))?;
    let asked: BTreeSet<String> = listener.output().lines().skip(1).map(str::to_owned).collect();
    assert_eq!(asked, ["0", "1"].map(str::to_owned).into(), "each worker asks for its own, once");
    for (cpu, copy) in copies.into_iter().enumerate() {
        // The receiver takes any SA by any worker.
        for own in [2, 1] {
            let added = run(&mut raw(own, &format!("add 192.0.2.2 {out:#x} {copy:#x} {cpu}")))?;
            assert_eq!(added, "ok\n");
        }
    }
    let of_all = |site: &Site| -> Outcome<u64> {
        let sas = sas(site, 1)?;
        Ok(sas.iter().find(|sa| number(sa, "spi") == u64::from(out)).map(packets).unwrap_or_default())
    };
    let before = of_all(&site)?;
    flows(&site)?;
    site.a.sh("ping -I 10.1.1.1 -c 3 -i 0.2 -W 5 10.2.1.1").map_err(|failed| site.explain(&failed))?;
    let sas = sas(&site, 1)?;
    for (cpu, copy) in copies.into_iter().enumerate() {
        let sa = sas.iter().find(|sa| number(sa, "spi") == copy).ok_or("no copy")?;
        assert_eq!((number(sa, "cpu"), number(sa, "worker")), (cpu as u64, cpu as u64), "{sa}");
        assert!(packets(sa) > 0, "{sa}");
    }
    assert_eq!(of_all(&site)?, before, "each worker sends by its own");
    Ok(())
}

impl Site {
    /// A failure, with what the gateways have dropped.
    fn explain(&self, failed: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        let a = self.gateway_a.as_ref().map(|gateway| gateway.show("drops").unwrap_or_default() + &gateway.log());
        let b = self.gateway_b.show("drops").unwrap_or_default();
        format!(
            "{}\na: {}\nb: {b}{}",
            failed.message().unwrap_or_default(),
            a.unwrap_or_default(),
            self.gateway_b.log()
        )
        .into()
    }
}
