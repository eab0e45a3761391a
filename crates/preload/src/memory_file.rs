//! Memory files (memfd_create(2)).

use libc::c_int;

use crate::errno::{Errno, checked};
use crate::fd::Fd;

/// Memory file with the contents `text`. Of the flags of `open(2)` only `O_CLOEXEC` applies.
///
/// # Errors
/// Error of the system call.
pub(crate) fn in_memory(text: &[u8], flags: c_int) -> Result<c_int, Errno> {
    let cloexec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the name is a C string.
    let fd = Fd(checked(unsafe { libc::memfd_create(c"fatpath".as_ptr(), cloexec) })?);
    // SAFETY: the buffer is that long. The file offset stays 0.
    let written = unsafe { libc::syscall(libc::SYS_pwrite64, fd.0, text.as_ptr(), text.len(), 0) };
    match usize::try_from(written) {
        Ok(len) if len == text.len() => Ok(fd.keep()),
        _ => Err(Errno::last()),
    }
}
