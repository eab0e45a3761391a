//! Netlink, as the kernel's side speaks it (RFC 3549, `net/netlink/af_netlink.c`).
//!
//! - [`message`] and [`attr`] are the codec: messages are cut out of datagrams, attributes judged by tables of
//!   [`Kind`](attr::Kind)s. Whatever a client sends, the outcome is Linux's `errno`.
//! - A [`Session`] is a client's socket: acknowledgements with reason and place ([`Error`]), dumps in parts, groups,
//!   options, and the client's rights.
//! - A [`Protocol`] carries requests out: [`rtnl`] is `NETLINK_ROUTE`, [`xfrm`] is `NETLINK_XFRM`, [`generic`] is
//!   `NETLINK_GENERIC`.
//!
//! Nothing here does I/O or reads a clock.

pub mod attr;
pub mod error;
pub mod generic;
pub mod message;
pub mod rtnl;
mod saved;
mod session;
pub mod xfrm;

pub use error::Error;
pub use saved::{Saved, flags_of, kind_of, set_flags};
pub use session::{Dump, Groups, Outbox, Part, Progress, Protocol, Reply, Request, Session, To, carry_out};
