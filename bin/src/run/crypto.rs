//! Threads for the ciphers, as the configuration asks for them.

use std::num::NonZeroUsize;

use control::model::CryptoConfig;
use ipsec::crypto::{Crypto, Pool};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::priority::go_first;
use crate::error::CliError;

/// Who does the ciphers' work; the worker itself if there are to be no threads.
///
/// # Errors
/// A thread cannot be started, or none of the CPUs is this process's.
pub(super) fn crypto(config: &CryptoConfig) -> Result<Option<Box<dyn Crypto>>, CliError> {
    let Some(threads) = NonZeroUsize::new(config.workers.into()) else { return Ok(None) };
    let cpus: Vec<usize> = config.cpus.iter().copied().map(usize::from).collect();
    if let Some(&cpu) = cpus.iter().find(|&&cpu| !is_ours(cpu)) {
        return Err(CliError::failed(format!("crypto: this process may not run on CPU {cpu}")));
    }
    let start = move |number: usize| {
        go_first();
        if !cpus.is_empty()
            && let Err(err) = sched_setaffinity(None, &one(cpus[number % cpus.len()]))
        {
            tracing::warn!("crypto thread {number}: cannot be bound to its CPU: {err}");
        }
    };
    let pool = Pool::new(threads, start).map_err(|err| CliError::failed(format!("crypto threads: {err}")))?;
    Ok(Some(Box::new(pool)))
}

fn one(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    set
}

fn is_ours(cpu: usize) -> bool {
    cpu < CpuSet::MAX_CPU && rustix::thread::sched_getaffinity(None).is_ok_and(|set| set.is_set(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_made_only_when_asked_for_and_only_where_they_may_run() {
        let made = |workers, cpus: &[u16]| {
            let made = crypto(&CryptoConfig { workers, cpus: cpus.to_vec() });
            made.map(|crypto| crypto.map(|crypto| format!("{crypto:?}"))).map_err(|err| err.to_string())
        };
        assert_eq!(made(0, &[]), Ok(None));
        assert_eq!(made(2, &[]), Ok(Some("Pool(2 threads)".to_owned())));
        assert!(made(1, &[8191]).is_err_and(|err| err.contains("CPU 8191")));
    }
}
