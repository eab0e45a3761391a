//! Netlink sockets of the program: creation by `socket(2)`, and calls to the gateway that configure them.

use std::mem;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use libc::{c_int, socklen_t};
use nlsock::{Answer, ToDaemon, protocol};

use crate::connection::{awaited, connected, send_calls, try_send_calls};
use crate::deferred_setup::{self, Calls, HELLO, PORT};
use crate::errno::{Errno, checked};
use crate::fd::{Fd, duplicate};
use crate::plain::Plain;
use crate::table::{self, Slot};
use crate::{libc_next, reconnect, sys};

/// Tells whether the gateway serves sockets of `protocol`.
pub(crate) fn is_served(protocol: c_int) -> bool {
    protocol::SERVED.iter().any(|&(served, _)| u32::try_from(protocol) == Ok(served))
}

/// `socket(AF_NETLINK, …)`.
///
/// # Errors
/// `ECONNREFUSED`: no gateway runs; else as `socket(2)`.
pub(crate) fn socket(kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let fd = connected(flags & libc::SOCK_CLOEXEC)?;
    let protocol = u32::try_from(protocol).map_err(|_| Errno(libc::EPROTONOSUPPORT))?;
    if flags & libc::SOCK_NONBLOCK != 0 {
        sys::set_non_blocking(fd.0)?;
    }
    table::enter(fd.0, protocol, (kind & !flags) as u32, HELLO)?;
    reconnect::note_new();
    if holds_net_admin() {
        // The next call with the protocol reports a refused one.
        let _ = introduced(fd.0, protocol);
        reconnect::watch_forks();
    }
    Ok(fd.keep())
}

/// Connection for the library's own requests.
///
/// # Errors
/// As [`socket`].
pub(crate) fn own(protocol: u32) -> Result<Fd, Errno> {
    let fd = connected(libc::SOCK_CLOEXEC)?;
    if holds_net_admin() {
        introduced(fd.0, protocol)?;
    } else {
        let mut calls = Calls::new();
        calls.push(ToDaemon::Hello { protocol });
        send_calls(fd.0, calls.as_bytes(), None)?;
    }
    Ok(fd)
}

/// Sends a connection's protocol to the gateway first, and waits for the answer: by then the gateway has checked the
/// capabilities of a process that is not root.
fn introduced(fd: c_int, protocol: u32) -> Result<Answer, Errno> {
    let mut calls = Calls::new();
    calls.push(ToDaemon::Hello { protocol });
    awaited(fd, calls.as_bytes(), || ())
}

/// Claims the privilege of an inherited connection for this process, before its first request: a daemon opens its
/// sockets, and then leaves its parent by `fork`. The gateway checks the capabilities of this process, too, as Linux
/// does (`netlink_capable`).
pub(crate) fn claim(fd: c_int, slot: &Slot) {
    if !slot.is_claim_due.load(Relaxed) {
        return;
    }
    if holds_net_admin() {
        // Without a gateway the request fails, too.
        let _ = introduced(fd, slot.protocol.load(Relaxed));
    }
    // Other threads wait for the answer as well.
    slot.is_claim_due.store(false, Relaxed);
}

/// Tells whether the process is not root and holds `CAP_NET_ADMIN`.
fn holds_net_admin() -> bool {
    const CAP_NET_ADMIN: u32 = 12;
    sys::geteuid() != 0 && sys::capabilities().is_some_and(|permitted| permitted >> CAP_NET_ADMIN & 1 == 1)
}

/// Chooses a port for a connection without one, in `bind` to any port, send and connect (Linux `netlink_autobind`). The
/// port is sent with the next call.
pub(crate) fn autobind(slot: &Slot) {
    if slot.port.load(Relaxed) == 0 {
        choose_port(slot);
        deferred_setup::defer(slot, PORT);
    }
}

/// Sets the port of a connection to the process's PID, or if another connection has that port, to a unique number that
/// is no PID.
pub(crate) fn choose_port(slot: &Slot) {
    let own = sys::getpid() as u32;
    // The store comes first: of two threads that choose at the same time, at least one reads the other's port.
    slot.port.store(own, SeqCst);
    let protocol = slot.protocol.load(Relaxed);
    let has_it = |other: &Slot| {
        !std::ptr::eq(other, slot) && other.port.load(SeqCst) == own && other.protocol.load(Relaxed) == protocol
    };
    if table::live(has_it).next().is_some() {
        slot.port.store(1 << 31 | (slot.inode() % OTHER_PORTS) as u32, SeqCst);
    }
}

/// Number of ports from 2^31 on that are no PIDs (Linux `netlink_autobind`).
const OTHER_PORTS: u64 = (1 << 31) - 4096;

