//! Restrictions of the process.
//!
//! - Before it reads anything: only root may read its memory, which has keys, and it keeps no descriptor of the program
//!   that started it, but those that a service manager passes.
//! - Before it starts threads: it changes its [`user`], if root has started it, gives up all [capabilities](rights), and reaches only
//!   [`files`] in some directories, and no TCP. The [openers](crate::opener), which have them, are started before.
//! - Once it is ready: a filter of system calls on all threads ([`launch::sandbox`]), with `no_new_privs`. An opener has one from its
//!   first order on.
//!
//! A process that is not dumpable (prctl(2), `PR_SET_DUMPABLE`) leaves no core file, also where the kernel passes core
//! files to a program whatever `RLIMIT_CORE` is, and is not traced by its own user. Its files of `/proc` belong to root:
//! a gateway without privilege may not write its `/proc/self/uid_map`. The opener of the host side does that; `execve`
//! makes it dumpable again, and it has no keys.

mod files;
mod reach;
mod rights;
mod user;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use client::CliError;
use ctl::state::SandboxState;
pub(crate) use launch::sandbox::Role;
use launch::sandbox::{self, Unlisted};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

pub(crate) use files::Places;
pub(crate) use reach::UserIds;
pub use rights::LinkRight;
pub(crate) use rights::{admit, held, keep, of_host_side, of_links, rights, settle_priority};
pub(crate) use user::{User, changed, is_of_root, join, note_changed_before, owner_of_files};

/// Environment variable that selects what a system call outside of the list does.
const VARIABLE: &str = "FATPATH_SANDBOX";

/// Name of the restriction of files.
pub(crate) const LANDLOCK: &str = "Landlock";

/// Reason for which files are not restricted.
const NO_LANDLOCK: &str = "this kernel has none, or has it switched off";

/// The sandbox of this process, once it is complete.
static SANDBOX: OnceLock<Sandbox> = OnceLock::new();

/// Directories that this process reaches, once Landlock is in force.
static PLACES: OnceLock<Places> = OnceLock::new();

/// Names of capabilities by their numbers (capabilities(7)).
const CAPABILITIES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// Restrictions of this process, as far as they are set.
#[derive(Debug)]
pub(crate) struct Sandbox {
    is_on: bool,
    unlisted: Unlisted,
    /// ABI of Landlock; 0 without it.
    landlock: i32,
    /// Restrictions that could not be set, each with the reason.
    missing: Vec<String>,
}

impl Sandbox {
    /// Sets the restrictions of a process that has not read anything. `taken`: whether it keeps no descriptors, with a sandbox and
    /// without one, and a line for the log. A restriction that the kernel lacks is logged.
    ///
    /// # Errors
    /// The environment selects no effect that there is.
    pub(crate) fn begin(is_on: bool, taken: io::Result<Option<String>>) -> Result<Self, CliError> {
        let unlisted = unlisted()?;
        let mut sandbox = Self { is_on, unlisted, landlock: 0, missing: Vec::new() };
        match taken {
            Ok(warning) => warning.iter().for_each(|warning| tracing::warn!("{warning}")),
            Err(err) => sandbox.note("/proc/self/fd", "inherited descriptors stay open", Err::<(), _>(err)),
        }
        if is_on {
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            sandbox.note("RLIMIT_CORE", "core files", setrlimit(Resource::Core, none));
            let set = set_dumpable_behavior(DumpableBehavior::NotDumpable);
            sandbox.note("PR_SET_DUMPABLE", "core files", set);
        }
        Ok(sandbox)
    }

    /// Whether the process restricts itself.
    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Changes the user of this thread, and of those that it starts, and gives up their capabilities. Links of `rights` alone may be
    /// opened from then on.
    ///
    /// # Errors
    /// A user that was chosen cannot be changed to.
    pub(crate) fn give_up_rights(&mut self, rights: BTreeSet<LinkRight>, user: Option<&User>) -> Result<(), CliError> {
        if !self.is_on {
            return Ok(());
        }
        let (changed, given_up) = rights::give_up(rights, user);
        match user.zip(changed.err()) {
            Some((user, why)) if user.is_chosen() => {
                return Err(CliError::failed(format!("--user {}: {why}", user.name())));
            }
            Some((user, why)) => {
                self.leave_out(user, &why);
            }
            None => {}
        }
        self.note("capabilities", "all are kept", given_up);
        // A change of the user lets core files be written.
        let set = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        self.note("PR_SET_DUMPABLE", "memory", set);
        Ok(())
    }

    /// Notes that the gateway does not change to a user that was not chosen.
    pub(crate) fn leave_out(&mut self, user: &User, why: &str) {
        self.note(&format!("user {}", user.name()), "the gateway stays root", Err::<(), _>(why));
    }

    /// Restricts the files that this thread, and those that it starts, reach from then on.
    pub(crate) fn restrict_files(&mut self, places: Places) {
        if !self.is_on {
            return;
        }
        let restricted = places.restrict().and_then(|abi| match abi {
            0 => Err(NO_LANDLOCK.to_owned()),
            abi => Ok(abi),
        });
        match restricted {
            Ok(abi) => {
                self.landlock = abi;
                // A process has one sandbox.
                let _ = PLACES.set(places);
            }
            Err(why) => self.note(LANDLOCK, "files are not restricted", Err::<(), _>(why)),
        }
    }

