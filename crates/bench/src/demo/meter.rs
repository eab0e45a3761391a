//! Readings of a gateway before and after a load, and the figures computed from them.

use std::collections::BTreeMap;
use std::fs;

use ctl::state::{CountersState, LinkStats};
use rustix::param::clock_ticks_per_second;
use serde::Serialize;
use testbed::Failure;

use super::gateway::Gateway;
use super::stream::Stream;

const KIB_PER_MIB: f64 = 1024.0;
const BYTES_PER_GB: f64 = 1e9;

/// Resource usage of a process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Processor time so far, user and system, in seconds.
    cpu_seconds: f64,
    /// Processor time of the threads that move packets, included in the total.
    worker_seconds: f64,
    memory: Memory,
}

/// A gateway at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    usage: Usage,
    /// The link towards the wire.
    wan: LinkStats,
    counters: CountersState,
    dropped: BTreeMap<String, u64>,
}

/// Resident memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Memory {
    now: u64,
    peak: u64,
}

impl Usage {
    /// A thread of this process that has used so much processor time.
    pub(super) fn of_thread(cpu_seconds: f64) -> Self {
        Self { cpu_seconds, worker_seconds: cpu_seconds, memory: Memory::default() }
    }

    /// Reads a running process.
    pub(super) fn of(pid: u32) -> Result<Self, Failure> {
        let ticks = read_proc(pid, "stat", cpu_ticks)?;
        let memory = read_proc(pid, "status", memory)?;
        Ok(Self { cpu_seconds: seconds(ticks), worker_seconds: thread_seconds(pid, "worker"), memory })
    }
}

impl Reading {
    /// Reads a running gateway.
    pub(super) fn take(gateway: &Gateway) -> Result<Self, Failure> {
        let usage = Usage::of(gateway.pid())?;
        let wan = gateway.links()?.into_iter().find(|link| link.name == "wan");
        let wan = wan.ok_or_else(|| Failure::step(gateway.name(), "no link wan among its links"))?.stats;
        Ok(Self { usage, wan, counters: gateway.counters()?, dropped: gateway.dropped()? })
    }
}

/// Reads one file of a process in `/proc`.
fn read_proc<T>(pid: u32, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Failure> {
    let path = format!("/proc/{pid}/{file}");
    let text = fs::read_to_string(&path).map_err(|err| Failure::step(&path, err))?;
    parse(&text).ok_or_else(|| Failure::step(&path, "unexpected content"))
}

/// utime and stime out of `/proc/PID/stat` (proc_pid_stat(5), fields 14 and 15). The command's name, field 2, may hold
/// blanks and parentheses.
fn user_and_system_ticks(stat: &str) -> Option<[u64; 2]> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

/// Sum of both.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let [user, system] = user_and_system_ticks(stat)?;
    user.checked_add(system)
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// Processor time so far of a process's threads of that name, in seconds, without threads that have ended.
pub(super) fn thread_seconds(pid: u32, name: &str) -> f64 {
    let name = format!(" ({name}) ");
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    seconds(stats.filter(|stat| stat.contains(&name)).filter_map(|stat| cpu_ticks(&stat)).sum())
}

/// Processor time of a thread so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadTime {
    /// Time on a processor, in nanoseconds.
    pub(crate) nanos: u64,
    /// User and system time in ticks of the clock, by which the time is divided.
    pub(crate) ticks: [u64; 2],
}

impl ThreadTime {
    /// Time of all threads of a process whose names begin so.
    pub(crate) fn of(pid: u32, name: &str) -> Result<Self, Failure> {
        let name = format!(" ({name}");
        let mut sum = None::<Self>;
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let stat = read("stat");
            if stat.contains(&name) {
                // proc_pid_schedstat(5): the first field is the time on a processor.
                let nanos: Option<u64> = read("schedstat").split(' ').next().and_then(|number| number.parse().ok());
                if let (Some(nanos), Some([user, system])) = (nanos, user_and_system_ticks(&stat)) {
                    let sum = sum.get_or_insert_default();
                    sum.nanos += nanos;
                    sum.ticks[0] += user;
                    sum.ticks[1] += system;
                }
            }
        }
        sum.ok_or_else(|| Failure::step(format!("/proc/{pid}/task"), format!("no times of a thread{name})")))
    }

    /// User and system time since an earlier reading, in nanoseconds.
    pub(crate) fn since(self, before: Self) -> [f64; 2] {
        let nanos = self.nanos.saturating_sub(before.nanos) as f64;
        let [user, system] = [0, 1].map(|at| self.ticks[at].saturating_sub(before.ticks[at]) as f64);
        match user + system {
            0.0 => [0.0, nanos],
            all => [nanos * user / all, nanos * system / all],
        }
    }
}

