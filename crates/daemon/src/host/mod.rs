//! The host side of a node: a network namespace in which the kernel has a device for each link, with the node's
//! addresses and routes, for the sockets of programs.
//!
//! - [`maker`] is a separate process in the namespace, which creates it and its devices; [`order`] is the protocol, and
//!   [`child`] the daemon's end of it. [`search`] finds a namespace again that a killed gateway has left.
//! - [`desired`] derives the content of the namespace from the node's model; [`content`] compares it with the present
//!   one; [`rtnl`] writes and reads the messages. None of these does I/O.
//! - [`socket_diag`] looks up the socket that gets a packet, in the kernel of the namespace.
//! - [`mirror`] applies the difference, and [`side`] calls it whenever the model has changed, or another program has
//!   changed the namespace.

mod child;
mod content;
mod desired;
mod maker;
mod mirror;
mod order;
pub(crate) mod rtnl;
mod search;
mod side;
mod socket_diag;

use std::io;

use base::IfAddr;

pub(crate) use child::Maker;
pub use maker::main as make;
pub use side::place;
pub(crate) use side::{Entrance, HostSide};
pub(crate) use socket_diag::SocketDiag;

/// Addresses of a host interface in this process's network namespace.
pub(crate) fn addresses_of_interface(index: u32) -> io::Result<Vec<IfAddr>> {
    mirror::Mirror::new(crate::rtnetlink::socket(0)?)?.addresses(index)
}
