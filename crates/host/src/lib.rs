//! This node as a host: messages that it answers itself.
//!
//! [`icmp`] makes the errors that a router sends, and answers echo requests; [`RateLimit`] limits the errors. [`tcp`] resets
//! connections without a socket. [`Established`] is the table of flows of the node's sockets, which are in a kernel.
//!
//! Sources: RFC 792, RFC 1122 §3.2.2, RFC 1812 §4.3, RFC 4443, RFC 9293 §3.10.7.1.
#![forbid(unsafe_code)]

mod established;
pub mod icmp;
mod rate_limit;
pub mod tcp;

use std::net::IpAddr;

pub use established::{Established, Flow, LocalRoute};
pub use rate_limit::RateLimit;

/// Tells whether an address may be that of one host, to which an answer can be sent.
const fn is_one_host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => {
            !(addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || addr.is_broadcast())
        }
        IpAddr::V6(addr) => !(addr.is_unspecified() || addr.is_multicast() || addr.is_loopback()),
    }
}
