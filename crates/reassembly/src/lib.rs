//! IP fragmentation and reassembly.
//!
//! [`fragment`] cuts an IPv4 packet to an MTU (RFC 791 §3.2, Linux's `ip_do_fragment`), and [`fragment_v6`] an IPv6
//! packet, which only its source may do (RFC 8200 §4.5). [`refragment`] cuts a datagram that was reassembled on its way, as it
//! came. [`Reassembly`] holds fragments until a datagram is whole
//! (RFC 791 §3.2, RFC 8200 §4.5, RFC 5722, RFC 6946; Linux's `ip_defrag`, `ipv6_frag_rcv` and `nf_ct_frag6_gather`), for
//! each [`User`] its own; those of 6LoWPAN too (RFC 4944 §5.3). It does as Linux 6.18 does, which
//! `tests/reassembly/kernel_table.rs` lists case by case. [`TruncatedChain`] is the answer to a fragment whose headers are cut
//! short.
//!
//! For local delivery, payload is moved by reference. A fragment that fits behind the one before it is copied there, so that its
//! page is freed at once. The result is one packet in pieces. For all other users each fragment stays a piece of its own.
//! Encrypted fragments, and those in frames of a device that has few, are copied at once instead, to one page if they come in
//! order ([`Coalesce`]). A page that others share is charged whole; unless there is plenty of memory, a fragment that uses
//! little of such a page is copied to a page of its own before it waits.
//!
//! The crate keeps no clock, sends nothing and knows no routes. Its memory has a limit, and the cost of a fragment does not
//! depend on the number of others. When memory is full, the datagram that is least likely to become whole is evicted:
//!
//! - one of those that have not grown since their first fragment, as long as they have more than an eighth of all memory;
//!   else one of the others. A fragment that is tiny beside its datagram's other fragments, or beside its own page, does not
//!   count as growth;
//! - of these, one of the source that has more than half of all memory, if there is such a source and it has most of the
//!   memory of these datagrams. An IPv6 subnet is one source;
//! - of these, the one that grew, or began, longest ago.
//!
//! Differences from Linux:
//!
//! - Linux refuses all fragments when memory is full, until datagrams time out ([`Policy::Linux`]).
//! - Fragments that came through different SAs are never put together: a protected datagram is neither completed nor
//!   destroyed by fragments that an attacker sent in clear.
//! - Nor are those of different VRFs, also in IPv6.
//! - A fragment that is answered with a parameter problem leaves no empty queue behind, which in Linux is counted as
//!   timed out later.
//! - A first fragment that ends in front of an extension header is answered with a parameter problem.
//! - In IPv6 tracking, an atomic fragment does not touch others of its identification (RFC 6946).
//! - 6LoWPAN fragments may come in any order, and an overlap ends their datagram.
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
mod refragment;
mod secret;
mod slab_map;
mod source;
mod table;
mod train;
mod truncated_chain;
mod user;
mod verdict;

pub use config::{Coalesce, Config, Limits, Policy};
pub use fragment::fragment;
pub use fragment_v6::fragment_v6;
pub use reassembly::{Reassembly, Usage};
pub use refragment::refragment;
pub use table::Table;
pub use train::Train;
pub use truncated_chain::TruncatedChain;
pub use user::{Hook, ReassemblyContext, User};
pub use verdict::{Evicted, Expired, Verdict};
