//! The host side of a node: a network namespace of its own, in which each link is a device of the kernel's, with the node's
//! addresses and routes, for the sockets of programs.
//!
//! - [`maker`] is a process of its own that makes the namespace and its devices, at [`order`]; [`child`] is the daemon's end
//!   of it.
//! - [`desired`] derives the content of the namespace from the node's model; [`content`] compares it with the present one;
//!   [`rtnl`] writes and reads the messages. None of these does I/O.
//! - [`socket_diag`] asks the kernel of the namespace which socket gets a packet.
//! - [`mirror`] carries the difference out, and [`side`] does so whenever the model or, by another program, the namespace has
//!   changed.

mod child;
mod content;
mod desired;
mod maker;
mod mirror;
mod order;
mod rtnl;
mod side;
mod socket_diag;

use std::io;

use base::IfAddr;

pub use maker::main as make;
pub use side::place;
pub(crate) use side::{Entrance, HostSide};
pub(crate) use socket_diag::SocketDiag;

/// Addresses of an interface of the host that is in this process's network namespace.
pub(crate) fn addresses_of_interface(index: u32) -> io::Result<Vec<IfAddr>> {
    mirror::Mirror::new(maker::rtnetlink(0)?)?.addresses(index)
}
