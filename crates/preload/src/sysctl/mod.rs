//! Files of `/proc/sys/net`: a program that reads or writes one accesses the gateway's file, under any name, and never
//! the host's.
//!
//! A file opened for reading is a memory file. A file opened for writing is a connection to the gateway
//! ([`nlsock::Sysctl::Open`]), so that `dup`, `fork` and `execve` keep it, and `write(2)` returns the gateway's result
//! ([`write()`]). The C library's own writes for a stream reach the gateway, too, and their result is reported when the
//! program flushes or closes the stream ([`stream`]).
//!
//! Settings of sockets ([`OF_SOCKETS`]) that the gateway does not have are those of its host side's kernel, which has the
//! program's sockets: the kernel's own files. They exist for programs on the host side only: elsewhere they would be
//! those of the caller's namespace.
//!
//! Limits: a file is opened for reading or for writing, not both; a file for writing has no `lseek`; a directory cannot
//! be opened as a descriptor (`find`), though it can be listed (`directory`). The result of a write is not reported to
//! programs that do not load this library, or end without closing their stream. Programs that were built against a C
//! library before 2.33 call `stat` by names that are not replaced.

mod directory;
mod glob;
mod path;
mod stat;
pub(crate) mod stream;

use std::ffi::CStr;

use libc::{c_int, ssize_t};
use nlsock::{Answer, MAX_NAME, Sysctl, ToDaemon};

use crate::connection::{awaited, connected};
use crate::errno::Errno;
use crate::fd::Fd;
use crate::kept::{self, Failure};
use crate::memory_file::in_memory;
use crate::program_memory::{Bytes, Text};
use crate::{gateway, sys, table};

/// Directory of the files.
const ROOT: [&[u8]; 3] = [b"proc", b"sys", b"net"];
/// Settings of sockets that are the kernel's, on the gateway's host side.
const OF_SOCKETS: [&[u8]; 13] = [
    b"core/optmem_max",
    b"core/rmem_default",
    b"core/rmem_max",
    b"core/somaxconn",
    b"core/wmem_default",
    b"core/wmem_max",
    b"ipv4/ip_autobind_reuse",
    b"ipv4/ip_local_port_range",
    b"ipv4/ip_local_reserved_ports",
    b"ipv4/ip_nonlocal_bind",
    b"ipv4/ip_unprivileged_port_start",
    b"ipv4/ping_group_range",
    b"ipv6/ip_nonlocal_bind",
];
/// First parts of the names of further such settings.
const OF_TRANSPORTS: [&[u8]; 2] = [b"ipv4/tcp_", b"ipv4/udp_"];
/// Maximum length of an answer; longer texts are sent in parts.
const MAX_ANSWER: usize = 64 << 10;
/// Maximum length of a write that has an effect (Linux `proc_first_pos_non_zero_ignore`): one number, in a page.
const PAGE: usize = 4096;

