//! The device of a link on the host side.

use base::Instant;
use link::Link;

/// Device of the host side.
#[derive(Debug)]
pub(crate) struct HostDevice {
    pub(crate) device: Box<dyn Link>,
    /// Number in the namespace.
    pub(crate) index: u32,
    /// Whether the device took no more, and epoll will tell when it does.
    pub(crate) full: bool,
    /// Time of the next attempt, if it took no more and nothing will tell when it does.
    pub(crate) retry_at: Option<Instant>,
}
