//! `NETLINK_XFRM`: SAs and policies, as `ip xfrm` and IKE daemons speak of them (`net/xfrm/xfrm_user.c`).
//!
//! [`Xfrm`] is the protocol over a [`Database`]; [`Event`]s are what the database tells by itself. Requests are refused in
//! Linux's order and words. What Linux has and this has not is refused as unsupported, by name: AH and IPComp, BEET and
//! route optimisation, sub-policies, security labels, devices that do ESP, migration, SAs of one processor, IP-TFS.
//!
//! Keys are given out to clients that may change them, as by Linux. Nothing else shows one.

mod algorithm;
mod attributes;
mod check;
pub mod convert;
mod database;
mod dump;
mod event;
pub mod layout;
pub mod nums;
mod policy;
mod protocol;
mod replay;
mod sa;
mod saved;

pub use database::{Counts, Database, Xfrm};
pub use event::{Acquire, Event, sa_id};
pub use policy::{Policy, PolicyQuery};
pub use replay::Replay;
pub use sa::{NewSa, NewSpi, Sa, SaQuery};
pub use saved::{Numbers, renumber, saved_defaults, set_numbers};
