//! `fatpath bench forward`: small packets through a gateway between two links of one kind, in network namespaces.
//!
//! `source ── in ─ gateway ─ out ── sink`: a thread of this process sends packets of 50 bytes (frames of 64) of 256 flows as
//! fast as it can; the sink's kernel drops them.
//!
//! - `packet`, `xdp`: both links on veth pairs, by packet sockets or by AF_XDP, which copies there.
//! - `esp`: as `packet`, and each packet is sealed with AES-256-GCM in a tunnel of raw ESP.
//! - `tun`: from one TUN device of the gateway's namespace to another.
//! - `vhost-user`: front ends in this process send and receive.
//! - `linux`: the kernel forwards between the same veth pairs, without a gateway. All of its work is done by the sending
//!   thread, so the time is that of the thread less that of packets for another station, which the kernel drops at the input.
//! - `testpmd`: as `packet` by DPDK's testpmd: `net_af_packet`, `--forward-mode=mac`, which changes addresses of Ethernet alone. It
//!   polls, so its time includes turns that find no packet. Where it is not installed or fails, its row says why.
//!
//! A packet's time is processor time of the gateway's worker for each packet that left: `user_ns` and `kernel_ns`. The second has
//! the way through the veth pair to the sink. `source_ns` is processor time of the sending thread for each packet that it sent,
//! which has the way to the gateway's socket; it is more than the gateway took if `offered` is above 1, packets sent for each one
//! that left.

use std::cell::OnceCell;
use std::env;
use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use driver::DriverKind;
use link::vhost::{self, FrontConfig, VhostFront};
use link::{Config, Link, Sent};
use packet::{Memory, Packet};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testbed::{Daemon, Failure, Namespace, Scratch, Stop};
use wire::{MacAddr, Protocol, ipv4, udp};

use super::case::{Comparison, Group, Plan, Round, Sample};
use super::cpu;
use crate::demo::lab::{Gateway, Keys, Side, ThreadTime, lend, veth, worker};

/// Bytes of a packet from its IP header on, and of a frame with it.
const PACKET: usize = 50;
const FRAME: usize = 14 + PACKET;

/// Number of flows, and of packets that are sent at once.
const FLOWS: usize = 256;
const BURST: usize = 64;

/// Slices of a case in each round: a shorter time has too few ticks of the clock to divide it into user and system time.
pub(super) const SLICES: u32 = 10;

/// Time in which queues, caches and the worker reach their pace, before a measurement.
pub(super) const WARM_UP: Duration = Duration::from_millis(150);

/// Longest time until the first packet has left.
pub(super) const START_LIMIT: Duration = Duration::from_secs(5);

/// Stations.
const SOURCE: MacAddr = MacAddr([2, 0, 0, 0, 1, 1]);
const IN: MacAddr = MacAddr([2, 0, 0, 0, 1, 2]);
const OUT: MacAddr = MacAddr([2, 0, 0, 0, 2, 1]);
const SINK: MacAddr = MacAddr([2, 0, 0, 0, 2, 2]);
const NO_STATION: MacAddr = MacAddr([2, 0, 0, 0, 9, 9]);

/// DPDK's program for tests of forwarding, and first part of the name of the thread on its second processor: before DPDK 23.11, and
/// since.
const TESTPMD: &str = "dpdk-testpmd";
const TESTPMD_THREADS: [&str; 2] = ["rte-worker-", "dpdk-worker"];

