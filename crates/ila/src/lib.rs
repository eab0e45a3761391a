//! Identifier-locator addressing: the upper half of an IPv6 destination, its locator, is replaced by another one.
//!
//! # Decides
//! - Translation of a destination: [`Mappings`] is the table, by the locator, or the whole address, to be matched and the
//!   device that a packet came by. A mapping of the address is used before one of its locator, and of two of these the one
//!   for the device. The table has one reader and writer, so it has no locks.
//! - [`RouteEncap`] is the same as a property of a route, in either direction.
//! - Bytes after translation: [`Rewrite`] translates an address, or a packet in any checksum state, fat ones too.
//!
//! # Leaves to others
//! Place of the translation in the datapath and addresses inside ICMP errors (crate `datapath`), routes (crate `fib`),
//! requests and files that configure mappings (crates `netlink` and `config`).
//!
//! # Limits
//! - Mappings: as many as fit in memory, at most [`Mappings::BYTES_OF_MAPPING`] bytes (58) each, and for an address
//!   [`Mappings::BYTES_OF_ADDRESS`] (77).
//! - As in Linux, the last 16 bits of an identifier are a number modulo 65 535 with a neutral mode, so an identifier
//!   that ends in 0000 arrives as one that ends in ffff.
//! - As in Linux, `adj-transport` changes nothing in packets with extension headers, fragments among them.
//!
//! # Standards
//! draft-herbert-intarea-ila; RFC 4291 (addresses); RFC 1624 (incremental update of a checksum); RFC 4443 §2.1
//! (checksum of ICMPv6). Follows Linux `ila_common.c`, `ila_lwt.c` and `ila_xlat.c`.
//!
//! # Addresses and checksums
//! An address is a [`Locator`], which says where a node is, and an [`Identifier`], which says which node it is.
//! Applications use *SIR addresses*, whose locator (the SIR prefix) is the same wherever the node is; packets travel
//! under *ILA addresses*, whose locator is the node's place. Translation changes the destination alone, never the
//! source.
//!
//! The transport's checksum covers the address. [`CsumMode`] is the way in which it stays right:
//!
//! | mode | what absorbs the difference of the locators | right on the way | right after the second translation |
//! |---|---|---|---|
//! | `neutral-map` | the identifier's last 16 bits; its C bit is set | yes | yes |
//! | `neutral-map-auto` | the identifier's last 16 bits, without a mark | yes | yes |
//! | `adj-transport` | the checksum of TCP, UDP or ICMPv6 | by [`AdjTransport`] | yes |
//! | `no-action` | nothing | no | yes |
//!
//! On the way GRO merges, and receivers' hardware verifies, only packets whose checksum is right: `neutral-map` is the
//! mode for speed.
#![forbid(unsafe_code)]

mod checksum;
mod groups;
mod identifier;
mod locator;
mod mappings;
mod parted_table;
mod route_encap;
mod translate;

pub use checksum::{CsumMode, Diff};
pub use identifier::{BadIdentifier, IdentType, Identifier};
pub use locator::{BadLocator, Locator};
pub use mappings::{Exists, Mapping, MappingChange, MappingKey, Mappings};
pub use route_encap::{EncapError, HookType, RouteEncap};
pub use translate::{AdjTransport, Direction, Rewrite};
