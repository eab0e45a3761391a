//! User of a gateway that root has started: `fatpath`, if the host has this user, or the one of `--user`. The openers stay root's.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::OnceLock;

use client::CliError;
use rustix::process::{
    Gid, Uid, getegid, geteuid, getgroups, parent_process_death_signal, set_parent_process_death_signal,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::reach::UserIds;

/// User of gateways, if the host has it.
const DEFAULT: &str = "fatpath";

/// File of the host's own users (passwd(5)).
const USERS: &str = "/etc/passwd";

/// Directory of this process's threads.
const THREADS: &str = "/proc/self/task";

/// User that this process, or the one that has started anew as this one, has changed to.
static CHANGED: OnceLock<String> = OnceLock::new();

/// User that a gateway changes to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct User {
    name: String,
    pub(crate) ids: UserIds,
    /// Whether `--user` names it, so that a gateway of another user is none.
    is_chosen: bool,
}

impl User {
    /// The user of a gateway with the option `--user`, if there is one. `None`: that of this process.
    ///
    /// # Errors
    /// The option has no user of this host, or another user than that of this process, which is not root.
    pub(crate) fn of_gateway(option: Option<&str>) -> Result<Option<Self>, CliError> {
        let own = geteuid().as_raw();
        let Some(option) = option else {
            return Ok(if own == 0 { by_name(DEFAULT).filter(|user| user.ids.uid != 0) } else { None });
        };
        let refused = |why: &str| Err(CliError::failed(format!("--user {option}: {why}")));
        let found = match option.parse() {
            Ok(u32::MAX) => None,
            Ok(uid) => Some(by_number(uid)),
            Err(_) => by_name(option).or_else(|| asked(option)),
        };
        match found {
            None => refused("this host has no such user"),
            Some(user) if user.ids.uid == own => Ok(None),
            Some(user) if own == 0 => Ok(Some(Self { is_chosen: true, ..user })),
            Some(_) => refused("only root may start a gateway of another user"),
        }
    }

    /// Name or number, as the option or the host has it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the gateway may not run as another user.
    pub(crate) const fn is_chosen(&self) -> bool {
        self.is_chosen
    }

    /// Changes the real, the effective and the saved user and group of this thread, the only one, which is in no further group then. The
    /// signal at its parent's end stays.
    ///
    /// # Errors
    /// There are other threads, which would keep their user; text of the call that the kernel refuses; user and groups are as before.
    pub(super) fn change_process(&self) -> Result<(), String> {
        let threads = fs::read_dir(THREADS).map_err(|err| format!("{THREADS}: {err}"))?.count();
        if threads != 1 {
            return Err(format!("{THREADS}: {threads} threads, and one can be changed"));
        }
        let failed = |call: &'static str| move |err| format!("{call}: {err}");
        let signal = parent_process_death_signal().map_err(failed("PR_GET_PDEATHSIG"))?;
        let (uid, gid) = (Uid::from_raw(self.ids.uid), Gid::from_raw(self.ids.gid));
        let (groups, group) = (getgroups().map_err(failed("getgroups"))?, getegid());
        set_thread_groups(&[]).map_err(failed("setgroups"))?;
        let changed = set_thread_res_gid(gid, gid, gid)
            .map_err(failed("setresgid"))
            .and_then(|()| set_thread_res_uid(uid, uid, uid).map_err(failed("setresuid")));
        if changed.is_err() {
            // A process that may give groups up may take them, too.
            set_thread_res_gid(group, group, group).map_err(failed("setresgid"))?;
            set_thread_groups(&groups).map_err(failed("setgroups"))?;
        }
        changed?;
        note_changed(&self.name);
        set_parent_process_death_signal(signal).map_err(failed("PR_SET_PDEATHSIG"))
    }
}

/// Makes this process, whose user stays, a member of the group of a gateway's user: it may give files to that group without a capability.
///
/// # Errors
/// Text of the call that the kernel refuses.
pub(crate) fn join(user: UserIds) -> Result<(), String> {
    let mut groups = getgroups().map_err(|err| format!("getgroups: {err}"))?;
    groups.push(Gid::from_raw(user.gid));
    set_thread_groups(&groups).map_err(|err| format!("setgroups: {err}"))
}

