//! Namespaces of this process alone, for `fatpath try` and `fatpath demo`: what they create is invisible outside, and
//! ends with the last process in it.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};

use client::CliError;
use link::{Namespace, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{getegid, geteuid};

/// Sysctl by which AppArmor restricts user namespaces, as on Ubuntu since 24.04.
const APPARMOR_RESTRICTION: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";

/// Moves this process, which has one thread, to a network and a mount namespace of its own, in which `/run` is empty and
/// private; without the right to do so, to a user namespace first, as its root.
///
/// # Errors
/// User namespaces are not permitted, with a remedy; or a mount fails.
pub(crate) fn enter(command: &str) -> Result<(), CliError> {
    match unshare(&[Namespace::Network, Namespace::Mount]) {
        Ok(()) => {}
        Err(err) if err.kind() == ErrorKind::PermissionDenied => as_user(command)?,
        Err(err) => return Err(CliError::system("unshare, network namespace", &err)),
    }
    let failed = |what: &str, err: io::Error| CliError::failed(format!("{what}: {err}"));
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|err| failed("mount --make-rprivate /", err.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", "/run", "tmpfs", flags, Some(c"mode=755")).map_err(|err| failed("mount a tmpfs on /run", err.into()))
}

/// Moves this process to a user namespace, in which its user is root, and the other namespaces in it.
fn as_user(command: &str) -> Result<(), CliError> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(&[Namespace::User, Namespace::Network, Namespace::Mount]).map_err(|err| refused(command, &err))?;
    let maps =
        [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {user} 1")), ("gid_map", format!("0 {group} 1"))];
    for (name, text) in maps {
        let path = format!("/proc/self/{name}");
        let written = OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|err| refused(command, &err))?;
    }
    Ok(())
}

fn refused(command: &str, err: &io::Error) -> CliError {
    let restricted = fs::read_to_string(APPARMOR_RESTRICTION).is_ok_and(|value| value.trim() == "1");
    let remedy = if restricted {
        "AppArmor restricts user namespaces; run it with sudo, or set kernel.apparmor_restrict_unprivileged_userns to 0"
    } else {
        "user namespaces are not permitted here; run it with sudo"
    };
    CliError::failed(format!("{command} needs namespaces of its own: {err}; {remedy}."))
}
