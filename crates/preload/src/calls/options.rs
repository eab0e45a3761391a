//! `setsockopt(2)` and `getsockopt(2)`.

use std::mem;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_void, sock_filter, sock_fprog, socklen_t};
use nlsock::{ToDaemon, option, protocol};

use super::netfilter;
use crate::errno::{Errno, checked, returned};
use crate::session::call;
use crate::switches::{SWITCHES, bit, is_on};
use crate::table::Slot;
use crate::{bypass, deferred_setup, gateway, ike, interfaces, libc_next, session, socket_filter, table};

/// `SO_PASSCRED`, as a bit of a connection's options.
pub(crate) const PASSCRED: u32 = 31;

/// `NETLINK_LIST_MEMBERSHIPS`.
const LIST_MEMBERSHIPS: u32 = 9;

/// `setsockopt(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET && name == libc::SO_ATTACH_FILTER && table::get(fd).is_some() {
        // SAFETY: as the caller promises.
        return returned(unsafe { attach_filter(fd, value, len) });
    }
    let of_socket = [libc::SO_PASSCRED, libc::SO_ATTACH_BPF];
    if (level == libc::SOL_NETLINK || level == libc::SOL_SOCKET && of_socket.contains(&name))
        && let Some(slot) = table::get(fd)
    {
        // SAFETY: as the caller promises.
        return returned(unsafe { int(value, len) }.and_then(|value| set(fd, slot, level, name, value)).map(|()| 0));
    }
    if level == libc::SOL_SOCKET && name == libc::SO_BINDTODEVICE && gateway::address().is_some() {
        // SAFETY: as the caller promises.
        let device = unsafe { device_name(value, len) }.and_then(|name| interfaces::name_on_host(&name));
        return match device {
            Ok(None) => {
                // SAFETY: passed on.
                unsafe { libc_next::setsockopt(fd, level, name, value, len) }
            }
            Ok(Some(device)) => {
                let len = device.len() as socklen_t;
                // SAFETY: that many bytes are readable.
                unsafe { libc_next::setsockopt(fd, level, name, device.as_ptr().cast(), len) }
            }
            Err(errno) => returned(Err(errno)),
        };
    }
    if let Some(errno) = netfilter::refused_option(level, name) {
        return returned(Err(errno));
    }
    if ike::is_policy(level, name) && gateway::is_on_host_side() && table::get(fd).is_none() {
        // SAFETY: as the caller promises.
        return returned(unsafe { bypass::set_policy(fd, value, len) }.map(|()| 0));
    }
    // The gateway implements these options, and the kernel's socket may not support them.
    if ike::is_granted(level, name) && gateway::address().is_some() || ike::is(fd) && level != libc::SOL_SOCKET {
        return 0;
    }
    // SAFETY: passed on.
    let done = unsafe { libc_next::setsockopt(fd, level, name, value, len) };
    if done == 0 && level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) {
        note_room(fd);
    }
    done
}

/// Attaches a socket filter to a connection.
///
/// # Errors
/// `EINVAL`: no such program; else as `setsockopt(2)`.
///
/// # Safety
/// `value` points to `len` readable bytes, and a program in it is as long as it says.
unsafe fn attach_filter(fd: c_int, value: *const c_void, len: socklen_t) -> Result<c_int, Errno> {
    if len as usize != mem::size_of::<sock_fprog>() {
        return Err(Errno(libc::EINVAL));
    }
    if value.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: that many bytes are readable.
    let sock_fprog { len: count, filter } = unsafe { value.cast::<sock_fprog>().read_unaligned() };
    if count == 0 || filter.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    let instructions = (0..count).map(|at| unsafe { filter.wrapping_add(at.into()).read_unaligned() });
    let program: Vec<sock_filter> = instructions.collect();
    let mut rewritten = socket_filter::behind_word(&program).ok_or(Errno(libc::EINVAL))?;
    let count = u16::try_from(rewritten.len()).map_err(|_| Errno(libc::EINVAL))?;
    let program = sock_fprog { len: count, filter: rewritten.as_mut_ptr() };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the program is that long.
    checked(unsafe { libc_next::setsockopt(fd, level, name, (&raw const program).cast(), len) })
}

/// Sends the gateway the limit of unread data that the kernel would apply to a netlink socket with this buffer size.
fn note_room(fd: c_int) {
    if let Some(slot) = table::get(fd)
        && let Some(room) = session::option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)
    {
        slot.room.store(room as u32, Relaxed);
        // The call cannot be refused; if the gateway is gone, the next call reports it.
        let _ = session::send_or_defer(fd, slot, deferred_setup::ROOM);
    }
}

/// Value of `SO_BINDTODEVICE`, a name up to its zero byte.
///
/// # Safety
/// `value` points to `len` readable bytes.
unsafe fn device_name(value: *const c_void, len: socklen_t) -> Result<Vec<u8>, Errno> {
    let len = (len as usize).min(libc::IFNAMSIZ - 1);
    if len == 0 {
        return Ok(Vec::new());
    }
    if value.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let mut name = vec![0; len];
    // SAFETY: that many bytes are readable, and the buffer is that long.
    unsafe { ptr::copy_nonoverlapping(value.cast::<u8>(), name.as_mut_ptr(), len) };
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(len));
    Ok(name)
}