/// VmRSS and VmHWM out of `/proc/PID/status`.
fn memory(status: &str) -> Option<Memory> {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(Memory { now: kib("VmRSS")?, peak: kib("VmHWM")? })
}

/// Cost of a load in the processes that carried it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cost {
    /// Processor time of both ends for 10⁹ bytes of payload.
    pub(super) cpu_s_per_gb: f64,
    /// Resident memory before the load, of the larger end.
    pub(super) rss_idle_mib: f64,
    /// Peak resident memory until the end of the load, of the larger end.
    pub(super) rss_peak_mib: f64,
    /// Figures from the gateways' own counters.
    #[serde(flatten)]
    pub(super) gateways: Option<GatewayFigures>,
}

/// Figures of a load from the gateways' own counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct GatewayFigures {
    /// Processor time of both gateways' workers, which move the packets, for 10⁹ bytes of payload.
    pub(super) worker_cpu_s_per_gb: f64,
    /// Packets that both gateways have dropped, by reason.
    pub(super) dropped: BTreeMap<String, u64>,
    /// Wire packets per system call that sends, at the sender's gateway.
    pub(super) tx_packets_per_call: f64,
    /// Wire packets per system call that receives, at the receiver's gateway.
    pub(super) rx_packets_per_call: f64,
    /// Bytes copied per byte forwarded, at the sender's gateway.
    pub(super) tx_copied_bytes_per_byte: f64,
    /// The same at the receiver's gateway.
    pub(super) rx_copied_bytes_per_byte: f64,
    /// The same by gateway and reason, as in `tx/wire-frame`; reasons without copies are left out.
    pub(super) copies: BTreeMap<String, f64>,
}

impl Cost {
    /// The cost of one load on two processes, one at each end.
    pub(super) fn between(before: [Usage; 2], after: [Usage; 2], stream: Stream) -> Self {
        let cpu: f64 = after.iter().zip(before).map(|(after, before)| after.cpu_seconds - before.cpu_seconds).sum();
        let memory = |of: fn(&Memory) -> u64, at: [Usage; 2]| {
            at.iter().map(|usage| of(&usage.memory)).max().unwrap_or(0) as f64 / KIB_PER_MIB
        };
        Self {
            cpu_s_per_gb: per(cpu, stream.bytes as f64 / BYTES_PER_GB),
            rss_idle_mib: memory(|memory| memory.now, before),
            rss_peak_mib: memory(|memory| memory.peak, after),
            gateways: None,
        }
    }

    /// The cost of one load on two gateways. The readings are those of the sender's gateway, then of the receiver's.
    pub(super) fn of_gateways(before: &[Reading; 2], after: &[Reading; 2], stream: Stream) -> Self {
        let usage = |at: &[Reading; 2]| [at[0].usage, at[1].usage];
        let gateways = Some(GatewayFigures::between(before, after, stream));
        Self { gateways, ..Self::between(usage(before), usage(after), stream) }
    }
}