/// Sends the state in a connection's slot to the gateway: at once, unless the program is still setting up the socket. A
/// socket that only receives would never send data that a deferred call could precede.
///
/// # Errors
/// `ECONNREFUSED` without a gateway.
pub(crate) fn send_or_defer(fd: c_int, slot: &Slot, what: u32) -> Result<(), Errno> {
    deferred_setup::defer(slot, what);
    if deferred_setup::is_deferred(slot, HELLO) { Ok(()) } else { send_deferred(fd, slot) }
}

/// Sends the deferred calls to the gateway.
///
/// # Errors
/// `ECONNREFUSED` without a gateway.
pub(crate) fn send_deferred(fd: c_int, slot: &Slot) -> Result<(), Errno> {
    check_gateway(slot)?;
    let calls = Calls::deferred(slot);
    send_calls(fd, calls.as_bytes(), None)?;
    calls.mark_sent(slot);
    Ok(())
}

/// # Errors
/// `ECONNREFUSED` without a gateway.
fn check_gateway(slot: &Slot) -> Result<(), Errno> {
    if slot.is_gone.load(Relaxed) { Err(Errno(libc::ECONNREFUSED)) } else { Ok(()) }
}

/// Sends the ports of other connections of the protocol to the gateway, before `own` requests one of the ports.
pub(crate) fn send_ports(own: &Slot) {
    let protocol = own.protocol.load(Relaxed);
    let has_port = |slot: &Slot| deferred_setup::is_deferred(slot, PORT) && slot.protocol.load(Relaxed) == protocol;
    let is_other = |slot: &Slot| !std::ptr::eq(slot, own);
    for (fd, slot) in table::live(|slot| is_other(slot) && has_port(slot)) {
        // The descriptor may have been reused; the inode of its duplicate shows whether. If the gateway is gone, the
        // next call reports it.
        if let Some(same) = duplicate(fd).filter(|same| table::socket_inode(same.0) == Some(slot.inode())) {
            let _ = send_deferred(same.0, slot);
        }
    }
}

/// Sends a call for a connection to the gateway and waits for the answer.
///
/// # Errors
/// Error in the gateway's answer; `ECONNREFUSED` if the gateway is gone.
pub(crate) fn call(fd: c_int, slot: &Slot, what: ToDaemon<'_>) -> Result<Answer, Errno> {
    check_gateway(slot)?;
    claim(fd, slot);
    let mut calls = Calls::deferred(slot);
    calls.push(what);
    awaited(fd, calls.as_bytes(), || calls.mark_sent(slot))
}

/// Waits until the gateway has sent all replies to earlier data on a connection, and the next part of its dump: the
/// gateway handles data in order, so the answer to a call without effect comes after them. For a gateway that hangs,
/// the wait ends after [`SETTLE_MS`].
pub(crate) fn settle(fd: c_int, slot: &Slot) {
    if check_gateway(slot).is_err() {
        return;
    }
    let Ok([answers, theirs]) = sys::pipe() else { return };
    let mut calls = Calls::new();
    calls.push(ToDaemon::Hello { protocol: slot.protocol.load(Relaxed) });
    // The buffer is full only if the gateway has not read for long.
    if try_send_calls(fd, calls.as_bytes(), Some(&theirs), libc::MSG_DONTWAIT).is_err() {
        return;
    }
    drop(theirs);
    let ready = libc::pollfd { fd: answers.0, events: libc::POLLIN, revents: 0 };
    let limit = libc::timespec { tv_sec: SETTLE_MS / 1000, tv_nsec: SETTLE_MS % 1000 * 1_000_000 };
    // Any outcome ends the wait.
    let _ = sys::poll(&mut [ready], Some(limit));
}

/// Maximum time to wait for outstanding replies, in milliseconds.
const SETTLE_MS: i64 = 5000;

/// Value of an int option of a socket, from the kernel.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, socklen_t) = (0, mem::size_of::<c_int>() as socklen_t);
    // SAFETY: the buffer has space for an int.
    let done = unsafe { libc_next::getsockopt(fd, level, name, (&raw mut value).cast(), (&mut len).into()) };
    (done == 0).then_some(value)
}

/// Sets an option of a socket of the kernel's.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) fn set_option<T: Plain>(fd: c_int, level: c_int, name: c_int, value: &[T]) -> Result<(), Errno> {
    let len = mem::size_of_val(value) as socklen_t;
    // SAFETY: the value is that long. The kernel checks pointers in it.
    checked(unsafe { libc_next::setsockopt(fd, level, name, value.as_ptr().cast(), len) }).map(drop)
}
