//! Descriptors owned by this library.

use std::mem;

use libc::c_int;

use crate::errno::{Errno, checked};

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

/// `fcntl(2)` with an int as argument.
///
/// # Errors
/// As the call.
pub(crate) fn control(fd: c_int, command: c_int, argument: c_int) -> Result<c_int, Errno> {
    // SAFETY: an int is no pointer.
    checked(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) } as c_int)
}

/// Duplicate of `fd`, for this library's own use.
pub(crate) fn duplicate(fd: c_int) -> Option<Fd> {
    control(fd, libc::F_DUPFD_CLOEXEC, 0).ok().map(Fd)
}

/// Replaces the file of `fd` by that of `from`.
///
/// # Errors
/// As `dup3(2)`.
pub(crate) fn replace(from: &Fd, fd: c_int, flags: c_int) -> Result<(), Errno> {
    // SAFETY: the call takes no pointers.
    checked(unsafe { libc::syscall(libc::SYS_dup3, from.0, fd, flags) } as c_int).map(drop)
}

/// Lowest number of a descriptor that stays open, above numbers that programs expect to be free.
const HIGH: c_int = 512;

/// Moves a descriptor to a high number, if possible.
pub(crate) fn out_of_the_way(fd: Fd) -> Fd {
    control(fd.0, libc::F_DUPFD_CLOEXEC, HIGH).map(Fd).unwrap_or(fd)
}
