//! `fatpath down`: ends a gateway and its IKE daemon, and removes the devices and routes that stay when it has ended.

use std::time::{Duration, Instant};

use client::{CliError, Client, print};
use ctl::{Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cli::DownArgs;
use crate::up;

/// Longest time that a gateway may take to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// Ends the gateway if it runs, removes what it has left, and prints a summary.
///
/// # Errors
/// The gateway does not end, or the caller may not end it, or may not remove what it has left.
pub(crate) fn main(args: &DownArgs) -> Result<(), CliError> {
    let name = &args.name;
    let mut done = Vec::new();
    if up::stop_units(name)? {
        done.push("stopped its units".to_owned());
    }
    if up::end_ike(name)? {
        done.push("ended its IKE daemon".to_owned());
    }
    let has_ended = match Client::connect_running(name)? {
        Some(client) => {
            end(name, client)?;
            true
        }
        None => false,
    };
    let removed = daemon::remove_devices(name)?;
    if has_ended {
        done.push("ended".to_owned());
    }
    if !removed.devices.is_empty() {
        done.push(format!("removed {}", removed.devices.join(", ")));
    }
    if removed.routes > 0 {
        let s = if removed.routes == 1 { "" } else { "s" };
        done.push(format!("removed {} blackhole route{s}", removed.routes));
    }
    if done.is_empty() {
        done.push("no gateway, no devices and no routes of it are here".to_owned());
    }
    print(format!("{name}: {}\n", done.join("; ")).as_bytes())
}

/// Ends the process of a gateway with SIGTERM.
fn end(name: &str, mut client: Client) -> Result<(), CliError> {
    let mut ask = || match client.ask(&Request::Ping)? {
        Reply::Pong { pid, .. } => Ok(pid),
        _ => Err(client.confused()),
    };
    let pid = ask()?;
    let failed = |err: Errno| CliError::failed(format!("{name}: process {pid}: {err}"));
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| failed(Errno::SRCH))?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
    // The answer shows that the descriptor is of the gateway, and not of a process that got its number.
    if ask()? != pid {
        return Err(failed(Errno::SRCH));
    }
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let limit = Instant::now() + PATIENCE;
    loop {
        let left = limit.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL))?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                let limit = PATIENCE.as_secs();
                return Err(CliError::failed(format!("{name}: process {pid} has not ended within {limit} seconds.")));
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(err) => return Err(failed(err)),
        }
    }
}