/// Name of a file or directory below `/proc/sys/net`, without a slash at either end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    /// Name of the file or directory `path`, relative to the directory `at`; `None` if it is outside `/proc/sys/net`, or a
    /// [setting of the kernel](Self::is_of_kernel).
    pub(crate) fn of(at: c_int, path: Text<'_>) -> Option<Self> {
        Self::below_root(at, path.get()?.to_bytes()).filter(|name| !name.is_of_kernel())
    }

    fn below_root(at: c_int, path: &[u8]) -> Option<Self> {
        if path.is_empty() || gateway::address().is_none() {
            return None;
        }
        if path.starts_with(b"/") {
            return has(path, b"sys").then(|| Self::absolute(path))?;
        }
        let mut room = [0; MAX_NAME];
        let directory = match at {
            libc::AT_FDCWD => sys::link(c"/proc/self/cwd", &mut room)?,
            at => link_of(at, &mut room)?,
        };
        let may_be = directory.starts_with(b"/proc") || has(path, b"proc");
        may_be.then(|| Self::absolute(&[directory, b"/", path].concat()))?
    }

    fn absolute(path: &[u8]) -> Option<Self> {
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in path.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        parts.strip_prefix(&ROOT).map(|rest| Self(rest.join(&b'/')))
    }

    /// Name of the host's file or directory `fd`; `None` if it is outside `/proc/sys/net`, or a [setting of the
    /// kernel](Self::is_of_kernel).
    pub(crate) fn of_hosts(fd: c_int) -> Option<Self> {
        Self::of_descriptor(fd).filter(|name| !name.is_of_kernel())
    }

    fn of_descriptor(fd: c_int) -> Option<Self> {
        if sys::file_system(fd) != Some(libc::PROC_SUPER_MAGIC) {
            return None;
        }
        let mut room = [0; MAX_NAME];
        let path = link_of(fd, &mut room)?;
        // The file system may be mounted anywhere.
        let end = path.windows(8).position(|part| part == b"/sys/net")? + 8;
        match path.get(end..)? {
            [] => Some(Self(Vec::new())),
            [b'/', rest @ ..] => Some(Self(rest.to_vec())),
            _ => None,
        }
    }

    /// Tells whether this is a setting of sockets that the kernel of the host side has, and the gateway does not.
    fn is_of_kernel(&self) -> bool {
        self.is_of_sockets() && gateway::is_on_host_side() && self.mode() == Err(Errno(libc::ENOENT))
    }

    fn is_of_sockets(&self) -> bool {
        let Self(name) = self;
        OF_SOCKETS.contains(&name.as_slice()) || OF_TRANSPORTS.iter().any(|start| name.starts_with(start))
    }

    /// File mode, as in `st_mode`.
    ///
    /// # Errors
    /// `ENOENT`: the file does not exist in the gateway.
    fn mode(&self) -> Result<u32, Errno> {
        self.query(Sysctl::Look).map(|reply| reply.answer.port)
    }

    /// Opens the file, as `open(2)` with these flags.
    ///
    /// # Errors
    /// As `open(2)`.
    pub(crate) fn open(&self, flags: c_int) -> Result<c_int, Errno> {
        let opened = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => self.query(Sysctl::Read).and_then(|reply| in_memory(&reply.text, flags)),
            libc::O_WRONLY => self.open_to_write(flags),
            _ => self.mode().and(Err(Errno(libc::EOPNOTSUPP))),
        };
        match opened {
            Ok(fd) if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => {
                drop(Fd(fd));
                Err(Errno(libc::EEXIST))
            }
            Ok(fd) if flags & libc::O_DIRECTORY != 0 => {
                drop(Fd(fd));
                Err(Errno(libc::ENOTDIR))
            }
            Err(Errno(libc::EISDIR)) if flags & libc::O_ACCMODE == libc::O_RDONLY => Err(Errno(libc::EOPNOTSUPP)),
            opened => opened,
        }
    }

    fn open_to_write(&self, flags: c_int) -> Result<c_int, Errno> {
        let fd = self.connection(flags & libc::O_CLOEXEC)?;
        // A program that inherits the descriptor can so distinguish it from a netlink socket, and reads return at once.
        sys::shut_down_reading(fd.0);
        table::enter(fd.0, table::FILE, 0, 0)?;
        Ok(fd.keep())
    }

    /// Connection that is the file, opened for writing.
    fn connection(&self, cloexec: c_int) -> Result<Fd, Errno> {
        let Self(name) = self;
        check_len(name)?;
        let fd = connected(cloexec)?;
        succeeded(ask(&fd, Sysctl::Open, name)?)?;
        Ok(fd)
    }

    fn query(&self, what: Sysctl) -> Result<SysctlReply, Errno> {
        query(what, &self.0)
    }
}

/// Text in the gateway's answer, and the answer.
struct SysctlReply {
    answer: Answer,
    text: Vec<u8>,
}

/// Requests that read are sent on the connection that the program keeps, if there is one.
fn query(what: Sysctl, name: &[u8]) -> Result<SysctlReply, Errno> {
    check_len(name)?;
    if let Some(done) = kept::with(|connection| ask(connection, what, name).map_err(Failure::Connection)) {
        match done {
            Err(Failure::Connection(_)) if !kept::is_confined() => {}
            done => return succeeded(done.map_err(Errno::from)?),
        }
    }
    succeeded(ask(&connected(libc::SOCK_CLOEXEC)?, what, name)?)
}

