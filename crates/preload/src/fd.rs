//! Descriptors owned by this library.

use std::mem;

use libc::c_int;

use crate::errno::checked;

/// A descriptor that is closed on drop. It uses plain system calls, which are no cancellation points.
#[derive(Debug)]
pub(crate) struct Fd(pub(crate) c_int);

impl Fd {
    /// Releases the descriptor, which stays open.
    pub(crate) fn keep(self) -> c_int {
        let fd = self.0;
        mem::forget(self);
        fd
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: it is this value's own descriptor.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// A duplicate of `fd`, which the program does not know.
pub(crate) fn duplicate(fd: c_int) -> Option<Fd> {
    // SAFETY: it takes no pointers.
    let same = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) };
    checked(same as c_int).ok().map(Fd)
}
