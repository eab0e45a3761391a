//! Sending and receiving, under all their names.

use std::ptr;
use std::slice;
use std::time::{Duration, Instant};

use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::pieces;
use crate::errno::{Errno, returned};
use crate::next;
use crate::receive::{is_received_next, receive, receive_message, source, write_address};
use crate::table::{Slot, get, is_file};
use crate::{ike, send, sysctl};

/// One piece.
fn piece(bytes: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: bytes.cast_mut(), iov_len: len }
}

/// `send(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word.
        Some(slot) => returned(unsafe { send::send(fd, slot, &[piece(bytes, len)], ptr::null(), 0, flags) }),
        // SAFETY: passed on.
        None => unsafe { next::send(fd, bytes, len, flags) },
    }
}

/// `sendto(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word.
        Some(slot) => returned(unsafe { send::send(fd, slot, &[piece(bytes, len)], to, to_len, flags) }),
        // SAFETY: passed on.
        None => unsafe { next::sendto(fd, bytes, len, flags, to, to_len) },
    }
}

/// `write(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word.
        Some(slot) => returned(unsafe { send::send(fd, slot, &[piece(bytes, len)], ptr::null(), 0, 0) }),
        // SAFETY: the caller's word.
        None if is_file(fd) => returned(unsafe { sysctl::write(fd, &[piece(bytes, len)]) }),
        // SAFETY: passed on.
        None => unsafe { next::write(fd, bytes, len) },
    }
}

/// `writev(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn writev(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    let slot = get(fd);
    if slot.is_none() && !is_file(fd) {
        // SAFETY: passed on.
        return unsafe { next::writev(fd, first, count) };
    }
    // SAFETY: the caller's word.
    let sent = unsafe { vector(first, count) }.and_then(|pieces| match slot {
        // SAFETY: the caller's word.
        Some(slot) => unsafe { send::send(fd, slot, pieces, ptr::null(), 0, 0) },
        // SAFETY: the caller's word.
        None => unsafe { sysctl::write(fd, pieces) },
    });
    returned(sent)
}

/// The pieces of `readv` and `writev`.
///
/// # Safety
/// There are as many as `count` says.
unsafe fn vector<'a>(first: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: the caller's word.
    unsafe { pieces(first, count) }
}

/// `sendmsg(2)`. Control messages are left out: none means anything to the gateway.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word.
        Some(slot) => returned(unsafe { send_message(fd, slot, message, flags) }),
        None if ike::is(fd) => {
            // SAFETY: the caller's word.
            let message = unsafe { message.as_ref() }.ok_or(Errno(libc::EFAULT));
            // SAFETY: the caller's word.
            returned(message.and_then(|message| unsafe { ike::send(fd, message, flags) }))
        }
        // SAFETY: passed on.
        None => unsafe { next::sendmsg(fd, message, flags) },
    }
}

/// # Safety
/// As `sendmsg(2)`.
unsafe fn send_message(fd: c_int, slot: &Slot, message: *const msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    // SAFETY: the caller's word.
    let message = unsafe { message.as_ref() }.ok_or(Errno(libc::EFAULT))?;
    // SAFETY: the caller's word.
    let pieces = unsafe { pieces(message.msg_iov, message.msg_iovlen) }?;
    // SAFETY: the caller's word.
    unsafe { send::send(fd, slot, pieces, message.msg_name.cast(), message.msg_namelen, flags) }
}

/// `sendmmsg(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(fd: c_int, first: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let Some(slot) = get(fd) else {
        // SAFETY: passed on.
        return unsafe { next::sendmmsg(fd, first, count, flags) };
    };
    // SAFETY: the caller's word.
    let messages = unsafe { messages(first, count) };
    let mut done = 0;
    for message in messages {
        // SAFETY: the caller's word.
        match unsafe { send_message(fd, slot, &raw const message.msg_hdr, flags) } {
            Ok(len) => message.msg_len = len as c_uint,
            Err(errno) if done == 0 => return returned(Err(errno)),
            Err(_) => break,
        }
        done += 1;
    }
    done
}

/// Messages in an array, no more than Linux looks at.
///
/// # Safety
/// There are as many as `count` says.
unsafe fn messages<'a>(first: *mut mmsghdr, count: c_uint) -> &'a mut [mmsghdr] {
    if first.is_null() {
        return &mut [];
    }
    // SAFETY: the caller's word.
    unsafe { slice::from_raw_parts_mut(first, count.min(1024) as usize) }
}

/// Receives into one buffer.
///
/// # Safety
/// There are `len` bytes to write to.
unsafe fn receive_one(fd: c_int, slot: &Slot, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's word.
    returned(unsafe { receive(fd, slot, &[piece(bytes, len)], flags) }.map(|received| received.len))
}

