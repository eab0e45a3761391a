//! Memory files (memfd_create(2)).

use libc::c_int;

use crate::errno::Errno;
use crate::sys;

/// Memory file with the contents `text`. Of the flags of `open(2)` only `O_CLOEXEC` applies.
///
/// # Errors
/// Error of the system call.
pub(crate) fn in_memory(text: &[u8], flags: c_int) -> Result<c_int, Errno> {
    let cloexec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    let fd = sys::memory_file(c"fatpath", cloexec)?;
    // The file offset stays 0.
    match sys::write_front(fd.0, text)? {
        len if len == text.len() => Ok(fd.keep()),
        _ => Err(Errno::last()),
    }
}
