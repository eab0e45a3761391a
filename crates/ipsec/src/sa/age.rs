//! Lifetime of an SA and fields of its expiry that packets do not read.

use base::{Instant, SaId};
use xfrm::{Lifetime, Request, SaConfig};

use super::aevents::ReportedNumbers;
use crate::timers::{Timer, Timers};

/// Age of an SA, apart from the fields that each packet reads.
#[derive(Debug)]
pub(crate) struct Age {
    pub(crate) lifetime: Lifetime,
    /// Number of times that the lifetime was replaced.
    pub(crate) renewals: u32,
    /// Time of the first timer call after its addition.
    pub(crate) added: Option<Instant>,
    /// Time of its first use.
    pub(crate) first_used: Option<Instant>,
    pub(crate) timer: Timer,
    /// Number of SAs that were added before it.
    pub(crate) born: u64,
    /// The highest received number that was reported to its device.
    pub(crate) esn_reported: u64,
    pub(crate) aevents: ReportedNumbers,
    /// Packets and bytes of its counters that are in its sum, or belong in none; wraps.
    pub(crate) summed: (u64, u64),
    /// The request that made the SA.
    pub(crate) request: Option<Request>,
}

impl Age {
    pub(crate) fn new(config: &SaConfig) -> Self {
        Self {
            lifetime: config.lifetime,
            renewals: 0,
            added: None,
            first_used: None,
            timer: Timer::default(),
            born: 0,
            esn_reported: config.seq,
            aevents: ReportedNumbers::default(),
            summed: (0, 0),
            request: config.request.clone(),
        }
    }

    pub(crate) fn unschedule(&mut self, id: SaId, timers: &mut Timers<SaId>) {
        timers.set(id, &mut self.timer, None);
    }
}
