//! Linux's interfaces of the control plane, in the role of the kernel: netlink, and the files of `/proc/sys/net`.
//!
//! # Decides
//! - Validity of messages: [`message`] and [`attr`] are the codec. Messages are cut out of datagrams, attributes judged
//!   by tables of [`Kind`](attr::Kind)s. Whatever a client sends, the outcome is Linux's `errno`.
//! - State of a client's socket: a [`Session`] has acknowledgements with reason and place ([`Error`]), dumps in parts,
//!   groups, options, and the client's rights.
//! - Outcome of requests: a [`Protocol`] carries them out. [`rtnl`] is `NETLINK_ROUTE`, [`xfrm`] is `NETLINK_XFRM`,
//!   [`generic`] is `NETLINK_GENERIC`. [`rtnl::Model`] holds links, addresses and routes.
//! - Names, permissions and values of [`sysctl`]: the node as files that programs read and write.
//!
//! # Leaves to others
//! Frames around messages on a Unix socket (crate `nlsock`); sockets, clocks, saved state, and the traits behind which
//! the datapath stands (crate `daemon`); types of what is configured (crates `config`, `xfrm`, `qdisc`, `switch`,
//! `ila`).
//!
//! # Limits
//! - Replies to one datagram: 256 KiB (`MAX_ANSWERS` in `session.rs`); further requests in that datagram are refused. A
//!   part of a dump: 3776 bytes, or up to 32 448 if the client offers such a buffer (`PART_LEN`, `MAX_PART_LEN`).
//! - A node: 1024 links (`MAX_LINKS` in `rtnl/link/create.rs`), 4096 addresses of a link (`MAX_ADDRESSES` in
//!   `rtnl/addr.rs`), 1000 rules of a family (`MAX_RULES` in `rtnl/rule.rs`).
//!
//! # Standards
//! RFC 3549 §2.2 (messages; Linux `net/netlink/af_netlink.c`); RFC 6724 §5 (preferred source addresses), RFC 4862
//! §5.5.4 (lifetimes of addresses), RFC 2863 (operational state).
#![forbid(unsafe_code)]

pub mod attr;
mod change;
pub mod error;
pub mod generic;
pub mod message;
pub mod rtnl;
mod saved;
mod session;
pub mod sysctl;
pub mod xfrm;

pub use change::Change;
pub use error::Error;
pub use saved::{Saved, flags_of, kind_of, set_flags};
pub use session::{
    Dump, Groups, Outbox, Part, Progress, Protocol, Reply, Request, Session, SocketState, To, carry_out,
};
