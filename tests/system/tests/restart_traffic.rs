//! Traffic over a restart of the gateway: pings each 2 ms and a TCP connection, over SIGTERM and SIGKILL, by SAs of the
//! file, of programs, and of a key manager. A stand-in for the service manager keeps what the gateway stores.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use system::{
    Esp, Gateway, Manager, Manners, Need, Netns, Outcome, Scratch, fatpath, longest_gap, lossless, run,
    transfer_during, trial, veth, wait_until,
};

use crate::replace::{TUN, stream_goes_on};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

const PATIENCE: Duration = Duration::from_secs(20);

/// Longest time without traffic. A test build on a busy machine takes longer to start.
const LONGEST_GAP: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1500 } else { 100 });

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("restart/traffic_by_sas_of_the_file_goes_on", NEEDS, || {
            goes_on(Keys::File, &[GatewayEnd::Term, GatewayEnd::Kill])
        }),
        trial("restart/traffic_by_sas_of_programs_goes_on", NEEDS, || {
            goes_on(Keys::Program, &[GatewayEnd::Term, GatewayEnd::Kill])
        }),
        trial("restart/traffic_by_sas_of_a_key_manager_goes_on", NEEDS, || {
            goes_on(Keys::Manager, &[GatewayEnd::Term, GatewayEnd::Term])
        }),
        trial("restart/stream_of_the_host_side_goes_on", &[Need::Namespaces, Need::Tun, Need::SETPRIV], host_side),
        trial("restart/no_datagram_is_lost_over_an_orderly_restart", NEEDS, lossless_both_ways),
        trial("restart/sas_of_a_key_manager_are_as_they_were", NEEDS, as_they_were),
        trial("restart/sas_of_a_key_manager_go_on_with_two_workers", NEEDS, two_workers),
        trial("restart/sas_are_restored_once", NEEDS, once),
        trial("restart/lifetimes_of_sas_go_on", NEEDS, lifetimes),
        trial("restart/memory_that_has_no_sas_is_named_and_removed", NEEDS, hostile),
        trial("restart/sas_without_a_store_are_lost_with_a_line", NEEDS, without_store),
    ]
}

/// Origin of the SAs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Keys {
    /// The configuration.
    File,
    /// A program that sets no limit of time.
    Program,
    /// A key manager, which limits the time of its SAs.
    Manager,
}

/// End of a gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GatewayEnd {
    Term,
    Kill,
    /// The next gateway replaces it.
    Replace,
}

/// Two hosts with a gateway each; the left one keeps its state.
pub(crate) struct Pair {
    pub(crate) gateways: RefCell<Vec<Gateway>>,
    pub(crate) hosts: [Netns; 2],
    manager: Manager,
    /// Whether the left gateway is a service.
    is_service: bool,
    pub(crate) scratch: Scratch,
    pub(crate) toml: String,
}

const NAMES: [&str; 2] = ["left", "right"];

/// SPIs of packets to the right, and to the left.
const SPIS: [u32; 2] = [0x1001, 0x1002];

/// Address of the right host in its network.
pub(crate) const RIGHT: &str = "10.2.0.1";

