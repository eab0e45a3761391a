//! New namespaces for the calling thread (unshare(2), namespaces(7)).

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A kind of namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Namespace {
    /// Interfaces, addresses, routes and sockets.
    Network,
    /// Users and capabilities.
    User,
    /// Mounts.
    Mount,
}

/// Moves the calling thread to new namespaces of these kinds. In a new user namespace the thread has all capabilities,
/// also over the other namespaces that the same call makes.
///
/// # Errors
/// Errors of unshare(2): `EPERM` without `CAP_SYS_ADMIN`, but for a user namespace; `EINVAL` for a user namespace of a
/// process with several threads; `ENOSPC` above the limits of `/proc/sys/user`.
pub fn unshare(kinds: &[Namespace]) -> io::Result<()> {
    let flag = |kind: &Namespace| match kind {
        Namespace::Network => UnshareFlags::NEWNET,
        Namespace::User => UnshareFlags::NEWUSER,
        Namespace::Mount => UnshareFlags::NEWNS,
    };
    let flags = kinds.iter().map(flag).fold(UnshareFlags::empty(), UnshareFlags::union);
    // SAFETY: none of these flags gives the thread a table of descriptors of its own.
    unsafe { unshare_unsafe(flags) }?;
    Ok(())
}
