//! Creation of sockets, and their addresses.

use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, sockaddr, socklen_t};
use nlsock::ToDaemon;

use super::netfilter;
use crate::errno::{Errno, returned};
use crate::program_memory::{AddressRoom, Bytes, InOut};
use crate::receive::netlink_address;
use crate::replaced::replaced;
use crate::send::address;
use crate::session::{autobind, call, choose_port, send_ports};
use crate::table::Slot;
use crate::{bypass, gateway, ike, session, table, vrf_bind, vrf_socket};

/// Flags in the type argument of `socket(2)`.
const TYPE_FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// Number of socket types (`SOCK_MAX`).
const KINDS: c_int = 11;

replaced! {
    /// `socket(2)`; the errors are those of Linux's `__sys_socket` and `netlink_create`.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, next {
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
        next()
    }

    /// `bind(2)`.
    fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int, next {
        // SAFETY: the manual page requires that length.
        let to = unsafe { Bytes::new(to, len as usize) };
        if let Some(slot) = table::get(fd) {
            let bound = address(to).and_then(|to| bind_to(fd, slot, to.nl_pid, to.nl_groups));
            return returned(bound.map(|()| 0));
        }
        if let Some(done) = ike::bind(fd, to) {
            return returned(done.map(|()| 0));
        }
        if !gateway::is_on_host_side() {
            return next();
        }
        if let Err(errno) = vrf_bind::check(fd, to) {
            return returned(Err(errno));
        }
        let done = next();
        if done == 0 {
            bypass::bound(fd);
        }
        done
    }

    /// `connect(2)`.
    fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int, next {
        let Some(slot) = table::get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        let to = unsafe { Bytes::new(to, len as usize) };
        returned(connect_to(slot, to).map(|()| 0))
    }

    /// `getsockname(2)`.
    fn getsockname(fd: c_int, to: *mut sockaddr, len: InOut<'_, socklen_t>) -> c_int, next {
        let Some(slot) = table::get(fd) else { return next() };
        let own = netlink_address(slot.port.load(Relaxed), slot.groups[0].load(Relaxed));
        // SAFETY: the manual page requires that length.
        returned(unsafe { AddressRoom::new(to, len) }.write(&own).map(|()| 0))
    }

    /// `getpeername(2)`.
    fn getpeername(fd: c_int, to: *mut sockaddr, len: InOut<'_, socklen_t>) -> c_int, next {
        let Some(slot) = table::get(fd) else { return next() };
        let peer = netlink_address(slot.peer.load(Relaxed), slot.peer_groups.load(Relaxed));
        // SAFETY: the manual page requires that length.
        returned(unsafe { AddressRoom::new(to, len) }.write(&peer).map(|()| 0))
    }
}

macro_rules! refused {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(2)`, which no netlink socket does.")]
            fn $name(fd: c_int, $($arg: $type),*) -> c_int, next {
                if table::get(fd).is_some() { returned(Err(Errno(libc::EOPNOTSUPP))) } else { next() }
            }
        )*}
    };
}

refused! {
    listen(backlog: c_int);
    accept(from: *mut sockaddr, len: InOut<'_, socklen_t>);
    accept4(from: *mut sockaddr, len: InOut<'_, socklen_t>, flags: c_int);
    shutdown(how: c_int);
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

/// `connect` of a netlink socket, which only sets its destination.
fn connect_to(slot: &Slot, to: Bytes<'_>) -> Result<(), Errno> {
    let (mut peer, mut groups) = (0, 0);
    let is_unspecified = to.read().is_some_and(|family: u16| c_int::from(family) == libc::AF_UNSPEC);
    if !is_unspecified {
        let address = address(to)?;
        (peer, groups) = (address.nl_pid, address.nl_groups);
        autobind(slot);
    }
    slot.peer.store(peer, Relaxed);
    slot.peer_groups.store(groups, Relaxed);
    Ok(())
}
