//! Safe wrappers of system calls. All `unsafe` of this crate is here.

pub(crate) mod aio;
pub(crate) mod bpf;
mod bus_faults;
pub(crate) mod cbpf;
pub(crate) mod cmsg;
pub(crate) mod descriptors;
pub(crate) mod discard;
pub(crate) mod event;
pub(crate) mod frames;
pub(crate) mod guest_memory;
pub(crate) mod ifreq;
pub(crate) mod inspection;
pub(crate) mod mmsg;
pub(crate) mod namespace;
pub(crate) mod ring;
pub(crate) mod sockaddr;
pub(crate) mod socket;
pub(crate) mod xsk;

use std::ffi::c_int;
use std::io;

/// Result of a system call, from its return value.
fn check(answer: c_int) -> io::Result<c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Repeats a call while a signal interrupts it (`EINTR`).
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

/// The error's number, 0 if it has none.
pub(crate) fn errno(err: &io::Error) -> i32 {
    err.raw_os_error().unwrap_or(0)
}