const RATIOS: &[Comparison] = &[
    Comparison { of: "xdp/packet", over: &["xdp"], under: &["packet"], figure: None },
    Comparison { of: "packet/linux", over: &["packet"], under: &["linux"], figure: None },
    Comparison { of: "packet/esp", over: &["packet"], under: &["esp"], figure: None },
    Comparison { of: "packet/testpmd", over: &["packet"], under: &["testpmd"], figure: None },
];

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let lab: Rc<OnceCell<Lab>> = Rc::default();
    let case = |name, measure: fn(&Lab, Duration) -> Result<Sample, Failure>| {
        let lab = Rc::clone(&lab);
        Plan::played(name, move |round: Round| {
            let measured = lab_of(&lab).and_then(|lab| measure(lab, round.slice * SLICES));
            measured.map_err(|failure| failure.to_string())
        })
    };
    let testpmd = {
        let lab = Rc::clone(&lab);
        Plan::peer("testpmd", move |round: Round| {
            let lab = lab_of(&lab).map_err(|failure| failure.to_string())?;
            match testpmd(lab, round.slice * SLICES) {
                Err(failure @ Failure::Interrupted) => Err(failure.to_string()),
                measured => Ok(measured.map_err(|failure| failure.to_string())),
            }
        })
    };
    let cases = vec![
        case("tun", tun),
        case("packet", |lab, time| by_veth(lab, &two_links("packet"), time)),
        case("xdp", |lab, time| by_veth(lab, &two_links("xdp"), time)),
        case("vhost-user", vhost_user),
        case("esp", |lab, time| by_veth(lab, &(two_links("packet") + &sealed()?), time)),
        case("linux", linux),
        testpmd,
    ];
    vec![Group { name: "forward".to_owned(), cases, ratios: RATIOS }]
}

/// Tells whether DPDK's testpmd is installed.
fn has_testpmd() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(TESTPMD).is_file())
}

pub(super) fn lab_of(lab: &OnceCell<Lab>) -> Result<&Lab, Failure> {
    if lab.get().is_none() {
        let _ = lab.set(Lab::new()?);
    }
    lab.get().ok_or_else(|| Failure::step("forward", "no namespaces"))
}

/// Namespaces, with the veth pairs between them.
pub(super) struct Lab {
    source: Namespace,
    pub(super) gateway: Namespace,
    pub(super) sink: Namespace,
    scratch: Scratch,
    pub(super) stop: Stop,
}

impl Lab {
    fn new() -> Result<Self, Failure> {
        let name = format!("fatpath-forward-{}", std::process::id());
        let stop = Stop::on_signals().map_err(|err| Failure::step("catch signals", err))?;
        let namespace = |role| Namespace::create(format!("{name}-{role}"));
        let (source, gateway, sink) = (namespace("source")?, namespace("gateway")?, namespace("sink")?);
        veth((&source, "src"), (&gateway, "in"), &stop)?;
        veth((&gateway, "out"), (&sink, "dst"), &stop)?;
        let devices = [(&source, "src", SOURCE), (&gateway, "in", IN), (&gateway, "out", OUT), (&sink, "dst", SINK)];
        for (namespace, device, mac) in devices {
            namespace.ip(&format!("link set {device} address {mac}"), &stop)?;
            lend(namespace, device, &stop)?;
        }
        // Answers to ARP; packets have another destination, and are dropped.
        sink.ip("addr add 10.2.0.1/24 dev dst", &stop)?;
        set_forwarding(&sink, false)?;
        set_forwarding(&gateway, false)?;
        Ok(Self { source, gateway, sink, scratch: Scratch::create(&name)?, stop })
    }

    fn launch(&self, config: &str) -> Result<Gateway, Failure> {
        self.launch_file(&(config.to_owned() + &worker(Side::B)))
    }

    /// Starts a gateway with a file that names its processors.
    pub(super) fn launch_file(&self, file: &str) -> Result<Gateway, Failure> {
        Gateway::launch_in(&self.gateway, &self.scratch, Side::B, file, &self.stop)
    }

    /// Calls `body` while the kernel of the gateway's namespace has the gateway's addresses.
    pub(super) fn with_addresses<T>(&self, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let ip = |args: &str| self.gateway.ip(args, &self.stop);
        ip("addr add 10.1.0.254/24 dev in")?;
        ip("addr add 10.2.0.254/24 dev out")?;
        ip(&format!("neigh replace 10.2.0.1 lladdr {SINK} dev out nud permanent"))?;
        let done = body();
        for device in ["in", "out"] {
            ip(&format!("addr flush dev {device}"))?;
        }
        done
    }
}

