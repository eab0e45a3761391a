//! SAs and policies as `NETLINK_XFRM` shows and changes them.
//!
//! The `ipsec` crate holds SAs and policies in the terms that packets need. Each of them keeps the request that made it
//! ([`SaRecord`](super::records::SaRecord), [`PolicyRecord`](super::records::PolicyRecord)), in which names and keys of algorithms
//! and structures have all their fields; a dump and an event of its end show it.

#[cfg(any(test, feature = "fuzzing"))]
mod alone;
mod convert;
mod database;
mod events;
mod pending;
mod policies;
mod sas;
mod shown;
#[cfg(test)]
mod tests;
mod view;

#[cfg(any(test, feature = "fuzzing"))]
pub use alone::Alone;
pub(crate) use database::WorkerSadb;
pub(crate) use events::note;
pub(crate) use pending::XfrmEvents;
pub(crate) use shown::added_sas;
