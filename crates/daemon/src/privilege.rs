//! Privilege of a process that has connected to a socket of the gateway: `CAP_NET_ADMIN`, as Linux requires
//! (`netlink_capable`).
//!
//! The capability counts if it is in the process's *permitted* set, since daemons make it effective around single
//! calls, and if the process is in the gateway's user namespace, since `unshare -Ur` gives any user all capabilities in
//! a new namespace. The process is the one that connected (`SO_PEERPIDFD`, Linux 6.5), and the content of `/proc/PID`
//! counts only if the pidfd shows that the process still has that PID.
//!
//! A process may have connected as one program and then executed another, which has capabilities by its file or is
//! setuid-root. Requests that the first program sent must not run with the rights of the second (Linux
//! `file_ns_capable`, CVE-2014-0181). For root there is no difference: `SO_PEERCRED` holds the user at the call of
//! connect(2), and root may execute any program. For other users see [`Privilege::Claimable`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, openat, stat, statat};
use rustix::io::{Errno, read};
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use crate::confine;

/// Bit of `CAP_NET_ADMIN` in a set of capabilities (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;

/// Size of the buffer of the kernel for a file of `/proc`.
const PAGE: usize = 4096;

/// Files with the users and the groups of a namespace.
const MAPS: [&str; 2] = ["uid_map", "gid_map"];

/// Number of the [program of the gateway itself](OwnProgram), while one runs.
static OWN_PROGRAM: Mutex<Option<u32>> = Mutex::new(None);

/// A program that the gateway runs on its own netlink socket, until this value is dropped. It may change the node, although the
/// gateway has no capability that it could give to it.
#[derive(Debug)]
pub(super) struct OwnProgram(());

impl OwnProgram {
    /// Starts the program. Peers that connect meanwhile are judged afterwards.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(command: &mut Command) -> io::Result<(Child, Self)> {
        let mut own = own_program();
        let child = command.spawn()?;
        *own = Some(child.id());
        Ok((child, Self(())))
    }
}

impl Drop for OwnProgram {
    fn drop(&mut self) {
        *own_program() = None;
    }
}

fn own_program() -> MutexGuard<'static, Option<u32>> {
    OWN_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that has connected.
#[derive(Debug)]
pub(super) struct Peer {
    /// The peer's effective user at the call of connect(2), as seen in the gateway's user namespace.
    pub(super) uid: u32,
    /// The peer's PID.
    pub(super) pid: u32,
    /// `None` if it is unknown which process has that PID now.
    pidfd: Option<OwnedFd>,
}

/// Right to change the gateway's state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Privilege {
    /// No right: the process may only read.
    None,
    /// The process holds the capability, and is not root. It gets the right when a check succeeds while none of its
    /// earlier requests is pending.
    Claimable,
    /// The right to change everything.
    Full,
}

impl Peer {
    /// The process at the other end of `socket`.
    ///
    /// # Errors
    /// Error of getsockopt(2); `EMFILE` if no descriptor is free.
    pub(super) fn of(socket: &OwnedFd) -> Result<Self, Errno> {
        let credentials = sockopt::socket_peercred(socket)?;
        let pidfd = match link::peer_pidfd(socket) {
            Ok(pidfd) => Some(pidfd),
            // Before Linux 6.5 another process may have got the PID meanwhile. A PID of root is accepted: only a
            // process of root that has dropped the capability could gain by that.
            Err(err) if err.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error()) && credentials.uid.is_root() => {
                pidfd_open(credentials.pid, PidfdFlags::empty()).ok()
            }
            Err(err) if is_full(&err) => return Err(Errno::MFILE),
            // The process has ended.
            Err(_) => None,
        };
        let pid = credentials.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Self { uid: credentials.uid.as_raw(), pid, pidfd })
    }

    /// The process that has the number `pid` now; `None` if no process has it. It may be another process than the one
    /// that had this number before.
    pub(super) fn with_pid(pid: u32, uid: u32) -> Option<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
        Some(Self { uid, pid, pidfd: Some(pidfd) })
    }

    /// Privilege of the peer's process. If root has not started the gateway, its own user may change it. The user that a gateway of root
    /// has changed to is that of other gateways, which may have been taken over.
    ///
    /// # Errors
    /// No descriptor is free for the check (`EMFILE`, `ENFILE`).
    pub(super) fn privilege(&self) -> Result<Privilege, Errno> {
        let is_own = !confine::is_of_root() && geteuid().as_raw() == self.uid;
        if is_own || self.is_own_program() {
            return Ok(Privilege::Full);
        }
        Ok(match (self.check_net_admin()?, self.uid) {
            (false, _) => Privilege::None,
            (true, 0) => Privilege::Full,
            (true, _) => Privilege::Claimable,
        })
    }

    /// Tells whether the process holds `CAP_NET_ADMIN` now, in the gateway's user namespace, or is a program of the gateway itself.
    pub(super) fn holds_net_admin(&self) -> bool {
        self.check_net_admin().unwrap_or(false)
    }

    fn check_net_admin(&self) -> Result<bool, Errno> {
        if self.is_own_program() {
            return Ok(true);
        }
        let judged = self.pidfd.as_ref().ok_or(Errno::SRCH).and_then(holds_net_admin);
        judged.or_else(|err| match err {
            Errno::MFILE | Errno::NFILE => Err(err),
            err => {
                tracing::debug!(uid = self.uid, pid = self.pid, "cannot read its capabilities: {err}");
                Ok(false)
            }
        })
    }

    fn is_own_program(&self) -> bool {
        *own_program() == Some(self.pid) && self.is_alive()
    }

    /// Tells whether the process still runs, so that no other process has its PID.
    pub(super) fn is_alive(&self) -> bool {
        self.pidfd.as_ref().is_some_and(runs)
    }
}