fn check_len(name: &[u8]) -> Result<(), Errno> {
    if name.len() > MAX_NAME { Err(Errno(libc::ENAMETOOLONG)) } else { Ok(()) }
}

fn ask(connection: &Fd, what: Sysctl, name: &[u8]) -> Result<SysctlReply, Errno> {
    let head = ToDaemon::Sysctl { what, name }.head();
    kept::send(connection, &[head.as_bytes(), name].concat())?;
    let mut text = vec![0; MAX_ANSWER];
    let len = kept::receive(connection, &mut text, 0)?;
    text.truncate(len);
    let answer = text.split_first_chunk().map(|(answer, _)| Answer::from_bytes(*answer));
    let answer = answer.ok_or(Errno(libc::ECONNREFUSED))?;
    text.drain(..Answer::LEN);
    Ok(SysctlReply { answer, text })
}

fn succeeded(reply: SysctlReply) -> Result<SysctlReply, Errno> {
    if reply.answer.error == 0 { Ok(reply) } else { Err(Errno(reply.answer.error)) }
}

/// Opens the gateway's file, if `path` is in `/proc/sys/net`.
pub(crate) fn open(at: c_int, path: Text<'_>, flags: c_int) -> Option<Result<c_int, Errno>> {
    Name::of(at, path).map(|name| name.open(flags))
}

