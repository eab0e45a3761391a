//! Offloads: GRO, GSO and checksums, by which packets stay fat from link to link.
//!
//! - [`checksum`]: the Internet checksum of packets in several buffers (RFC 1071), verified and completed; SCTP's
//!   CRC32c (RFC 9260), completed.
//! - [`gso`]: segmentation of a fat packet into wire packets (Linux `skb_segment`, `tcp_gso_segment`,
//!   `__udp_gso_segment`), also inside tunnels (`skb_udp_tunnel_segment`, `gre_gso_segment`).
//! - [`gro`]: merging of TCP (RFC 9293) and UDP (RFC 768) over IPv4 and IPv6 (Linux `dev_gro_receive`). `gso` segments
//!   a merged packet into the same bytes.
//! - [`Features`] and [`fit()`]: the offloads of a device, and the conversion of a packet for it (Linux
//!   `validate_xmit_skb`).
//! - [`ip_headers`]: a packet's IP headers, across buffers.
//!
//! Payload is moved by reference; each copy is counted with its reason by [`packet::Memory`]. Memory of another owner
//! is never written. Headers are trusted only after they were found in the bytes: a guest's declarations decide how its
//! packets are segmented, never where.
//!
//! Left to the caller: flushing GRO at the end of each burst, and trains of ESP (`ipsec`). Limits: packets of at most
//! 64 KiB (no IPv6 jumbograms, RFC 2675).
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
pub use fit::{fit, insert_tag};
pub use gro::Gro;
pub use headers::Headers;
pub use ip::ip_headers;
