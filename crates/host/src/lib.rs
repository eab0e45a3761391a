//! This node as a host: messages that it answers itself.
//!
//! # Decides
//! - Contents of the errors that a router sends and of echo replies, and packets that are never answered by an error:
//!   [`icmp`].
//! - Number of errors: [`RateLimit`].
//! - Resets that answer TCP segments without a connection: [`tcp`].
//! - Input link and device of packets of established flows: [`Established`] is the table of flows of the node's
//!   sockets, which are in a kernel.
//!
//! # Leaves to others
//! Reasons to send an error, its source address and its route (crate `datapath`); ARP and neighbour discovery (crate
//! `fib`); reassembly (crate `reassembly`); sockets (a kernel, behind crate `daemon`).
//!
//! # Limits
//! - Errors: 1000 a second with a burst of 50 in all, one a second with a burst of 6 to each of 1024 destinations
//!   (`rate_limit.rs`). *Packet too big* has no limit.
//! - Length of an error: 576 bytes of IPv4, 1280 of IPv6.
//! - Flows: 65 536; one of TCP is removed when it has been idle for two hours, one of UDP after 30 seconds; of sockets
//!   without a device, which belong to one VRF, one of UDP after two minutes (`established.rs`).
//!
//! # Standards
//! RFC 792, RFC 1122 §3.2.2, RFC 1812 §4.3.2.3 and §4.3.2.8 (ICMP); RFC 4443 §2.4, §3 and §4.2, RFC 8200 §4.2 (ICMPv6);
//! RFC 3168 §6.1.1 (no ECN in replies); RFC 9293 §3.10.7.1 (resets).
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
