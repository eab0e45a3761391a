//! UDP ports that bypass the gateway's policies: ports of sockets on its host side to which the program has given a
//! bypass policy of their own (`IP_XFRM_POLICY`). They are sent to the gateway with the program's `NETLINK_XFRM`
//! sockets, and hold while one of those is open.

use std::mem;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::{c_int, c_void, sockaddr_storage, socklen_t};
use nlsock::{MAX_BYPASS, protocol};

use crate::deferred_setup::{self, BYPASS};
use crate::errno::Errno;
use crate::fd::duplicate;
use crate::{bypass_ports, libc_next, session, table};

/// Length of `struct xfrm_userpolicy_info`, and offsets in it.
const POLICY_LEN: usize = 168;
const DIR_AT: usize = 160;
const ACTION_AT: usize = 161;
/// `XFRM_POLICY_OUT`: the last of the directions that a socket's policy may have.
const OUT: u8 = 1;
/// `XFRM_POLICY_ALLOW`.
const ALLOW: u8 = 0;

/// Ports that always bypass policies: IKE's.
const ALWAYS: [u16; 2] = [500, 4500];

/// Inode numbers of sockets that got their policy before they were bound.
static UNBOUND: [AtomicU64; MAX_BYPASS] = [const { AtomicU64::new(0) }; MAX_BYPASS];

/// Applies a policy of a socket.
///
/// # Errors
/// `EINVAL`: the policy is malformed. `EOPNOTSUPP`: it is no bypass policy. `ENOSPC`: there are [`MAX_BYPASS`] such
/// ports already.
///
/// # Safety
/// As `setsockopt(2)`.
pub(crate) unsafe fn set_policy(fd: c_int, value: *const c_void, len: socklen_t) -> Result<(), Errno> {
    if value.is_null() || (len as usize) < POLICY_LEN {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as many bytes are readable.
    let policy = unsafe { slice::from_raw_parts(value.cast::<u8>(), POLICY_LEN) };
    if policy[DIR_AT] > OUT {
        return Err(Errno(libc::EINVAL));
    }
    // Templates behind the policy would require SAs.
    if policy[ACTION_AT] != ALLOW || len as usize > POLICY_LEN {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    match local_port(fd)? {
        0 => {
            let inode = table::socket_inode(fd).ok_or(Errno(libc::EBADF))?;
            let is_free = |place: &AtomicU64| place.compare_exchange(0, inode, AcqRel, Relaxed).is_ok();
            let is_deferred = UNBOUND.iter().any(|place| place.load(Acquire) == inode) || UNBOUND.iter().any(is_free);
            if is_deferred { Ok(()) } else { Err(Errno(libc::ENOSPC)) }
        }
        port => add(port),
    }
}

/// Handles the bind of a socket.
pub(crate) fn bound(fd: c_int) {
    if UNBOUND.iter().all(|place| place.load(Acquire) == 0) {
        return;
    }
    let Some(inode) = table::socket_inode(fd) else { return };
    let waits = |place: &AtomicU64| place.compare_exchange(inode, 0, AcqRel, Relaxed).is_ok();
    if UNBOUND.iter().any(waits)
        && let Ok(port) = local_port(fd)
    {
        // Without room the error is dropped, as `bind` itself succeeded.
        let _ = add(port);
    }
}

/// Adds a port, and sends it to the gateway if the program has a `NETLINK_XFRM` socket.
fn add(port: u16) -> Result<(), Errno> {
    if ALWAYS.contains(&port) || port == 0 {
        return Ok(());
    }
    bypass_ports::insert(port)?;
    for (fd, slot) in table::live(|slot| slot.protocol.load(Relaxed) == protocol::XFRM) {
        // The descriptor may have been reused by now, so the inode of its duplicate is compared.
        if let Some(same) = duplicate(fd).filter(|same| table::socket_inode(same.0) == Some(slot.inode())) {
            deferred_setup::defer(slot, BYPASS);
            // A gateway that is gone is found by the next call, which reports it.
            let _ = session::send_deferred(same.0, slot);
        }
    }
    Ok(())
}

/// The local port of a UDP socket; 0 if it is not bound.
fn local_port(fd: c_int) -> Result<u16, Errno> {
    // SAFETY: any bytes are a valid address.
    let mut address: sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: there is as much room.
    if unsafe { libc_next::getsockname(fd, (&raw mut address).cast(), &raw mut len) } != 0 {
        return Err(Errno::last());
    }
    match c_int::from(address.ss_family) {
        // In both families the port is the first word behind the family, in network byte order.
        libc::AF_INET | libc::AF_INET6 => {
            // SAFETY: an address of IPv4 is shorter than the room.
            let address = unsafe { &*(&raw const address).cast::<libc::sockaddr_in>() };
            Ok(u16::from_be(address.sin_port))
        }
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}
