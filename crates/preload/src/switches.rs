//! Options of a connection that are on or off.

use std::sync::atomic::Ordering::Relaxed;

use nlsock::option;

use crate::table::Slot;

/// Options that are on or off.
pub(crate) const SWITCHES: [u32; 7] = [
    option::PKTINFO,
    option::BROADCAST_ERROR,
    option::NO_ENOBUFS,
    option::LISTEN_ALL_NSID,
    option::CAP_ACK,
    option::EXT_ACK,
    option::GET_STRICT_CHK,
];

/// Whether an option is on.
pub(crate) fn is_on(slot: &Slot, option: u32) -> bool {
    slot.options.load(Relaxed) & bit(option) != 0
}

/// Bit of an option, among a connection's options.
pub(crate) const fn bit(option: u32) -> u32 {
    1 << (option & 31)
}
