//! `NETLINK_XFRM`: SAs and policies, for `ip xfrm` and IKE daemons (`net/xfrm/xfrm_user.c`).
//!
//! [`Xfrm`] is the protocol over a [`Database`]; [`Event`]s are notifications that no request causes. Requests are
//! refused in Linux's order and with its texts. Features of Linux that do not exist here are refused as unsupported, by
//! name: AH and IPComp, BEET and route optimisation, sub-policies, security labels, offload of policies to devices,
//! migration, SAs of one processor, IP-TFS.
//!
//! Keys are shown to clients that may change them, as by Linux, and to no others.

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
pub(crate) use saved::change;
pub use saved::{
    Numbers, adds, has_limit, is_lost, is_update, label_of, make_new, removal_before, renumber, sa_key, saved_defaults,
    set_numbers, time_left, with_numbers,
};
