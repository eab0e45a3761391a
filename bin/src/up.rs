//! `fatpath up` and the end of what it has started: a gateway with its file, and the IKE daemon of a pair.
//!
//! Both are units of systemd if that is the first process, or processes in the background, with logs in the run directory.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::{CliError, Client, find_program, own_socket_path, print};
use ctl::{Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::pair::{CONF_DIR, PairFiles, vici_socket};

/// Time limit for the start of the gateway, and for that of the IKE daemon.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for the end of the IKE daemon, which tells its peers.
const END_LIMIT: Duration = Duration::from_secs(15);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// The IKE daemon, which has no file of its process in `/run` and so may run several times.
const CHARON: &str = "charon-systemd";

/// Starts the gateway `name` with its file, and the IKE daemon if it is one of a pair, and prints what runs. What runs already
/// stays.
///
/// # Errors
/// There is no file, a program is missing, or one does not start: then what was started has ended again.
pub(crate) fn up(name: &str) -> Result<(), CliError> {
    let files = PairFiles::of(name)?;
    let toml = files.toml();
    if !toml.is_file() {
        return Err(CliError::failed(format!(
            "{name}: there is no {}; `fatpath pair {name}` makes one, or write it: docs/tunnel.md.",
            toml.display()
        )));
    }
    let has_ike = files.ike().join("swanctl.conf").is_file();
    if is_systemd() {
        return by_units(name, has_ike);
    }
    // Before anything is started.
    let programs = has_ike.then(ike_programs).transpose()?;
    let gateway = start_gateway(name, &toml)?;
    let started = gateway.is_some();
    if let Some(programs) = programs
        && let Err(err) = start_ike(name, &files, &programs)
    {
        if let Some(mut gateway) = gateway {
            end_child(&mut gateway);
            let _ = daemon::remove_devices(name);
        }
        return Err(err);
    }
    let state = if started { "up" } else { "was up already" };
    print(format!("{name}: {state}; logs are in {}\n", log_file(name, "log").display()).as_bytes())
}

/// Whether gateways are units: systemd is the first process (sd_booted(3)), and the files are in the directories that the units have.
fn is_systemd() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|dir| !dir.is_empty());
    Path::new("/run/systemd/system").is_dir()
        && rustix::process::geteuid().is_root()
        && !is_set(CONF_DIR)
        && !is_set("FATPATH_RUNDIR")
}

/// Units of a gateway: its own, and that of the IKE daemon.
fn units(name: &str, has_ike: bool) -> Vec<String> {
    let mut units = vec![format!("fatpath@{name}.service")];
    if has_ike {
        units.push(format!("fatpath-pair@{name}.service"));
    }
    units
}

fn by_units(name: &str, has_ike: bool) -> Result<(), CliError> {
    let units = units(name, has_ike);
    systemctl("enable", &units).inspect_err(|_| {
        // A unit may have started before the one that failed.
        let _ = systemctl("disable", &units);
    })?;
    print(format!("{name}: {} run and start at boot\n", units.join(", ")).as_bytes())
}

/// Runs systemctl(1) with `--now`.
fn systemctl(verb: &str, units: &[String]) -> Result<(), CliError> {
    let status = Command::new("systemctl").args([verb, "--now"]).args(units).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(CliError::failed(format!(
            "systemctl {verb} --now {}: {status}; `make install` installs the units.",
            units.join(" ")
        ))),
        Err(err) => Err(CliError::system("systemctl", &err)),
    }
}

/// Stops the units of a gateway where systemd runs. Tells whether there are any.
///
/// # Errors
/// systemd does not stop them.
pub(crate) fn stop_units(name: &str) -> Result<bool, CliError> {
    if !is_systemd() {
        return Ok(false);
    }
    // A unit that waits for its restart is not active, and would come back.
    let runs = |unit: &String| {
        let output = Command::new("systemctl").args(["is-active", unit]).output();
        let state = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        !matches!(state.as_str(), "" | "inactive" | "unknown")
    };
    let running: Vec<String> = units(name, true).into_iter().rev().filter(runs).collect();
    if running.is_empty() {
        return Ok(false);
    }
    systemctl("disable", &running)?;
    Ok(true)
}

