//! Routes, and the neighbours that they lead to.
//!
//! # Decides
//! - Decision about a destination ([`Decision`]): [`Fib`] finds the longest matching prefix in numbered tables, the
//!   local one first. It is built from the links' addresses and the static routes, and replaced as a whole or changed
//!   route by route; a cached decision is valid for one [generation](Fib::generation).
//! - Table of a packet: links may belong to a [`Vrf`], and packets received by them are looked up in its table, by a
//!   rule of the kind `l3mdev`. The *domain* of a lookup is the VRF's device, or
//!   [`Domain::DEFAULT`](base::Domain::DEFAULT) outside of all VRFs.
//! - Path of a flow, among those of a route with several ([`NextHop`]), by a hash with weights.
//! - Path MTUs learnt from ICMP ([`Fib::path_mtu`]).
//! - Link-layer addresses of next hops: [`Neighbours`] queues packets while an address is resolved, and returns
//!   [`Action`]s. It is a core: it sends nothing itself and reads no clock. [`arp`] and [`nd`] build and check the
//!   messages.
//!
//! # Leaves to others
//! - Validity of ICMP messages, sending and dropping of packets, application of a route's ILA translation
//!   ([`RouteKind::Ila`]): crate `datapath`. The translation itself: crate `ila`.
//! - No crate has rules by mark, user or output link, router discovery, redirects, duplicate address
//!   detection (RFC 4862 §5.4: addresses are used as configured, but a probe of another station for one is answered),
//!   multicast routing, or next hop objects. Next hops are not resolved through other routes, except for the translated
//!   destination of an encapsulation without a gateway.
//!
//! # Limits
//! - Routes: as many as fit in memory. A route leads through at most 8 VRF devices (`MAX_LEAKS` in `fib.rs`).
//! - Path MTUs: [`MAX_PATH_MTUS`] destinations (1024), for [`PATH_MTU_EXPIRES`] (10 minutes), of at least
//!   [`MIN_PATH_MTU_V4`] (552) and [`MIN_PATH_MTU_V6`] (1280) bytes.
//! - Neighbours, by [`Limits`] and their defaults: 1024 entries of one family on one link; 256 new resolutions a
//!   second; 101 packets and 212 992 bytes that wait for one neighbour, 4 MiB for one table, 8 MiB in all.
//! - Recorded changes of neighbours: 1000 a second, 1024 until they are taken (`MAX_CHANGED` in `neigh`).
//!
//! # Standards
//! RFC 826 and RFC 5227 (ARP); RFC 4861 §4.3, §4.4, §7 and §10, RFC 6980 §5 (neighbour discovery); RFC 6583 §6.4 and
//! §7.1 (limits of resolutions); RFC 1191 and RFC 8201 (path MTUs); RFC 919 §7 and RFC 3021 (broadcast); RFC 4291
//! §2.6.1 (anycast); RFC 6724 §5, rules 2, 5 and 8 (source addresses).
#![forbid(unsafe_code)]

pub mod arp;
pub mod nd;

mod fib;
mod neigh;
mod path_mtu;
mod paths;
mod route;
mod rule;
mod station;
mod table;
mod vrf;

pub use fib::Fib;
pub use neigh::{
    Action, Changes, Known, Limits, LladdrUpdate, Neighbour, Neighbours, NudState, Resolution, SharedStation,
};
pub use path_mtu::{MAX_PATH_MTUS, MIN_PATH_MTU_V4, MIN_PATH_MTU_V6, PATH_MTU_EXPIRES, PathMtu};
pub use paths::{NextHop, PathsId};
pub use route::{Decision, IlaHop, IlaRoute, Route, RouteExists, RouteKind};
pub use rule::{Rule, RuleAction};
pub use station::Station;
pub use vrf::Vrf;
