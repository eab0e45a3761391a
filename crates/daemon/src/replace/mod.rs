//! Replacement of a running gateway by the next one (`fatpath run --replace`).
//!
//! The next gateway connects to the control socket of the one before it, which passes duplicates of its descriptors and forwards
//! packets as before. The next one makes its links over them, and reads, plans and applies its whole configuration, with workers
//! that are paused. Then it takes over: the one before it stops, saves what the next start of a gateway needs, closes its
//! links, and says so. From then on the next one has its place.
//!
//! - [`offer`] is the end of the gateway before, and [`earlier`] that of the next one.
//! - [`held`] has what has been passed, until links and sockets are made from it.
//! - [`guests`] has connections of guests, which are passed last.
//! - [`message`] has the messages between both.
//! - [`kept`] is the same over a restart by the service manager, which keeps the descriptors meanwhile.

mod duplicates;
pub(crate) mod earlier;
pub(crate) mod guests;
pub(crate) mod held;
pub(crate) mod kept;
mod message;
pub(crate) mod offer;