impl GatewayFigures {
    fn between(before: &[Reading; 2], after: &[Reading; 2], stream: Stream) -> Self {
        let both = || before.iter().zip(after);
        let worker: f64 = both().map(|(before, after)| after.usage.worker_seconds - before.usage.worker_seconds).sum();
        let ([tx_before, rx_before], [tx_after, rx_after]) = (before, after);
        let tx_copies = copies_per_byte(&tx_before.counters, &tx_after.counters, stream);
        let rx_copies = copies_per_byte(&rx_before.counters, &rx_after.counters, stream);
        Self {
            worker_cpu_s_per_gb: per(worker, stream.bytes as f64 / BYTES_PER_GB),
            dropped: dropped_since(both()),
            tx_packets_per_call: per(
                grown(tx_before.wan.tx_wire_packets, tx_after.wan.tx_wire_packets),
                grown(tx_before.wan.tx_calls, tx_after.wan.tx_calls),
            ),
            rx_packets_per_call: per(
                grown(rx_before.wan.rx_wire_packets, rx_after.wan.rx_wire_packets),
                grown(rx_before.wan.rx_calls, rx_after.wan.rx_calls),
            ),
            tx_copied_bytes_per_byte: tx_copies.values().fold(0.0, |all, copied| all + copied),
            rx_copied_bytes_per_byte: rx_copies.values().fold(0.0, |all, copied| all + copied),
            copies: named("tx", tx_copies).chain(named("rx", rx_copies)).collect(),
        }
    }
}

/// Packets dropped between the readings of each gateway, by reason.
fn dropped_since<'a>(gateways: impl Iterator<Item = (&'a Reading, &'a Reading)>) -> BTreeMap<String, u64> {
    let mut dropped: BTreeMap<String, u64> = BTreeMap::new();
    for (before, after) in gateways {
        for (reason, count) in &after.dropped {
            let more = count.wrapping_sub(before.dropped.get(reason).copied().unwrap_or(0));
            if more > 0 {
                *dropped.entry(reason.clone()).or_default() += more;
            }
        }
    }
    dropped
}

/// Copied bytes by reason, per forwarded byte; per byte of payload if nothing is forwarded, as with sockets of the host
/// side.
fn copies_per_byte(before: &CountersState, after: &CountersState, stream: Stream) -> BTreeMap<String, f64> {
    let forwarded = match grown(before.forwarded_bytes, after.forwarded_bytes) {
        0.0 => stream.bytes as f64,
        forwarded => forwarded,
    };
    let was = |reason: &str| before.copies.iter().find(|copy| copy.reason == reason).map_or(0, |copy| copy.bytes);
    let copied = after.copies.iter().map(|copy| (copy.reason.clone(), grown(was(&copy.reason), copy.bytes)));
    copied.filter(|&(_, bytes)| bytes > 0.0).map(|(reason, bytes)| (reason, per(bytes, forwarded))).collect()
}

fn named(side: &'static str, copies: BTreeMap<String, f64>) -> impl Iterator<Item = (String, f64)> {
    copies.into_iter().map(move |(reason, value)| (format!("{side}/{reason}"), value))
}

fn grown(before: u64, after: u64) -> f64 {
    after.wrapping_sub(before) as f64
}

