//! Event descriptors (eventfd(2)) for the crate `vhost`, which has a type of its own.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use vmm_sys_util::eventfd::EventFd;

/// Converts a descriptor to the other type.
pub(crate) fn as_event_fd(fd: OwnedFd) -> EventFd {
    // SAFETY: the descriptor is open, and only `fd` owned it.
    unsafe { EventFd::from_raw_fd(fd.into_raw_fd()) }
}
