//! CPU affinity and priority of the measuring thread.

use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The middle of the range of real-time priorities (sched(7)). Normal threads do not share a CPU with a thread of
/// real-time priority, whatever their group.
const REAL_TIME: &str = "50";

/// Highest priority available otherwise (setpriority(2)).
const HIGHEST: i32 = -20;

/// The CPUs available to this program, and the one among them for measurements.
static PROCESSORS: OnceLock<(CpuSet, usize)> = OnceLock::new();

/// Binds this thread, and threads that it starts later, to its present CPU, and raises its priority if permitted.
/// Returns a description of the outcome.
pub(super) fn settle() -> String {
    let cpu = sched_getcpu();
    let shared = sched_getaffinity(None).map_or(1, |all| {
        let (all, _) = PROCESSORS.get_or_init(|| (all, cpu));
        all.count()
    });
    let mut here = CpuSet::new();
    here.set(cpu);
    let pinned = match sched_setaffinity(None, &here) {
        Ok(()) => format!("on CPU {cpu} of {shared}"),
        Err(err) => format!("on any of {shared} CPUs ({err})"),
    };
    // If there is only one CPU, other threads must be able to use it as well.
    let ahead = || {
        let mut chrt = Command::new("chrt");
        chrt.args(["--fifo", "--pid", REAL_TIME, &std::process::id().to_string()]);
        shared > 1 && chrt.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if ahead() {
        return format!("{pinned}, real-time priority {REAL_TIME}");
    }
    match setpriority_process(None, HIGHEST) {
        Ok(()) => format!("{pinned}, niceness {HIGHEST}"),
        Err(_) => format!("{pinned}, at no higher priority than others"),
    }
}

/// Moves this helper thread off the measured CPU, if there is another CPU.
pub(super) fn step_aside() {
    let Some((mut others, here)) = PROCESSORS.get().copied() else { return };
    others.unset(here);
    if others.count() > 0 {
        // On failure the helper stays on the measured CPU, which only slows the measurement.
        let _ = sched_setaffinity(None, &others);
    }
}

/// Binds this thread to number `nth` of the CPUs available to this program, counted from 0.
///
/// # Errors
/// The program has fewer CPUs.
pub(super) fn bind(nth: usize) -> Result<(), String> {
    let cpu = numbers(nth + 1)?[nth];
    let mut here = CpuSet::new();
    here.set(cpu);
    sched_setaffinity(None, &here).map_err(|err| format!("CPU {cpu}: {err}"))
}

/// Numbers of the first `count` CPUs available to this program.
///
/// # Errors
/// The program has fewer CPUs.
pub(super) fn numbers(count: usize) -> Result<Vec<usize>, String> {
    let all = available();
    let numbers: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).take(count).collect();
    let few = || format!("{count} CPUs are needed, and {} may be used", all.count());
    if numbers.len() == count { Ok(numbers) } else { Err(few()) }
}

/// The CPUs available to this program. [`settle`] has bound this thread to one of them.
pub(super) fn available() -> CpuSet {
    PROCESSORS.get().map_or_else(|| sched_getaffinity(None).unwrap_or_default(), |&(all, _)| all)
}

/// CPU time of this thread.
pub(super) fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_bound_to_the_cpu_of_a_number() {
        let count = available().count() as usize;
        let bound =
            std::thread::spawn(move || bind(count - 1).map(|()| sched_getaffinity(None).unwrap())).join().unwrap();
        assert_eq!(bound.map(|set| set.count()), Ok(1));
        let why = format!("{} CPUs are needed, and {count} may be used", count + 1);
        assert_eq!(bind(count), Err(why));
    }
}