    /// Sets the filter of system calls for all threads, and logs what holds from then on.
    pub(crate) fn filter(mut self, instance: &str) {
        if self.is_on {
            let set = sandbox::set_for_all_threads(Role::Gateway, self.unlisted);
            self.note("seccomp", "system calls are not filtered", set);
        }
        // A process has one sandbox.
        let _ = SANDBOX.set(self);
        let state = state();
        if state.enabled {
            tracing::info!("{instance}: sandbox: {}", state.summary());
        } else {
            let message_id = logging::id::SANDBOX_INCOMPLETE;
            tracing::warn!(message_id, "{instance}: no sandbox (--no-sandbox): {}", state.summary());
        }
    }

    /// Notes restrictions that an opener, such as that of `subject`, could not set.
    pub(crate) fn note_opener(&mut self, subject: &str, missing: Vec<String>) {
        for why in missing {
            self.note(&format!("opener of {subject}"), "it has fewer restrictions", Err::<(), _>(why));
        }
    }

    /// Notes a restriction that could not be set, and logs its effect.
    fn note<E: std::fmt::Display>(&mut self, name: &str, effect: &str, set: Result<(), E>) {
        if let Err(err) = set {
            let message_id = logging::id::SANDBOX_INCOMPLETE;
            tracing::warn!(message_id, reason = %err, "{effect}: {name}: {err}");
            self.missing.push(format!("{name}: {err}"));
        }
    }
}

/// Restricts an opener to the calls of its `role`, and to files that describe the system and `places`, if it mounts none. Returns the
/// restrictions that could not be set, each with the reason.
pub(crate) fn restrict_opener(role: Role, places: Option<&Places>) -> Vec<String> {
    let files = places.map_or(Ok(()), |places| match places.restrict() {
        Ok(0) => Err(NO_LANDLOCK.to_owned()),
        restricted => restricted.map(drop),
    });
    let filter = || {
        let unlisted = unlisted().map_err(|err| err.to_string())?;
        sandbox::set_for_all_threads(role, unlisted).map_err(|err| err.to_string())
    };
    let files = files.err().map(|why| format!("{LANDLOCK}: {why}"));
    files.into_iter().chain(filter().err().map(|why| format!("seccomp: {why}"))).collect()
}

/// Remedy for a file that could not be read because of the sandbox; empty if the reason is another one.
pub(crate) fn read_hint(file: &Path) -> String {
    let Some(places) = PLACES.get().filter(|places| !places.may_read(file)) else { return String::new() };
    let names = places.read_names();
    if names.is_empty() {
        return "; the sandbox lets this gateway read no file: `fatpath load -c FILE` passes it one".to_owned();
    }
    let names = names.join(" and ");
    format!("; the sandbox lets this gateway read {names} alone: `fatpath load -c FILE` passes it another file")
}

/// Remedy for a socket that may not be made because of the sandbox; empty if the reason is another one.
pub(crate) fn write_hint(file: &Path) -> String {
    let Some(places) = PLACES.get() else { return String::new() };
    if places.may_write(file) {
        return match places.is_opener() {
            true => "; beside its own files the gateway makes sockets of the file of its start alone".to_owned(),
            false => String::new(),
        };
    }
    let dirs = places.write_names().join(" and ");
    format!("; the sandbox lets this gateway make sockets in {dirs} alone, as they were at its start: restart it")
}

/// Remedy for a back end that the opener refuses to connect to.
pub(crate) fn connect_hint() -> &'static str {
    "; the sandbox lets this gateway connect to back ends of the file of its start alone: restart it"
}

/// Effect of a call outside of the list, from the environment.
fn unlisted() -> Result<Unlisted, CliError> {
    match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        None => Ok(Unlisted::Fails),
        Some(value) if value == "trap" => Ok(Unlisted::Ends),
        Some(value) => {
            Err(CliError::failed(format!("{VARIABLE}={}: the only value is trap.", value.to_string_lossy())))
        }
    }
}

/// Restrictions that hold now, as the kernel reports them.
pub(crate) fn state() -> SandboxState {
    let sandbox = SANDBOX.get();
    let mut state = SandboxState {
        enabled: sandbox.is_some_and(|sandbox| sandbox.is_on),
        no_new_privs: true,
        landlock: sandbox.map(|sandbox| sandbox.landlock).filter(|abi| *abi > 0),
        read: PLACES.get().map(Places::read_names).unwrap_or_default(),
        write: PLACES.get().map(Places::write_names).unwrap_or_default(),
        by_opener: PLACES.get().is_some_and(Places::is_opener),
        missing: sandbox.map(|sandbox| sandbox.missing.clone()).unwrap_or_default(),
        ..SandboxState::default()
    };
    let mut effective = 0;
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
    // A thread may end meanwhile.
    for status in threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok()) {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        state.threads += 1;
        state.filtered += u64::from(field("Seccomp:") == Some("2"));
        state.no_new_privs &= field("NoNewPrivs:") == Some("1");
        effective |= field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(u64::MAX);
    }
    state.capabilities = names_of(effective);
    state.user = changed().map(str::to_owned);
    state
}

