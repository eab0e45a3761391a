//! Routes, and the neighbours that they lead to.
//!
//! - [`Fib`] finds the longest matching prefix in numbered tables, the local one first, and says what becomes of a
//!   destination ([`Decision`]). It is built from the links' addresses and the static routes, replaced as a whole or changed route by route;
//!   [`Fib::generation`] tells a caller that keeps a decision when to ask again.
//! - It also keeps what ICMP has taught of paths beyond their first link ([`Fib::path_mtu`]). Whether a message is to be
//!   believed is for its caller to find out.
//! - [`Neighbours`] knows the link-layer addresses of next hops, keeps packets for a while until it does, and tells its
//!   caller what to send and what to give up ([`Action`]). It is a core: it sends nothing itself and reads no clock.
//! - [`arp`] and [`nd`] build and judge the messages (RFC 826, RFC 5227; RFC 4861 §4.3, §4.4, §7).
//!
//! - Links may belong to a [`Vrf`]: what comes in by them is looked up in its table, where a rule of the kind `l3mdev` says
//!   so. The *domain* that a lookup is in is the VRF's device, or [`Domain::DEFAULT`](base::Domain::DEFAULT) outside of all.
//! - A route may have an ILA encapsulation ([`RouteKind::Ila`]): the decision names the translation, which the caller carries out.
//!
//! Left to others: rules by more than the destination and the domain (a table can be asked by its number already);
//! router discovery, redirects and duplicate address detection (RFC 4862 §5.4: addresses are used as configured, but
//! a probe of another station for one is answered); multicast routing; multipath. Next hops are not resolved through other routes, but
//! for the destination that an encapsulation without a gateway makes.
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
pub use neigh::{Action, Changed, Heard, Known, Limits, Neighbour, Neighbours, Resolution};
pub use path_mtu::{MAX_PATH_MTUS, MIN_PATH_MTU_V4, MIN_PATH_MTU_V6, PATH_MTU_EXPIRES, PathMtu};
pub use route::{Decision, IlaHop, IlaRoute, Route, RouteExists, RouteKind};
pub use rule::{Rule, Then};
pub use station::Station;
pub use vrf::Vrf;
