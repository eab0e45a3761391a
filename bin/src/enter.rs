//! Entry into a gateway's host side, for programs under `fatpath exec`.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use client::{CliError, passing, socket_path};
use ctl::{Reply, Request};
use daemon::host_place;
use link::{Namespace, unshare};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Time limit for a gateway's reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum length of a reply in bytes.
const MAX_ANSWER: usize = 16 << 10;

/// Moves this process to the host side of a gateway, if it exists and the caller may enter it; mounts `/sys` and the
/// files of `/etc/netns/fatpath-NAME` again, as `ip netns exec` does. If the caller may not, or the gateway failed to
/// create its host side, the process stays, and the reason is printed as one line on standard error. Returns whether
/// the process was moved.
///
/// # Errors
/// Errors of the mounts.
pub(crate) fn enter(instance: &str) -> Result<bool, CliError> {
    let stays = |why: &str| {
        // A closed standard error is no failure.
        let _ = writeln!(io::stderr(), "fatpath exec: {why}; sockets remain in the caller's namespace");
    };
    let descriptors = match ask(instance) {
        Ok(descriptors) => descriptors,
        Err(why) => {
            why.iter().for_each(|why| stays(why));
            return Ok(false);
        }
    };
    let Some((network, user)) = descriptors.split_last() else { return Ok(false) };
    let may_not = |errno: Errno| format!("may not enter the gateway's host side ({errno})");
    let mut of_user = false;
    // Root enters the network namespace alone, and so keeps its rights at the gateway's sockets.
    if let Err(errno) = setns(network, LinkNameSpaceType::Network) {
        let Some(user) = user.first() else {
            stays(&may_not(errno));
            return Ok(false);
        };
        if let Err(errno) = setns(user, LinkNameSpaceType::User) {
            stays(&may_not(errno));
            return Ok(false);
        }
        // The entry into the user namespace cannot be undone.
        setns(network, LinkNameSpaceType::Network).map_err(|errno| CliError::failed(may_not(errno)))?;
        of_user = true;
    }
    mount_anew(&format!("fatpath-{instance}"), of_user)?;
    Ok(true)
}

/// Descriptors of the gateway's host side: its user namespace, if any, and its network namespace; none without a host
/// side.
///
/// # Errors
/// Text for the caller; `None` if the failure needs no message.
fn ask(instance: &str) -> Result<Vec<OwnedFd>, Option<String>> {
    let socket = socket_path(instance);
    let stream = UnixStream::connect(&socket).map_err(|err| match err.kind() {
        // Only the gateway's user may connect to the control socket.
        ErrorKind::PermissionDenied if host_place(&socket).is_some_and(|place| place.exists()) => {
            Some("may not enter the gateway's host side".to_owned())
        }
        // A caller that requires a gateway reports its absence.
        _ => None,
    })?;
    let failed = |err: io::Error| Some(format!("{}: {err}", socket.display()));
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    passing::send(&stream, Request::EnterHost.to_line().as_bytes(), &[]).map_err(failed)?;
    let mut answer = vec![0; MAX_ANSWER];
    let (len, descriptors) = passing::receive(&stream, &mut answer).map_err(failed)?;
    let line = String::from_utf8_lossy(&answer[..len]);
    match Reply::from_line(&line) {
        Ok(Reply::EnterHost { why_not: Some(why), .. }) => Err(Some(format!("the gateway has no host side ({why})"))),
        Ok(Reply::EnterHost { .. }) => Ok(descriptors),
        Ok(Reply::Error { message }) => Err(Some(message)),
        _ => Err(Some(format!("{}: the answer is to another question", socket.display()))),
    }
}

fn setns(namespace: &OwnedFd, kind: LinkNameSpaceType) -> Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(kind))
}

/// Mounts `/sys` again, which shows the devices of the namespace of the mounting process, and the files in
/// `/etc/netns/NAME`. `of_user`: the process is in its own user namespace, where `/sys` may be locked to its present
/// content.
fn mount_anew(name: &str, of_user: bool) -> Result<(), CliError> {
    let failed = |what: &str, err: &io::Error| CliError::failed(format!("{what}: {err}"));
    unshare(&[Namespace::Mount]).map_err(|err| failed("unshare, mount namespace", &err))?;
    let downwards = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", downwards).map_err(|err| failed("mount --make-rslave /", &err.into()))?;
    let is_read_only = statvfs("/sys").is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    let flags = if is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    // A container may have mounts below `/sys`, or no mount.
    let _ = unmount("/sys", UnmountFlags::DETACH);
    match mount(name, "/sys", "sysfs", flags, None) {
        Err(err) if !of_user => return Err(failed("mount /sys", &err.into())),
        _ => {}
    }
    let dir = Path::new("/etc/netns").join(name);
    let Ok(files) = fs::read_dir(&dir) else { return Ok(()) };
    for file in files.filter_map(Result::ok) {
        let place = Path::new("/etc").join(file.file_name());
        if let Err(err) = mount_bind(file.path(), &place) {
            let _ = writeln!(
                io::stderr(),
                "fatpath exec: {}: not in place of {}: {err}",
                file.path().display(),
                place.display()
            );
        }
    }
    Ok(())
}