/// Whether no descriptor is free.
fn is_full(err: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| err.raw_os_error() == Some(errno.raw_os_error()))
}

fn holds_net_admin(pidfd: &OwnedFd) -> Result<bool, Errno> {
    let pid = number_of(pidfd)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = openat(CWD, format!("/proc/{}", pid.as_raw_nonzero()), flags, Mode::empty())?;
    // While a process runs no other one has its PID.
    if !runs(pidfd) {
        return Err(Errno::SRCH);
    }
    // Capabilities are read before the namespace: a process can enter a new namespace, in which it has all
    // capabilities, but cannot return.
    let permitted = permitted(&text(&proc, "status")?).ok_or(Errno::INVAL)?;
    Ok(permitted >> CAP_NET_ADMIN & 1 == 1 && shares_user_namespace(&proc)?)
}

/// Whether the process of a pidfd has not ended.
fn runs(pidfd: &OwnedFd) -> bool {
    let (mut ready, now) = ([PollFd::new(pidfd, PollFlags::IN)], Timespec::default());
    poll(&mut ready, Some(&now)) == Ok(0)
}

/// The PID of a process in the gateway's PID namespace.
fn number_of(pidfd: &OwnedFd) -> Result<Pid, Errno> {
    let info = text(CWD, &format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = field(&info, "Pid:").and_then(|number| number.parse().ok());
    // -1: the process has ended; 0: it is in a PID namespace that the gateway cannot see.
    number.filter(|&number: &i32| number > 0).and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// The permitted capabilities in the text of `/proc/PID/status`.
fn permitted(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapPrm:")?, 16).ok()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Tells whether the process of a directory of `/proc` is in the gateway's user namespace.
///
/// A gateway with fewer capabilities than the process, and without `CAP_SYS_PTRACE`, may not read the process's
/// namespace (ptrace(2), `PTRACE_MODE_READ_FSCREDS`), but any process may read the namespace's maps of users and
/// groups. If the maps equal the gateway's, the namespace counts as the gateway's: a map of more than the process's own
/// user takes `CAP_SETUID` in the parent namespace.
fn shares_user_namespace(proc: &OwnedFd) -> Result<bool, Errno> {
    let namespace = |found: Stat| (found.st_dev, found.st_ino);
    match statat(proc, "ns/user", AtFlags::empty()).map(namespace) {
        Ok(found) => Ok(found == namespace(stat("/proc/self/ns/user")?)),
        Err(Errno::ACCESS | Errno::PERM) => {
            for (map, ours) in MAPS.iter().zip(own_maps()?) {
                if text(proc, map)? != *ours || is_of_one(ours) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Err(err) => Err(err),
    }
}

/// Maps of the gateway's user namespace, which are written once.
fn own_maps() -> Result<&'static [String; 2], Errno> {
    static OWN: OnceLock<[String; 2]> = OnceLock::new();
    if let Some(maps) = OWN.get() {
        return Ok(maps);
    }
    let [users, groups] = MAPS.map(|map| text(CWD, &format!("/proc/self/{map}")));
    let maps = [users?, groups?];
    // A new namespace has none yet.
    if maps.iter().any(String::is_empty) { Err(Errno::SRCH) } else { Ok(OWN.get_or_init(|| maps)) }
}

/// Tells whether a map has one user alone; any user may create such a map.
fn is_of_one(map: &str) -> bool {
    map.split_whitespace().skip(2).step_by(3).all(|count| count == "1") && map.lines().count() <= 1
}

/// The text of a file of `/proc` in a directory. A read of less than half a page is the whole file: the kernel ends a read early where the
/// next line does not fit into a page (`seq_read_iter`), and these lines are short.
fn text(dir: impl AsFd, name: &str) -> Result<String, Errno> {
    let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(PAGE);
    loop {
        let count = read(&file, spare_capacity(&mut bytes))?;
        if count == 0 || bytes.len() < PAGE / 2 {
            break;
        }
        bytes.reserve(PAGE);
    }
    String::from_utf8(bytes).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permitted_reads_the_permitted_set_alone() {
        let status = |set: &str| format!("Name:\tCapPrm: 1\nCapInh:\tffffffffffffffff\nCapPrm:\t{set}\nCapEff:\t0\n");
        assert_eq!(permitted(&status("0000000000001000")), Some(1 << CAP_NET_ADMIN));
        assert_eq!(permitted(&status("000001ffffffefff")).map(|set| set >> CAP_NET_ADMIN & 1), Some(0));
        assert_eq!(permitted(&status("none")), None);
        assert_eq!(permitted("CapEff:\t000001ffffffffff\n"), None);
    }

    #[test]
    fn peer_of_own_process_holds_what_the_process_does() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let peer = Peer::of(&OwnedFd::from(ours)).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let is_held = permitted(&status).unwrap() >> CAP_NET_ADMIN & 1 == 1;
        assert_eq!((peer.pid, peer.is_alive()), (std::process::id(), true));
        assert_eq!(peer.holds_net_admin(), is_held);
        drop(theirs);
    }

    #[test]
    fn uid_map_of_one_user_is_recognized() {
        assert!(is_of_one("         0       1000          1\n"));
        assert!(!is_of_one("         0          0 4294967295\n"));
        assert!(!is_of_one("         0       1000          1\n         1     100000      65536\n"));
    }
}
