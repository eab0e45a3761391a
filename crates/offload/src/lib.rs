//! Offloads: what lets a packet stay fat between two wires, and what makes it thin again.
//!
//! - [`checksum`]: the Internet checksum over packets in pieces (RFC 1071), verified and completed; SCTP's CRC32c, completed.
//! - [`gso`]: segmentation, a fat packet cut into those that go on the wire (Linux `skb_segment`,
//!   `tcp_gso_segment`, `__udp_gso_segment`), also inside tunnels (`skb_udp_tunnel_segment`, `gre_gso_segment`).
//! - [`gro`]: the opposite, for TCP (RFC 9293) and UDP (RFC 768) over IPv4 and IPv6 (Linux `dev_gro_receive`). What it
//!   merges, `gso` cuts into the same bytes.
//! - [`Features`] and [`fit`]: what a device takes off our hands, and making of a packet what that device takes
//!   (Linux `validate_xmit_skb`).
//! - [`ip_headers`]: a packet's IP headers in one look, wherever its bytes lie.
//!
//! Payload is moved by reference; where it has to be copied, the ledger in [`packet::Memory`] says why. Memory that is
//! another owner's is never written. A header is believed only after it was found in the bytes: what a guest says
//! about its packets decides how they are cut, never where.
//!
//! The caller flushes GRO, at the end of each burst. Nothing here does I/O or reads a clock.
//! Not here: trains of ESP, which `ipsec` cuts and opens; packets above 64 KiB (IPv6 jumbograms, RFC 2675).
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
