//! IP fragmentation and reassembly.
//!
//! # Decides
//! - Fragments of a packet: [`fragment()`] for IPv4 (Linux's `ip_do_fragment`), [`fragment_v6()`] for IPv6 at its
//!   source.
//! - Completion of datagrams: [`Reassembly`] holds fragments until their datagram is complete (Linux's `ip_defrag` and
//!   `ipv6_frag_rcv`), separately for each [`User`]. Its behaviour is that of Linux 6.18, which
//!   `tests/reassembly/kernel_table.rs` lists case by case. [`TruncatedChain`] is the answer to a fragment with a
//!   truncated header chain.
//! - [Evictions](#eviction) when memory is full, and copies of fragments that waste memory ([`Coalesce`]).
//!
//! # Leaves to others
//! Time, ICMP errors, counters of drops, and routes (crate `datapath`); views of headers (crate `wire`); memory of
//! pages (crate `packet`).
//!
//! # Limits
//! Defaults of [`Config`], which are Linux's: 4 MiB for each of two tables, IPv4's and IPv6's; 30 seconds for a datagram of
//! IPv4, 60 of IPv6; 64 fragments of an IPv4 source between two of one datagram (`max_distance`). A datagram has at
//! most 65 535 bytes, in IPv6 without its header. The cost of a fragment does not depend on the number of waiting ones.
//!
//! # Standards
//! RFC 791 §3.2 (IPv4); RFC 8200 §4.5, RFC 5722 §4 (overlaps), RFC 6946 (atomic fragments), RFC 7112 §5 (header
//! chains), RFC 7739 (identifications), RFC 8021 (IPv6); RFC 3168 §5.3 (ECN of fragments); RFC 815 §3 (ends of
//! datagrams).
//!
//! # Buffers
//! Payload is moved by reference. A fragment that fits the tailroom of the one before it is copied there, and its page
//! is freed at once. The result is one packet. ESP fragments, and those in frames of a device that has few left, are
//! copied at once, to one page if they arrive in order ([`Coalesce`]). A shared page is charged whole; unless there is
//! plenty of memory, a fragment that uses little of such a page is copied to a page of its own before it waits.
//!
//! # Eviction
//! When memory is full, the datagram that is least likely to be completed is evicted:
//!
//! - one of those that have not grown since their first fragment, while these have more than an eighth of all memory;
//!   else one of the others. A fragment that is tiny compared with its datagram's other fragments, or with its own
//!   page, does not count as growth;
//! - among these, one of the source that has more than half of all memory, if there is such a source and it has most of
//!   the memory of these datagrams. An IPv6 subnet is one source;
//! - among these, the one that grew, or began, least recently.
//!
//! # Differences from Linux
//! - Linux refuses all fragments when memory is full, until datagrams time out ([`Policy::Linux`]).
//! - Fragments that came through different SAs are never reassembled together: fragments in clear from an attacker
//!   neither complete nor destroy a protected datagram.
//! - Fragments of different VRFs are never reassembled together, also in IPv6.
//! - A fragment that is answered with a parameter problem leaves no empty queue behind, which in Linux is counted as
//!   timed out later.
//! - A first fragment that ends in front of an extension header is answered with a parameter problem.
#![forbid(unsafe_code)]

mod burst;
mod cache;
mod config;
mod contiguous;
mod ecn;
mod eviction;
mod fragment;
mod fragment_meta;
mod fragment_v6;
mod key;
mod memory_charge;
mod page_waste;
mod queue;
mod range_tree;
mod reassembly;
mod rebuild_header;
mod secret;
mod slab_map;
mod source;
mod train;
mod truncated_chain;
mod user;
mod verdict;

pub use config::{Coalesce, Config, Limits, Policy};
pub use fragment::fragment;
pub use fragment_v6::fragment_v6;
pub use reassembly::{Reassembly, Usage};
pub use train::Train;
pub use truncated_chain::TruncatedChain;
pub use user::{ReassemblyContext, User};
pub use verdict::{Evicted, Expired, Verdict};