/// Sets whether a namespace's kernel forwards IPv4.
fn set_forwarding(namespace: &Namespace, on: bool) -> Result<(), Failure> {
    let path = "/proc/sys/net/ipv4/ip_forward";
    namespace.enter(|| fs::write(path, if on { "1" } else { "0" }).map_err(|err| Failure::step(path, err)))
}

/// Two links on the veth pairs, and the route.
fn two_links(kind: &str) -> String {
    let link = |device, address| {
        format!(
            "[[link]]\nname = \"{device}\"\nkind = \"{kind}\"\ninterface = \"{device}\"\naddresses = [\"{address}/24\"]\n\n"
        )
    };
    link("in", "10.1.0.254") + &link("out", "10.2.0.254") + ROUTE
}

const ROUTE: &str = "[[route]]\nto = \"10.3.0.0/24\"\nvia = \"10.2.0.1\"\ndev = \"out\"\n";

/// An SA and a policy for all packets.
fn sealed() -> Result<String, Failure> {
    let keys = Keys::random()?;
    let [key, _] = keys.of_sides();
    Ok(format!(
        r#"
[[sa]]
src = "10.2.0.254"
dst = "10.2.0.1"
spi = 0x1000
mode = "tunnel"
reqid = 1
aead = {{ name = "rfc4106(gcm(aes))", key = "0x{key}", icv = 128 }}

[[policy]]
dir = "out"
src = "10.1.0.0/24"
dst = "10.3.0.0/24"
action = "allow"
tmpl = [{{ src = "10.2.0.254", dst = "10.2.0.1", proto = "esp", mode = "tunnel", reqid = 1, level = "required" }}]
"#
    ))
}

/// A packet of a numbered flow, without a checksum of UDP.
fn packet_of(flow: usize) -> Vec<u8> {
    let (src, dst) = ([10, 1, 0, 1].into(), [10, 3, 0, 1].into());
    let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::UDP, PACKET as u16);
    header.fill_check();
    let transport = udp::UdpHeader::new(1024 + flow as u16, 9, (PACKET - ipv4::Ipv4Header::LEN) as u16);
    let mut bytes = [header.as_bytes(), transport.as_bytes()].concat();
    bytes.resize(PACKET, 0);
    bytes
}

/// Frames of every flow, and the one that is sent next.
struct FlowFrames {
    all: Vec<Packet>,
    next: usize,
}

impl FlowFrames {
    /// Frames to a station.
    fn new(mem: &Memory, dst: MacAddr) -> Result<Self, Failure> {
        let frame = |flow| {
            let bytes = [&dst.0[..], &SOURCE.0, &[8, 0], &packet_of(flow)].concat();
            Packet::with_data(mem, &bytes).map_err(|_| Failure::step("frames", "no memory"))
        };
        Ok(Self { all: (0..FLOWS).map(frame).collect::<Result<_, _>>()?, next: 0 })
    }

    /// Fills a burst, and returns its length.
    fn fill(&mut self, burst: &mut Vec<Packet>) -> usize {
        while burst.len() < BURST {
            burst.push(self.all[self.next].clone_shared());
            self.next = (self.next + 1) % FLOWS;
        }
        burst.len()
    }
}

/// State that a sending thread shares.
#[derive(Default)]
pub(super) struct Sender {
    ends: AtomicBool,
    sent: AtomicU64,
    /// Processor time of the thread in nanoseconds.
    nanos: AtomicU64,
}

impl Sender {
    /// Counts packets that were sent.
    fn count(&self, sent: usize) {
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
        self.nanos.store(cpu::thread_time().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Lets the thread end.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Packets sent and processor time so far.
    fn now(&self) -> [u64; 2] {
        [&self.sent, &self.nanos].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Runs `measure` while `send` runs on another thread, which has the first processor.
    fn during<T>(
        send: impl FnOnce(&Self) -> Result<(), Failure> + Send,
        measure: impl FnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let source = Self::default();
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                leave_the_workers_processor();
                send(&source)
            });
            let measured = measure(&source);
            source.end();
            let sent = sender.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
            sent.and(measured)
        })
    }
}

