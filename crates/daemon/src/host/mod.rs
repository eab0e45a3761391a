//! The host side of a node: a network namespace in which the kernel has a device for each link, with the node's
//! addresses and routes, for the sockets of programs.
//!
//! - [`opener`] is a separate process in the namespace, which creates it and its devices and changes its content, on
//!   orders: [`order`]. [`search`] finds a namespace again that a killed gateway has left.
//! - [`desired`] derives the content of the namespace from the node's model; [`content`] compares it with the present
//!   one; [`rtnl`] writes and reads the messages. None of these does I/O.
//! - [`socket_diag`] looks up the socket that gets a packet, in the kernel of the namespace.
//! - [`mirror`] applies the difference, and [`side`] calls it whenever the model has changed, or another program has
//!   changed the namespace.

mod content;
mod desired;
mod mirror;
mod opener;
mod order;
pub(crate) mod rtnl;
mod search;
mod side;
mod socket_diag;

use std::io;

use base::IfAddr;

#[cfg(feature = "fuzzing")]
pub(crate) use opener::check_order;
pub(crate) use opener::main as open;
pub use side::place;
pub(crate) use side::{Entrance, HostSide, start_opener};
pub(crate) use socket_diag::SocketDiag;

/// Addresses of a host interface in this process's network namespace.
pub(crate) fn addresses_of_interface(index: u32) -> io::Result<Vec<IfAddr>> {
    mirror::Mirror::new(crate::rtnetlink::socket(0)?)?.addresses(index)
}
