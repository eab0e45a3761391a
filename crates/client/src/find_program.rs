//! Paths of programs.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::CliError;

/// Path of a program, found like a shell's command.
pub(crate) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(can_run);
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(can_run)
}

/// Path of another program of this project: in the directory of the running program, or found like a shell's command.
pub fn find_sibling(name: &str) -> Option<PathBuf> {
    let beside = env::current_exe().ok().map(|own| own.with_file_name(name));
    beside.filter(can_run).or_else(|| find(OsStr::new(name)))
}

/// Path of a program of the system, found like a shell's command, or in the directories that are not in every user's `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    find(OsStr::new(name))
        .or_else(|| ["/usr/sbin", "/sbin"].map(|dir| PathBuf::from(dir).join(name)).into_iter().find(can_run))
}

/// Path of the system's `ip`.
///
/// # Errors
/// The program is missing.
pub fn system_ip() -> Result<PathBuf, CliError> {
    let ip = find(OsStr::new("ip")).or_else(|| {
        // The directory is not in every user's PATH.
        ["/usr/sbin/ip", "/sbin/ip"].map(PathBuf::from).into_iter().find(|path| path.is_file())
    });
    ip.ok_or_else(|| CliError::failed("ip: not found; install it, as with `apt-get install iproute2`."))
}

fn can_run(path: &PathBuf) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}
