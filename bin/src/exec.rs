//! `fatpath exec` and `fatpath ip`: other programs, whose netlink sockets reach a gateway.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::cli::{ExecArgs, IpArgs};
use crate::client::{netlink_path, unreachable};
use crate::error::CliError;

/// The library that has a program's netlink sockets reach a gateway.
const LIBRARY: &str = "libfatpath_preload.so";
/// Names that library, if it is not where it is looked for.
const LIBRARY_VARIABLE: &str = "FATPATH_PRELOAD";
/// Tells the library which gateway.
const NETLINK_VARIABLE: &str = "FATPATH_NETLINK";
/// Interpreters of interpreters that are looked through, as many as Linux does.
const MAX_SCRIPTS: usize = 5;

/// Becomes the program.
///
/// # Errors
/// If no gateway of that name runs, the library is missing, or the program cannot load it.
pub(crate) fn main(args: &ExecArgs) -> Result<(), CliError> {
    let (program, rest) = args.program.split_first().ok_or_else(|| CliError::failed("no program"))?;
    exec(&args.instance, program, rest)
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
    exec(&args.instance, ip.as_os_str(), &args.words)
}

/// Whether `ip` would print its usage or version, and do nothing, whatever comes behind the first word.
fn is_about_itself(words: &[OsString]) -> bool {
    words.first().is_none_or(|word| ["help", "-help", "--help", "-V", "-Version"].iter().any(|it| word == it))
}

/// Where the system's `ip` is.
///
/// # Errors
/// It is not there.
pub(crate) fn system_ip() -> Result<PathBuf, CliError> {
    let ip = find(OsStr::new("ip")).or_else(|| {
        // Not everybody's path has it.
        ["/usr/sbin/ip", "/sbin/ip"].map(PathBuf::from).into_iter().find(|path| path.is_file())
    });
    ip.ok_or_else(|| CliError::failed("ip: not found; install it, as with `apt-get install iproute2`."))
}

fn exec(instance: &str, program: &OsStr, arguments: &[OsString]) -> Result<(), CliError> {
    let shown = program.to_string_lossy();
    let netlink = netlink_path(instance);
    let mut command = command(program, &netlink)?;
    try_connect(&netlink).map_err(|errno| unreachable(instance, &netlink, &errno.into()))?;
    Err(CliError::failed(format!("{shown}: {}", command.args(arguments).exec())))
}

/// How to run `program` with its netlink sockets reaching the gateway whose own is at `netlink`.
///
/// # Errors
/// If the library is missing, or the program cannot load it.
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
    check_loads(&path).map_err(|why| CliError::failed(format!("{shown}: {why}.")))?;
    let netlink = std::path::absolute(netlink).map_err(|err| CliError::failed(err.to_string()))?;
    let preload = match env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        None => library.into_os_string(),
        Some(before) => OsString::from_vec([library.as_os_str().as_bytes(), b":", before.as_bytes()].concat()),
    };
    let mut command = Command::new(&path);
    command.arg0(program).env("LD_PRELOAD", preload).env(NETLINK_VARIABLE, netlink);
    Ok(command)
}

/// Whether anybody serves netlink there.
fn try_connect(path: &Path) -> Result<(), Errno> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Where the program is, as a shell looks for it.
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

/// Whether a program would load the library.
///
/// # Errors
/// Why not.
fn check_loads(program: &Path) -> Result<(), String> {
    let mut path = program.to_owned();
    for _ in 0..MAX_SCRIPTS {
        let failed = |err: io::Error| format!("cannot be read: {err}");
        let file = File::open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut start = Vec::new();
        file.take(64 << 10).read_to_end(&mut start).map_err(failed)?;
        match Program::of(&start) {
            Program::Script(interpreter) => path = interpreter,
            Program::Dynamic => return check_unprivileged(&metadata),
            Program::Static => {
                return Err("it is linked statically, and a library can only be put before one that is not".to_owned());
            }
            Program::Other => return Err("it is no program of this machine's kind".to_owned()),
        }
    }
    Err("its interpreters do not end".to_owned())
}

/// The kernel has a program with another user's rights load no such library.
fn check_unprivileged(metadata: &fs::Metadata) -> Result<(), String> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mode = metadata.permissions().mode();
    if (mode & 0o4000 != 0 && metadata.uid() != uid) || (mode & 0o2010 == 0o2010 && metadata.gid() != gid) {
        return Err(
            "it runs with another account's rights (setuid or setgid); use that account, as with sudo".to_owned()
        );
    }
    Ok(())
}

/// What a file that is to be run is.
#[derive(Debug, Eq, PartialEq)]
enum Program {
    /// One that a dynamic loader starts.
    Dynamic,
    /// One that starts without.
    Static,
    /// One that another program reads.
    Script(PathBuf),
    /// None that can be told of.
    Other,
}

impl Program {
    /// What a file is, by its beginning.
    fn of(start: &[u8]) -> Self {
        if let Some(line) = start.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
            return words.next().map_or(Self::Other, |path| Self::Script(PathBuf::from(OsStr::from_bytes(path))));
        }
        match has_loader(start) {
            Some(true) => Self::Dynamic,
            Some(false) => Self::Static,
            None => Self::Other,
        }
    }
}

/// Whether a 64-bit ELF file of this machine's byte order names a loader (`PT_INTERP`). `None`: it is none.
fn has_loader(start: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    let class = [2, if cfg!(target_endian = "little") { 1 } else { 2 }];
    if start.get(..6)? != [b"\x7fELF", &class[..]].concat() {
        return None;
    }
    let half = |at: usize| Some(usize::from(u16::from_ne_bytes(*start.get(at..)?.first_chunk()?)));
    let first = usize::try_from(u64::from_ne_bytes(*start.get(32..)?.first_chunk()?)).ok()?;
    let (size, count) = (half(54)?, half(56)?);
    for at in 0..count {
        let header = start.get(at.checked_mul(size)?.checked_add(first)?..)?;
        if u32::from_ne_bytes(*header.first_chunk()?) == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ip_does_on_a_node_is_nothing_about_itself() {
        let about = |words: &str| is_about_itself(&words.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        for words in ["", "help", "-help", "--help", "-V", "help link"] {
            assert!(about(words), "{words}");
        }
        for words in ["link", "-h link", "link del help", "link show help", "-s help"] {
            assert!(!about(words), "{words}");
        }
    }

    #[test]
    fn a_program_is_told_by_its_beginning() {
        assert_eq!(check_loads(&env::current_exe().unwrap()), Ok(()));
        assert_eq!(Program::of(b"#! /bin/sh -e\n"), Program::Script("/bin/sh".into()));
        assert_eq!(Program::of(b"#!\n"), Program::Other);
        let mut elf = fs::read(env::current_exe().unwrap()).unwrap();
        elf.truncate(64 << 10);
        assert_eq!(Program::of(&elf), Program::Dynamic);
        for len in 0..elf.len().min(2000) {
            assert_ne!(Program::of(&elf[..len]), Program::Static, "{len}");
        }
        elf[56..58].fill(0);
        assert_eq!(Program::of(&elf), Program::Static);
        elf[4] = 1;
        assert_eq!(Program::of(&elf), Program::Other);
    }
}