/// Binds this thread to the first processor: the worker has the second one.
fn leave_the_workers_processor() {
    let ours = sched_getaffinity(None).unwrap_or_default();
    let mut all = (0..CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu));
    if let (Some(first), Some(_)) = (all.next(), all.next()) {
        let mut here = CpuSet::new();
        here.set(first);
        // Without it, the threads move between processors.
        let _ = sched_setaffinity(None, &here);
    }
}

/// Sends frames to a station by a packet socket on the source's device until the end.
fn send_frames(lab: &Lab, dst: MacAddr, source: &Sender) -> Result<(), Failure> {
    let failed = |err: &dyn std::fmt::Display| Failure::step("source", err);
    lab.source.enter(|| {
        leave_the_workers_processor();
        let kind = DriverKind::Packet { interface: "src".to_owned(), exclusive: false };
        let config = Config { name: "src".to_owned(), kind, mac: None, mtu: None, offloads: true, index: None };
        let mut link = link::open(&config).map_err(|err| failed(&err))?;
        let mem = Memory::heap();
        let mut frames = FlowFrames::new(&mem, dst)?;
        let mut burst = Vec::with_capacity(BURST);
        while !source.has_ended() {
            let before = frames.fill(&mut burst);
            // A busy link is tried again.
            let _ = link.send(&mut burst).map_err(|err| failed(&err))?;
            source.count(before - burst.len());
            link.settle(&mem);
        }
        Ok(())
    })
}