/// Writes to a file, as `write(2)`.
///
/// # Errors
/// `EFAULT`: a buffer is null; the gateway's error.
pub(crate) fn write(fd: c_int, pieces: &[Bytes<'_>]) -> Result<ssize_t, Errno> {
    let mut text = vec![0; PAGE];
    let (mut end, mut len) = (0, 0_usize);
    for piece in pieces {
        if piece.is_null() && piece.len() > 0 {
            return Err(Errno(libc::EFAULT));
        }
        end += piece.copy_to(&mut text[end..]);
        len = len.saturating_add(piece.len());
    }
    if end > 0 {
        awaited(fd, &text[..end], || {}).map_err(gone)?;
    }
    Ok(len as ssize_t)
}

/// Waits for the results of asynchronous writes.
///
/// # Errors
/// The first failure.
fn settle(fd: c_int) -> Result<(), Errno> {
    awaited(fd, &[], || {}).map(drop).map_err(gone)
}

fn gone(errno: Errno) -> Errno {
    if errno.0 == libc::ECONNREFUSED { Errno(libc::EIO) } else { errno }
}

/// Enters standard input, output and error into the table, if another program has opened them as files of
/// `/proc/sys/net`: they are connections to the gateway whose receiving side is shut down.
pub(crate) fn find_inherited() {
    let Some(gateway) = gateway::address().map(instance) else { return };
    for fd in 0..3 {
        let is_gateways =
            |peer: &libc::sockaddr_un| c_int::from(peer.sun_family) == libc::AF_UNIX && instance(peer) == gateway;
        if !sys::peer(fd).as_ref().is_some_and(is_gateways) {
            continue;
        }
        let mut ready = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if sys::poll(&mut ready, Some(at_once)) == Ok(1) && ready[0].revents & libc::POLLRDHUP != 0 {
            // With a full table, results of writes are not reported.
            let _ = table::enter(fd, table::FILE, 0, 0);
        }
    }
}

/// Common name of an instance's sockets, without the suffix, which changes with a restart.
fn instance(address: &libc::sockaddr_un) -> Vec<u8> {
    let path: Vec<u8> = address.sun_path.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let end = name.iter().rposition(|&byte| byte == b'.').unwrap_or(name.len());
    name.get(..end).unwrap_or_default().to_vec()
}

/// Path of the file of a descriptor.
pub(crate) fn link_of(fd: c_int, room: &mut [u8]) -> Option<&[u8]> {
    let mut path = *b"/proc/self/fd/0000000000\0";
    let mut left = u32::try_from(fd).ok()?;
    for digit in path.iter_mut().rev().skip(1).take(10) {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    // Descriptor numbers in `/proc/self/fd` have no leading zeros.
    let digits = path.get(14..24)?;
    let first = digits.iter().position(|&digit| digit != b'0').unwrap_or(9);
    let mut name = Vec::from(b"/proc/self/fd/");
    name.extend_from_slice(digits.get(first..)?);
    name.push(0);
    sys::link(CStr::from_bytes_with_nul(&name).ok()?, room)
}

fn has(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

/// Flags of `open(2)` for a mode of `fopen(3)`.
pub(crate) fn flags_of(mode: &CStr) -> c_int {
    let mode = mode.to_bytes();
    let access = match (mode.contains(&b'+'), mode.first()) {
        (true, _) => libc::O_RDWR,
        (false, Some(b'r')) => libc::O_RDONLY,
        (false, _) => libc::O_WRONLY,
    };
    let made = if mode.first() == Some(&b'r') { 0 } else { libc::O_CREAT };
    let cloexec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    access | made | cloexec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_apart_as_the_kernel_does() {
        let name = |path: &str| Name::absolute(path.as_bytes()).map(|name| String::from_utf8(name.0).unwrap());
        let cases = [
            ("/proc/sys/net", Some("")),
            ("/proc/sys/net/", Some("")),
            ("//proc/./sys//net/ipv4/../ipv4/ip_forward", Some("ipv4/ip_forward")),
            ("/tmp/../proc/sys/net/core", Some("core")),
            ("/../proc/sys/net/ipv4/conf/a.1/forwarding", Some("ipv4/conf/a.1/forwarding")),
            ("/proc/sys/net/../kernel/osrelease", None),
            ("/proc/sys/network", None),
            ("/proc/sys", None),
            ("/x/proc/sys/net/core", None),
        ];
        for (path, want) in cases {
            assert_eq!(name(path).as_deref(), want, "{path}");
        }
    }

    #[test]
    fn a_descriptor_leads_where_the_kernel_says() {
        let mut room = [0; MAX_NAME];
        let file = std::fs::File::open("/proc/sys/net/core/somaxconn").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(link_of(fd, &mut room), Some(&b"/proc/sys/net/core/somaxconn"[..]));
        assert_eq!(Name::of_hosts(fd), Some(Name(b"core/somaxconn".to_vec())));
        let other = std::fs::File::open("/proc/self/net/dev").unwrap();
        assert_eq!(Name::of_hosts(std::os::fd::AsRawFd::as_raw_fd(&other)), None);
        let directory = std::fs::File::open("/proc/sys/net").unwrap();
        assert_eq!(Name::of_hosts(std::os::fd::AsRawFd::as_raw_fd(&directory)), Some(Name(Vec::new())));
        assert_eq!(link_of(-1, &mut room), None);
    }

    #[test]
    fn settings_of_sockets_are_told_from_those_of_the_node() {
        let is_of_sockets = |name: &str| Name(name.into()).is_of_sockets();
        for name in ["core/somaxconn", "ipv4/tcp_rmem", "ipv4/udp_rmem_min", "ipv4/ip_local_port_range"] {
            assert!(is_of_sockets(name), "{name}");
        }
        for name in ["", "core", "ipv4", "ipv4/ip_forward", "ipv4/conf/all/forwarding", "core/netdev_max_backlog"] {
            assert!(!is_of_sockets(name), "{name}");
        }
    }

    #[test]
    fn modes_of_streams_are_flags() {
        let cases = [
            (c"r", libc::O_RDONLY),
            (c"rbe", libc::O_RDONLY | libc::O_CLOEXEC),
            (c"w", libc::O_WRONLY | libc::O_CREAT),
            (c"a", libc::O_WRONLY | libc::O_CREAT),
            (c"r+", libc::O_RDWR),
            (c"w+", libc::O_RDWR | libc::O_CREAT),
        ];
        for (mode, want) in cases {
            assert_eq!(flags_of(mode), want, "{mode:?}");
        }
    }
}
