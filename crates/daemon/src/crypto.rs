//! Crypto threads of the configuration.

use std::num::NonZeroUsize;

use client::CliError;
use config::model::CryptoConfig;
use ipsec::crypto::{Crypto, Pool};

use super::priority::go_first;
use super::processors;

/// Crypto threads; `None` if the configuration has none, and the worker itself encrypts and decrypts.
///
/// # Errors
/// A thread cannot be started, or a CPU is not available to this process.
pub(super) fn crypto(config: &CryptoConfig) -> Result<Option<Box<dyn Crypto>>, CliError> {
    let Some(threads) = NonZeroUsize::new(config.workers.into()) else { return Ok(None) };
    let cpus = config.cpus.clone();
    cpus.iter().try_for_each(|&cpu| processors::check("crypto", cpu))?;
    let start = move |number: usize| {
        go_first();
        if let Some(&cpu) = cpus.get(number % cpus.len().max(1)) {
            processors::bind(&format!("crypto thread {number}"), None, Some(cpu));
        }
    };
    let pool = Pool::new(threads, start).map_err(|err| CliError::failed(format!("crypto threads: {err}")))?;
    Ok(Some(Box::new(pool)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crypto_threads_start_only_if_configured_on_allowed_cpus() {
        let made = |workers, cpus: &[u16]| {
            let made = crypto(&CryptoConfig { workers, cpus: cpus.to_vec() });
            made.map(|crypto| crypto.map(|crypto| format!("{crypto:?}"))).map_err(|err| err.to_string())
        };
        assert_eq!(made(0, &[]), Ok(None));
        assert_eq!(made(2, &[]), Ok(Some("Pool(2 threads)".to_owned())));
        assert!(made(1, &[8191]).is_err_and(|err| err.contains("CPU 8191")));
    }
}
