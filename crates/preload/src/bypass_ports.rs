//! UDP ports that bypass the gateway's policies, an unordered list.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use nlsock::MAX_BYPASS;

use crate::errno::Errno;

/// The ports; 0 is a free entry.
static PORTS: [AtomicU32; MAX_BYPASS] = [const { AtomicU32::new(0) }; MAX_BYPASS];

/// All ports.
pub(crate) fn all() -> impl Iterator<Item = u16> {
    PORTS.iter().filter_map(|port| u16::try_from(port.load(Acquire)).ok().filter(|&port| port != 0))
}

/// Adds a port, unless it is in the list.
///
/// # Errors
/// `ENOSPC`: the list contains [`MAX_BYPASS`] ports already.
pub(crate) fn insert(port: u16) -> Result<(), Errno> {
    let port = u32::from(port);
    let is_free = |place: &AtomicU32| place.compare_exchange(0, port, AcqRel, Relaxed).is_ok();
    if !PORTS.iter().any(|place| place.load(Acquire) == port) && !PORTS.iter().any(is_free) {
        return Err(Errno(libc::ENOSPC));
    }
    Ok(())
}
