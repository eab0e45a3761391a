//! `ioctl(SIOCETHTOOL)`, executed by the gateway ([`nlsock::ethtool`]). The call reads and writes the same bytes of the
//! program's block as in the kernel.

use libc::{c_int, c_void};
use nlsock::ethtool::{BLOCK, FIXED, MESSAGE, NAME, RESULT, has_size, input_len, room};

use super::exchange::{attributes, exchange, put_attribute, word};
use crate::errno::Errno;
use crate::program_memory::{Bytes, Room};

/// Executes the command at the front of `block`, for the interface `name`.
///
/// # Errors
/// `EFAULT`: the block is null; the gateway's error.
///
/// # Safety
/// `block`, if not null, is as long as its command requires.
pub(super) unsafe fn serve(name: &[u8], block: *mut c_void) -> Result<c_int, Errno> {
    // SAFETY: as the caller promises.
    let bytes = |len: usize| unsafe { Bytes::new(block, len) };
    let command = bytes(4).read().ok_or(Errno(libc::EFAULT))?;
    let size = if has_size(command) { bytes(8).skip(4).read().unwrap_or(0) } else { 0 };
    let mut input = vec![0; input_len([command, size])];
    bytes(input.len()).copy_to(&mut input);
    let mut body = vec![0; FIXED];
    put_attribute(&mut body, NAME, &[name, &[0]].concat());
    put_attribute(&mut body, BLOCK, &input);
    let mut result = 0;
    let mut answer = Vec::new();
    exchange(MESSAGE, 0, &body, |body| {
        for (kind, value) in attributes(body.get(FIXED..).unwrap_or_default()) {
            match kind {
                BLOCK => answer = value.to_vec(),
                RESULT => result = word(value).unwrap_or_default() as c_int,
                _ => {}
            }
        }
    })?;
    // SAFETY: as the caller promises.
    unsafe { Room::new(block, room(&input)) }.write(&answer);
    Ok(result)
}
