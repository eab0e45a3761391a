//! Search for the namespace of an earlier gateway: in the service manager's store, or by the processes inside.
//!
//! A namespace is bound to a file in the mount namespace of its gateway. In a mount namespace of its own (`ip netns
//! exec`, a service) that file is lost when the gateway is killed, and the namespace lives on with the programs inside.
//! So the gateway keeps a record of the namespace's cookie in its run directory. The kernel gives each network namespace
//! another cookie until the next boot, so no other namespace is mistaken for this one.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use link::namespace_cookie;
use rustix::fs::fstat;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The network namespace of this process.
pub(super) const OWN_NETWORK: &str = "/proc/self/ns/net";
/// Number of the present boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Enters a namespace.
pub(super) fn enter(namespace: &OwnedFd, kind: LinkNameSpaceType) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(kind))?)
}

/// Records the present network namespace in the file `record`.
pub(super) fn write(record: &Path) -> io::Result<()> {
    let text = identity()?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(record)?;
    file.write_all(text.as_bytes())
}

/// The namespace of the file `record`, if it is `stored` or has a process inside. The own one is none: a gateway that was taken
/// over may have recorded it. The caller's thread is in the same namespace afterwards as before.
pub(super) fn find(record: &Path, stored: Option<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    let recorded = fs::read_to_string(record)?;
    let own = OwnedFd::from(File::open(OWN_NETWORK)?);
    let is_recorded = |network: &OwnedFd| {
        if enter(network, LinkNameSpaceType::Network).is_err() {
            return Ok(false);
        }
        let identity = identity();
        enter(&own, LinkNameSpaceType::Network)?;
        Ok::<_, io::Error>(identity.is_ok_and(|identity| identity == recorded))
    };
    let mut known = BTreeSet::from([fstat(&own)?.st_ino]);
    if let Some(stored) = stored
        && known.insert(fstat(&stored)?.st_ino)
        && is_recorded(&stored)?
    {
        return Ok(Some(stored));
    }
    for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
        // Other entries have no such file. The namespace of a process that this process may not inspect is not found.
        let Ok(network) = File::open(entry.path().join("ns/net")).map(OwnedFd::from) else { continue };
        if known.insert(fstat(&network)?.st_ino) && is_recorded(&network)? {
            return Ok(Some(network));
        }
    }
    Ok(None)
}

/// Whether a process other than this one is in the present network namespace. Processes that this one may not inspect are
/// not counted.
pub(super) fn is_entered() -> io::Result<bool> {
    let own = fs::metadata(OWN_NETWORK)?;
    // Other entries, such as `self`, are no processes, or this one.
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let is_other = |entry: &fs::DirEntry| number(entry).is_some_and(|pid| pid != std::process::id());
    let others = fs::read_dir("/proc")?.filter_map(Result::ok).filter(is_other);
    let mut namespaces = others.filter_map(|entry| fs::metadata(entry.path().join("ns/net")).ok());
    Ok(namespaces.any(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
}

/// Cookie of the present network namespace, with the number of the boot in which it is unique.
fn identity() -> io::Result<String> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(format!("{} {}\n", fs::read_to_string(BOOT_ID)?.trim(), namespace_cookie(socket)?))
}

#[cfg(test)]
mod tests {
    use link::{Namespace, unshare};

    use super::*;

    #[test]
    fn recorded_namespace_is_found_in_the_store_and_no_other() {
        let record = std::env::temp_dir().join(format!("fatpath-test-{}.namespace", std::process::id()));
        let own = || OwnedFd::from(File::open(OWN_NETWORK).unwrap());
        assert!(find(&record, Some(own())).is_err(), "there is no record");
        write(&record).unwrap();
        assert!(find(&record, Some(own())).unwrap().is_none(), "the own namespace is none of a host side");
        let made = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // Takes CAP_SYS_ADMIN, as entering does.
                unshare(&[Namespace::Network]).ok()?;
                write(&record).unwrap();
                Some(OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap()))
            });
            thread.join().unwrap()
        });
        if let Some(made) = made {
            let stored = || Some(made.try_clone().unwrap());
            assert!(find(&record, stored()).unwrap().is_some());
            let other = fs::read_to_string(&record).unwrap().replace(' ', " 1");
            fs::write(&record, other).unwrap();
            assert!(find(&record, stored()).unwrap().is_none());
        }
        fs::remove_file(&record).unwrap();
    }
}
