//! Waits that end at a time limit, or at a signal that stops the measurement.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;

/// Sleep of a wait between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(4);

/// Whether a signal has stopped the measurement. Every wait checks it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A stop that no signal sets, for the clean-up itself.
    #[must_use]
    pub fn never() -> Self {
        Self::default()
    }

    /// A stop set by SIGINT, SIGTERM and SIGHUP, which from now on do not end the process by themselves.
    ///
    /// # Errors
    /// The error of sigaction(2).
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Fails once a signal has arrived.
    ///
    /// # Errors
    /// [`Failure::Interrupted`].
    pub fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Polls `ready` until it returns a value, for at most `limit`; `doing` names the wait in its failure.
    ///
    /// # Errors
    /// The error of `ready`; no value in time; or a signal has arrived.
    pub fn wait<T>(
        &self,
        doing: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let start = Instant::now();
        loop {
            self.check()?;
            if let Some(value) = ready()? {
                return Ok(value);
            }
            if start.elapsed() >= limit {
                return Err(Failure::step(doing, format!("nothing after {:.1} s", limit.as_secs_f64())));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_value_its_limit_or_the_signal() {
        let stop = Stop::never();
        let mut looks = 0;
        let third = stop.wait("three looks", Duration::from_secs(60), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert!(matches!(third, Ok(3)), "{third:?}");

        let late = stop.wait("the impossible", Duration::ZERO, || Ok(None::<()>)).unwrap_err();
        assert_eq!(late.to_string(), "the impossible: nothing after 0.0 s");

        stop.0.store(true, Ordering::Relaxed);
        let stopped = stop.wait("anything", Duration::from_secs(60), || Ok(Some(()))).unwrap_err();
        assert!(matches!(stopped, Failure::Interrupted), "{stopped:?}");
    }
}