/// Configuration of the host `own`.
fn toml(own: usize, keys: Keys, more: &str) -> String {
    let peer = 3 - own;
    let key = |spi| Esp::key(spi, 36);
    let [out, incoming] = if own == 1 { SPIS } else { [SPIS[1], SPIS[0]] };
    let keys = match keys {
        Keys::File => format!(
            "[tunnel.keys]\nout = {{ spi = {out}, key = \"{}\" }}\nin = {{ spi = {incoming}, key = \"{}\" }}\n",
            key(out),
            key(incoming)
        ),
        Keys::Program | Keys::Manager => "keys = \"ike\"\n".to_owned(),
    };
    format!(
        "{more}
[[link]]
name = \"wan\"
kind = \"packet\"
interface = \"eth0\"
addresses = [\"192.0.2.{own}/24\"]

[[tunnel]]
name = \"tun0\"
local = {{ address = \"192.0.2.{own}\", nets = [\"10.{own}.0.0/24\"], addresses = [\"10.{own}.0.1/24\"] }}
remote = {{ address = \"192.0.2.{peer}\", nets = [\"10.{peer}.0.0/24\"] }}
{keys}"
    )
}

/// Lines of `ip` that add the policies and SAs of the host `own`, the SAs with these limits.
fn lines(own: usize, limits: &str) -> String {
    let peer = 3 - own;
    let mut lines = String::new();
    for (dir, from, to) in [("out", own, peer), ("fwd", peer, own), ("in", peer, own)] {
        lines += &format!(
            "xfrm policy update dir {dir} src 10.{from}.0.0/24 dst 10.{to}.0.0/24 priority 1000 \
             tmpl src 192.0.2.{from} dst 192.0.2.{to} proto esp reqid 7 mode tunnel\n"
        );
    }
    for (spi, from, to) in [(SPIS[0], 1, 2), (SPIS[1], 2, 1)] {
        lines += &format!(
            "xfrm state add src 192.0.2.{from} dst 192.0.2.{to} proto esp spi {spi:#x} reqid 7 mode tunnel \
             replay-window 64 flag esn {limits} aead rfc4106(gcm(aes)) {} 128\n",
            Esp::key(spi, 36)
        );
    }
    lines
}

impl Pair {
    /// A pair whose left gateway is a service.
    fn new(keys: Keys, more: &str) -> Outcome<Self> {
        Self::with(keys, more, true)
    }

    /// A pair whose left gateway has no service manager.
    pub(crate) fn without_manager(keys: Keys, more: &str) -> Outcome<Self> {
        Self::with(keys, more, false)
    }

    fn with(keys: Keys, more: &str, is_service: bool) -> Outcome<Self> {
        let (scratch, hosts) = (Scratch::new()?, [Netns::new("left")?, Netns::new("right")?]);
        veth((&hosts[0], "eth0"), (&hosts[1], "eth0"))?;
        for host in &hosts {
            // The host's kernel has no address there.
            host.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6; ip link set lo up")?;
        }
        let manager = Manager::new(&scratch)?;
        let toml_of_left = toml(1, keys, more);
        let pair = Self { gateways: RefCell::default(), hosts, manager, is_service, scratch, toml: toml_of_left };
        let left = pair.started()?;
        let right = Gateway::start(&pair.hosts[1], &pair.scratch, NAMES[1], &toml(2, keys, ""))?;
        pair.gateways.borrow_mut().extend([left, right]);
        match keys {
            Keys::File => {}
            Keys::Program => pair.add_sas("")?,
            Keys::Manager => pair.add_sas("limit time-hard 3600")?,
        }
        let answers = || pair.hosts[0].sh(&format!("ping -c 1 -W 1 {RIGHT}")).is_ok();
        wait_until("the tunnel is up", PATIENCE, answers).map_err(|failed| pair.explain(&failed))?;
        Ok(pair)
    }

    fn state(&self) -> PathBuf {
        self.scratch.file("left.state")
    }

    /// A gateway at the left, with what the service manager has.
    fn started(&self) -> Outcome<Gateway> {
        let command = match self.is_service {
            true => self.manager.command(&self.hosts[0], &self.state())?,
            false => self.plain(),
        };
        Gateway::start_under(command, &self.scratch, NAMES[0], &self.toml)
    }

    /// Command that starts the left gateway without a manager.
    pub(crate) fn plain(&self) -> Command {
        let mut command = self.hosts[0].command("sh");
        let script = format!("exec {} \"$@\" --state {}", fatpath().display(), self.state().display());
        command.args(["-c", &script, "sh"]);
        command
    }

    fn add_sas(&self, limits: &str) -> Outcome {
        (1..=2).try_for_each(|own| self.batch(own, &lines(own, limits)))
    }

    fn batch(&self, own: usize, lines: &str) -> Outcome {
        let file = self.scratch.file("lines");
        fs::write(&file, lines)?;
        self.ip(own, &format!("-batch {}", file.display())).map(drop)
    }

    pub(crate) fn ip(&self, own: usize, words: &str) -> Outcome<String> {
        let mut command = Command::new(fatpath());
        command.args(["-i", NAMES[own - 1], "ip"]).args(words.split(' '));
        run(command.env("FATPATH_RUNDIR", self.scratch.path()))
    }

    fn end(&self, end: GatewayEnd) -> Outcome {
        let left = &mut self.gateways.borrow_mut()[0];
        match end {
            GatewayEnd::Term => assert!(left.terminate()?.success(), "{}", left.log()),
            GatewayEnd::Kill => left.kill()?,
            GatewayEnd::Replace => return Err("the next gateway replaces it".into()),
        }
        Ok(())
    }

    /// Replaces the left gateway by one with the file `toml`, and returns the log of the one before.
    pub(crate) fn replace(&self, toml: &str, limit: Duration) -> Outcome<String> {
        let before = self.gateways.borrow_mut()[0].replace(self.plain(), &self.scratch, toml, limit)?;
        Ok(before.log())
    }

    fn start(&self) -> Outcome {
        let started = self.started()?;
        self.gateways.borrow_mut()[0] = started;
        Ok(())
    }

    /// Log of the left gateway since its start.
    pub(crate) fn log(&self) -> String {
        self.gateways.borrow()[0].log()
    }

    fn restart(&self, end: GatewayEnd) -> Outcome {
        if end == GatewayEnd::Replace {
            return self.replace(&self.toml, PATIENCE).map(drop);
        }
        self.end(end)?;
        self.start()
    }

    /// Fails if the right gateway has refused a packet.
    pub(crate) fn nothing_is_replayed(&self) -> Outcome {
        let states = self.ip(2, "-s xfrm state")?;
        let counts: Vec<&str> =
            states.lines().filter(|line| line.contains("replay-window ") && line.contains("failed ")).collect();
        assert_eq!(counts.len(), 2, "{states}");
        for line in counts {
            assert_eq!(line.trim(), "replay-window 0 replay 0 failed 0", "{states}");
        }
        Ok(())
    }

    fn explain(&self, failed: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        let mut text = failed.message().unwrap_or_default().to_owned();
        for gateway in self.gateways.borrow().iter() {
            text += &format!("\n---\n{}\n{}", gateway.log(), gateway.show("sa").unwrap_or_default());
        }
        text.into()
    }
}

/// Restarts the left gateway under pings and a TCP connection, and returns the longest time without an answer.
pub(crate) fn gap(pair: &Pair, end: GatewayEnd) -> Outcome<Duration> {
    let [left, right] = &pair.hosts;
    let mut longest = Duration::ZERO;
    let sent = transfer_during(left, (right, RIGHT.parse()?), || {
        longest = longest_gap(left, RIGHT.parse()?, &pair.scratch, || pair.restart(end))?;
        Ok(())
    });
    sent.map_err(|failed| pair.explain(&failed))?;
    Ok(longest)
}

fn goes_on(keys: Keys, ends: &[GatewayEnd]) -> Outcome {
    let pair = Pair::new(keys, "")?;
    for &end in ends {
        let gap = gap(&pair, end)?;
        println!("{keys:?} {end:?}: no answer for {gap:?}");
        assert!(gap < LONGEST_GAP, "{keys:?} {end:?}: {gap:?}\n{}", pair.log());
        pair.nothing_is_replayed()?;
    }
    Ok(())
}

/// The manager's store keeps the namespace of the host side with programs inside that the gateway may not inspect, as by the unit.
fn host_side() -> Outcome {
    const FEW: [&str; 3] = ["setpriv", "--no-new-privs", "--bounding-set=-all,+net_admin,+net_raw,+sys_admin"];
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    netns.sh("ip link set lo up")?;
    let (manager, state) = (Manager::new(&scratch)?, scratch.file("x.state"));
    let start = || Gateway::start_under(manager.command_under(&FEW, &netns, &state)?, &scratch, "x", TUN);
    let mut gateway = start()?;
    stream_goes_on(&netns, &scratch, || {
        assert!(gateway.terminate()?.success(), "{}", gateway.log());
        assert!(!gateway.log().contains("processes are inside"), "{}", gateway.log());
        start()
    })
    .map(drop)
}

/// Datagrams through the tunnel wait in the queue of the TUN device and in the packet socket, which the manager has meanwhile.
fn lossless_both_ways() -> Outcome {
    let pair = Pair::new(Keys::File, "")?;
    let [left, right] = &pair.hosts;
    let stored = || -> Outcome<usize> {
        let names = ["links", "link-0-0", "link-1-0", "control", "netlink"];
        names.iter().map(|name| Ok(pair.manager.stored(name)?.len())).sum()
    };
    for (from, to, address) in [(left, right, RIGHT), (right, left, "10.1.0.1")] {
        lossless(from, (to, address.parse()?), (200, 100), || {
            pair.end(GatewayEnd::Term)?;
            assert_eq!(stored()?, 5);
            // A client waits for the next gateway.
            let mut client = Command::new(fatpath());
            client.args(["-i", "left", "ip", "link"]).env("FATPATH_RUNDIR", pair.scratch.path());
            let mut client = system::Process::spawn(&mut client, &pair.scratch)?;
            pair.start()?;
            let status = client.wait(PATIENCE)?;
            assert!(status.success() && client.output().contains("tun0"), "{}", client.output());
            Ok(())
        })
        .map_err(|failed| pair.explain(&failed))?;
        let log = pair.log();
        assert!(!log.contains("opened anew"), "{log}");
        assert_eq!(stored()?, 0, "{log}");
    }
    // Without devices to go back to, all is opened anew.
    pair.end(GatewayEnd::Term)?;
    pair.manager.clear();
    left.sh("ip link del tun0")?;
    pair.start()?;
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.05 -W 2 {RIGHT}")).map_err(|failed| pair.explain(&failed))?;
    // A link that fits no more is opened anew.
    pair.end(GatewayEnd::Term)?;
    left.sh("ip link del tun0")?;
    pair.start()?;
    let log = pair.log();
    assert!(log.contains("link tun0: opened anew: "), "{log}");
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.05 -W 2 {RIGHT}")).map_err(|failed| pair.explain(&failed))?;
    pair.nothing_is_replayed()
}

/// SAs of the left gateway as `ip` shows them, without what packets change, and the numbers of packets.
pub(crate) fn shown(pair: &Pair) -> Outcome<(String, Vec<u64>)> {
    let states = pair.ip(1, "-s xfrm state")?;
    let packets = states.lines().filter_map(|line| line.trim().split_once("(bytes), ")?.1.strip_suffix("(packets)"));
    let packets = packets.map(str::parse).collect::<Result<_, _>>()?;
    // Times are in seconds, rounded each time that they are shown.
    let changes = [
        "anti-replay",
        "oseq",
        "seq ",
        "(bytes), ",
        "lastused",
        "replay_window",
        "0x",
        "00000000",
        "ffffffff",
        "add 2",
    ];
    let lasting = states.lines().filter(|line| {
        line.contains("spi ") || line.contains("aead ") || !changes.iter().any(|change| line.contains(change))
    });
    Ok((lasting.collect::<Vec<_>>().join("\n"), packets))
}

fn as_they_were() -> Outcome {
    let pair = Pair::new(Keys::Manager, "")?;
    let (before, packets) = shown(&pair)?;
    assert!(before.contains("expire add: soft 0(sec), hard 3600(sec)"), "{before}");
    pair.end(GatewayEnd::Term)?;
    let log = pair.log();
    assert!(log.contains("2 SAs with a time limit are passed to the service manager"), "{log}");
    assert_eq!(pair.manager.stored("sas")?.len(), 1);
    pair.start()?;
    let log = pair.log();
    assert!(log.contains("SAs of the earlier gateway: 2 restored, 0 at their end, 0 of"), "{log}");
    assert!(pair.manager.stored("sas")?.is_empty(), "the next start gets none");
    let (after, packets_after) = shown(&pair)?;
    assert_eq!(after, before);
    assert_eq!(packets_after, packets);
    // No descriptor of the memory, which has keys, is open.
    let own = pair.gateways.borrow()[0].id();
    let open = fs::read_dir(format!("/proc/{own}/fd"))?.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let open: Vec<PathBuf> = open.collect();
    assert!(!open.iter().any(|file| file.display().to_string().contains("memfd:sas")), "{open:?}");
    pair.nothing_is_replayed()
}

fn two_workers() -> Outcome {
    let pair = Pair::new(Keys::Manager, "[worker]\ncount = 2\n")?;
    for _ in 0..2 {
        let before = shown(&pair)?.0;
        gap(&pair, GatewayEnd::Term)?;
        assert_eq!(shown(&pair)?.0, before, "{}", pair.log());
        pair.nothing_is_replayed()?;
    }
    Ok(())
}

/// The SAs are restored by the start after an orderly end alone: a gateway that was killed has used their numbers.
fn once() -> Outcome {
    let pair = Pair::new(Keys::Manager, "")?;
    pair.restart(GatewayEnd::Term)?;
    pair.hosts[0].sh(&format!("ping -q -c 20 -i 0.01 -W 2 {RIGHT}"))?;
    pair.restart(GatewayEnd::Kill)?;
    let names = pair.ip(1, "xfrm state")?;
    assert!(names.matches("proto esp spi ").count() == 2 && !names.contains("aead "), "{names}");
    // What a manager has that does not confirm the removal may come again.
    pair.batch(1, "xfrm state flush\n")?;
    pair.batch(1, &lines(1, "limit time-hard 3600"))?;
    pair.end(GatewayEnd::Term)?;
    pair.manager.behave(Manners::Hangs);
    pair.start()?;
    let log = pair.log();
    assert!(log.contains("are not restored: the service manager has them still: it does not answer"), "{log}");
    let names = pair.ip(1, "xfrm state")?;
    assert!(!names.contains("aead "), "{names}");
    Ok(())
}

/// An SA whose limit passes meanwhile, or soon, is not restored; a limit that has begun before goes on.
fn lifetimes() -> Outcome {
    let pair = Pair::new(Keys::Manager, "")?;
    let sa = |spi: u32, limits: &str| {
        format!(
            "xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi {spi:#x} mode tunnel {limits} \
             aead rfc4106(gcm(aes)) {} 128\n",
            Esp::key(spi, 36)
        )
    };
    let limits = [
        (0x2001, "limit time-hard 4"),
        (0x2002, "limit time-hard 16"),
        (0x2003, "limit time-soft 1 limit time-hard 60"),
    ];
    pair.batch(1, &limits.map(|(spi, limits)| sa(spi, limits)).concat())?;
    let added = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    pair.end(GatewayEnd::Term)?;
    pair.start()?;
    let has = |spi: &str| pair.ip(1, "xfrm state").is_ok_and(|states| states.contains(&format!("spi {spi} ")));
    let log = pair.log();
    assert!(log.contains("4 restored, 1 at their end, 0 of"), "{log}");
    // The soft limit has passed while no key manager was there: it is told of it, and of the end of the SA that is not restored.
    let mut monitor = Command::new(fatpath());
    monitor.args(["-i", "left", "exec", "--", "ip", "xfrm", "monitor"]).env("FATPATH_RUNDIR", pair.scratch.path());
    let monitor = system::Process::spawn(&mut monitor, &pair.scratch)?;
    wait_until("the key manager is told", PATIENCE, || {
        let told = monitor.output();
        told.matches("Expired ").count() >= 2 && ["0x00002001", "0x00002003"].iter().all(|spi| told.contains(spi))
    })
    .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), monitor.output()))?;
    wait_until("the limit ends the SA", PATIENCE, || !has("0x00002002"))?;
    // A lifetime that begins with the restart would last for as long as the restart took, and 1.5 seconds, more.
    assert!((15..18).contains(&added.elapsed().as_secs()), "{:?}", added.elapsed());
    assert!(has("0x00002003"));
    Ok(())
}

/// Memory with these bytes, sealed or not.
fn memory(bytes: &[u8], is_sealed: bool) -> Outcome<OwnedFd> {
    let mut file = File::from(memfd_create("sas", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(bytes)?;
    if is_sealed {
        fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    }
    Ok(file.into())
}

fn hostile() -> Outcome {
    let pair = Pair::new(Keys::Manager, "")?;
    pair.end(GatewayEnd::Term)?;
    let stored = pair.manager.stored("sas")?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(
        &mut File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&stored[0])))?,
        &mut bytes,
    )?;
    assert!(bytes.starts_with(b"fatpath SAs "));
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    let mut newer = bytes.clone();
    newer[12] = 9;
    let long = File::from(memory(b"", false)?);
    long.set_len(300 << 20)?;
    fcntl_add_seals(&long, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    let cases = [
        (memory(&bytes, false)?, "it is not sealed"),
        (memory(&damaged, true)?, "is damaged"),
        (memory(&bytes[..bytes.len() - 5], true)?, "it is truncated"),
        (memory(&newer, true)?, "format 9, and this version supports 1"),
        (long.into(), "314572800 bytes, more than 256 MiB"),
        (File::open("/dev/null")?.into(), "it is no sealed memory"),
    ];
    for (memory, why) in cases {
        pair.manager.clear();
        pair.manager.put("sas", memory);
        pair.start()?;
        let log = pair.log();
        let line = log.lines().find(|line| line.contains("SAs of the earlier gateway are not restored: "));
        assert!(line.is_some_and(|line| line.contains("ERROR") && line.contains(why)), "{why}: {log}");
        assert!(pair.manager.stored("sas")?.is_empty(), "{why}");
        // The names are kept for the key manager.
        let names = pair.ip(1, "xfrm state")?;
        assert!(names.matches("proto esp spi ").count() == 2 && !names.contains("aead "), "{names}");
        pair.end(GatewayEnd::Kill)?;
    }
    Ok(())
}

fn without_store() -> Outcome {
    let pair = Pair::new(Keys::Manager, "")?;
    pair.end(GatewayEnd::Kill)?;
    let mut gateway = Gateway::start_under(pair.plain(), &pair.scratch, NAMES[0], &pair.toml)?;
    run(Command::new(fatpath())
        .args(["-i", "left", "ip", "xfrm", "state", "flush"])
        .env("FATPATH_RUNDIR", pair.scratch.path()))?;
    pair.batch(1, &lines(1, "limit time-hard 3600"))?;
    assert!(gateway.terminate()?.success());
    let log = gateway.log();
    assert!(log.contains("2 SAs with a time limit end with the gateway: no service manager keeps them"), "{log}");
    // A store without room sends no refusal; the next start finds nothing in it.
    pair.manager.behave(Manners::StoresNothing);
    pair.start()?;
    pair.batch(1, "xfrm state flush\n")?;
    pair.batch(1, &lines(1, "limit time-hard 3600"))?;
    pair.restart(GatewayEnd::Term)?;
    let log = pair.log();
    assert!(!log.contains("SAs of the earlier gateway"), "{log}");
    let names = pair.ip(1, "xfrm state")?;
    assert!(names.matches("proto esp spi ").count() == 2 && !names.contains("aead "), "{names}");
    Ok(())
}
