//! Event descriptors (eventfd(2)) for the crate `vhost`, which has a type of its own.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use vmm_sys_util::eventfd::EventFd;

/// The same descriptor as the other type.
pub(crate) fn as_event_fd(fd: OwnedFd) -> EventFd {
    // SAFETY: the descriptor is open and was owned by `fd` alone, which gives it up.
    unsafe { EventFd::from_raw_fd(fd.into_raw_fd()) }
}
