//! Entering a gateway's host side, for programs under `fatpath exec`.

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

/// The longest time that a gateway may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest answer in bytes.
const MAX_ANSWER: usize = 16 << 10;

/// Moves this process to the host side of a gateway, if that has one and the caller may enter it; mounts `/sys` and the
/// files of `/etc/netns/fatpath-NAME` anew, as `ip netns exec` does. A caller that may not, or of a gateway whose host
/// side could not be made, stays, and the reason is printed as one line on standard error. Returns whether the process
/// was moved.
///
/// # Errors
/// Errors of the mounts.
pub(crate) fn enter(instance: &str) -> Result<bool, CliError> {
    let stays = |why: &str| {
        // A closed standard error is no reason to fail.
        let _ = writeln!(io::stderr(), "fatpath exec: {why}; sockets stay where they are");
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
    // Root enters the network namespace alone, and is root in front of the gateway still.
    if let Err(errno) = setns(network, LinkNameSpaceType::Network) {
        let Some(user) = user.first() else {
            stays(&may_not(errno));
            return Ok(false);
        };
        if let Err(errno) = setns(user, LinkNameSpaceType::User) {
            stays(&may_not(errno));
            return Ok(false);
        }
        // There is no way back.
        setns(network, LinkNameSpaceType::Network).map_err(|errno| CliError::failed(may_not(errno)))?;
        of_user = true;
    }
    mount_anew(&format!("fatpath-{instance}"), of_user)?;
    Ok(true)
}

/// Descriptors of the gateway's host side: the user namespace around it, if there is one, and the network namespace; none if it has no
/// host side.
///
/// # Errors
/// Text for the caller; `None` if the failure needs no message.
fn ask(instance: &str) -> Result<Vec<OwnedFd>, Option<String>> {
    let socket = socket_path(instance);
    let stream = UnixStream::connect(&socket).map_err(|err| match err.kind() {
        // The control socket is for the gateway's user alone.
        ErrorKind::PermissionDenied if host_place(&socket).is_some_and(|place| place.exists()) => {
            Some("may not enter the gateway's host side".to_owned())
        }
        // A caller that needs a gateway reports that there is none.
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

/// Mounts `/sys` anew, which shows the devices of the namespace in which it was mounted, and the files in `/etc/netns/NAME`.
/// `of_user`: in a user namespace of its own, where `/sys` may be locked to its present content.
fn mount_anew(name: &str, of_user: bool) -> Result<(), CliError> {
    let failed = |what: &str, err: &io::Error| CliError::failed(format!("{what}: {err}"));
    unshare(&[Namespace::Mount]).map_err(|err| failed("unshare, mount namespace", &err))?;
    let downwards = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", downwards).map_err(|err| failed("mount --make-rslave /", &err.into()))?;
    let is_read_only = statvfs("/sys").is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    let flags = if is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    // A container may have mounts below it, or none at all.
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
