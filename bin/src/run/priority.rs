//! Packets before programs.

use rustix::process::nice;

/// By how many steps of `nice` the threads that move packets go before the rest of the process, and so before programs that
/// are as nice as it was made to be.
///
/// In a kernel packets go before all programs: its network stack runs in interrupts. A worker that has slept for want of
/// packets begins at once with this when some come, whatever runs there, and what is done beside takes the time that it
/// leaves.
const STEPS: i32 = 10;

/// Raises the calling thread's scheduling priority, if the system allows it.
pub(super) fn go_first() {
    if let Err(err) = nice(-STEPS) {
        tracing::info!("packets wait for programs as busy as this one: nice: {err} (needs CAP_SYS_NICE)");
    }
}
