//! A child that serves in a namespace until the end of the measurement: SIGTERM, then SIGKILL.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{Failure, tail};
use crate::netns::Namespace;
use crate::process::end;
use crate::scratch::Scratch;

/// Longest time that a daemon may take to end after SIGTERM, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A running child, ended on drop. Its output goes to a log.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a daemon, with `name` in messages; its log is `file` with the suffix `.log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        name: String,
        file: &str,
        scratch: &Scratch,
        inside: &Namespace,
        command: impl FnOnce() -> Command + Send,
    ) -> Result<Self, Failure> {
        let log = scratch.write(&format!("{file}.log"), "")?;
        let spawn = || -> io::Result<Child> {
            let output = File::options().append(true).open(&log)?;
            command().stdout(output.try_clone()?).stderr(output).stdin(Stdio::null()).spawn()
        };
        let child = inside.enter(|| spawn().map_err(|err| Failure::step(format!("start {name}"), err)))?;
        Ok(Self { name, child, log })
    }

    /// Name of the daemon in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails, with its last error lines, if it has ended by itself.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::step(format!("{} ended ({status})", self.name), self.last_words())),
            Err(err) => Err(Failure::step(&self.name, err)),
        }
    }

    /// Adds the last lines of its log to a failure that is not its own end.
    #[must_use]
    pub fn explain(&mut self, failure: Failure) -> Failure {
        if matches!(failure, Failure::Interrupted) {
            return failure;
        }
        match self.check() {
            Err(ended) => ended,
            Ok(()) => match self.last_words() {
                words if words.is_empty() => failure,
                words => Failure::step(failure.to_string(), words),
            },
        }
    }

    fn last_words(&self) -> String {
        tail(&fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Daemon {
    /// SIGTERM, then SIGKILL.
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // The child is not reaped yet, so its process number is not reused.
        let signalled = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let start = Instant::now();
        while signalled && start.elapsed() < END_LIMIT {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(4)),
                Ok(Some(_)) => return,
                Err(_) => break,
            }
        }
        end(&mut self.child);
    }
}
