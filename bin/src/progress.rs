//! Progress of long work, on standard error: a line that changes on a terminal, further lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which work shows no progress: most files take less.
const SILENCE: Duration = Duration::from_secs(1);

/// Time between two looks at work in this process.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Least time between two lines of the same stage where lines stay.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of one command.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    began: Instant,
    last: Mutex<Option<PrintedStage>>,
}

/// Line that was printed.
#[derive(Clone, Debug)]
struct PrintedStage {
    stage: String,
    at: Instant,
}

impl Progress {
    /// Progress on standard error, terminal or not.
    pub(crate) fn on_stderr() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), began: Instant::now(), last: Mutex::new(None) }
    }

    /// Does `work` on this thread, and meanwhile prints the stage, with its bytes that are done and all.
    pub(crate) fn during<T>(&self, stage: &str, done: impl Fn() -> (u64, u64) + Sync, work: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            let done = &done;
            let look = move || {
                while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    self.say(stage, done());
                }
            };
            // Without a thread there is no progress to see.
            let _ = thread::Builder::new().name("progress".to_owned()).spawn_scoped(scope, look);
            let outcome = work();
            drop(end);
            outcome
        })
    }

    /// Prints the stage, with its bytes that are done and all; 0 if there are none to count.
    pub(crate) fn say(&self, stage: &str, (done, all): (u64, u64)) {
        let now = Instant::now();
        if now.duration_since(self.began) < SILENCE {
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |last: &PrintedStage| last.stage != stage || now.duration_since(last.at) >= LINE_EVERY;
        if !self.is_terminal && !last.as_ref().is_none_or(is_due) {
            return;
        }
        let share = (done * 100).checked_div(all).map_or_else(String::new, |percent| format!(" {percent} %"));
        let mut stderr = io::stderr();
        // A closed standard error is no reason to fail.
        let _ = match self.is_terminal {
            // Back to the first column, erase to the end of the line (ECMA-48).
            true => write!(stderr, "\r\x1b[K{stage}{share}").and_then(|()| stderr.flush()),
            false => writeln!(stderr, "{stage}{share}"),
        };
        *last = Some(PrintedStage { stage: stage.to_owned(), at: now });
    }
}

impl Drop for Progress {
    /// Clears the terminal's line for later output.
    fn drop(&mut self) {
        if self.is_terminal && self.last.get_mut().is_ok_and(|last| last.is_some()) {
            let mut stderr = io::stderr();
            let _ = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
        }
    }
}
