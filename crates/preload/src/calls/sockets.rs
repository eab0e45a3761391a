//! Creation of sockets, and their addresses.

use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, sockaddr, socklen_t};
use nlsock::ToDaemon;

use super::netfilter;
use crate::errno::{Errno, returned};
use crate::receive::{netlink_address, write_address};
use crate::send::address;
use crate::session::{autobind, call, choose_port, send_ports};
use crate::table::Slot;
use crate::{bypass, gateway, ike, libc_next, session, table, vrf_bind, vrf_socket};

/// Flags in the type argument of `socket(2)`.
const TYPE_FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// Number of socket types (`SOCK_MAX`).
const KINDS: c_int = 11;

/// `socket(2)`; the errors are those of Linux's `__sys_socket` and `netlink_create`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && session::is_served(protocol) && gateway::address().is_some() {
        return returned(match kind & !TYPE_FLAGS {
            libc::SOCK_RAW | libc::SOCK_DGRAM => session::socket(kind, protocol),
            0..KINDS => Err(Errno(libc::ESOCKTNOSUPPORT)),
            _ => Err(Errno(libc::EINVAL)),
        });
    }
    if let Some(errno) = netfilter::refused_socket(domain, protocol) {
        return returned(Err(errno));
    }
    if matches!(domain, libc::AF_INET | libc::AF_INET6)
        && let Some(vrf) = gateway::vrf()
    {
        return returned(vrf_socket::make(domain, kind, protocol, vrf));
    }
    // SAFETY: passed on.
    unsafe { libc_next::socket(domain, kind, protocol) }
}

/// `bind(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    let Some(slot) = table::get(fd) else {
        // SAFETY: as the caller promises.
        if let Some(done) = unsafe { ike::bind(fd, to, len) } {
            return returned(done.map(|()| 0));
        }
        if gateway::is_on_host_side()
            // SAFETY: as the caller promises.
            && let Err(errno) = unsafe { vrf_bind::check(fd, to, len) }
        {
            return returned(Err(errno));
        }
        // SAFETY: passed on.
        let done = unsafe { libc_next::bind(fd, to, len) };
        if done == 0 && gateway::is_on_host_side() {
            bypass::bound(fd);
        }
        return done;
    };
    // SAFETY: as the caller promises.
    let done = unsafe { address(to, len) }
        .and_then(|address| bind_to(fd, slot, address.nl_pid, address.nl_groups).map(|()| 0));
    returned(done)
}

/// Binds a connection to a port, or any, and joins groups.
fn bind_to(fd: c_int, slot: &Slot, port: u32, groups: u32) -> Result<(), Errno> {
    if port == 0 && groups == 0 && slot.groups[0].load(Relaxed) == 0 {
        autobind(slot);
        return Ok(());
    }
    send_ports(slot);
    let unbound = port == 0 && slot.port.load(Relaxed) == 0;
    let wish = if unbound {
        choose_port(slot);
        slot.port.load(Relaxed)
    } else {
        port
    };
    let done = match call(fd, slot, ToDaemon::Bind { port: wish, groups }) {
        // A process in another PID namespace has the port.
        Err(Errno(libc::EADDRINUSE)) if unbound => call(fd, slot, ToDaemon::Bind { port: 0, groups }),
        done => done,
    };
    match done {
        Ok(answer) => {
            slot.port.store(answer.port, Relaxed);
            slot.groups[0].store(groups, Relaxed);
            Ok(())
        }
        Err(errno) => {
            if unbound {
                slot.port.store(0, Relaxed);
            }
            Err(errno)
        }
    }
}

/// `connect(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    match table::get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { connect_to(slot, to, len) }.map(|()| 0)),
        // SAFETY: passed on.
        None => unsafe { libc_next::connect(fd, to, len) },
    }
}

/// `connect` of a netlink socket, which only sets its destination.
///
/// # Safety
/// `to` points to `len` readable bytes.
unsafe fn connect_to(slot: &Slot, to: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
    let (mut peer, mut groups) = (0, 0);
    // SAFETY: as the caller promises.
    if !unsafe { is_unspecified(to, len) } {
        // SAFETY: as the caller promises.
        let address = unsafe { address(to, len) }?;
        (peer, groups) = (address.nl_pid, address.nl_groups);
        autobind(slot);
    }
    slot.peer.store(peer, Relaxed);
    slot.peer_groups.store(groups, Relaxed);
    Ok(())
}

/// Tells whether an address has the family `AF_UNSPEC`.
///
/// # Safety
/// `to` points to `len` readable bytes.
unsafe fn is_unspecified(to: *const sockaddr, len: socklen_t) -> bool {
    if to.is_null() || len < 2 {
        return false;
    }
    // SAFETY: two bytes are readable.
    c_int::from(unsafe { to.cast::<u16>().read_unaligned() }) == libc::AF_UNSPEC
}

/// Writes an address into the caller's buffers.
///
/// # Safety
/// `len`, and that many bytes at `to`, are writable.
unsafe fn give(port: u32, groups: u32, to: *mut sockaddr, len: *mut socklen_t) -> Result<c_int, Errno> {
    // SAFETY: as the caller promises.
    let Some(len) = (unsafe { len.as_mut() }).filter(|_| !to.is_null()) else { return Err(Errno(libc::EFAULT)) };
    // SAFETY: as the caller promises.
    unsafe { write_address(&netlink_address(port, groups), to, len) };
    Ok(0)
}

/// `getsockname(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn getsockname(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match table::get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { give(slot.port.load(Relaxed), slot.groups[0].load(Relaxed), to, len) }),
        // SAFETY: passed on.
        None => unsafe { libc_next::getsockname(fd, to, len) },
    }
}

/// `getpeername(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn getpeername(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match table::get(fd) {
        // SAFETY: as the caller promises.
        Some(slot) => returned(unsafe { give(slot.peer.load(Relaxed), slot.peer_groups.load(Relaxed), to, len) }),
        // SAFETY: passed on.
        None => unsafe { libc_next::getpeername(fd, to, len) },
    }
}

macro_rules! refused {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`, which no netlink socket does.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $type),*) -> c_int {
            match table::get(fd) {
                Some(_) => returned(Err(Errno(libc::EOPNOTSUPP))),
                // SAFETY: passed on.
                None => unsafe { libc_next::$name(fd, $($arg),*) },
            }
        }
    )*};
}

refused! {
    listen(backlog: c_int);
    accept(from: *mut sockaddr, len: *mut socklen_t);
    accept4(from: *mut sockaddr, len: *mut socklen_t, flags: c_int);
    shutdown(how: c_int);
}