/// Starts the gateway in the background and waits until it answers; `None` if it runs already.
fn start_gateway(name: &str, toml: &Path) -> Result<Option<Child>, CliError> {
    // A gateway that was just killed still accepts connections for a moment, and does not answer.
    if let Some(mut running) = Client::connect_running(name)?
        && running.ask(&Request::Ping).is_ok()
    {
        return Ok(None);
    }
    let own = std::env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
    let log = log_file(name, "log");
    let mut command = Command::new(own);
    command.args(["run", "--instance", name, "--config"]).arg(toml);
    let mut child = background(&mut command, &log)?;
    let answers = |pid| {
        let client = Client::connect_at(name, own_socket_path(name));
        client.is_ok_and(
            |mut client| matches!(client.ask(&Request::Ping), Ok(Reply::Pong { pid: its, .. }) if its == pid),
        )
    };
    let pid = child.id();
    wait_for(&mut child, &format!("{name}: the gateway"), &log, || answers(pid))?;
    Ok(Some(child))
}

/// Programs of strongSwan.
struct IkePrograms {
    charon: PathBuf,
    swanctl: PathBuf,
}

/// Checks that the programs of strongSwan are there.
///
/// # Errors
/// One is missing.
pub(crate) fn check_ike_programs() -> Result<(), CliError> {
    ike_programs().map(drop)
}

fn ike_programs() -> Result<IkePrograms, CliError> {
    let find = |program: &str, package: &str| {
        find_program(program).ok_or_else(|| {
            CliError::failed(format!("{program}: not found; install it, as with `apt-get install {package}`."))
        })
    };
    Ok(IkePrograms {
        charon: find(CHARON, "charon-systemd libstrongswan-standard-plugins")?,
        swanctl: find("swanctl", "strongswan-swanctl")?,
    })
}

/// Starts the IKE daemon on the gateway and loads the connection; a daemon that runs already only loads it.
fn start_ike(name: &str, files: &PairFiles, programs: &IkePrograms) -> Result<(), CliError> {
    let (socket, ike) = (vici_socket(name), files.ike());
    let settings = ike.join("strongswan.conf");
    if UnixStream::connect(&socket).is_err() {
        let own = std::env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
        let log = log_file(name, "ike.log");
        let mut command = Command::new(own);
        command.args(["exec", "--instance", name, "--"]).arg(&programs.charon).env("STRONGSWAN_CONF", &settings);
        let mut child = background(&mut command, &log)?;
        let ready = wait_for(&mut child, &format!("{name}: {CHARON}"), &log, || UnixStream::connect(&socket).is_ok());
        if let Err(err) = ready.and_then(|()| load(name, programs, &ike, &settings)) {
            end_child(&mut child);
            return Err(err);
        }
        return Ok(());
    }
    load(name, programs, &ike, &settings)
}

/// swanctl(8) with a command and its arguments, for the daemon of the gateway `name`.
fn swanctl(name: &str, words: &[&str], programs: &IkePrograms, ike: &Path, settings: &Path) -> Command {
    let mut command = Command::new(&programs.swanctl);
    command.args(words).arg("--uri").arg(format!("unix://{}", vici_socket(name).display()));
    command.env("SWANCTL_DIR", ike).env("STRONGSWAN_CONF", settings).stdin(Stdio::null());
    command
}

fn load(name: &str, programs: &IkePrograms, ike: &Path, settings: &Path) -> Result<(), CliError> {
    let mut command = swanctl(name, &["--load-all", "--noprompt"], programs, ike, settings);
    let output = command.arg("--file").arg(ike.join("swanctl.conf")).output();
    let output = output.map_err(|err| CliError::system("swanctl", &err))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(CliError::failed(format!("{name}: swanctl --load-all: {}: {last}", output.status)))
}

