//! Boolean options of a connection.

use std::sync::atomic::Ordering::Relaxed;

use nlsock::option;

use crate::table::Slot;

/// Boolean options.
pub(crate) const SWITCHES: [u32; 7] = [
    option::PKTINFO,
    option::BROADCAST_ERROR,
    option::NO_ENOBUFS,
    option::LISTEN_ALL_NSID,
    option::CAP_ACK,
    option::EXT_ACK,
    option::GET_STRICT_CHK,
];

/// Tells whether an option is on.
pub(crate) fn is_on(slot: &Slot, option: u32) -> bool {
    slot.options.load(Relaxed) & bit(option) != 0
}

/// Bit of an option in a connection's options.
pub(crate) const fn bit(option: u32) -> u32 {
    1 << (option & 31)
}
