//! CPUs that threads run on (sched_setaffinity(2)).

use client::CliError;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Checks that this process may run on the CPU to which `what` will be bound.
///
/// # Errors
/// The CPU is not available to this process.
pub(super) fn check(what: &str, cpu: u16) -> Result<(), CliError> {
    let cpu = usize::from(cpu);
    let is_ours = cpu < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|set| set.is_set(cpu));
    if is_ours { Ok(()) } else { Err(CliError::failed(format!("{what}: this process may not run on CPU {cpu}"))) }
}

/// Binds a thread, named `name`, to a CPU, or restores the affinity of the process's first thread. `None`: the calling thread.
pub(super) fn bind(name: &str, thread: Option<Pid>, cpu: Option<u16>) {
    let set = match cpu.map(usize::from).filter(|&cpu| cpu < CpuSet::MAX_CPU) {
        Some(cpu) => {
            let mut set = CpuSet::new();
            set.set(cpu);
            Ok(set)
        }
        None => sched_getaffinity(Some(rustix::process::getpid())),
    };
    if let Err(err) = set.and_then(|set| sched_setaffinity(thread, &set)) {
        tracing::warn!("{name}: cannot be bound to its CPU: {err}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_affinity_is_set_and_reset() {
        let all = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap() as u16;
        check("worker.cpu", first).unwrap();
        let refused = check("worker.cpu", 8191).unwrap_err();
        assert_eq!(refused.to_string(), "Error: worker.cpu: this process may not run on CPU 8191");
        std::thread::spawn(move || {
            bind("worker", None, Some(first));
            let bound = sched_getaffinity(None).unwrap();
            assert!(bound.count() == 1 && bound.is_set(first.into()));
            bind("worker", None, None);
            assert_eq!(sched_getaffinity(None).unwrap().count(), all.count());
            // Another thread, by its number.
            let here = rustix::thread::gettid();
            std::thread::scope(|scope| {
                scope.spawn(move || bind("worker", Some(here), Some(first)));
            });
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        })
        .join()
        .unwrap();
    }
}
