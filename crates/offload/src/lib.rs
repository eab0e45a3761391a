//! Offloads: GRO, GSO and checksums, by which packets stay fat from link to link.
//!
//! # Decides
//! - [`checksum`]: the Internet checksum of packets in several buffers, verified and completed; SCTP's CRC32c,
//!   completed.
//! - [`gso`]: segmentation of a fat packet into wire packets (Linux `skb_segment`, `tcp_gso_segment`,
//!   `__udp_gso_segment`), also inside tunnels (`skb_udp_tunnel_segment`, `gre_gso_segment`).
//! - [`gro`]: merging of TCP and UDP over IPv4 and IPv6 (Linux `dev_gro_receive`). `gso` segments a merged packet into
//!   the same bytes.
//! - [`Features`] and [`fit()`]: the offloads of a device, and the conversion of a packet for it (Linux
//!   `validate_xmit_skb`).
//! - [`ip_headers`]: a packet's IP headers, across buffers.
//!
//! Payload is moved by reference; each copy is counted with its reason by [`packet::Memory`]. Memory of another owner
//! is never written. Headers are trusted only after they were found in the bytes: a guest's declarations decide how its
//! packets are segmented, never where.
//!
//! # Leaves to others
//! Flushing of GRO at the end of each burst (crate `datapath`), trains of ESP (crate `ipsec`), features that a device
//! has (crate `link`), formats of headers (crate `wire`).
//!
//! # Limits
//! - A merged packet has at most 65 535 bytes (no IPv6 jumbograms, RFC 2675) or 64 UDP datagrams (`MAX_LEN`,
//!   `MAX_DATAGRAMS` in `gro/held.rs`).
//! - GRO holds 8 packets in each of 8 buckets (`PER_BUCKET`, `BUCKETS` in `gro/mod.rs`).
//! - [`gso::MAX_SEGMENTS`]: 2340 segments of a packet.
//! - 4 nested tunnels (`MAX_TUNNELS` in `encapsulation.rs`).
//!
//! # Standards
//! RFC 1071 (Internet checksum); RFC 768, RFC 6935 and RFC 8200 §8.1 (checksum of UDP, and its absence); RFC 9293 and
//! RFC 3168 §6.1.2 (TCP, congestion flags of segments); RFC 9260 §6.8 and appendix A (CRC32c).
#![deny(unsafe_code)]

pub mod checksum;
mod crc32c;
mod encapsulation;
mod features;
mod fit;
pub mod gro;
pub mod gso;
mod headers;
mod ip;
mod sum;

pub use encapsulation::inner_headers;
pub use features::{CsumOffload, Features};
pub use fit::{behind_tags, fit, insert_tag, push_tag};
pub use gro::Gro;
pub use headers::Headers;
pub use ip::ip_headers;
