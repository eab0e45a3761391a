//! SAs and policies as `NETLINK_XFRM` shows and changes them.
//!
//! The `ipsec` crate holds SAs and policies. Each of them keeps the request that created it
//! ([`SaRecord`](super::records::SaRecord), [`PolicyRecord`](super::records::PolicyRecord)), with the names and keys of
//! algorithms and all fields of the structures; dumps, and events of the object's end, contain the request.

mod database;
mod events;
mod netlink_view;
mod pending;
mod policies;
mod sas;
#[cfg(any(test, feature = "fuzzing"))]
mod test_client;
#[cfg(test)]
mod tests;

pub(crate) use database::WorkerSadb;
pub(crate) use events::record;
pub(crate) use pending::XfrmEvents;
pub(crate) use sas::{forget_reserved, resume_lifetimes, times_of};
#[cfg(any(test, feature = "fuzzing"))]
pub use test_client::Alone;
