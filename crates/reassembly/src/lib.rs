//! Fragments: making them, and putting them together again.
//!
//! [`fragment`] cuts an IPv4 packet to an MTU (RFC 791 §3.2, Linux's `ip_do_fragment`), and [`fragment_v6`] an IPv6
//! packet, which its source alone may do (RFC 8200 §4.5). [`Reassembly`] holds the fragments that are for this node
//! until a datagram is whole (RFC 791 §3.2, RFC 8200 §4.5, RFC 5722, RFC 6946; Linux's `ip_defrag` and
//! `ipv6_frag_rcv`), and does as Linux 6.18 does, which `tests/reassembly/kernel_table.rs` lists case by case.
//!
//! [`CutShort`] knows what to answer to a fragment that cannot even be summed up.
//!
//! Payload is moved by reference; what is small enough to fit behind the fragment before it is copied there, so that
//! its page goes home at once. What leaves is one packet in pieces.
//!
//! It keeps no clock, sends nothing and knows no routes. Its memory has a limit, at which new fragments are refused and
//! old ones leave by their timers alone.
//!
//! Where it differs from Linux:
//!
//! - Fragments that came through different SAs are never put together: what was protected is then not completed, and not
//!   destroyed, by what somebody else sent in clear.
//! - A fragment that is answered with a parameter problem leaves no empty queue behind, which in Linux is counted as
//!   timed out later.
//! - A first fragment of nothing that announces an extension header is answered with a parameter problem.
#![forbid(unsafe_code)]

mod cut_short;
mod distance;
mod ecn;
mod fragment;
mod fragment_v6;
mod part;
mod queue;
mod reassembly;
mod run;
mod table;
mod whole;

pub use cut_short::CutShort;
pub use fragment::fragment;
pub use fragment_v6::fragment_v6;
pub use reassembly::{Expired, Limits, Reassembly, Verdict};
