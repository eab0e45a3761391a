//! This node as a host: what it answers itself.
//!
//! [`icmp`] makes the errors that a router owes to senders and answers echo requests, both within limits. Sockets of
//! the node's own, and early demux to them, are not here yet.
//!
//! Sources: RFC 792, RFC 1122 §3.2.2, RFC 1812 §4.3, RFC 4443.
#![forbid(unsafe_code)]

pub mod icmp;
mod rate_limit;

pub use rate_limit::RateLimit;
