//! The group whose members may look at root's gateways: `fatpath`, if the machine has it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Gid, Mode, chmod, chownat, fstat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::set_thread_groups;

/// Name of the group.
const GROUP: &str = "fatpath";

/// Groups of the machine. Those of other sources of names (nsswitch.conf(5)) are not read.
const GROUPS: &str = "/etc/group";

/// Group of the view socket, if it has one besides that of its user.
static VIEWERS: OnceLock<Option<Gid>> = OnceLock::new();

/// Notes the group, which root's process joins: a file's owner may give the file to a group of the owner's without a capability. To be
/// called before capabilities are given up, and before there is another thread.
pub(crate) fn join() {
    let found = fs::read_to_string(GROUPS).ok().and_then(|groups| group_of(&groups, GROUP)).map(Gid::from_raw);
    let group = found.filter(|group| getegid() == *group || geteuid().is_root());
    if let Some(group) = group
        && getegid() != group
        && let Ok(mut groups) = getgroups()
        && !groups.contains(&group)
    {
        groups.push(group);
        // It fails in user namespaces, and where a service manager keeps these rights back.
        let _ = set_thread_groups(&groups);
    }
    // A process has one group of viewers.
    let _ = VIEWERS.set(group);
}

/// Admits the group to a socket's file, as far as this process may; else the socket stays its user's alone.
///
/// # Errors
/// Error of fstat(2) or chmod(2); `ESTALE`: a new file would have the group, as the process has it, and this one cannot.
pub(crate) fn admit(socket: &File) -> io::Result<()> {
    admit_group(socket, VIEWERS.get().copied().flatten())
}

fn admit_group(socket: &File, group: Option<Gid>) -> io::Result<()> {
    let (mut mode, mut is_stale) = (Mode::RUSR | Mode::WUSR, false);
    if let Some(group) = group {
        let has_group = fstat(socket)?.st_gid == group.as_raw();
        // A unit's filter may forbid the call.
        let give = || chownat(socket, "", None, Some(group), AtFlags::EMPTY_PATH);
        match if has_group { Ok(()) } else { give() } {
            Ok(()) => mode |= Mode::RGRP | Mode::WGRP,
            Err(err) => {
                tracing::info!("view socket: for its user alone: group {GROUP}: {err}");
                is_stale = getegid() == group;
            }
        }
    }
    // Linux has no fchmod(2) for such a descriptor.
    chmod(format!("/proc/self/fd/{}", socket.as_raw_fd()), mode)?;
    if is_stale { Err(Errno::STALE.into()) } else { Ok(()) }
}

/// Number of the group `name` in the text of group(5).
fn group_of(groups: &str, name: &str) -> Option<u32> {
    let mut lines = groups.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    use super::*;

    #[test]
    fn group_is_admitted_while_there_is_one() {
        let path = std::env::temp_dir().join(format!("fatpath-viewers-{}", std::process::id()));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let flags = (rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW).bits() as i32;
        let socket = File::options().read(true).custom_flags(flags).open(&path).unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        admit_group(&socket, Some(getegid())).unwrap();
        assert_eq!(mode(), 0o660);
        // The group may be gone at the next start.
        admit_group(&socket, None).unwrap();
        assert_eq!(mode(), 0o600);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn group_is_found_by_its_whole_name() {
        let groups = "root:x:0:\nfatpath-x:x:1:\nfatpath:x:998:nobody,daemon\nbad\nwrong:x:y:\n";
        for (name, want) in [("fatpath", Some(998)), ("root", Some(0)), ("fat", None), ("bad", None), ("wrong", None)] {
            assert_eq!(group_of(groups, name), want, "{name}");
        }
    }
}
