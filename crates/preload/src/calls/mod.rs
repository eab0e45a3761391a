//! The functions that are taken over from the C library, by the names that programs call them by.
//!
//! Each asks whether it is about a connection to the gateway, and passes everything else on as it came.

mod descriptors;
mod exec;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod exec_list;
mod namespaces;
pub(crate) mod options;
mod sockets;
mod transfer;
mod waits;

use std::slice;

use libc::iovec;

use crate::errno::Errno;

/// The pieces of a message.
///
/// # Errors
/// There are more than Linux takes.
///
/// # Safety
/// There are as many as `count` says, for as long as they are looked at.
pub(crate) unsafe fn pieces<'a>(first: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        // SAFETY: the caller's word.
        1..=1024 if !first.is_null() => Ok(unsafe { slice::from_raw_parts(first, count) }),
        1..=1024 => Err(Errno(libc::EFAULT)),
        _ => Err(Errno(libc::EMSGSIZE)),
    }
}