/// A quotient whose denominator may be zero.
fn per(value: f64, unit: f64) -> f64 {
    if unit > 0.0 { value / unit } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctl::state::CopyState;

    #[test]
    fn processor_time_is_read_past_any_command_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0";
        for name in ["fatpath", "a b", "x) R 9 9 9 9 9 9 9 9 9 9 9 9 ("] {
            assert_eq!(cpu_ticks(&format!("42 ({name}) {rest}")), Some(300), "{name}");
        }
        for bad in ["", "42 (fatpath) S 1 2", "42 fatpath S 1 2 3 4 5 6 7 8 9 10 250 50"] {
            assert_eq!(cpu_ticks(bad), None, "{bad}");
        }
        assert!(read_proc(std::process::id(), "stat", cpu_ticks).is_ok());
    }

    #[test]
    fn time_of_a_thread_is_divided_by_its_ticks() {
        let before = ThreadTime { nanos: 1_000, ticks: [10, 10] };
        assert_eq!(ThreadTime { nanos: 5_000, ticks: [11, 13] }.since(before), [1_000.0, 3_000.0]);
        assert_eq!(ThreadTime { nanos: 5_000, ..before }.since(before), [0.0, 4_000.0]);
        let here = std::thread::Builder::new().name("of its own".to_owned());
        let read = here.spawn(|| {
            // The kernel counts the time when the thread leaves its processor.
            std::thread::sleep(std::time::Duration::from_millis(1));
            ThreadTime::of(std::process::id(), "of its own")
        });
        let read = read.unwrap().join().unwrap();
        assert!(read.unwrap().nanos > 0);
        assert!(ThreadTime::of(std::process::id(), "absent").is_err());
    }

    #[test]
    fn memory_is_read_by_name() {
        let status = "Name:\tVmRSS:\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n";
        assert_eq!(memory(status), Some(Memory { now: 10240, peak: 20480 }));
        assert_eq!(memory("VmRSS:\t10 kB\n"), None);
        assert!(read_proc(std::process::id(), "status", memory).unwrap().now > 0);
    }

    fn counters(forwarded_bytes: u64, copies: &[(&str, u64)]) -> CountersState {
        let copies = copies.iter().map(|&(reason, bytes)| CopyState { reason: reason.to_owned(), copies: 1, bytes });
        CountersState { copies: copies.collect(), forwarded_bytes, ..CountersState::default() }
    }

    fn drops(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counts.iter().map(|&(reason, count)| (reason.to_owned(), count)).collect()
    }

    #[test]
    fn load_is_measured_by_counter_differences() {
        let tx_before = Reading {
            usage: Usage { cpu_seconds: 1.0, worker_seconds: 0.5, memory: Memory { now: 8 * 1024, peak: 9 * 1024 } },
            wan: LinkStats { tx_wire_packets: 10, tx_calls: 10, ..LinkStats::default() },
            counters: counters(100, &[("wire-frame", 100)]),
            dropped: drops(&[("TtlExceeded", 3)]),
        };
        let tx_after = Reading {
            usage: Usage { cpu_seconds: 2.5, worker_seconds: 1.5, memory: Memory { now: 30 * 1024, peak: 32 * 1024 } },
            wan: LinkStats { tx_wire_packets: 410, tx_calls: 20, ..LinkStats::default() },
            counters: counters(1100, &[("wire-frame", 1110), ("pull", 0)]),
            dropped: drops(&[("TtlExceeded", 3), ("NoRoute", 2)]),
        };
        let usage = Usage { cpu_seconds: 0.0, worker_seconds: 0.0, memory: Memory { now: 10 * 1024, peak: 10 * 1024 } };
        let rx_before = Reading { usage, ..Reading::default() };
        let rx_after = Reading {
            usage: Usage { cpu_seconds: 0.5, worker_seconds: 0.4, memory: Memory { now: 16 * 1024, peak: 16 * 1024 } },
            wan: LinkStats { rx_wire_packets: 90, rx_calls: 3, tx_calls: 7, ..LinkStats::default() },
            counters: counters(2000, &[("pull", 20), ("coalesce", 40)]),
            dropped: drops(&[("NoRoute", 1)]),
        };
        let stream = Stream { bytes: 2_000_000_000, seconds: 2.0 };
        let gateways = GatewayFigures {
            worker_cpu_s_per_gb: 0.7,
            dropped: drops(&[("NoRoute", 3)]),
            tx_packets_per_call: 40.0,
            rx_packets_per_call: 30.0,
            tx_copied_bytes_per_byte: 1.01,
            rx_copied_bytes_per_byte: 0.03,
            copies: [("tx/wire-frame", 1.01), ("rx/pull", 0.01), ("rx/coalesce", 0.02)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        };
        let want = Cost { cpu_s_per_gb: 1.0, rss_idle_mib: 10.0, rss_peak_mib: 32.0, gateways: Some(gateways) };
        assert_eq!(Cost::of_gateways(&[tx_before, rx_before], &[tx_after, rx_after], stream), want);
    }

    #[test]
    fn a_gateway_that_carried_nothing_has_figures_of_nothing() {
        let none = [Reading::default(), Reading::default()];
        let cost = Cost::of_gateways(&none, &none, Stream { bytes: 0, seconds: 0.0 });
        assert_eq!(cost, Cost { gateways: Some(GatewayFigures::default()), ..Cost::default() });
    }
}
