//! `ioctl(SIOCETHTOOL)`, executed by the gateway ([`nlsock::ethtool`]). The call reads and writes the same bytes of the
//! program's block as in the kernel.

use std::ptr;

use libc::c_int;
use nlsock::ethtool::{BLOCK, FIXED, MESSAGE, NAME, RESULT, has_size, input_len, room};

use super::exchange::{attributes, exchange, put_attribute, word};
use crate::errno::Errno;

/// Executes the command at the front of `block`, for the interface `name`.
///
/// # Errors
/// `EFAULT`: the block is null; the gateway's error.
///
/// # Safety
/// `block`, if not null, is as long as its command requires.
pub(super) unsafe fn serve(name: &[u8], block: *mut u8) -> Result<c_int, Errno> {
    if block.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: as the caller promises. A block need not be aligned.
    let read = |at: usize| unsafe { block.cast::<u32>().wrapping_add(at).read_unaligned() };
    let command = read(0);
    let size = if has_size(command) { read(1) } else { 0 };
    let mut input = vec![0; input_len([command, size])];
    // SAFETY: the command's block is that long, and `input` has room for it.
    unsafe { ptr::copy_nonoverlapping(block, input.as_mut_ptr(), input.len()) };
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
    let len = answer.len().min(room(&input));
    // SAFETY: the program's block is that long.
    unsafe { ptr::copy_nonoverlapping(answer.as_ptr(), block, len) };
    Ok(result)
}
