//! Scheduling priority of packet threads over other programs.

use rustix::process::nice;

use crate::confine;

/// Steps of `nice` by which packet threads precede the rest of the process, and so other programs of the same niceness.
///
/// A kernel processes packets before all programs: its network stack runs in interrupts. With a higher priority, a
/// worker that has slept without packets runs at once when packets arrive, and programs on its CPU get the remaining
/// time.
const STEPS: i32 = 10;

/// Raises the calling thread's scheduling priority, if the system allows it.
pub(super) fn go_first() {
    if let Err(err) = nice(-STEPS) {
        tracing::info!("could not raise the priority of the worker: nice: {err} (needs CAP_SYS_NICE)");
    }
    confine::settle_priority();
}