/// Log of a program in the background.
fn log_file(name: &str, ending: &str) -> PathBuf {
    own_socket_path(name).with_file_name(format!("{name}.{ending}"))
}

/// Log of the process before.
fn old_log(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".old");
    PathBuf::from(name)
}

/// Starts a command in a process group of its own, with a new log and without the terminal. The former log stays as `.old`, so that
/// logs of many starts do not fill the run directory.
fn background(command: &mut Command, log: &Path) -> Result<Child, CliError> {
    let failed = |err: io::Error| CliError::failed(format!("{}: {err}", log.display()));
    if let Some(dir) = log.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    match std::fs::rename(log, old_log(log)) {
        Err(err) if err.kind() != ErrorKind::NotFound => return Err(failed(err)),
        _ => {}
    }
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(log).map_err(failed)?;
    let errors = file.try_clone().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
    command.spawn().map_err(|err| CliError::system(&command.get_program().to_string_lossy(), &err))
}

/// Waits until a program in the background is ready.
fn wait_for(child: &mut Child, what: &str, log: &Path, is_ready: impl Fn() -> bool) -> Result<(), CliError> {
    let begun = Instant::now();
    loop {
        if is_ready() {
            return Ok(());
        }
        let why = match child.try_wait() {
            Ok(Some(status)) => format!("has ended: {status}"),
            Ok(None) if begun.elapsed() > START_LIMIT => {
                end_child(child);
                format!("is not ready after {} seconds", START_LIMIT.as_secs())
            }
            Ok(None) => {
                thread::sleep(INTERVAL);
                continue;
            }
            Err(err) => format!("cannot be waited for: {err}"),
        };
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it is empty");
        return Err(CliError::failed(format!("{what} {why}; {}: {last}", log.display())));
    }
}

/// Ends a program that this process has started.
fn end_child(child: &mut Child) {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    // The child has not been waited for, so the number is its.
    let _ = rustix::process::kill_process(pid, Signal::TERM);
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begun.elapsed() > END_LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        thread::sleep(INTERVAL);
    }
}

/// Ends the IKE daemon of the gateway `name`: the process behind its socket. Tells whether there was one.
///
/// # Errors
/// It does not end, or the caller may not end it.
pub(crate) fn end_ike(name: &str) -> Result<bool, CliError> {
    let path = vici_socket(name);
    let failed = |err: Errno| CliError::failed(format!("{name}: the IKE daemon at {}: {err}", path.display()));
    let stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            let _ = std::fs::remove_file(&path);
            return Ok(false);
        }
        Err(err) => return Err(CliError::failed(format!("{}: {err}", path.display()))),
    };
    let process = peer_process(&stream, &path).map_err(failed)?;
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let timeout = Timespec::try_from(END_LIMIT).map_err(|_| failed(Errno::INVAL))?;
    match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)).map_err(failed)? {
        0 => Err(CliError::failed(format!(
            "{name}: the IKE daemon has not ended within {} seconds.",
            END_LIMIT.as_secs()
        ))),
        _ => {
            let _ = std::fs::remove_file(&path);
            Ok(true)
        }
    }
}

/// The process that listens at `path`, to which `stream` is a connection.
fn peer_process(stream: &UnixStream, path: &Path) -> Result<OwnedFd, Errno> {
    let listener = |stream: &UnixStream| rustix::net::sockopt::socket_peercred(stream.as_fd()).map(|cred| cred.pid);
    let pid = listener(stream)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    // A second connection shows that the descriptor is the listener's, and not of a process that got its number.
    let again = UnixStream::connect(path).map_err(|_| Errno::SRCH)?;
    if listener(&again)? == pid { Ok(process) } else { Err(Errno::SRCH) }
}
