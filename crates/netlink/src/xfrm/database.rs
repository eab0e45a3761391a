//! The database that the protocol works on.

use std::collections::VecDeque;

use xfrm::Aevents;

use super::layout::LifetimeCur;
use super::policy::{Policy, PolicyQuery};
use super::replay::Replay;
use super::sa::{NewSa, NewSpi, Sa, SaQuery};
use crate::error::Error;

/// SAs and policies, which requests are about.
///
/// A dump is ordered by the places of entries, which never change: the newest entry has the highest place and comes first.
pub trait Database {
    /// Adds an SA, or completes or changes one.
    ///
    /// # Errors
    /// Reason of the refusal.
    fn add_sa(&mut self, sa: Box<NewSa>, update: bool) -> Result<(), Error>;

    /// Finds an SA.
    ///
    /// # Errors
    /// `ESRCH`: there is none.
    fn find_sa(&mut self, query: &SaQuery) -> Result<Sa, Error>;

    /// Takes an SA out, and returns what it was.
    ///
    /// # Errors
    /// `ESRCH`: there is none.
    fn remove_sa(&mut self, query: &SaQuery) -> Result<Sa, Error>;

    /// Ends an SA as if its time had come: softly or not.
    ///
    /// # Errors
    /// `ESRCH`: there is none.
    fn expire_sa(&mut self, query: &SaQuery, hard: bool) -> Result<(), Error>;

    /// Sets what an SA has counted and its numbers.
    ///
    /// # Errors
    /// `ESRCH`: there is none; `EINVAL`: it is yet to come, or its window has another length.
    fn set_counts(&mut self, query: &SaQuery, counts: Counts) -> Result<(), Error>;

    /// Promises an SPI, and returns the SA that is to come.
    ///
    /// # Errors
    /// `ENOENT`: there is none in the range.
    fn alloc_spi(&mut self, request: Box<NewSpi>) -> Result<Sa, Error>;

    /// Removes all SAs of a protocol. Tells whether there were any.
    ///
    /// # Errors
    /// The worker does not answer.
    fn flush_sas(&mut self, proto: u8) -> Result<bool, Error>;

    /// SAs below a place, at most `limit` of them, with their places.
    ///
    /// # Errors
    /// The worker does not answer.
    fn sas(&mut self, below: u64, limit: usize) -> Result<VecDeque<(u64, Sa)>, Error>;

    /// Number of SAs.
    ///
    /// # Errors
    /// The worker does not answer.
    fn count_sas(&mut self) -> Result<u32, Error>;

    /// Adds a policy; `update`: or replaces the one that is there.
    ///
    /// # Errors
    /// Reason of the refusal.
    fn add_policy(&mut self, policy: Box<Policy>, update: bool) -> Result<(), Error>;

    /// Finds a policy, and removes it if requested.
    ///
    /// # Errors
    /// `ENOENT`: there is none.
    fn find_policy(&mut self, query: &PolicyQuery, remove: bool) -> Result<Policy, Error>;

    /// Removes all policies. Tells whether there were any.
    ///
    /// # Errors
    /// The worker does not answer.
    fn flush_policies(&mut self) -> Result<bool, Error>;

    /// Policies below a place, at most `limit` of them, with their places.
    ///
    /// # Errors
    /// The worker does not answer.
    fn policies(&mut self, below: u64, limit: usize) -> Result<VecDeque<(u64, Policy)>, Error>;

    /// Number of policies of in, out and fwd.
    ///
    /// # Errors
    /// The worker does not answer.
    fn count_policies(&mut self) -> Result<[u32; 3], Error>;

    /// Default policies of in, out and fwd: true blocks what no policy is for.
    ///
    /// # Errors
    /// The worker does not answer.
    fn defaults(&mut self) -> Result<[bool; 3], Error>;

    /// Says which of in, out and fwd do; `None` leaves one as it is.
    ///
    /// # Errors
    /// The worker does not answer.
    fn set_defaults(&mut self, block: [Option<bool>; 3]) -> Result<(), Error>;
}

/// Settings of `NEWAE`.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// The numbers of an SA whose window is one of up to 32: `oseq`, `seq`, and those that were seen.
    pub legacy: Option<Replay>,
    /// The numbers of the others.
    pub esn: Option<Replay>,
    /// Use so far.
    pub used: Option<LifetimeCur>,
    /// Limits at which its numbers are reported.
    pub aevents: Aevents,
}

/// `NETLINK_XFRM`, over a database.
#[derive(Debug)]
pub struct Xfrm<D> {
    /// The SAs and policies.
    pub database: D,
    /// Prefix lengths from which policies would be found by a hash, of IPv4 and IPv6; here all are, and these are shown.
    pub(super) thresholds: [[u8; 2]; 2],
}

impl<D: Database> Xfrm<D> {
    /// Over `database`.
    pub const fn new(database: D) -> Self {
        Self { database, thresholds: [[32, 32], [128, 128]] }
    }

    /// The database.
    pub const fn database_mut(&mut self) -> &mut D {
        &mut self.database
    }

    /// The database, taken out.
    pub fn into_database(self) -> D {
        self.database
    }
}
