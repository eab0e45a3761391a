//! The group whose members may look at root's gateways: `fatpath`, if the machine has it.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{Gid, Mode, chmod, chown, stat};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::set_thread_groups;

/// Name of the group.
const GROUP: &str = "fatpath";

/// Groups of the machine. Those of other sources of names (nsswitch.conf(5)) are not read.
const GROUPS: &str = "/etc/group";

/// Group of the view socket, if it has one besides that of the gateway's user.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Viewers(Option<Gid>);

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

    /// Admits the group to the socket at `path`, as far as this process may; else the socket stays its user's alone.
    ///
    /// # Errors
    /// Error of stat(2) or chmod(2).
    pub(crate) fn admit(&self, path: &Path) -> io::Result<()> {
        let mut mode = Mode::RUSR | Mode::WUSR;
        if let Self(Some(group)) = *self {
            // A unit's filter may forbid the call.
            let has_group = stat(path)?.st_gid == group.as_raw();
            match if has_group { Ok(()) } else { chown(path, None, Some(group)) } {
                Ok(()) => mode |= Mode::RGRP | Mode::WGRP,
                Err(err) => tracing::info!("{}: for this user alone: group {GROUP}: {err}", path.display()),
            }
        }
        Ok(chmod(path, mode)?)
    }
}

/// Number of the group `name` in the text of group(5).
fn group_of(groups: &str, name: &str) -> Option<u32> {
    let mut lines = groups.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_found_by_its_whole_name() {
        let groups = "root:x:0:\nfatpath-x:x:1:\nfatpath:x:998:nobody,daemon\nbad\nwrong:x:y:\n";
        for (name, want) in [("fatpath", Some(998)), ("root", Some(0)), ("fat", None), ("bad", None), ("wrong", None)] {
            assert_eq!(group_of(groups, name), want, "{name}");
        }
    }
}
