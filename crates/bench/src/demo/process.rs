//! Child processes that end in bounded time, and the directory for their files.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::failure::{Failure, tail, warn};
use super::stop::Stop;

/// Longest time that a set-up tool may take.
const TOOL_LIMIT: Duration = Duration::from_secs(10);

/// A command in a new process group: Ctrl-C on the terminal only signals the demo, which then ends its
/// children in order.
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Runs a set-up tool such as `ip` with its arguments, and returns its output.
pub(super) fn tool(program: &str, args: &[&str], stop: &Stop) -> Result<String, Failure> {
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
pub(super) fn finish(mut child: Child, doing: &str, limit: Duration, stop: &Stop) -> Result<String, Failure> {
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
pub(super) fn end(child: &mut Child) {
    if let Err(err) = child.kill().and_then(|()| child.wait().map(drop)) {
        warn(format!("process {} not ended: {err}", child.id()));
    }
}

/// A child that serves until it is no longer needed: killed on drop, if it has not ended by itself.
#[derive(Debug)]
pub(super) struct Helper(Child);

impl Helper {
    /// Takes charge of a child whose standard error is a pipe.
    pub(super) fn new(child: Child) -> Self {
        Self(child)
    }

    /// Fails, with its last error lines, if it has ended.
    pub(super) fn check(&mut self, doing: &str) -> Result<(), Failure> {
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

/// A directory for configurations with keys, control sockets and logs, readable by its owner only and removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory, which must not exist: no other user can have put a symbolic link into it.
    pub(crate) fn create(name: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|err| Failure::step(format!("mkdir {}", path.display()), err))?;
        Ok(Self(path))
    }

    /// Path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file anew that only its owner can read, and returns its path.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())
        };
        write().map_err(|err| Failure::step(format!("write {}", path.display()), err))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(err) = fs::remove_dir_all(&self.0) {
            warn(format!("{} not removed: {err}", self.0.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

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

    #[test]
    fn scratch_files_are_private_and_go_with_their_directory() {
        use std::os::unix::fs::MetadataExt;
        let scratch = Scratch::create(&format!("fatpath-scratch-test-{}", std::process::id())).unwrap();
        let file = scratch.write("a.toml", "key").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o777, 0o700);
        assert!(Scratch::create(scratch.path().file_name().unwrap().to_str().unwrap()).is_err());
        let dir = scratch.path().to_owned();
        drop(scratch);
        assert!(!dir.exists());
    }
}
