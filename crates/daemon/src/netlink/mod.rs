//! Netlink clients: one thread serves all of them.
//!
//! It owns nothing that packets meet: requests change the model ([`Protocols`]), and the worker gets the changes before
//! the client gets its answer. Requests are carried out whether the client reads the answers or not, as in Linux:
//! messages without room are lost, and it gets an overrun; only its dump waits.
//!
//! Clients that may only look belong to any user, and their requests may take long. They are in an epoll set of their own: in
//! each turn all ready clients that may change things are served, and then one of these, for a slice. They may hold a share
//! of the descriptors.

mod client;
mod host;
mod idle;
mod ila;
mod protocols;
mod service;
mod sysctl;

pub(crate) use protocols::{Protocols, Shared};
pub(crate) use service::{NetlinkServer, start_discard};
