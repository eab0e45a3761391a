//! Linux's interfaces of the control plane, in the role of the kernel: netlink (RFC 3549,
//! `net/netlink/af_netlink.c`) and the files of `/proc/sys/net`.
//!
//! - [`message`] and [`attr`] are the codec: messages are cut out of datagrams, attributes judged by tables of
//!   [`Kind`](attr::Kind)s. Whatever a client sends, the outcome is Linux's `errno`.
//! - A [`Session`] is a client's socket: acknowledgements with reason and place ([`Error`]), dumps in parts, groups,
//!   options, and the client's rights.
//! - A [`Protocol`] carries requests out: [`rtnl`] is `NETLINK_ROUTE`, [`xfrm`] is `NETLINK_XFRM`, [`generic`] is
//!   `NETLINK_GENERIC`. [`rtnl::Model`] holds links, addresses and routes; the datapath stands behind traits.
//! - [`sysctl`] is the node as files that programs read and write.
//!
//! Sockets, clocks and the datapath are the daemon's. At most 256 KiB of answers wait for a client, and a dump is written in parts
//! that fit in the client's buffer.
#![forbid(unsafe_code)]

pub mod attr;
pub mod error;
pub mod generic;
pub mod message;
pub mod rtnl;
mod saved;
mod session;
pub mod sysctl;
pub mod xfrm;

pub use error::Error;
pub use saved::{Saved, flags_of, kind_of, set_flags};
pub use session::{Dump, Groups, Outbox, Part, Progress, Protocol, Reply, Request, Session, To, carry_out};
