//! A processor to stay on, and as much of it as is allowed.

use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The middle of the range of real-time priorities (sched(7)). Normal threads do not share a processor with such a
/// thread, whatever their group.
const REAL_TIME: &str = "50";

/// The highest priority without real-time scheduling (setpriority(2)).
const HIGHEST: i32 = -20;

/// The processors that this program may use, and of these the one that it measures on.
static PROCESSORS: OnceLock<(CpuSet, usize)> = OnceLock::new();

/// Keeps this thread, and those that it will start, on its present processor, and ahead of others if that is allowed.
/// Returns the outcome in words.
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
    // An only processor is left to others as well.
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

/// Keeps this thread, which helps, off the processor that is measured on, if there is another.
pub(super) fn step_aside() {
    let Some((mut others, here)) = PROCESSORS.get().copied() else { return };
    others.unset(here);
    if others.count() > 0 {
        // It helps from where it is, too, and all the less.
        let _ = sched_setaffinity(None, &others);
    }
}

/// Processor time of this thread.
pub(super) fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
