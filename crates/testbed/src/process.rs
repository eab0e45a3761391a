//! Child processes that end in bounded time.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::failure::{Failure, tail, warn};
use crate::stop::Stop;

/// Longest time that a set-up tool may take.
const TOOL_LIMIT: Duration = Duration::from_secs(10);

/// A command in a new process group: Ctrl-C on the terminal only signals the measurement, which then
/// ends its children in order.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Runs a set-up tool such as `ip` with its arguments, and returns its output.
///
/// # Errors
/// It cannot be started, fails, or takes more than ten seconds; or a signal has arrived.
pub fn tool(program: &str, args: &[&str], stop: &Stop) -> Result<String, Failure> {
    let doing = format!("{program} {}", args.join(" "));
    let child = command(program)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|err| Failure::step(&doing, err))?;
    finish(child, &doing, TOOL_LIMIT, stop)
}

/// Waits for a child whose standard output and error are pipes, and returns its output. After `limit`, or on a signal,
/// the child is killed.
///
/// # Errors
/// The child fails, or was killed.
pub fn finish(mut child: Child, doing: &str, limit: Duration, stop: &Stop) -> Result<String, Failure> {
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let status = stop.wait(doing, limit, || child.try_wait().map_err(|err| Failure::step(doing, err)));
    if status.is_err() {
        end(&mut child);
    }
    let collect = |pipe: Option<JoinHandle<String>>| pipe.and_then(|pipe| pipe.join().ok()).unwrap_or_default();
    let (stdout, stderr) = (collect(stdout), collect(stderr));
    let status = status?;
    if status.success() {
        return Ok(stdout);
    }
    let output = tail(if stderr.trim().is_empty() { &stdout } else { &stderr });
    Err(Failure::step(doing, if output.is_empty() { status.to_string() } else { output }))
}

/// Kills and reaps a child that has not ended in time.
pub fn end(child: &mut Child) {
    if let Err(err) = child.kill().and_then(|()| child.wait().map(drop)) {
        warn(format!("process {} not ended: {err}", child.id()));
    }
}

/// A child that serves until it is no longer needed: killed on drop, if it has not ended by itself.
#[derive(Debug)]
pub struct Helper(Child);

impl Helper {
    /// Takes charge of a child whose standard error is a pipe.
    #[must_use]
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// Fails, with its last error lines, if it has ended.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&mut self, doing: &str) -> Result<(), Failure> {
        let Some(status) = self.0.try_wait().map_err(|err| Failure::step(doing, err))? else { return Ok(()) };
        let mut output = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            // Output before an error is still worth showing.
            let _ = stderr.read_to_string(&mut output);
        }
        Err(Failure::step(format!("{doing} ended ({status})"), tail(&output)))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            end(&mut self.0);
        }
    }
}

/// Reads a pipe to its end on a thread, so that a child never blocks on a full one.
fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Instant;

    use super::*;

    #[test]
    fn tool_returns_its_output_or_its_last_error_lines() {
        let stop = Stop::never();
        assert_eq!(tool("sh", &["-c", "echo out; echo err >&2"], &stop).unwrap(), "out\n");
        let failed = tool("sh", &["-c", "echo out; echo why >&2; exit 3"], &stop).unwrap_err();
        assert_eq!(failed.to_string(), "sh -c echo out; echo why >&2; exit 3: why");
        let silent = tool("false", &[], &stop).unwrap_err();
        assert_eq!(silent.to_string(), "false : exit status: 1");
    }

    #[test]
    fn a_child_that_hangs_is_killed_at_its_limit() {
        let child = command("sleep").arg("600").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        let failed = finish(child, "sleep", Duration::from_millis(20), &Stop::never()).unwrap_err();
        assert_eq!(failed.to_string(), "sleep: nothing after 0.0 s");
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn helper_ends_with_its_owner_and_reports_its_exit() {
        let sleep = command("sleep").arg("600").spawn().unwrap();
        let proc_entry = PathBuf::from(format!("/proc/{}", sleep.id()));
        let mut helper = Helper::new(sleep);
        assert!(helper.check("sleep").is_ok() && proc_entry.exists());
        drop(helper);
        assert!(!proc_entry.exists());

        let failing = command("sh").args(["-c", "echo why >&2; exit 3"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut helper = Helper::new(failing);
        let wait = Stop::never().wait("its end", Duration::from_secs(60), || helper.check("sh").map(|()| None::<()>));
        assert_eq!(wait.unwrap_err().to_string(), "sh ended (exit status: 3): why");
    }
}
