//! `fatpath bench workers`: processor time of a packet on one of two workers, compared with that of a gateway with one, in network
//! namespaces.
//!
//! `sources ── tun ─ gateway ─ udp ── sink`: each worker shares a processor with a thread of the same priority, which sends datagrams of
//! 22 bytes of 64 flows into the TUN device, as fast as it can. An SA of its own for each worker (RFC 9611) seals them with AES-256-GCM in UDP; the sink's kernel drops
//! them.
//!
//! - `one`: a gateway with one worker, and one sending thread. The second processor has nothing to do.
//! - `two`: a gateway with two workers, and two sending threads.
//!
//! A packet's time is processor time of the workers for each packet that left: the load is in other threads, and the sink's kernel in the
//! workers' time. `handed_over` are packets that one worker passed to the other, for each that left.

use std::cell::OnceCell;
use std::net::UdpSocket;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use testbed::Failure;

use super::case::{Comparison, Group, Plan, Round, Sample};
use super::cpu;
use super::forward::{Lab, SLICES, START_LIMIT, Sender, WARM_UP, lab_of, sample, send_datagrams};
use crate::demo::lab::{Gateway, Keys, ThreadTime};

/// Niceness of workers, by default.
const PRIORITY: i32 = -10;

/// Name of the processor time for a packet.
const CPU: &str = "cpu_ns";

const RATIOS: &[Comparison] =
    &[Comparison { of: "two/one cpu_ns", over: &["two"], under: &["one"], figure: Some(CPU) }];

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let lab: Rc<OnceCell<Lab>> = Rc::default();
    let case = |name, workers| {
        let lab = Rc::clone(&lab);
        Plan::played(name, move |round: Round| {
            let measured = lab_of(&lab).and_then(|lab| measure(lab, workers, round.slice * SLICES));
            measured.map_err(|failure| failure.to_string())
        })
    };
    vec![Group { name: "workers".to_owned(), cases: vec![case("one", 1), case("two", 2)], ratios: RATIOS }]
}

/// File of a gateway with that many workers, each on a processor of its own.
fn file(cpus: &[usize]) -> Result<String, Failure> {
    let mut file = format!(
        r#"
[worker]
count = {}
cpus = {cpus:?}

[[link]]
name = "in0"
kind = "tun"
addresses = ["10.1.0.254/24"]
device = {{ addresses = ["10.1.0.1/24"], routes = ["10.3.0.0/24"] }}

[[link]]
name = "wan"
kind = "udp"
bind = "10.2.0.254:4500"

[[route]]
to = "10.2.0.1/32"
dev = "wan"

[[route]]
to = "10.3.0.0/24"
dev = "wan"

[[policy]]
dir = "out"
src = "10.1.0.0/24"
dst = "10.3.0.0/24"
action = "allow"
tmpl = [{{ src = "10.2.0.254", dst = "10.2.0.1", proto = "esp", mode = "tunnel", reqid = 1, level = "required" }}]
"#,
        cpus.len()
    );
    for worker in 0..cpus.len() {
        let keys = Keys::random()?;
        let [key, _] = keys.of_sides();
        file += &format!(
            r#"
[[sa]]
src = "10.2.0.254"
dst = "10.2.0.1"
spi = {:#x}
mode = "tunnel"
reqid = 1
pcpu-num = {worker}
encap = {{ type = "espinudp", sport = 4500, dport = 4500 }}
aead = {{ name = "rfc4106(gcm(aes))", key = "0x{key}", icv = 128 }}
"#,
            0x1000 + worker
        );
    }
    Ok(file)
}

/// Readings at one moment.
struct Reading {
    left: u64,
    handed_over: u64,
    workers: ThreadTime,
    at: Instant,
}

impl Reading {
    fn take(gateway: &Gateway) -> Result<Self, Failure> {
        let (workers, at) = (ThreadTime::of(gateway.pid(), "worker")?, Instant::now());
        let links = gateway.links()?;
        let wan =
            links.iter().find(|link| link.name == "wan").ok_or_else(|| Failure::step("gateway", "no output link"))?;
        let handed_over = gateway.workers()?.iter().map(|worker| worker.handed_over).sum();
        Ok(Self { left: wan.stats.tx_wire_packets, handed_over, workers, at })
    }
}

/// Measures a gateway with `workers` workers.
fn measure(lab: &Lab, workers: usize, time: Duration) -> Result<Sample, Failure> {
    let cpus = cpu::numbers(workers).map_err(|why| Failure::step("workers", why))?;
    lab.with_addresses(|| {
        let mut gateway = lab.launch_file(&file(&cpus)?)?;
        let _drops = lab.sink.enter(|| UdpSocket::bind("10.2.0.1:4500").map_err(|err| Failure::step("sink", err)))?;
        let sources: Vec<Sender> = cpus.iter().map(|_| Sender::default()).collect();
        let sources = &sources;
        thread::scope(|scope| {
            let start = |nth: usize| {
                move || {
                    cpu::bind(nth).map_err(|why| Failure::step("source", why))?;
                    // Of the worker's priority: otherwise the worker wakes for each packet before the next one is sent.
                    let _ = setpriority_process(None, PRIORITY);
                    lab.gateway.enter(|| send_datagrams(&sources[nth]).map_err(|err| Failure::step("source", err)))
                }
            };
            let senders: Vec<_> = (0..cpus.len()).map(|nth| scope.spawn(start(nth))).collect();
            let measured = read(lab, &mut gateway, time);
            sources.iter().for_each(Sender::end);
            let ended = senders
                .into_iter()
                .try_for_each(|sender| sender.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)));
            ended.and(measured)
        })
    })
}

/// Measures a gateway while packets pass.
fn read(lab: &Lab, gateway: &mut Gateway, time: Duration) -> Result<Sample, Failure> {
    let passes = || {
        gateway.check()?;
        lab.stop.check()?;
        Ok((Reading::take(gateway)?.left > 1000).then_some(()))
    };
    lab.stop.wait("packets to leave", START_LIMIT, passes)?;
    thread::sleep(WARM_UP);
    let before = Reading::take(gateway)?;
    thread::sleep(time);
    let after = Reading::take(gateway)?;
    lab.stop.check()?;
    let packets = (after.left - before.left) as f64;
    if packets == 0.0 {
        return Err(Failure::step("gateway", "no packet left"));
    }
    let cpu: f64 = after.workers.since(before.workers).iter().sum::<f64>() / packets;
    let more = vec![(CPU, cpu), ("handed_over", (after.handed_over - before.handed_over) as f64 / packets)];
    Ok(sample(cpu, packets / (after.at - before.at).as_nanos() as f64, more))
}

#[cfg(test)]
mod tests {
    use config::Config;

    use super::*;

    #[test]
    fn each_worker_has_a_processor_and_an_sa() {
        for cpus in [&[3][..], &[0, 3]] {
            let config = Config::from_toml(&file(cpus).unwrap(), "gw.toml").unwrap();
            assert_eq!(config.worker.count.get(), cpus.len());
            let found: Vec<_> = config.sas.iter().map(|sa| sa.cpu).collect();
            assert_eq!(found, (0..cpus.len() as u32).map(Some).collect::<Vec<_>>());
        }
    }
}
