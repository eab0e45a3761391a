//! Fragments: making them, and putting them together again.
//!
//! [`fragment`] cuts an IPv4 packet to an MTU (RFC 791 §3.2, Linux's `ip_do_fragment`), and [`fragment_v6`] an IPv6
//! packet, which its source alone may do (RFC 8200 §4.5). [`refragment`] cuts what was put together on its way, as it
//! came. [`Reassembly`] holds fragments until a datagram is whole
//! (RFC 791 §3.2, RFC 8200 §4.5, RFC 5722, RFC 6946; Linux's `ip_defrag`, `ipv6_frag_rcv` and `nf_ct_frag6_gather`), for
//! each [`User`] its own; those of 6LoWPAN too (RFC 4944 §5.3). It does as Linux 6.18 does, which
//! `tests/reassembly/kernel_table.rs` lists case by case. [`TruncatedChain`] knows what to answer to a fragment that cannot even
//! be summed up.
//!
//! For local delivery, payload is moved by reference; what is small enough to fit behind the fragment before it is copied
//! there, so that its page goes home at once; what leaves is one packet in pieces. For all others each fragment stays a
//! piece of its own. What is encrypted, and what lies in frames of which a device has few, is copied at once instead, to one
//! page if it comes in order ([`Coalesce`]). A page that others have a share in is charged whole; unless there is plenty of
//! memory, a fragment that uses little of it is copied to a page of its own before it waits.
//!
//! It keeps no clock, sends nothing and knows no routes. Its memory has a limit, and no fragment costs more for how many
//! others there are. When memory is full, the datagram that is least likely to become whole makes room:
//!
//! - one of those that have not grown since their first fragment, as long as they have more than an eighth of all memory;
//!   else one of the others. What is tiny beside its datagram's other fragments, or beside its own page, does not count
//!   as growth;
//! - of these, one of the source that has more than half of all memory, if there is such a source and it has most of what
//!   these have. An IPv6 subnet is one source;
//! - of these, the one that grew, or began, longest ago.
//!
//! Where it differs from Linux:
//!
//! - Linux refuses all fragments when memory is full, until datagrams time out ([`Policy::Linux`]).
//! - Fragments that came through different SAs are never put together: what was protected is then not completed, and not
//!   destroyed, by what somebody else sent in clear.
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
mod lowpan;
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
mod train;
mod truncated_chain;
mod user;
mod verdict;

pub use config::{Coalesce, Config, Limits, Policy};
pub use fragment::fragment;
pub use fragment_v6::fragment_v6;
pub use lowpan::{LinkAddr, LowpanInfo, Station};
pub use reassembly::{Reassembly, Table, Usage};
pub use refragment::refragment;
pub use train::Train;
pub use truncated_chain::TruncatedChain;
pub use user::{Hook, ReassemblyContext, User};
pub use verdict::{Evicted, Expired, Verdict};
