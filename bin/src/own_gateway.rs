//! Gateway that belongs to one command, such as `fatpath exec -c`, and ends with it.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::{CliError, Client, own_socket_path};
use ctl::{Reply, Request};
use daemon::LinkRight;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

/// Time limit for the start of a gateway with a large configuration.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for its orderly end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Time between two looks at a gateway that starts or ends.
const INTERVAL: Duration = Duration::from_millis(10);

/// Environment variable of the run directory.
const RUN_DIR: &str = "FATPATH_RUNDIR";
/// Environment variable that selects log lines.
const LOG: &str = "FATPATH_LOG";

/// Run directory of one command, where the user has none; removed on drop.
#[derive(Debug)]
pub(crate) struct RunDir(PathBuf);

impl RunDir {
    /// Makes a directory if this user has no run directory; `None` if there is one.
    ///
    /// # Errors
    /// Errors of mkdir(2).
    pub(crate) fn make() -> Result<Option<Self>, CliError> {
        let is_set = |name| env::var_os(name).is_some_and(|dir| !dir.is_empty());
        if is_set(RUN_DIR) || is_set("XDG_RUNTIME_DIR") || rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let dir = env::temp_dir().join(format!("fatpath-{}", getpid().as_raw_nonzero()));
        // The directory must not exist: no other user can have put a symbolic link there.
        let made = DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|err| CliError::failed(format!("{}: {err}", dir.display())))?;
        Ok(Some(Self(dir)))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Files of a gateway that was killed stay in it otherwise.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Running gateway; ended on drop.
#[derive(Debug)]
pub(crate) struct OwnGateway {
    child: Child,
    name: String,
}

/// Result of a start.
#[derive(Debug)]
pub(crate) enum Started {
    /// The gateway is ready.
    Ready(OwnGateway),
    /// The gateway has ended, after an error message of its own.
    Ended(ExitCode),
}

impl OwnGateway {
    /// Starts the gateway `name` with the configuration files `config`, by `fatpath run` behind the words of `wrapper`,
    /// such as `ip netns exec left`, and waits until it is ready.
    ///
    /// # Errors
    /// The gateway cannot be started, or is not ready in time.
    pub(crate) fn start(
        name: &str,
        config: &[PathBuf],
        run_dir: Option<&RunDir>,
        wrapper: &[&str],
    ) -> Result<Started, CliError> {
        let own = env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
        let mut command = match wrapper.split_first() {
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).arg(&own);
                command
            }
            None => Command::new(&own),
        };
        command.args([
            "run",
            "--instance",
            name,
            "--ephemeral",
            "--allow-links",
            &LinkRight::ALL.map(LinkRight::word).join(","),
            "--state",
            "none",
            "--parent",
            &getpid().as_raw_nonzero().to_string(),
        ]);
        for file in config {
            command.arg("--config").arg(file);
        }
        set_run_dir(&mut command, run_dir);
        if env::var_os(LOG).is_none() {
            command.env(LOG, "warn");
        }
        // In a process group of its own, the gateway outlives a Ctrl-C at the terminal until the program has ended.
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn();
        let child = spawned.map_err(|err| CliError::system("fatpath run", &err))?;
        let mut gateway = Self { child, name: name.to_owned() };
        let socket = run_dir.map_or_else(|| own_socket_path(name), |dir| dir.0.join(format!("{name}.sock")));
        let begun = Instant::now();
        while !gateway.answers(&socket) {
            if let Some(status) = gateway.ended()? {
                return Ok(Started::Ended(exit_code(status)));
            }
            if begun.elapsed() > START_LIMIT {
                let seconds = START_LIMIT.as_secs();
                return Err(CliError::failed(format!("the gateway {name} is not ready after {seconds} seconds")));
            }
            thread::sleep(INTERVAL);
        }
        Ok(Started::Ready(gateway))
    }

    /// Whether this gateway, and no other of its name, replies at `socket`.
    fn answers(&self, socket: &Path) -> bool {
        let Ok(mut client) = Client::connect_at(&self.name, socket.to_owned()) else { return false };
        matches!(client.ask(&Request::Ping), Ok(Reply::Pong { pid, .. }) if pid == self.child.id())
    }

    /// Exit status of the gateway, if it has ended.
    ///
    /// # Errors
    /// Errors of waitpid(2).
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, CliError> {
        self.child.try_wait().map_err(|err| CliError::system("wait for the gateway", &err))
    }
}

impl Drop for OwnGateway {
    fn drop(&mut self) {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        // The child has not been waited for, so the number is its.
        if !matches!(self.child.try_wait(), Ok(None)) || kill_process(pid, Signal::TERM).is_err() {
            return;
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > END_LIMIT {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(INTERVAL);
        }
    }
}

/// Ends this process, a gateway, with the process `parent`, which has started it.
///
/// # Errors
/// The parent has ended already.
pub(crate) fn end_with(parent: i32) -> Result<(), CliError> {
    let set = set_parent_process_death_signal(Some(Signal::TERM));
    set.map_err(|err| CliError::system("prctl, PR_SET_PDEATHSIG", &err.into()))?;
    // The parent may have ended before the call.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) == Some(parent) {
        return Ok(());
    }
    Err(CliError::failed(format!("--parent {parent}: that process has ended")))
}

/// Lets a command find the gateways of `run_dir`.
pub(crate) fn set_run_dir(command: &mut Command, run_dir: Option<&RunDir>) {
    if let Some(dir) = run_dir {
        command.env(RUN_DIR, &dir.0);
    }
}

/// Exit code for the status of a child, as a shell's: 128 and the signal for a child that was killed.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_the_programs_or_its_signals() {
        for (raw, want) in [(0, 0), (3 << 8, 3), (15, 143), (9, 137)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), ExitCode::from(want), "{raw:#x}");
        }
    }
}
