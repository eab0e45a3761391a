//! `fatpath exec` and `fatpath ip`: other programs, whose netlink sockets reach a gateway and never the host's kernel
//! ([`launch`]).

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ctl::state::HostDeviceState;
use ctl::{Reply, Request, Shown, What};
use launch::filter::Internet;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::cli::{ExecArgs, IpArgs, Sockets};
use crate::client::{Client, netlink_path, unreachable};
use crate::enter::enter;
use crate::error::CliError;

/// The library that has a program's netlink sockets reach a gateway.
const LIBRARY: &str = "libfatpath_preload.so";
/// Names that library, if it is not where it is looked for.
const LIBRARY_VARIABLE: &str = "FATPATH_PRELOAD";
/// Tells the library which gateway.
const NETLINK_VARIABLE: &str = "FATPATH_NETLINK";

/// Becomes the program.
///
/// # Errors
/// If no gateway of that name runs, the library is missing, or the program cannot load it.
pub(crate) fn main(args: &ExecArgs) -> Result<(), CliError> {
    let (program, rest) = args.program.split_first().ok_or_else(|| CliError::failed("no program"))?;
    exec(&args.instance, args.sockets, args.vrf.as_deref(), program, rest)
}

/// Becomes the system's `ip`. It needs no gateway to tell of itself.
///
/// # Errors
/// As [`main`].
pub(crate) fn ip(args: &IpArgs) -> Result<(), CliError> {
    let ip = system_ip()?;
    if is_about_itself(&args.words) {
        return Err(CliError::failed(format!("{}: {}", ip.display(), Command::new(&ip).args(&args.words).exec())));
    }
    // All that it has to say is said by netlink.
    exec(&args.instance, Sockets::Host, None, ip.as_os_str(), &args.words)
}

/// Whether `ip` would print its usage or version, and do nothing: its first word decides.
fn is_about_itself(words: &[OsString]) -> bool {
    words.first().is_none_or(|word| ["help", "-help", "--help", "-V", "-Version"].iter().any(|it| word == it))
}

/// Path of the system's `ip`.
///
/// # Errors
/// It is not there.
pub(crate) fn system_ip() -> Result<PathBuf, CliError> {
    let ip = find(OsStr::new("ip")).or_else(|| {
        // Not every user's PATH has it.
        ["/usr/sbin/ip", "/sbin/ip"].map(PathBuf::from).into_iter().find(|path| path.is_file())
    });
    ip.ok_or_else(|| CliError::failed("ip: not found; install it, as with `apt-get install iproute2`."))
}

fn exec(
    instance: &str,
    sockets: Sockets,
    vrf: Option<&str>,
    program: &OsStr,
    arguments: &[OsString],
) -> Result<(), CliError> {
    let shown = program.to_string_lossy();
    let netlink = netlink_path(instance);
    let mut command = command(program, &netlink)?;
    try_connect(&netlink).map_err(|errno| unreachable(instance, &netlink, &errno.into()))?;
    if let Some(vrf) = vrf {
        check_vrf(instance, vrf)?;
    }
    if sockets == Sockets::Gateway && enter(instance)? {
        command.env(NETLINK_VARIABLE, netlink_variable(&netlink, true, vrf)?);
    } else if let Some(vrf) = vrf {
        return Err(CliError::failed(format!("--vrf {vrf}: sockets are not on the gateway's host side.")));
    }
    let internet = if vrf.is_some() { Internet::Marked } else { Internet::Any };
    launch::filter::set(internet)
        .map_err(|err| CliError::failed(format!("seccomp: {err}; without it no program is started.")))?;
    // With the filter a program may have lost the rights for which its loader would ignore the library.
    check_loads(program, &command)?;
    Err(CliError::failed(format!("{shown}: {}", command.args(arguments).exec())))
}

