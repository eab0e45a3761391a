//! `setsockopt(2)` and `getsockopt(2)`.

use std::mem;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_void, sock_filter, sock_fprog, socklen_t};
use nlsock::{ToDaemon, option, protocol};

use super::netfilter;
use crate::errno::{Errno, returned};
use crate::program_memory::{Bytes, InOut, Room};
use crate::replaced::replaced;
use crate::session::call;
use crate::switches::{SWITCHES, bit, is_on};
use crate::table::Slot;
use crate::{bypass, deferred_setup, gateway, ike, interfaces, session, socket_filter, table};

/// `SO_PASSCRED`, as a bit of a connection's options.
pub(crate) const PASSCRED: u32 = 31;

/// `NETLINK_LIST_MEMBERSHIPS`.
const LIST_MEMBERSHIPS: u32 = 9;

replaced! {
    /// `setsockopt(2)`.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, start: *const c_void, len: socklen_t) -> c_int, next {
        // SAFETY: the manual page requires that length.
        let value = unsafe { Bytes::new(start, len as usize) };
        if level == libc::SOL_SOCKET && name == libc::SO_ATTACH_FILTER && table::get(fd).is_some() {
            // SAFETY: the value of this option is such a program.
            return returned(unsafe { attach_filter(fd, value) });
        }
        let of_socket = [libc::SO_PASSCRED, libc::SO_ATTACH_BPF];
        if (level == libc::SOL_NETLINK || level == libc::SOL_SOCKET && of_socket.contains(&name))
            && let Some(slot) = table::get(fd)
        {
            return returned(int(value).and_then(|value| set(fd, slot, level, name, value)).map(|()| 0));
        }
        if level == libc::SOL_SOCKET && name == libc::SO_BINDTODEVICE && gateway::address().is_some() {
            return match device_name(value).and_then(|name| interfaces::name_on_host(&name)) {
                Ok(None) => next(),
                Ok(Some(device)) => returned(session::set_option(fd, level, name, &device).map(|()| 0)),
                Err(errno) => returned(Err(errno)),
            };
        }
        if let Some(errno) = netfilter::refused_option(level, name) {
            return returned(Err(errno));
        }
        if ike::is_policy(level, name) && gateway::is_on_host_side() && table::get(fd).is_none() {
            return returned(bypass::set_policy(fd, value).map(|()| 0));
        }
        // The gateway implements these options, and the kernel's socket may not support them.
        if ike::is_granted(level, name) && gateway::address().is_some() || ike::is(fd) && level != libc::SOL_SOCKET {
            return 0;
        }
        let done = next();
        if done == 0 && level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) {
            note_room(fd);
        }
        done
    }

    /// `getsockopt(2)`.
    fn getsockopt(
        fd: c_int, level: c_int, name: c_int, start: *mut c_void, len: InOut<'_, socklen_t>,
    ) -> c_int, next {
        if let Some(slot) = table::get(fd)
            && let Some(found) = get(slot, level, name)
        {
            return returned(found.and_then(|words| {
                // SAFETY: the manual page requires that length.
                let value = unsafe { Room::new(start, len.read()? as usize) };
                words.give(value, len).map(|()| 0)
            }));
        }
        if let Some(errno) = netfilter::refused_option(level, name) {
            return returned(Err(errno));
        }
        next()
    }
}

/// Attaches a socket filter to a connection.
///
/// # Errors
/// `EINVAL`: no such program; else as `setsockopt(2)`.
///
/// # Safety
/// A program in `value` is as long as it says.
unsafe fn attach_filter(fd: c_int, value: Bytes<'_>) -> Result<c_int, Errno> {
    if value.len() != mem::size_of::<sock_fprog>() {
        return Err(Errno(libc::EINVAL));
    }
    let sock_fprog { len: count, filter } = value.read().ok_or(Errno(libc::EFAULT))?;
    if count == 0 || filter.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    let mut program = vec![sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; count.into()];
    // SAFETY: as the caller promises.
    unsafe { Bytes::new(filter, mem::size_of_val(&program[..])) }.copy_to(&mut program);
    let mut rewritten = socket_filter::behind_word(&program).ok_or(Errno(libc::EINVAL))?;
    let count = u16::try_from(rewritten.len()).map_err(|_| Errno(libc::EINVAL))?;
    let program = sock_fprog { len: count, filter: rewritten.as_mut_ptr() };
    session::set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &[program]).map(|()| 0)
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
fn device_name(value: Bytes<'_>) -> Result<Vec<u8>, Errno> {
    if value.is_null() && value.len() > 0 {
        return Err(Errno(libc::EFAULT));
    }
    let mut name = [0_u8; libc::IFNAMSIZ - 1];
    let len = value.copy_to(&mut name);
    Ok(name[..len].iter().copied().take_while(|&byte| byte != 0).collect())
}

/// The int at the front of an option's value; 0 for a shorter value (Linux `netlink_setsockopt`).
fn int(value: Bytes<'_>) -> Result<u32, Errno> {
    match value.len() >= mem::size_of::<u32>() {
        true => value.read().ok_or(Errno(libc::EFAULT)),
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

impl Words {
    /// Writes the value, in whole words, and its length into the program's buffers.
    fn give(&self, value: Room<'_>, len: InOut<'_, socklen_t>) -> Result<(), Errno> {
        let room = value.len() / mem::size_of::<u32>();
        if room == 0 && self.len == 1 {
            return Err(Errno(libc::EINVAL));
        }
        value.write(&self.words[..self.len.min(room)]);
        len.write((self.len * mem::size_of::<u32>()) as socklen_t)
    }
}
