//! Interface to the database of SAs and policies.

use std::collections::VecDeque;

use xfrm::Aevents;

use super::layout::LifetimeCur;
use super::policy::{Policy, PolicyQuery};
use super::replay::Replay;
use super::sa::{NewSa, NewSpi, Sa, SaQuery};
use crate::error::Error;

/// SAs and policies.
///
/// A dump is ordered by the places of entries. An entry's place never changes: the newest entry has the highest place
/// and comes first.
pub trait Database {
    /// Adds an SA; with `update`, completes a larval SA or changes an existing one.
    ///
    /// # Errors
    /// Reason of the refusal.
    fn add_sa(&mut self, sa: Box<NewSa>, update: bool) -> Result<(), Error>;

    /// Finds an SA.
    ///
    /// # Errors
    /// `ESRCH`: the SA does not exist.
    fn find_sa(&mut self, query: &SaQuery) -> Result<Sa, Error>;

    /// Removes an SA, and returns its last state.
    ///
    /// # Errors
    /// `ESRCH`: the SA does not exist.
    fn remove_sa(&mut self, query: &SaQuery) -> Result<Sa, Error>;

    /// Expires an SA, by its soft or its hard limit.
    ///
    /// # Errors
    /// `ESRCH`: the SA does not exist.
    fn expire_sa(&mut self, query: &SaQuery, hard: bool) -> Result<(), Error>;

    /// Sets an SA's counters and sequence numbers.
    ///
    /// # Errors
    /// `ESRCH`: the SA does not exist; `EINVAL`: the SA is larval, or its window has another length.
    fn set_counts(&mut self, query: &SaQuery, counts: Counts) -> Result<(), Error>;

    /// Allocates an SPI, and returns the larval SA.
    ///
    /// # Errors
    /// `ENOENT`: the range has no free SPI.
    fn alloc_spi(&mut self, request: Box<NewSpi>) -> Result<Sa, Error>;

    /// Removes all SAs of a protocol. Returns whether any existed.
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

    /// Adds a policy; with `update`, replaces an existing one.
    ///
    /// # Errors
    /// Reason of the refusal.
    fn add_policy(&mut self, policy: Box<Policy>, update: bool) -> Result<(), Error>;

    /// Finds a policy, and removes it if requested.
    ///
    /// # Errors
    /// `ENOENT`: the policy does not exist.
    fn find_policy(&mut self, query: &PolicyQuery, remove: bool) -> Result<Policy, Error>;

    /// Removes all policies. Returns whether any existed.
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

    /// Default policies of in, out and fwd: true blocks packets without a policy.
    ///
    /// # Errors
    /// The worker does not answer.
    fn defaults(&mut self) -> Result<[bool; 3], Error>;

    /// Sets the default policies of in, out and fwd; `None` leaves one unchanged.
    ///
    /// # Errors
    /// The worker does not answer.
    fn set_defaults(&mut self, block: [Option<bool>; 3]) -> Result<(), Error>;
}

/// Settings of `NEWAE`.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Sequence numbers in legacy form, for an SA with a window of up to 32: `oseq`, `seq` and the bitmap.
    pub legacy: Option<Replay>,
    /// Sequence numbers in ESN form, for other SAs.
    pub esn: Option<Replay>,
    /// Counters of use.
    pub used: Option<LifetimeCur>,
    /// Thresholds for notifications of the SA's sequence numbers.
    pub aevents: Aevents,
}

/// `NETLINK_XFRM`, over a database.
#[derive(Debug)]
pub struct Xfrm<D> {
    /// The SAs and policies.
    pub database: D,
}

impl<D: Database> Xfrm<D> {
    /// Protocol over `database`.
    pub const fn new(database: D) -> Self {
        Self { database }
    }

    /// The database.
    pub const fn database_mut(&mut self) -> &mut D {
        &mut self.database
    }
}
