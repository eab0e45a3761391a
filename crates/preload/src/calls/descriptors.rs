//! Duplicates of descriptors, and interface ioctls on any socket.

use libc::{c_int, c_ulong, c_void};

use crate::errno::{Errno, returned};
use crate::replaced::replaced;
use crate::{gateway, interfaces, kept, libc_next, table};

/// Calls `duplicate` and, if successful, enters the new descriptor into the table as a duplicate of `from`.
fn noted(from: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    let to = duplicate();
    if to >= 0 {
        table::duplicated(from, to);
    }
    to
}

replaced! {
    /// `dup(2)`.
    fn dup(fd: c_int) -> c_int, next {
        noted(fd, next)
    }

    /// `dup2(2)`.
    fn dup2(fd: c_int, to: c_int) -> c_int, next {
        noted(fd, next)
    }

    /// `dup3(2)`.
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, next {
        noted(fd, next)
    }

    /// `fcntl(2)`. Its variable argument, if any, is an int or a pointer, which is passed like any third argument.
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int, next {
        fcntl_noted(fd, command, next)
    }

    /// `fcntl(2)`, under its name for large files.
    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int, next {
        fcntl_noted(fd, command, next)
    }

    /// `ioctl(2)`: the gateway executes requests for network interfaces.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, next {
        // The C library passes the low 32 bits of the number, and programs differ in its sign.
        if let Some(what) = interfaces::Request::of(request as u32)
            && gateway::address().is_some()
            && is_socket(fd, request, what)
        {
            // SAFETY: the argument is that of the request.
            return returned(unsafe { interfaces::serve(what, fd, argument) });
        }
        next()
    }
}

fn fcntl_noted(fd: c_int, command: c_int, call: impl FnOnce() -> c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => noted(fd, call),
        _ => call(),
    }
}

/// Tells whether `fd` is a socket. A seccomp filter of the program's own may refuse `fstat(2)`, but hardly the request
/// that the program makes: the kernel is asked for nothing by that request.
fn is_socket(fd: c_int, request: c_ulong, what: interfaces::Request) -> bool {
    if !kept::is_confined() || !what.only_reads() {
        return table::socket_inode(fd).is_some();
    }
    let before = Errno::last();
    let mut nothing = [0_u64; 32];
    // SAFETY: the buffer is longer than any of these requests' structures.
    let done = unsafe { libc_next::ioctl(fd, request, nothing.as_mut_ptr().cast()) };
    let is_socket = done >= 0 || !matches!(Errno::last().0, libc::EBADF | libc::ENOTTY);
    before.set();
    is_socket
}
