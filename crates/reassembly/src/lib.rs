//! Fragments: making them, where a router or a sender must.
//!
//! [`fragment`] cuts an IPv4 packet to an MTU (RFC 791 §3.2, Linux's `ip_do_fragment`). Putting fragments together again
//! is not here yet, and IPv6 is fragmented by its source alone (RFC 8200 §4.5), which this node is not.
#![forbid(unsafe_code)]

mod fragment;

pub use fragment::fragment;