/// Names of the capabilities in a set.
fn names_of(set: u64) -> Vec<String> {
    let held: BTreeSet<usize> = (0..64).filter(|bit| set >> bit & 1 == 1).collect();
    let all: BTreeSet<usize> = (0..CAPABILITIES.len()).collect();
    if held.is_superset(&all) {
        return vec!["all".to_owned()];
    }
    held.into_iter().map(|bit| CAPABILITIES.get(bit).map_or_else(|| bit.to_string(), ToString::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::TcpStream;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use link::{Namespace, unshare};
    use rustix::mount::{UnmountFlags, unmount};
    use rustix::net::{AddressFamily, SocketType, socket};
    use rustix::process::{Signal, getppid, pidfd_open, pidfd_send_signal, prlimit, test_kill_process};
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    /// A gateway's process as it is once it is ready, in a process of its own.
    #[test]
    fn confined_process_is_refused_what_no_gateway_does() {
        let own = std::env::current_exe().unwrap();
        let dir = std::env::temp_dir().join(format!("fatpath-confined-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let test = "confine::tests::child_that_is_confined";
        let output =
            Command::new(own).args(["--exact", test, "--ignored", "--nocapture"]).env("TMPDIR", &dir).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        fs::remove_dir_all(dir).unwrap();
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    }

    #[test]
    #[ignore = "a process of its own runs it"]
    fn child_that_is_confined() {
        let dir = std::env::temp_dir();
        let (own, foreign) = (dir.join("own"), dir.join("foreign"));
        for dir in [&own, &foreign] {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("file"), "text").unwrap();
        }
        let mut sandbox = Sandbox::begin(true, crate::service::take_passed()).unwrap();
        let namespace = fs::File::open("/proc/self/ns/net").unwrap();
        let parent = getppid().unwrap();
        let pidfd = pidfd_open(parent, rustix::process::PidfdFlags::empty()).unwrap();
        sandbox.give_up_rights(BTreeSet::new(), None).unwrap();
        let mut places = Places::default();
        places.write_beside(&own.join("file"));
        sandbox.restrict_files(places);
        sandbox.filter("x");
        let none = || Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(None, Resource::Core, none()).expect("its own limits");
        assert!(fs::write(own.join("new"), "text").is_ok(), "its own directory");
        let calls: [(&str, io::Result<()>); 13] = [
            ("execve", Err(Command::new("/bin/true").exec())),
            ("clone", Command::new("/bin/true").status().map(drop)),
            ("unshare, network", unshare(&[Namespace::Network])),
            ("unshare, user", unshare(&[Namespace::User])),
            (
                "setns",
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(Into::into),
            ),
            ("umount2", unmount("/proc", UnmountFlags::DETACH).map_err(Into::into)),
            ("kill", test_kill_process(parent).map_err(Into::into)),
            ("pidfd_send_signal", pidfd_send_signal(&pidfd, Signal::CONT).map_err(Into::into)),
            ("prlimit64", prlimit(Some(parent), Resource::Core, none()).map(drop).map_err(Into::into)),
            ("socket, packet", socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop).map_err(Into::into)),
            ("chroot", std::os::unix::fs::chroot(&own)),
            ("symlink", symlink("/etc/shadow", own.join("link"))),
            ("chown", chown(own.join("file"), None, Some(0))),
        ];
        let files = [
            ("read, /etc/shadow", fs::read("/etc/shadow").map(drop)),
            ("read, another directory", fs::read(foreign.join("file")).map(drop)),
            ("write, another directory", fs::write(foreign.join("new"), "")),
            ("read, a home", fs::read_dir("/root").map(drop)),
        ];
        let tcp = [("connect, TCP", TcpStream::connect(("127.0.0.1", 9)).map(drop))];
        // A kernel without Landlock restricts no files, and an older one no TCP.
        let landlock = state().landlock;
        let files = files.into_iter().filter(|_| landlock.is_some());
        let files = files.chain(tcp.into_iter().filter(|_| landlock >= Some(4)));
        for (name, outcome) in calls.into_iter().chain(files) {
            let is_refused = outcome.as_ref().is_err_and(|err| err.kind() == io::ErrorKind::PermissionDenied);
            assert!(is_refused, "{name}: {outcome:?}");
        }
    }

    #[test]
    fn names_of_capabilities_follow_their_numbers() {
        let none: [&str; 0] = [];
        assert_eq!(names_of(0), none);
        assert_eq!(names_of(1 << 12 | 1 << 13 | 1 << 39), ["net_admin", "net_raw", "bpf"]);
        assert_eq!(names_of((1 << 41) - 1), ["all"]);
        assert_eq!(names_of(1 << 63), ["63"]);
    }
}
