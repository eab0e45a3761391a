//! A packet as a UDP socket sends it.

use super::discovery::Discovery;
use crate::sys::cmsg::Control;
use crate::sys::sockaddr::SockAddr;

/// A packet as the socket sends it.
pub(super) struct Message {
    pub(super) name: SockAddr,
    pub(super) control: Control,
    pub(super) header_len: usize,
    pub(super) discovery: Discovery,
}
