//! UDP ports that bypass the gateway's policies: ports of sockets on its host side on which the program has set a
//! bypass policy (`IP_XFRM_POLICY`). The ports are sent to the gateway on the program's `NETLINK_XFRM` sockets, and are
//! valid while one of these sockets is open.

use std::mem;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::{c_int, sockaddr_in, socklen_t};
use nlsock::{MAX_BYPASS, protocol};

use crate::deferred_setup::{self, BYPASS};
use crate::errno::{Errno, checked};
use crate::fd::duplicate;
use crate::plain::zeroed;
use crate::program_memory::Bytes;
use crate::{bypass_ports, libc_next, session, table};

/// Length of `struct xfrm_userpolicy_info`, and offsets in it.
const POLICY_LEN: usize = 168;
const DIR_AT: usize = 160;
const ACTION_AT: usize = 161;
/// `XFRM_POLICY_OUT`: the highest direction of a socket's policy.
const OUT: u8 = 1;
/// `XFRM_POLICY_ALLOW`.
const ALLOW: u8 = 0;

/// Ports that always bypass policies: IKE's.
const ALWAYS: [u16; 2] = [500, 4500];

/// Inode numbers of sockets whose policy was set before `bind`.
static UNBOUND: [AtomicU64; MAX_BYPASS] = [const { AtomicU64::new(0) }; MAX_BYPASS];

/// Applies a policy of a socket.
///
/// # Errors
/// `EINVAL`: the policy is malformed. `EOPNOTSUPP`: the policy is no bypass policy. `ENOSPC`: [`MAX_BYPASS`] ports
/// bypass policies already.
pub(crate) fn set_policy(fd: c_int, value: Bytes<'_>) -> Result<(), Errno> {
    let mut policy = [0; POLICY_LEN];
    if value.copy_to(&mut policy) < POLICY_LEN || policy[DIR_AT] > OUT {
        return Err(Errno(libc::EINVAL));
    }
    // Templates behind the policy would require SAs.
    if policy[ACTION_AT] != ALLOW || value.len() > POLICY_LEN {
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
        // The error of a full list is dropped: `bind` itself succeeded.
        let _ = add(port);
    }
}

/// Adds a port, and sends it to the gateway on the program's `NETLINK_XFRM` sockets, if any.
fn add(port: u16) -> Result<(), Errno> {
    if ALWAYS.contains(&port) || port == 0 {
        return Ok(());
    }
    bypass_ports::insert(port)?;
    for (fd, slot) in table::live(|slot| slot.protocol.load(Relaxed) == protocol::XFRM) {
        // The descriptor may have been reused; the inode of its duplicate shows whether.
        if let Some(same) = duplicate(fd).filter(|same| table::socket_inode(same.0) == Some(slot.inode())) {
            deferred_setup::defer(slot, BYPASS);
            // If the gateway is gone, the next call reports it.
            let _ = session::send_deferred(same.0, slot);
        }
    }
    Ok(())
}

/// Local port of a UDP socket; 0 if unbound.
fn local_port(fd: c_int) -> Result<u16, Errno> {
    // The kernel truncates the address to the buffer. In both families the port follows the family, in network byte
    // order.
    let mut address: sockaddr_in = zeroed();
    let mut len = mem::size_of::<sockaddr_in>() as socklen_t;
    // SAFETY: the buffer is that long.
    checked(unsafe { libc_next::getsockname(fd, (&raw mut address).cast(), (&mut len).into()) })?;
    match c_int::from(address.sin_family) {
        libc::AF_INET | libc::AF_INET6 => Ok(u16::from_be(address.sin_port)),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}
