//! Programs that a test runs, to their end or in the background.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Outcome, Scratch};

/// A shell script that runs each line of a file, and prints it, its output on both streams, and its exit code.
pub const LINE_RUNNER: &str = r#"while IFS= read -r line <&3; do
    printf '$ %s\n' "$line"
    (eval "$line") >"$1.out" 2>"$1.err" </dev/null 3<&-
    code=$?
    while IFS= read -r said || [ -n "$said" ]; do printf '%s\n' "$said"; done <"$1.out"
    while IFS= read -r said || [ -n "$said" ]; do printf '! %s\n' "$said"; done <"$1.err"
    echo "= $code"
done 3<"$1"
"#;

/// Runs `command` to its end and returns its standard output.
///
/// # Errors
/// It cannot be started or does not succeed; the message holds everything it printed.
pub fn run(command: &mut Command) -> Outcome<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}\n{text}{errors}", output.status).into())
}

/// Waits until `condition` holds.
///
/// # Errors
/// It does not within `timeout`; `what` names it in the message.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) -> Outcome {
    let deadline = Instant::now() + timeout;
    while !condition() {
        if Instant::now() >= deadline {
            return Err(format!("not within {timeout:?}: {what}").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Kills `leader`, which was started as the leader of a process group, and its group.
///
/// # Errors
/// All of them have ended.
pub fn kill_group(leader: &Child) -> Outcome {
    Ok(kill_process_group(Pid::from_child(leader), Signal::KILL)?)
}

/// A program in the background, killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its output, on either stream, goes to a file in `scratch`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(command: &mut Command, scratch: &Scratch) -> Outcome<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let log = scratch.file(&format!("process-{}.log", COUNT.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Self { child, log })
    }

    /// Process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Output up to now.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Tells whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it `signal`.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> Outcome {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// It has not ended within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Outcome<ExitStatus> {
        let mut status = None;
        wait_until("the process ends", timeout, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })
        .map_err(|failed| format!("{}; it printed:\n{}", failed.message().unwrap_or_default(), self.output()))?;
        status.ok_or_else(|| "the process has no status".into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
