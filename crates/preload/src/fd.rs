//! Descriptors owned by this library.

use std::mem;

use libc::c_int;

use crate::errno::checked;

/// Descriptor that is closed on drop. It is used in plain system calls, which are no cancellation points.
#[derive(Debug)]
pub(crate) struct Fd(pub(crate) c_int);

impl Fd {
    /// Returns the descriptor without closing it.
    pub(crate) fn keep(self) -> c_int {
        let fd = self.0;
        mem::forget(self);
        fd
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this value.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Duplicate of `fd`, for this library's own use.
pub(crate) fn duplicate(fd: c_int) -> Option<Fd> {
    // SAFETY: the call takes no pointers.
    let same = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) };
    checked(same as c_int).ok().map(Fd)
}

/// Lowest number of a descriptor that stays open, above numbers that programs expect to be free.
const HIGH: c_int = 512;

/// Moves a descriptor to a high number, if possible.
pub(crate) fn out_of_the_way(fd: Fd) -> Fd {
    // SAFETY: the call takes no pointers.
    let high = unsafe { libc::syscall(libc::SYS_fcntl, fd.0, libc::F_DUPFD_CLOEXEC, HIGH) };
    checked(high as c_int).map(Fd).unwrap_or(fd)
}
