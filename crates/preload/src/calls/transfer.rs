//! Functions that send and receive, under all their names.

use std::ptr;
use std::slice;
use std::time::{Duration, Instant};

use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::pieces;
use crate::errno::{Errno, returned};
use crate::libc_next;
use crate::receive::{is_received_next, receive, receive_message, source, write_address};
use crate::table::{Slot, get, is_file};
use crate::{ike, send, sysctl};

/// Entry for one buffer.
fn piece(bytes: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: bytes.cast_mut(), iov_len: len }
}

/// `send(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { send::send(fd, slot, &[piece(bytes, len)], ptr::null(), 0, flags) }),
        // SAFETY: passed on.
        None => unsafe { libc_next::send(fd, bytes, len, flags) },
    }
}

/// `sendto(2)`.
///
/// # Safety
/// As the manual page requires.
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
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { send::send(fd, slot, &[piece(bytes, len)], to, to_len, flags) }),
        // SAFETY: passed on.
        None => unsafe { libc_next::sendto(fd, bytes, len, flags, to, to_len) },
    }
}

/// `write(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    match get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { send::send(fd, slot, &[piece(bytes, len)], ptr::null(), 0, 0) }),
        // SAFETY: as the caller promises.
        None if is_file(fd) => returned(unsafe { sysctl::write(fd, &[piece(bytes, len)]) }),
        // SAFETY: passed on.
        None => unsafe { libc_next::write(fd, bytes, len) },
    }
}

/// `writev(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn writev(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    let slot = get(fd);
    if slot.is_none() && !is_file(fd) {
        // SAFETY: passed on.
        return unsafe { libc_next::writev(fd, first, count) };
    }
    // SAFETY: as the caller promises.
    let sent = unsafe { vector(first, count) }.and_then(|pieces| match slot {
        // SAFETY: as the caller promises.
        Some(slot) => unsafe { send::send(fd, slot, pieces, ptr::null(), 0, 0) },
        // SAFETY: as the caller promises.
        None => unsafe { sysctl::write(fd, pieces) },
    });
    returned(sent)
}

/// Buffers of `readv` and `writev`.
///
/// # Safety
/// `first` points to `count` entries.
unsafe fn vector<'a>(first: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: as the caller promises.
    unsafe { pieces(first, count) }
}

/// `sendmsg(2)`. Control messages are ignored: the gateway uses none.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { send_message(fd, slot, message, flags) }),
        None if ike::is(fd) => {
            // SAFETY: as the caller promises.
            let message = unsafe { message.as_ref() }.ok_or(Errno(libc::EFAULT));
            // SAFETY: as the caller promises.
            returned(message.and_then(|message| unsafe { ike::send(fd, message, flags) }))
        }
        // SAFETY: passed on.
        None => unsafe { libc_next::sendmsg(fd, message, flags) },
    }
}

/// # Safety
/// As `sendmsg(2)`.
unsafe fn send_message(fd: c_int, slot: &Slot, message: *const msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    // SAFETY: as the caller promises.
    let message = unsafe { message.as_ref() }.ok_or(Errno(libc::EFAULT))?;
    // SAFETY: as the caller promises.
    let pieces = unsafe { pieces(message.msg_iov, message.msg_iovlen) }?;
    // SAFETY: as the caller promises.
    unsafe { send::send(fd, slot, pieces, message.msg_name.cast(), message.msg_namelen, flags) }
}

/// `sendmmsg(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(fd: c_int, first: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let Some(slot) = get(fd) else {
        // SAFETY: passed on.
        return unsafe { libc_next::sendmmsg(fd, first, count, flags) };
    };
    // SAFETY: as the caller promises.
    let messages = unsafe { messages(first, count) };
    let mut done = 0;
    for message in messages {
        // SAFETY: as the caller promises.
        match unsafe { send_message(fd, slot, &raw const message.msg_hdr, flags) } {
            Ok(len) => message.msg_len = len as c_uint,
            Err(errno) if done == 0 => return returned(Err(errno)),
            Err(_) => break,
        }
        done += 1;
    }
    done
}

/// Messages in an array, up to Linux's limit.
///
/// # Safety
/// `first` points to `count` entries.
unsafe fn messages<'a>(first: *mut mmsghdr, count: c_uint) -> &'a mut [mmsghdr] {
    if first.is_null() {
        return &mut [];
    }
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts_mut(first, count.min(1024) as usize) }
}

/// Receives into one buffer.
///
/// # Safety
/// `bytes` points to `len` writable bytes.
unsafe fn receive_one(fd: c_int, slot: &Slot, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    returned(unsafe { receive(fd, slot, &[piece(bytes, len)], flags) }.map(|received| received.len))
}

/// `recv(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => unsafe { receive_one(fd, slot, bytes, len, flags) },
        // SAFETY: passed on.
        None => unsafe { libc_next::recv(fd, bytes, len, flags) },
    }
}