/// Checks that the gateway has a VRF of that name, with a device on its host side.
///
/// # Errors
/// It has none.
fn check_vrf(instance: &str, vrf: &str) -> Result<(), CliError> {
    let mut client = Client::connect(instance)?;
    let Reply::Show { shown: Shown::Links(links) } = client.ask(&Request::Show { what: What::Links })? else {
        return Err(client.confused());
    };
    let refused = |why: &str| Err(CliError::failed(format!("--vrf {vrf}: {why}.")));
    match links.iter().find(|link| link.name == vrf) {
        None => return refused("there is no such VRF"),
        Some(link) if link.kind != "vrf" => return refused("that is no VRF"),
        Some(_) => {}
    }
    let Reply::Show { shown: Shown::Host(host) } = client.ask(&Request::ShowHost)? else {
        return Err(client.confused());
    };
    match host.devices.iter().find(|device| device.name == vrf) {
        Some(HostDeviceState { why_not: None, .. }) => Ok(()),
        Some(HostDeviceState { why_not: Some(why), .. }) => refused(&format!("no device on the host side: {why}")),
        None => refused("the gateway has no host side"),
    }
}

/// Command that runs `program` with its netlink sockets reaching the gateway whose netlink socket is at `netlink`.
///
/// # Errors
/// If the program or the library is missing.
pub(crate) fn command(program: &OsStr, netlink: &Path) -> Result<Command, CliError> {
    let shown = program.to_string_lossy();
    let path = find(program).ok_or_else(|| CliError::failed(format!("{shown}: no such program.")))?;
    let library = library()?;
    // The loader takes these for the end of a name (ld.so(8)), and goes on without the library.
    if library.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
        let place = library.display();
        return Err(CliError::failed(format!(
            "{place}: no library can be put first from a path with a space or colon."
        )));
    }
    let netlink = netlink_variable(netlink, false, None)?;
    let preload = match env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        None => library.into_os_string(),
        Some(before) => OsString::from_vec([library.as_os_str().as_bytes(), b":", before.as_bytes()].concat()),
    };
    let mut command = Command::new(&path);
    command.arg0(program).env("LD_PRELOAD", preload).env(NETLINK_VARIABLE, netlink);
    Ok(command)
}

/// The value of the variable that names the gateway whose netlink socket is at `netlink`.
fn netlink_variable(netlink: &Path, is_on_host_side: bool, vrf: Option<&str>) -> Result<OsString, CliError> {
    let netlink = std::path::absolute(netlink).map_err(|err| CliError::failed(err.to_string()))?;
    let mut value = netlink.into_os_string();
    if is_on_host_side {
        value.push(",host-side");
    }
    if let Some(vrf) = vrf {
        value.push(format!(",vrf={vrf}"));
    }
    Ok(value)
}

/// Checks that the program of `command`, whose name on the command line is `program`, would load the library.
///
/// # Errors
/// The reason for which it would not.
pub(crate) fn check_loads(program: &OsStr, command: &Command) -> Result<(), CliError> {
    // A path with a NUL in it names nothing.
    let path = CString::new(command.get_program().as_bytes()).unwrap_or_default();
    let refused =
        |why: launch::NotLoadable| CliError::failed(format!("{}: {}.", program.to_string_lossy(), why.reason));
    launch::check(CWD, &path).map_err(refused)
}

/// Fails if no gateway serves netlink at `path`.
fn try_connect(path: &Path) -> Result<(), Errno> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Path of the program, found as a shell finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(runs);
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(runs)
}

/// The library: where the environment says, beside this program, or where it is installed.
fn library() -> Result<PathBuf, CliError> {
    if let Some(path) = env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return match std::path::absolute(&path) {
            Ok(absolute) if absolute.is_file() => Ok(absolute),
            _ => Err(CliError::failed(format!("{LIBRARY_VARIABLE}: {}: there is no such file.", path.display()))),
        };
    }
    let missing = || {
        CliError::failed(format!(
            "{LIBRARY} is neither beside fatpath nor in ../lib/fatpath; build it with `cargo build --release -p \
             fatpath-preload`, or set {LIBRARY_VARIABLE} to where it is."
        ))
    };
    let program = env::current_exe().map_err(|_| missing())?;
    let dir = program.parent().ok_or_else(missing)?;
    let places = [dir.join(LIBRARY), dir.join("../lib/fatpath").join(LIBRARY)];
    places.into_iter().find(|path| path.is_file()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_help_and_version_need_no_gateway() {
        let about = |words: &str| is_about_itself(&words.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        for words in ["", "help", "-help", "--help", "-V", "help link"] {
            assert!(about(words), "{words}");
        }
        for words in ["link", "-h link", "link del help", "link show help", "-s help"] {
            assert!(!about(words), "{words}");
        }
    }
}
