//! A packet as a UDP socket sends it.

use super::discovery::Discovery;
use crate::sys::cmsg::Control;
use crate::sys::sockaddr::SockAddr;

/// A packet as the socket sends it.
pub(super) struct Message {
    pub(super) name: SockAddr,
    /// The source port.
    pub(super) source: u16,
    pub(super) control: Control,
    pub(super) header_len: usize,
    pub(super) discovery: Discovery,
}

impl Message {
    /// Port and mode of the socket that sends the packet: packets that differ in these are not sent in one call.
    pub(super) const fn socket(&self) -> (u16, Discovery) {
        (self.source, self.discovery)
    }
}