/// The int at the front of an option's value; 0 for a shorter value (Linux `netlink_setsockopt`).
///
/// # Safety
/// `value` points to `len` readable bytes.
unsafe fn int(value: *const c_void, len: socklen_t) -> Result<u32, Errno> {
    match len as usize >= mem::size_of::<u32>() {
        true if value.is_null() => Err(Errno(libc::EFAULT)),
        // SAFETY: that many bytes are readable.
        true => Ok(unsafe { value.cast::<u32>().read_unaligned() }),
        false => Ok(0),
    }
}

fn set(fd: c_int, slot: &Slot, level: c_int, name: c_int, value: u32) -> Result<(), Errno> {
    if level == libc::SOL_SOCKET {
        // A program of `SO_ATTACH_BPF` would run on the word in front of each datagram.
        return if name == libc::SO_PASSCRED { switch(slot, PASSCRED, value) } else { Err(Errno(libc::ENOPROTOOPT)) };
    }
    let name = name as u32;
    if SWITCHES.contains(&name) {
        switch(slot, name, value)?;
        return session::send_or_defer(fd, slot, bit(name));
    }
    call(fd, slot, ToDaemon::SetOption { option: name, value })?;
    match name {
        option::ADD_MEMBERSHIP => member(slot, value, true),
        option::DROP_MEMBERSHIP => member(slot, value, false),
        _ => {}
    }
    Ok(())
}

fn switch(slot: &Slot, option: u32, on: u32) -> Result<(), Errno> {
    match on {
        0 => slot.options.fetch_and(!bit(option), Relaxed),
        _ => slot.options.fetch_or(bit(option), Relaxed),
    };
    Ok(())
}

/// Records a membership that the gateway has granted.
fn member(slot: &Slot, group: u32, on: bool) {
    let Some(at) = group.checked_sub(1) else { return };
    let Some(word) = slot.groups.get(at as usize / 32) else { return };
    match on {
        true => word.fetch_or(bit(at % 32), Relaxed),
        false => word.fetch_and(!bit(at % 32), Relaxed),
    };
}

/// `getsockopt(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some(slot) = table::get(fd)
        && let Some(found) = get(slot, level, name)
    {
        // SAFETY: as the caller promises.
        return returned(found.and_then(|words| unsafe { give(&words, value, len) }).map(|()| 0));
    }
    if let Some(errno) = netfilter::refused_option(level, name) {
        return returned(Err(errno));
    }
    // SAFETY: passed on.
    unsafe { libc_next::getsockopt(fd, level, name, value, len) }
}

/// Value of an option; `None` if the kernel has it.
fn get(slot: &Slot, level: c_int, name: c_int) -> Option<Result<Words, Errno>> {
    let one = |word: u32| Some(Ok(Words { words: [word, 0, 0, 0], len: 1 }));
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => one(libc::AF_NETLINK as u32),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => one(slot.protocol.load(Relaxed)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => one(slot.kind.load(Relaxed)),
        // The kernel has a rewritten program.
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) => Some(Err(Errno(libc::ENOPROTOOPT))),
        (libc::SOL_SOCKET, libc::SO_PASSCRED) => one(is_on(slot, PASSCRED).into()),
        (libc::SOL_NETLINK, name) => match name as u32 {
            LIST_MEMBERSHIPS => {
                let number = slot.protocol.load(Relaxed);
                let served = protocol::SERVED.iter().find(|(served, _)| *served == number);
                let len = served.map_or(slot.groups.len(), |(_, words)| *words);
                Some(Ok(Words { words: slot.groups.each_ref().map(|word| word.load(Relaxed)), len }))
            }
            name if SWITCHES.contains(&name) => one(is_on(slot, name).into()),
            _ => Some(Err(Errno(libc::ENOPROTOOPT))),
        },
        _ => None,
    }
}

/// Value of up to four 32-bit words.
struct Words {
    words: [u32; 4],
    len: usize,
}

/// Writes a value, in whole words, and its length into the caller's buffers.
///
/// # Safety
/// `len`, and that many bytes at `value`, are writable.
unsafe fn give(words: &Words, value: *mut c_void, len: *mut socklen_t) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let Some(len) = (unsafe { len.as_mut() }) else { return Err(Errno(libc::EFAULT)) };
    let room = *len as usize / mem::size_of::<u32>();
    if room == 0 && words.len == 1 {
        return Err(Errno(libc::EINVAL));
    }
    if !value.is_null() {
        // SAFETY: the length is at most the buffer's.
        unsafe { ptr::copy_nonoverlapping(words.words.as_ptr().cast::<u8>(), value.cast(), words.len.min(room) * 4) };
    }
    *len = (words.len * mem::size_of::<u32>()) as socklen_t;
    Ok(())
}