/// `recv(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word.
        Some(slot) => unsafe { receive_one(fd, slot, bytes, len, flags) },
        // SAFETY: passed on.
        None => unsafe { next::recv(fd, bytes, len, flags) },
    }
}

/// `recv(2)` where the compiler knows how much room there is.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word; a call that has not the room is left to the C library to end.
        Some(slot) if len <= room => unsafe { receive_one(fd, slot, bytes, len, flags) },
        // SAFETY: passed on.
        _ => unsafe { next::__recv_chk(fd, bytes, len, room, flags) },
    }
}

/// `read(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word.
        Some(slot) => unsafe { receive_one(fd, slot, bytes, len, 0) },
        // SAFETY: passed on.
        None => unsafe { next::read(fd, bytes, len) },
    }
}

/// `read(2)` where the compiler knows how much room there is.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word; a call that has not the room is left to the C library to end.
        Some(slot) if len <= room => unsafe { receive_one(fd, slot, bytes, len, 0) },
        // SAFETY: passed on.
        _ => unsafe { next::__read_chk(fd, bytes, len, room) },
    }
}

/// `readv(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn readv(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    let Some(slot) = get(fd) else {
        // SAFETY: passed on.
        return unsafe { next::readv(fd, first, count) };
    };
    // SAFETY: the caller's word.
    let received = unsafe { vector(first, count) }.and_then(|pieces| {
        // SAFETY: the caller's word.
        unsafe { receive(fd, slot, pieces, 0) }
    });
    returned(received.map(|received| received.len))
}

/// `recvfrom(2)` of a connection.
///
/// # Safety
/// As the manual page says.
unsafe fn receive_from(
    fd: c_int,
    slot: &Slot,
    into: iovec,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> Result<ssize_t, Errno> {
    // SAFETY: the caller's word.
    let received = unsafe { receive(fd, slot, &[into], flags) }?;
    // SAFETY: the caller's word.
    if let Some(from_len) = unsafe { from_len.as_mut() }.filter(|_| !from.is_null()) {
        // SAFETY: the caller's word.
        unsafe { write_address(&source(received.group), from, from_len) };
    }
    Ok(received.len)
}

/// `recvfrom(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    match get(fd) {
        // SAFETY: the caller's word.
        Some(slot) => returned(unsafe { receive_from(fd, slot, piece(bytes, len), flags, from, from_len) }),
        // SAFETY: passed on.
        None => unsafe { next::recvfrom(fd, bytes, len, flags, from, from_len) },
    }
}

/// `recvfrom(2)` where the compiler knows how much room there is.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    match get(fd) {
        Some(slot) if len <= room => {
            // SAFETY: the caller's word; a call that has not the room is left to the C library to end.
            returned(unsafe { receive_from(fd, slot, piece(bytes, len), flags, from, from_len) })
        }
        // SAFETY: passed on.
        _ => unsafe { next::__recvfrom_chk(fd, bytes, len, room, flags, from, from_len) },
    }
}

/// `recvmsg(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let slot = get(fd);
    if slot.is_none() && !ike::is(fd) {
        // SAFETY: passed on.
        return unsafe { next::recvmsg(fd, message, flags) };
    }
    // SAFETY: the caller's word.
    let message = unsafe { message.as_mut() }.ok_or(Errno(libc::EFAULT));
    let Some(slot) = slot else {
        // SAFETY: the caller's word.
        return returned(message.and_then(|message| unsafe { ike::receive(fd, message, flags) }));
    };
    // SAFETY: the caller's word.
    returned(message.and_then(|message| unsafe { receive_message(fd, slot, message, flags) }))
}

/// `recvmmsg(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    first: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(slot) = get(fd) else {
        // SAFETY: passed on.
        return unsafe { next::recvmmsg(fd, first, count, flags, timeout) };
    };
    // SAFETY: the caller's word.
    let limit = unsafe { timeout.as_ref() }
        .map(|it| Duration::from_secs(it.tv_sec as u64).saturating_add(Duration::from_nanos(it.tv_nsec as u64)));
    let start = Instant::now();
    let mut flags_now = flags & !libc::MSG_WAITFORONE;
    // SAFETY: the caller's word.
    let messages = unsafe { messages(first, count) };
    let mut done = 0;
    for message in messages {
        // An error behind what was received is the next call's, as `sk_err` of Linux is.
        if done > 0 && !is_received_next(fd, flags_now) {
            break;
        }
        // SAFETY: the caller's word.
        match unsafe { receive_message(fd, slot, &mut message.msg_hdr, flags_now) } {
            Ok(len) => message.msg_len = len as c_uint,
            Err(errno) if done == 0 => return returned(Err(errno)),
            Err(_) => break,
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        // As in Linux, the time is looked at after each datagram only.
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
    }
    done
}
