//! A processor to stay on, and as much of it as is allowed.

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The most that may be asked for (setpriority(2)).
const HIGHEST: i32 = -20;

/// Keeps this thread on the processor that it is on, ahead of others if that is allowed. Says what came of it.
pub(super) fn settle() -> String {
    let (cpu, shared) = (sched_getcpu(), sched_getaffinity(None).map_or(1, |set| set.count()));
    let mut here = CpuSet::new();
    here.set(cpu);
    let pinned = match sched_setaffinity(None, &here) {
        Ok(()) => format!("on CPU {cpu} of {shared}"),
        Err(err) => format!("on any of {shared} CPUs ({err})"),
    };
    match setpriority_process(None, HIGHEST) {
        Ok(()) => format!("{pinned}, niceness {HIGHEST}"),
        Err(_) => format!("{pinned}, at no higher priority than others"),
    }
}
