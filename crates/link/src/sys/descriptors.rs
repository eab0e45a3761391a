//! Descriptors that a program was started with.

use std::ffi::{c_int, c_uint};
use std::io;

use super::check;

/// First descriptor after standard input, output and error.
const FIRST: c_uint = 3;

/// Closes the descriptors that this process has inherited, but for its standard streams and `kept` descriptors behind
/// them, which its service manager has passed (sd_listen_fds(3)). To be called at the start of `main`, before anything
/// in this process owns a descriptor.
///
/// # Errors
/// Error of close_range(2): `ENOSYS` before Linux 5.9.
pub fn close_inherited(kept: u32) -> io::Result<()> {
    let first = FIRST.saturating_add(kept);
    // SAFETY: the call takes no pointers. By the condition above no value of this process owns these descriptors.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0) } as c_int)?;
    Ok(())
}
