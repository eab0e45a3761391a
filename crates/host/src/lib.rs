//! This node as a host: what it answers itself.
//!
//! [`icmp`] makes the errors that a router owes to senders and answers echo requests, both within limits. [`tcp`] resets
//! connections that no socket here has. [`Established`] knows the flows of the node's sockets, which a kernel has.
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

/// Tells whether an address may be that of one host, as a sender's has to be for it to be told anything.
const fn is_one_host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => {
            !(addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || addr.is_broadcast())
        }
        IpAddr::V6(addr) => !(addr.is_unspecified() || addr.is_multicast() || addr.is_loopback()),
    }
}
