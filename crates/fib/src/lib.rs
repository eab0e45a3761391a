//! Routes, and the neighbours that they lead to.
//!
//! - [`Fib`] finds the longest matching prefix in numbered tables, the local one first, and decides about a destination
//!   ([`Decision`]). It is built from the links' addresses and the static routes, and replaced as a whole or changed route by route;
//!   a cached decision is valid for one [generation](Fib::generation).
//! - [`Fib`] also keeps path MTUs learnt from ICMP ([`Fib::path_mtu`]). The caller decides which ICMP messages are valid.
//! - [`Neighbours`] has the link-layer addresses of next hops, queues packets while an address is resolved, and returns what the
//!   caller is to send and drop ([`Action`]). It is a core: it sends nothing itself and reads no clock.
//! - [`arp`] and [`nd`] build and check the messages (RFC 826, RFC 5227; RFC 4861 §4.3, §4.4, §7).
//! - Links may belong to a [`Vrf`]: packets received by them are looked up in its table, by a rule of the kind `l3mdev`. The *domain* of a lookup is the
//!   VRF's device, or [`Domain::DEFAULT`](base::Domain::DEFAULT) outside of all VRFs.
//! - A route may have an ILA encapsulation ([`RouteKind::Ila`]): the decision has the translation, which the caller applies.
//!
//! Left to others: rules by more than the destination and the domain (a table can be looked up by its number already);
//! router discovery, redirects and duplicate address detection (RFC 4862 §5.4: addresses are used as configured, but
//! a probe of another station for one is answered); multicast routing; multipath. Next hops are not resolved through other routes, except
//! for the translated destination of an encapsulation without a gateway.
#![forbid(unsafe_code)]

pub mod arp;
pub mod nd;

mod fib;
mod neigh;
mod path_mtu;
mod route;
mod rule;
mod station;
mod table;
mod vrf;

pub use fib::Fib;
pub use neigh::{Action, Changed, Known, Limits, LladdrUpdate, Neighbour, Neighbours, Resolution};
pub use path_mtu::{MAX_PATH_MTUS, MIN_PATH_MTU_V4, MIN_PATH_MTU_V6, PATH_MTU_EXPIRES, PathMtu};
pub use route::{Decision, IlaHop, IlaRoute, Route, RouteExists, RouteKind};
pub use rule::{Rule, Then};
pub use station::Station;
pub use vrf::Vrf;
