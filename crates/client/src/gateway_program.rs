//! Programs whose netlink sockets connect to a gateway, through a preloaded library.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::CWD;

use crate::CliError;
use crate::find_program::find;

/// Preloaded library, which connects a program's netlink sockets to a gateway.
const LIBRARY: &str = "libfatpath_preload.so";
/// Variable with the path of the library, if it is not in a default place.
const LIBRARY_VARIABLE: &str = "FATPATH_PRELOAD";
/// Variable with the gateway for the library.
const NETLINK_VARIABLE: &str = "FATPATH_NETLINK";
/// Most bytes that are read of the environment of a process.
const MAX_ENVIRONMENT: u64 = 4 << 20;

/// Command that runs `program` with its netlink sockets connected to the gateway whose netlink socket is `netlink`.
///
/// # Errors
/// The program or the library is missing.
pub fn command(program: &OsStr, netlink: &Path) -> Result<Command, CliError> {
    let shown = program.to_string_lossy();
    let path = find(program).ok_or_else(|| {
        let metadata = Path::new(program).metadata().ok().filter(|_| program.as_bytes().contains(&b'/'));
        let why = match metadata {
            Some(it) if it.is_dir() => "a directory, not a program",
            Some(it) if it.is_file() => "not executable; `chmod +x` makes it so",
            _ => "no such program",
        };
        CliError::failed(format!("{shown}: {why}."))
    })?;
    let library = library()?;
    // The loader treats these bytes as separators (ld.so(8)), and would continue without the library.
    if library.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
        let place = library.display();
        return Err(CliError::failed(format!(
            "{place}: no library can be put first from a path with a space or colon."
        )));
    }
    let preload = match env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        None => library.into_os_string(),
        Some(before) => OsString::from_vec([library.as_os_str().as_bytes(), b":", before.as_bytes()].concat()),
    };
    let mut command = Command::new(&path);
    command.arg0(program).env("LD_PRELOAD", preload);
    set_gateway(&mut command, netlink, None)?;
    Ok(command)
}

/// Place of a program's sockets on a gateway's host side.
#[derive(Clone, Copy, Debug)]
pub struct HostSidePlace<'a> {
    /// VRF that the program's Internet sockets are bound to.
    pub vrf: Option<&'a str>,
    /// Whether the program may configure the packet filter of the kernel there.
    pub host_firewall: bool,
}

/// Sets the gateway for the program of a [`command`]: path of its netlink socket, and the place of the program's other
/// sockets if that is the gateway's host side.
///
/// # Errors
/// The working directory, to which the path is relative, does not exist any more.
pub fn set_gateway(
    command: &mut Command,
    netlink: &Path,
    host_side: Option<HostSidePlace<'_>>,
) -> Result<(), CliError> {
    command.env(NETLINK_VARIABLE, netlink_variable(netlink, host_side)?);
    Ok(())
}

/// Value of the variable for the gateway whose netlink socket is `netlink`.
fn netlink_variable(netlink: &Path, host_side: Option<HostSidePlace<'_>>) -> Result<OsString, CliError> {
    let netlink = std::path::absolute(netlink).map_err(|err| CliError::failed(err.to_string()))?;
    let mut value = netlink.into_os_string();
    if let Some(HostSidePlace { vrf, host_firewall }) = host_side {
        value.push(",host-side");
        if host_firewall {
            value.push(",host-firewall");
        }
        if let Some(vrf) = vrf {
            value.push(format!(",vrf={vrf}"));
        }
    }
    Ok(value)
}

/// Path of the netlink socket of the gateway that process `pid` was started for, if it was by a [`command`].
///
/// # Errors
/// The environment of the process cannot be read.
pub fn gateway_of_process(pid: u32) -> io::Result<Option<PathBuf>> {
    let mut environment = Vec::new();
    File::open(format!("/proc/{pid}/environ"))?.take(MAX_ENVIRONMENT).read_to_end(&mut environment)?;
    Ok(gateway_of(&environment))
}

/// Path of the gateway's netlink socket in an environment, whose variables end with NUL.
fn gateway_of(environment: &[u8]) -> Option<PathBuf> {
    let variables = environment.split(|byte| *byte == 0);
    let mut values = variables.filter_map(|text| text.strip_prefix(NETLINK_VARIABLE.as_bytes())?.strip_prefix(b"="));
    let value = values.next()?;
    let option = b",host-side";
    let path_len = value.windows(option.len()).rposition(|part| part == option).unwrap_or(value.len());
    Some(PathBuf::from(OsStr::from_bytes(&value[..path_len])))
}

/// Checks that the program of `command`, `program` on the command line, loads the library.
///
/// # Errors
/// The reason why it would not.
pub fn check_loads(program: &OsStr, command: &Command) -> Result<(), CliError> {
    // A path with a NUL refers to no file.
    let path = CString::new(command.get_program().as_bytes()).unwrap_or_default();
    let refused =
        |why: launch::NotLoadable| CliError::failed(format!("{}: {}.", program.to_string_lossy(), why.reason));
    launch::check(CWD, &path).map_err(refused)
}

/// Path of the library: from the environment, in the directory of this program, or where it is installed.
///
/// # Errors
/// There is no library in these places, or this program is a static one, without the C library of the programs that load it.
pub fn library() -> Result<PathBuf, CliError> {
    if !cfg!(target_env = "gnu") {
        return Err(CliError::failed(format!(
            "this fatpath is built without the GNU C library, which {LIBRARY} is for: it starts no programs on a gateway; \
             a fatpath for *-linux-gnu does."
        )));
    }
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
    fn gateway_of_a_program_is_in_its_environment() {
        let host_side = HostSidePlace { vrf: Some("red"), host_firewall: true };
        for place in [None, Some(host_side)] {
            let mut environment = b"A=1\0XFATPATH_NETLINK=/no\0FATPATH_NETLINK=".to_vec();
            environment.extend(netlink_variable(Path::new("/run/fatpath/a.netlink"), place).unwrap().as_bytes());
            environment.extend(b"\0B=2\0");
            assert_eq!(gateway_of(&environment), Some(PathBuf::from("/run/fatpath/a.netlink")), "{place:?}");
        }
        assert_eq!(gateway_of(b"FATPATH_NETLINKS=/a\0"), None);
        assert_eq!(gateway_of(b""), None);
        assert!(gateway_of_process(std::process::id()).is_ok());
    }
}