/// Program that forwards, with the link or device that packets leave by.
enum Forwarder {
    Gateway(Gateway, &'static str),
    /// The third field is the number of packets that the device had sent before.
    Testpmd(Daemon, &'static str, u64),
}

impl Forwarder {
    /// Processor time of the thread that moves packets.
    fn time(&self) -> Result<ThreadTime, Failure> {
        match self {
            Self::Gateway(gateway, _) => ThreadTime::of(gateway.pid(), "worker"),
            Self::Testpmd(testpmd, ..) => {
                let [before, since] = TESTPMD_THREADS.map(|name| ThreadTime::of(testpmd.pid(), name));
                before.or(since)
            }
        }
    }

    /// Fails if it has ended.
    fn check(&mut self) -> Result<(), Failure> {
        match self {
            Self::Gateway(gateway, _) => gateway.check(),
            Self::Testpmd(testpmd, ..) => testpmd.check(),
        }
    }

    /// Packets that have left.
    fn left(&self) -> Result<u64, Failure> {
        match self {
            Self::Gateway(gateway, out) => {
                let links = gateway.links()?;
                let out = links.iter().find(|link| link.name == *out);
                Ok(out.ok_or_else(|| Failure::step("gateway", "no output link"))?.stats.tx_wire_packets)
            }
            Self::Testpmd(testpmd, out, before) => {
                let path = format!("/proc/{}/net/dev", testpmd.pid());
                Ok(sent_by(&path, out)?.saturating_sub(*before))
            }
        }
    }

    /// Adds the reasons why no packet leaves to a failure.
    fn explain(&mut self, failure: Failure) -> Failure {
        match self {
            Self::Testpmd(testpmd, ..) => testpmd.explain(failure),
            Self::Gateway(..) if matches!(failure, Failure::Interrupted) => failure,
            Self::Gateway(gateway, _) => match gateway.drops() {
                Ok(drops) => Failure::step(failure.to_string(), drops),
                Err(ended) => ended,
            },
        }
    }
}

/// Packets sent by a device so far, of the namespace whose `/proc/net/dev` has this path.
fn sent_by(path: &str, device: &str) -> Result<u64, Failure> {
    let table = fs::read_to_string(path).map_err(|err| Failure::step(path, err))?;
    sent_in(&table, device).ok_or_else(|| Failure::step(path, format!("no device {device}")))
}

/// Packets sent by a device, out of `/proc/net/dev`.
fn sent_in(table: &str, device: &str) -> Option<u64> {
    let counters = table.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    counters.split_ascii_whitespace().nth(9)?.parse().ok()
}

/// Readings at one moment.
struct Reading {
    left: u64,
    worker: ThreadTime,
    source: [u64; 2],
    at: Instant,
}

impl Reading {
    fn take(forwarder: &Forwarder, source: &Sender) -> Result<Self, Failure> {
        let worker = forwarder.time()?;
        let (source, at) = (source.now(), Instant::now());
        Ok(Self { left: forwarder.left()?, worker, source, at })
    }
}

/// Measures a program that forwards packets of a source. The program outlives the source: a front end fails without its gateway.
fn measure(stop: &Stop, forwarder: &mut Forwarder, source: &Sender, time: Duration) -> Result<Sample, Failure> {
    let first = || {
        forwarder.check()?;
        stop.check()?;
        Ok((forwarder.left()? > 1000).then_some(()))
    };
    stop.wait("packets to leave", START_LIMIT, first).map_err(|failure| forwarder.explain(failure))?;
    thread::sleep(WARM_UP);
    let before = Reading::take(forwarder, source)?;
    thread::sleep(time);
    let after = Reading::take(forwarder, source)?;
    stop.check()?;
    let packets = (after.left - before.left) as f64;
    if packets == 0.0 {
        return Err(Failure::step("gateway", "no packet left"));
    }
    let [user, kernel] = after.worker.since(before.worker).map(|nanos| nanos / packets);
    let [sent, source] = [0, 1].map(|at| (after.source[at] - before.source[at]) as f64);
    let more = vec![
        ("user_ns", user),
        ("kernel_ns", kernel),
        ("source_ns", source / sent.max(1.0)),
        ("offered", sent / packets),
    ];
    Ok(sample(user + kernel, packets / (after.at - before.at).as_nanos() as f64, more))
}

/// A sample of a packet's time, packets in a nanosecond, and further figures.
pub(super) fn sample(nanos: f64, rate: f64, more: Vec<(&'static str, f64)>) -> Sample {
    Sample {
        nanos,
        gbps: rate * (FRAME * 8) as f64,
        ns_per_packet: nanos,
        mpps: Some(rate * 1e3),
        more,
        ..Sample::default()
    }
}

/// A gateway between the veth pairs.
fn by_veth(lab: &Lab, config: &str, time: Duration) -> Result<Sample, Failure> {
    let mut gateway = Forwarder::Gateway(lab.launch(config)?, "out");
    Sender::during(|source| send_frames(lab, IN, source), |source| measure(&lab.stop, &mut gateway, source, time))
}

/// DPDK's testpmd between the veth pairs, without huge pages.
fn testpmd(lab: &Lab, time: Duration) -> Result<Sample, Failure> {
    if !has_testpmd() {
        return Err(Failure::step(TESTPMD, "not in PATH; `make bench-peers` installs it"));
    }
    let ours = sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<String> = (0..CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu)).map(|cpu| cpu.to_string()).collect();
    let [first, second, ..] = &cpus[..] else { return Err(Failure::step("testpmd", "it needs two processors")) };
    let peer = format!("1,{SINK}");
    let command = || {
        let mut command = Command::new(TESTPMD);
        command.args(["--no-huge", "-m", "256", "--no-pci", "--no-shconf", "--no-telemetry"]);
        command.args(["-l", &format!("{first},{second}"), "--main-lcore", first]);
        // Rings of 512 frames, the default, overflow while another program has the processor.
        for vdev in ["net_af_packet0,iface=in", "net_af_packet1,iface=out"] {
            command.arg(format!("--vdev={vdev},framecnt=4096"));
        }
        command.arg("--");
        // Statistics, of which there are none in so short a time, keep it from reading its standard input.
        command.args(["--forward-mode=mac", "--eth-peer", &peer, "--auto-start", "--stats-period", "3600"]);
        command.args(["--total-num-mbufs", "4096"]);
        command
    };
    let daemon = Daemon::start(TESTPMD.to_owned(), "testpmd", &lab.scratch, &lab.gateway, command)?;
    // Before the source starts, and so before testpmd has packets to send.
    let before = lab.gateway.enter(|| sent_by("/proc/thread-self/net/dev", "out"))?;
    let mut testpmd = Forwarder::Testpmd(daemon, "out", before);
    Sender::during(|source| send_frames(lab, IN, source), |source| measure(&lab.stop, &mut testpmd, source, time))
}

/// The kernel between the veth pairs.
fn linux(lab: &Lab, time: Duration) -> Result<Sample, Failure> {
    let ([dropped, _], [forwarded, rate]) = lab.with_addresses(|| {
        lab.gateway.ip("route add 10.3.0.0/24 via 10.2.0.1", &lab.stop)?;
        set_forwarding(&lab.gateway, true)?;
        let paced =
            |dst| Sender::during(|source| send_frames(lab, dst, source), |source| pace(&lab.stop, source, time));
        let measured = paced(NO_STATION).and_then(|dropped| Ok((dropped, paced(IN)?)));
        set_forwarding(&lab.gateway, false)?;
        measured
    })?;
    let nanos = forwarded - dropped;
    let more = vec![("user_ns", 0.0), ("kernel_ns", nanos), ("source_ns", dropped), ("offered", 1.0)];
    Ok(sample(nanos, rate, more))
}

/// Processor time of the source for a packet, and packets in a nanosecond.
fn pace(stop: &Stop, source: &Sender, time: Duration) -> Result<[f64; 2], Failure> {
    thread::sleep(WARM_UP);
    let (before, begin) = (source.now(), Instant::now());
    thread::sleep(time / 2);
    let (after, end) = (source.now(), Instant::now());
    stop.check()?;
    let [sent, nanos] = [0, 1].map(|at| (after[at] - before[at]) as f64);
    if sent == 0.0 {
        return Err(Failure::step("source", "nothing was sent"));
    }
    Ok([nanos / sent, sent / (end - begin).as_nanos() as f64])
}

/// A gateway between two TUN devices of its namespace.
fn tun(lab: &Lab, time: Duration) -> Result<Sample, Failure> {
    let config = r#"
[[link]]
name = "in0"
kind = "tun"
addresses = ["10.1.0.254/24"]
device = { addresses = ["10.1.0.1/24"], routes = ["10.3.0.0/24"] }

[[link]]
name = "out0"
kind = "tun"
addresses = ["10.2.0.254/24"]

[[route]]
to = "10.3.0.0/24"
dev = "out0"
"#;
    let mut gateway = Forwarder::Gateway(lab.launch(config)?, "out0");
    let send = |source: &Sender| {
        lab.gateway.enter(|| {
            leave_the_workers_processor();
            send_datagrams(source).map_err(|err| Failure::step("source", err))
        })
    };
    Sender::during(send, |source| measure(&lab.stop, &mut gateway, source, time))
}

/// Sends datagrams by sockets of the gateway's namespace until the end.
pub(super) fn send_datagrams(source: &Sender) -> std::io::Result<()> {
    let open = |_| {
        let socket = UdpSocket::bind("10.1.0.1:0")?;
        socket.connect("10.3.0.1:9")?;
        Ok(socket)
    };
    let sockets: Vec<UdpSocket> = (0..BURST).map(open).collect::<std::io::Result<_>>()?;
    let payload = [0; PACKET - ipv4::Ipv4Header::LEN - udp::UdpHeader::LEN];
    while !source.has_ended() {
        // A full device drops; that is no error of the socket.
        sockets.iter().for_each(|socket| drop(socket.send(&payload)));
        source.count(sockets.len());
    }
    Ok(())
}

/// A gateway between two vhost-user links, whose front ends are in this process.
fn vhost_user(lab: &Lab, time: Duration) -> Result<Sample, Failure> {
    let socket = |name: &str| lab.scratch.path().join(format!("{name}.sock"));
    let link = |name: &str, address: &str| {
        let socket = socket(name);
        let socket = socket.display();
        format!(
            "[[link]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\naddresses = [\"{address}/24\"]\n\n"
        )
    };
    let gateway = lab.launch(&(link("in", "10.1.0.254") + &link("out", "10.2.0.254") + ROUTE))?;
    let links = gateway.links()?;
    let station = links.iter().find(|link| link.name == "in").and_then(|link| link.lladdr.as_deref()?.parse().ok());
    let station: MacAddr = station.ok_or_else(|| Failure::step("gateway", "no address of its guest's link"))?;
    let open = |name: &str, mac| {
        vhost::open_front(&FrontConfig::new(name, &socket(name), mac)).map_err(|err| Failure::step("front end", err))
    };
    let (from, to) = (open("in", SOURCE)?, open("out", SINK)?);
    let send = |source: &Sender| pass_frames(from, to, station, source);
    let mut gateway = Forwarder::Gateway(gateway, "out");
    Sender::during(send, |source| measure(&lab.stop, &mut gateway, source, time))
}

/// Sends frames by one front end, and drops frames from the other, until the end.
fn pass_frames(mut from: VhostFront, mut to: VhostFront, dst: MacAddr, source: &Sender) -> Result<(), Failure> {
    let failed = |err: std::io::Error| Failure::step("front end", err);
    let mem = Memory::heap();
    let mut frames = FlowFrames::new(&mem, dst)?;
    let (mut burst, mut received) = (Vec::with_capacity(BURST), Vec::new());
    while !source.has_ended() {
        from.recv(&mem, &mut received).map_err(failed)?;
        received.clear();
        to.recv(&mem, &mut received).map_err(failed)?;
        let mut replies: Vec<Packet> = received.drain(..).filter_map(|frame| arp_reply(&mem, &frame)).collect();
        let _ = to.send(&mut replies).map_err(failed)?;
        to.settle(&mem);
        if !from.guest().running {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let before = frames.fill(&mut burst);
        if from.send(&mut burst).map_err(failed)? != Sent::Refit {
            source.count(before - burst.len());
        }
        from.settle(&mem);
    }
    Ok(())
}

/// The sink's answer to an ARP request (RFC 826).
fn arp_reply(mem: &Memory, frame: &Packet) -> Option<Packet> {
    const REQUEST: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    let head = frame.head();
    if head.get(12..22)? != REQUEST {
        return None;
    }
    let (sender, target) = (head.get(22..32)?, head.get(38..42)?);
    let mut bytes = [&sender[..6], &SINK.0, &REQUEST, &SINK.0, target, sender].concat();
    bytes[21] = 2;
    Packet::with_data(mem, &bytes).ok()
}

#[cfg(test)]
mod tests {
    use wire::FlowKey;

    use super::*;

    #[test]
    fn packets_have_their_length_and_flows_of_their_own() {
        let flow = |at| FlowKey::parse(&packet_of(at), PACKET).unwrap();
        let all: std::collections::HashSet<_> = (0..FLOWS).map(flow).collect();
        assert_eq!(all.len(), FLOWS);
        let mut frames = FlowFrames::new(&Memory::heap(), IN).unwrap();
        assert!(frames.all.iter().all(|frame| frame.len() == FRAME));
        let mut burst = Vec::new();
        assert_eq!((frames.fill(&mut burst), frames.fill(&mut burst), frames.next), (BURST, BURST, BURST));
    }

    #[test]
    fn sent_packets_are_read_of_the_named_device() {
        let line = |name: &str, sent| format!("  {name}: 8104 12 0 0 0 0 0 0 516 {sent} 0 0 0 0 0 0\n");
        let table = format!("Inter-| Receive\n face |bytes\n{}{}{}", line("outer", 1), line("out", 77), line("in", 3));
        assert_eq!((sent_in(&table, "out"), sent_in(&table, "absent")), (Some(77), None));
    }

    #[test]
    fn arp_request_is_answered_by_the_sink() {
        let mem = Memory::heap();
        let sender = [&OUT.0[..], &[10, 2, 0, 254]].concat();
        let target = [&[0; 6][..], &[10, 2, 0, 1]].concat();
        let head = [&[0xff; 6][..], &OUT.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        let request = Packet::with_data(&mem, &[&head[..], &sender, &target].concat()).unwrap();
        let reply = arp_reply(&mem, &request).unwrap().to_vec();
        let want = [&OUT.0[..], &SINK.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &SINK.0, &[10, 2, 0, 1], &sender].concat();
        assert_eq!(reply, want);
        assert!(arp_reply(&mem, &Packet::with_data(&mem, &[0; 60]).unwrap()).is_none());
    }
}
