//! Functions of the C library that this library replaces.
//!
//! Each function checks whether its descriptor is a connection to the gateway, and passes all other calls on unchanged.

mod confinement;
mod descriptors;
mod exec;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod exec_list;
mod namespaces;
mod netfilter;
pub(crate) mod options;
mod sockets;
mod transfer;
mod waits;

use std::slice;

use libc::iovec;

use crate::errno::Errno;

/// Buffers of a message.
///
/// # Errors
/// More buffers than Linux accepts.
///
/// # Safety
/// `first` points to `count` entries that stay valid for `'a`.
pub(crate) unsafe fn pieces<'a>(first: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        // SAFETY: as the caller promises.
        1..=1024 if !first.is_null() => Ok(unsafe { slice::from_raw_parts(first, count) }),
        1..=1024 => Err(Errno(libc::EFAULT)),
        _ => Err(Errno(libc::EMSGSIZE)),
    }
}
