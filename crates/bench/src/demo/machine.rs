//! Requirements of the demo on the machine, checked before the demo changes the machine.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::Stdio;

use client::{PROGRAM_VARIABLE, find_sibling};
use testbed::{Failure, command};

use super::topology::Deployment;
use crate::figures::{Busy, rounded};

/// TUN and TAP devices.
pub(super) const TUN: &str = "/dev/net/tun";

/// Opens `/dev/net/tun` and closes it again.
///
/// # Errors
/// The device does not exist, or this user may not open it.
pub(super) fn open_tun() -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(TUN).map(drop)
}

/// Fails with the first missing requirement and its remedy.
pub(super) fn check(deployment: Deployment, iperf3: bool, switch: bool) -> Result<(), Failure> {
    fatpath()?;
    if !rustix::process::geteuid().is_root() {
        let how = "run it as `fatpath demo`, which makes namespaces of its own, or with sudo";
        return Err(missing("root, to create network namespaces", how));
    }
    program("ip", "-V", "iproute2's ip", "apt-get install iproute2")?;
    match deployment {
        Deployment::Tunnel => {
            if let Err(err) = open_tun() {
                let how = "modprobe tun, or give the container its device with --device /dev/net/tun";
                return Err(missing(&format!("{TUN} ({err})"), how));
            }
        }
        Deployment::Router => program("ethtool", "--version", "ethtool, for --router", "apt-get install ethtool")?,
    }
    if switch {
        program("ethtool", "--version", "ethtool, for --switch", "apt-get install ethtool")?;
    }
    if iperf3 {
        program("iperf3", "--version", "iperf3, for --iperf3", "apt-get install iperf3")?;
    }
    Ok(())
}

/// Path of the program `fatpath`: the one that started this program, or one in this program's directory or in `PATH`.
///
/// # Errors
/// There is no such program.
pub(super) fn fatpath() -> Result<PathBuf, Failure> {
    let started_by = env::var_os(PROGRAM_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    started_by.or_else(|| find_sibling("fatpath")).ok_or_else(|| {
        missing(
            "fatpath, in the directory of fatpath-bench or in PATH",
            "build it with `cargo build --release -p fatpath`",
        )
    })
}

/// Fails if a program cannot be found.
pub(super) fn program(name: &str, version_option: &str, what: &str, how: &'static str) -> Result<(), Failure> {
    let ran = command(name).arg(version_option).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match ran {
        Err(err) if err.kind() == ErrorKind::NotFound => Err(missing(what, how)),
        Err(err) => Err(Failure::step(name, err)),
        Ok(_) => Ok(()),
    }
}

/// Failure for a missing requirement.
pub(super) fn missing(what: &str, how: &'static str) -> Failure {
    Failure::Missing { what: what.to_owned(), how }
}

/// Load average from which a machine is busy, for each processor; and percentage of stolen time.
const BUSY_LOAD: f64 = 0.5;
const BUSY_STEAL_PERCENT: f64 = 1.0;

/// Load of the machine at the start of a demo.
#[derive(Debug)]
pub(super) struct LoadBefore {
    load: f64,
    times: [u64; 2],
}

impl LoadBefore {
    /// The load now. Without procfs no machine is busy.
    pub(super) fn now() -> Self {
        let load = read("/proc/loadavg").split(' ').next().and_then(|word| word.parse().ok());
        Self { load: load.unwrap_or(0.0), times: processor_times(&read("/proc/stat")) }
    }

    /// The load by others, if the machine was busy since.
    pub(super) fn busy_since(&self) -> Option<Busy> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.busy_until(processor_times(&read("/proc/stat")), processors)
    }

    fn busy_until(&self, times: [u64; 2], processors: usize) -> Option<Busy> {
        let [steal, all] = [0, 1].map(|at| times[at].saturating_sub(self.times[at]));
        let steal_percent = rounded(100.0 * steal as f64 / all.max(1) as f64);
        let is_busy = self.load >= BUSY_LOAD * processors as f64 || steal_percent >= BUSY_STEAL_PERCENT;
        is_busy.then_some(Busy { load: self.load, processors, steal_percent })
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Stolen and whole time of all processors in ticks, by the first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq,
/// softirq, steal. The columns behind these are parts of the first two.
fn processor_times(stat: &str) -> [u64; 2] {
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks: Vec<u64> =
        line.unwrap_or_default().split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
    [ticks.get(7).copied().unwrap_or(0), ticks.iter().fold(0, |sum, value| sum.saturating_add(*value))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_machine_is_told_by_load_or_steal() {
        let times = processor_times("cpu  10 20 30 40 50 60 70 80 900 900\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
        assert_eq!((times, processor_times(""), processor_times("cpu 1 x")), ([80, 360], [0, 0], [0, 1]));
        let busy = |load, steal| LoadBefore { load, times: [0, 0] }.busy_until([steal, 1000], 2);
        assert_eq!(busy(0.9, 9), None);
        assert_eq!(busy(1.0, 0), Some(Busy { load: 1.0, processors: 2, steal_percent: 0.0 }));
        assert_eq!(busy(0.0, 10), Some(Busy { load: 0.0, processors: 2, steal_percent: 1.0 }));
        assert!(LoadBefore::now().times[1] > 0);
    }

    #[test]
    fn missing_program_is_named_with_its_package() {
        let missing = program("fatpath-no-such-program", "-V", "a program", "install it").unwrap_err();
        assert_eq!(missing.to_string(), "demo needs a program: install it");
        assert!(program("sh", "-c", "a shell", "install it").is_ok());
    }
}
