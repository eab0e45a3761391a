//! Openers: the processes that have the capabilities of a gateway, which itself has none.
//!
//! - [`child`] is the gateway's end of such a process, and [`process`] the loop of the process, which carries out orders one
//!   by one: [`message`] is the format of both. [`inherited`] passes the processes on to a gateway that starts anew. A gateway
//!   has at most two, each with the capabilities for its own orders: one of links and one of the [host side](crate::host),
//!   whose user namespace cannot be left again.
//! - [`order`] has the orders about links and devices, [`judge`] decides which of them are refused, and [`links`] carries them
//!   out: in the opener, or in a gateway that has none. [`request`] sends them, and [`calls`] those of crate [`link`].
//! - [`files`] has the orders about the gateway's own files, which it decides on and carries out as well.
//!
//! The gateway reads packets, guests' memory and requests of all users; an opener reads orders of the gateway alone. A gateway
//! that was taken over can use what it has: it opens links of the kinds that its start has admitted, and changes its own devices.

pub(crate) mod calls;
pub(crate) mod child;
mod client;
pub(crate) mod files;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod inherited;
mod judge;
mod links;
pub(crate) mod message;
pub(crate) mod order;
pub(crate) mod process;
pub(crate) mod request;
mod start_file;

pub(crate) use links::main;
pub(crate) use order::Gateway;