/// `recv(2)`, for calls whose buffer size the compiler knows.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    match get(fd) {
        // SAFETY: as the caller promises; the C library ends the program if the buffer is too small.
        Some(slot) if len <= room => unsafe { receive_one(fd, slot, bytes, len, flags) },
        // SAFETY: passed on.
        _ => unsafe { libc_next::__recv_chk(fd, bytes, len, room, flags) },
    }
}

/// `read(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t {
    match get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => unsafe { receive_one(fd, slot, bytes, len, 0) },
        // SAFETY: passed on.
        None => unsafe { libc_next::read(fd, bytes, len) },
    }
}

/// `read(2)`, for calls whose buffer size the compiler knows.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    match get(fd) {
        // SAFETY: as the caller promises; the C library ends the program if the buffer is too small.
        Some(slot) if len <= room => unsafe { receive_one(fd, slot, bytes, len, 0) },
        // SAFETY: passed on.
        _ => unsafe { libc_next::__read_chk(fd, bytes, len, room) },
    }
}

/// `readv(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn readv(fd: c_int, first: *const iovec, count: c_int) -> ssize_t {
    let Some(slot) = get(fd) else {
        // SAFETY: passed on.
        return unsafe { libc_next::readv(fd, first, count) };
    };
    // SAFETY: as the caller promises.
    let received = unsafe { vector(first, count) }.and_then(|pieces| {
        // SAFETY: as the caller promises.
        unsafe { receive(fd, slot, pieces, 0) }
    });
    returned(received.map(|received| received.len))
}

/// `recvfrom(2)` of a connection.
///
/// # Safety
/// As the manual page requires.
unsafe fn receive_from(
    fd: c_int,
    slot: &Slot,
    into: iovec,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> Result<ssize_t, Errno> {
    // SAFETY: as the caller promises.
    let received = unsafe { receive(fd, slot, &[into], flags) }?;
    // SAFETY: as the caller promises.
    if let Some(from_len) = unsafe { from_len.as_mut() }.filter(|_| !from.is_null()) {
        // SAFETY: as the caller promises.
        unsafe { write_address(&source(received.group), from, from_len) };
    }
    Ok(received.len)
}

/// `recvfrom(2)`.
///
/// # Safety
/// As the manual page requires.
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
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { receive_from(fd, slot, piece(bytes, len), flags, from, from_len) }),
        // SAFETY: passed on.
        None => unsafe { libc_next::recvfrom(fd, bytes, len, flags, from, from_len) },
    }
}

/// `recvfrom(2)`, for calls whose buffer size the compiler knows.
///
/// # Safety
/// As the manual page requires.
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
            // SAFETY: as the caller promises; the C library ends the program if the buffer is too small.
            returned(unsafe { receive_from(fd, slot, piece(bytes, len), flags, from, from_len) })
        }
        // SAFETY: passed on.
        _ => unsafe { libc_next::__recvfrom_chk(fd, bytes, len, room, flags, from, from_len) },
    }
}

/// `recvmsg(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let slot = get(fd);
    if slot.is_none() && !ike::is(fd) {
        // SAFETY: passed on.
        return unsafe { libc_next::recvmsg(fd, message, flags) };
    }
    // SAFETY: as the caller promises.
    let message = unsafe { message.as_mut() }.ok_or(Errno(libc::EFAULT));
    let Some(slot) = slot else {
        // SAFETY: as the caller promises.
        return returned(message.and_then(|message| unsafe { ike::receive(fd, message, flags) }));
    };
    // SAFETY: as the caller promises.
    returned(message.and_then(|message| unsafe { receive_message(fd, slot, message, flags) }))
}

/// `recvmmsg(2)`.
///
/// # Safety
/// As the manual page requires.
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
        return unsafe { libc_next::recvmmsg(fd, first, count, flags, timeout) };
    };
    // SAFETY: as the caller promises.
    let limit = unsafe { timeout.as_ref() }
        .map(|it| Duration::from_secs(it.tv_sec as u64).saturating_add(Duration::from_nanos(it.tv_nsec as u64)));
    let start = Instant::now();
    let mut flags_now = flags & !libc::MSG_WAITFORONE;
    // SAFETY: as the caller promises.
    let messages = unsafe { messages(first, count) };
    let mut done = 0;
    for message in messages {
        // An error after a received message is left to the next call, as in Linux (`sk_err`).
        if done > 0 && !is_received_next(fd, flags_now) {
            break;
        }
        // SAFETY: as the caller promises.
        match unsafe { receive_message(fd, slot, &mut message.msg_hdr, flags_now) } {
            Ok(len) => message.msg_len = len as c_uint,
            Err(errno) if done == 0 => return returned(Err(errno)),
            Err(_) => break,
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        // As in Linux, the timeout is checked after each datagram only.
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
    }
    done
}
