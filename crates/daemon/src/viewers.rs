//! The group whose members may look at root's gateways: `fatpath`, if the machine has it.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, chmod, chownat, fstat, open};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::set_thread_groups;

/// Name of the group.
const GROUP: &str = "fatpath";

/// Groups of the machine. Those of other sources of names (nsswitch.conf(5)) are not read.
const GROUPS: &str = "/etc/group";

/// Group of the view socket, if it has one besides that of the gateway's user.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Viewers(Option<Gid>);

/// Users that a socket admits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Admitted {
    /// The gateway's user, and the group if there is one.
    Group,
    /// The gateway's user. A new file would have the group, as the process has it.
    NewFileWould,
    /// The gateway's user.
    UserAlone,
}

impl Viewers {
    /// The group, which root's process joins: a file's owner may give the file to a group of the owner's without a capability. To be
    /// called before capabilities are given up, and before there is another thread.
    pub(crate) fn join() -> Self {
        let found = fs::read_to_string(GROUPS).ok().and_then(|groups| group_of(&groups, GROUP));
        let Some(group) = found.map(Gid::from_raw) else { return Self(None) };
        if getegid() == group {
            return Self(Some(group));
        }
        if !geteuid().is_root() {
            return Self(None);
        }
        if let Ok(mut groups) = getgroups()
            && !groups.contains(&group)
        {
            groups.push(group);
            // It fails in user namespaces, and where a service manager keeps these rights back.
            let _ = set_thread_groups(&groups);
        }
        Self(Some(group))
    }

    /// Admits the group to the socket at `path`, as far as this process may; else the socket stays its user's alone. A link in its place is
    /// not followed.
    ///
    /// # Errors
    /// There is another file than a socket, or error of open(2), fstat(2) or chmod(2).
    pub(crate) fn admit(&self, path: &Path) -> io::Result<Admitted> {
        let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let data = fstat(&file)?;
        if FileType::from_raw_mode(data.st_mode) != FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket"));
        }
        let (mut mode, mut admitted) = (Mode::RUSR | Mode::WUSR, Admitted::Group);
        if let Self(Some(group)) = *self {
            // A unit's filter may forbid the call.
            let has_group = data.st_gid == group.as_raw();
            let give = || chownat(CWD, path, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
            match if has_group { Ok(()) } else { give() } {
                Ok(()) => mode |= Mode::RGRP | Mode::WGRP,
                Err(err) => {
                    tracing::info!("{}: for this user alone: group {GROUP}: {err}", path.display());
                    admitted = if getegid() == group { Admitted::NewFileWould } else { Admitted::UserAlone };
                }
            }
        }
        // Linux has no fchmod(2) for such a descriptor.
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
        Ok(admitted)
    }
}

/// Number of the group `name` in the text of group(5).
fn group_of(groups: &str, name: &str) -> Option<u32> {
    let mut lines = groups.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_socket_is_admitted() {
        let dir = std::env::temp_dir().join(format!("fatpath-viewers-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let [socket, file, link] = ["socket", "file", "link"].map(|name| dir.join(name));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let viewers = Viewers(Some(getegid()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let before = mode(&file);
        assert_eq!(viewers.admit(&file).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(viewers.admit(&link).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(mode(&file), before);
        assert_eq!((viewers.admit(&socket).unwrap(), mode(&socket)), (Admitted::Group, 0o660));
        // The group may be gone at the next start.
        assert_eq!((Viewers(None).admit(&socket).unwrap(), mode(&socket)), (Admitted::Group, 0o600));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn group_is_found_by_its_whole_name() {
        let groups = "root:x:0:\nfatpath-x:x:1:\nfatpath:x:998:nobody,daemon\nbad\nwrong:x:y:\n";
        for (name, want) in [("fatpath", Some(998)), ("root", Some(0)), ("fat", None), ("bad", None), ("wrong", None)] {
            assert_eq!(group_of(groups, name), want, "{name}");
        }
    }
}
