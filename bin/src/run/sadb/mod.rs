//! SAs and policies as `NETLINK_XFRM` shows and changes them.
//!
//! The `ipsec` crate keeps what packets need. What was said besides, and has to be shown again as it was said, is kept
//! here ([`records`]): names and keys of algorithms, structures with all their fields, the order of coming. The file's SAs and
//! policies are taken in when they are first asked for. Whatever ends by itself is left out of what is shown, and forgotten
//! later.

#[cfg(any(test, feature = "fuzzing"))]
mod alone;
mod convert;
mod database;
mod events;
mod from_file;
mod policies;
mod records;
mod sas;
mod shown;
#[cfg(test)]
mod tests;
mod view;

#[cfg(any(test, feature = "fuzzing"))]
pub use alone::Alone;
pub(crate) use database::WorkerSadb;
pub(crate) use events::note;
pub(crate) use from_file::policies_of;
pub(crate) use records::Sadb;
pub(crate) use shown::added_sas;
