//! Netlink clients: one thread serves all of them.
//!
//! The thread owns no state of the datapath: requests change the model ([`Protocols`]), and the worker gets the changes
//! before the client gets its answer. Requests are handled whether the client reads the answers or not, as in Linux:
//! messages without room are lost, and the client gets an overrun; only its dump waits.
//!
//! Read-only clients belong to any user, and their requests may take long. They have an epoll set of their own: each
//! turn serves all ready clients that may change the node, and then one read-only client, for a slice. Read-only
//! clients may hold a share of the descriptors.

mod backend;
mod client;
mod idle;
mod ila;
mod protocols;
mod service;
mod socket;
mod sysctl;

pub(crate) use protocols::{Protocols, Shared};
pub(crate) use service::{NetlinkServer, start_discard};
pub(crate) use sysctl::write as write_sysctl;