/// Notes that a gateway of root that has started anew as this process has changed its user before, which it has named.
pub(crate) fn note_changed_before(name: Option<String>) {
    note_changed(&name.unwrap_or_else(|| geteuid().as_raw().to_string()));
}

fn note_changed(name: &str) {
    // A process changes its user once.
    let _ = CHANGED.set(name.to_owned());
}

/// Name of the user that this process has changed to.
pub(crate) fn changed() -> Option<&'static str> {
    CHANGED.get().map(String::as_str)
}

/// Whether this process belongs to root, or did before it has changed its user.
pub(crate) fn is_of_root() -> bool {
    changed().is_some() || geteuid().is_root()
}

/// User of the gateway's files, which the opener makes.
pub(crate) fn owner_of_files() -> u32 {
    if changed().is_some() { 0 } else { geteuid().as_raw() }
}

/// The host's user with this number, or a user without a name, whose group has the same number.
fn by_number(uid: u32) -> User {
    let found = users().and_then(|users| entry(&users, |user| user.ids.uid == uid));
    found.unwrap_or(User { name: uid.to_string(), ids: UserIds { uid, gid: uid }, is_chosen: false })
}

/// A user of the host's own file.
fn by_name(name: &str) -> Option<User> {
    entry(&users()?, |user| user.name == name)
}

/// A user by the C library's sources of users (nsswitch.conf(5)), which a static program cannot load.
fn asked(name: &str) -> Option<User> {
    let output = Command::new("getent").args(["passwd", "--", name]).output().ok()?;
    entry(&String::from_utf8(output.stdout).ok()?, |user| user.name == name)
}

fn users() -> Option<String> {
    match fs::read(USERS) {
        // Comments of users need not be UTF-8.
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(err) => {
            if err.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{USERS}: {err}");
            }
            None
        }
    }
}

/// The first line of a file of users that `is` the one.
fn entry(users: &str, is: impl Fn(&User) -> bool) -> Option<User> {
    let parsed = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(User { name: name.to_owned(), ids: UserIds { uid, gid }, is_chosen: false })
    });
    parsed.into_iter().find(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "root:x:0:0:root:/root:/bin/bash\n# a comment\n+nis\nbroken:x:y:1::\n\
                        fatpath:!:998:997:gateways:/nonexistent:/usr/sbin/nologin\nother:x:998:1::/:\n";

    #[test]
    fn user_is_found_by_name_and_number() {
        let found = |is: &dyn Fn(&User) -> bool| entry(FILE, is).map(|user| (user.name, user.ids.uid, user.ids.gid));
        assert_eq!(found(&|user| user.name == "fatpath"), Some(("fatpath".to_owned(), 998, 997)));
        assert_eq!(found(&|user| user.ids.uid == 998), Some(("fatpath".to_owned(), 998, 997)));
        assert_eq!(found(&|user| user.name == "broken" || user.name == "+nis"), None);
        let free = by_number(61_234);
        assert_eq!((free.name.as_str(), free.ids.uid, free.ids.gid), ("61234", 61_234, 61_234));
    }

    #[test]
    fn option_with_an_unknown_user_is_refused_by_name() {
        for unknown in ["no-such-user", "4294967295", "-1", "", "0x10"] {
            let why = User::of_gateway(Some(unknown)).unwrap_err().message;
            assert_eq!(why, format!("--user {unknown}: this host has no such user"));
        }
    }

    #[test]
    fn process_with_other_threads_keeps_its_user() {
        // Among them are this test's and the main one.
        let why = by_number(61_234).change_process().unwrap_err();
        assert!(why.ends_with(" threads, and one can be changed"), "{why}");
        assert_eq!(changed(), None);
    }

    #[test]
    fn option_with_the_own_user_changes_nothing() {
        let own = geteuid().as_raw();
        assert_eq!(User::of_gateway(Some(&own.to_string())).unwrap(), None);
        let other = User::of_gateway(Some("61234"));
        match own {
            0 => assert!(other.unwrap().is_some_and(|user| user.is_chosen && user.ids.uid == 61_234)),
            _ => assert!(other.unwrap_err().message.ends_with("only root may start a gateway of another user")),
        }
    }
}
