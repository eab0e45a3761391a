//! The device of a link on the host side.

use base::Instant;
use link::Link;

/// Device of the host side.
#[derive(Debug)]
pub(crate) struct HostDevice {
    pub(crate) device: Box<dyn Link>,
    /// Number in the namespace.
    pub(crate) index: u32,
    /// Whether the device's queue is full, and epoll reports when it has room.
    pub(crate) full: bool,
    /// Time of the next attempt, if the device's queue is full and epoll does not report room.
    pub(crate) retry_at: Option<Instant>,
}
