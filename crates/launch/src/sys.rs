//! System calls: `seccomp`, and `close` without the C library.

#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_ushort, sock_filter, sock_fprog};

/// Open file. It is closed without the C library, whose `close` is a cancellation point.
#[derive(Debug)]
pub(crate) struct File(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor.
        unsafe { libc::syscall(libc::SYS_close, self.0.as_raw_fd()) };
    }
}

/// Sets `program` as the seccomp filter of this thread, and of all its later child processes.
///
/// # Errors
/// `EACCES`: the thread has neither `CAP_SYS_ADMIN` nor `no_new_privs`; else as `seccomp(2)`.
pub(crate) fn set_filter(program: &[sock_filter]) -> io::Result<()> {
    let len = c_ushort::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // The kernel copies the instructions and writes nothing.
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` points to `len` instructions that live until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
