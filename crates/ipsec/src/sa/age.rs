//! Lifetime of an SA and what it depends on, apart from what each packet needs.

use base::{Instant, SaId};
use xfrm::{Lifetime, Request, SaConfig};

use super::aevents::ReportedNumbers;
use crate::timers::{Timer, Timers};

/// Age of an SA, apart from what is read for each packet.
#[derive(Debug)]
pub(crate) struct Age {
    pub(crate) lifetime: Lifetime,
    /// The time at which time first passed for it.
    pub(crate) added: Option<Instant>,
    /// When it was used first.
    pub(crate) first_used: Option<Instant>,
    pub(crate) timer: Timer,
    /// Number of SAs that were added before it.
    pub(crate) born: u64,
    /// The highest number received when its device was last told.
    pub(crate) esn_told: u64,
    pub(crate) aevents: ReportedNumbers,
    /// The request that made the SA.
    pub(crate) request: Option<Request>,
}

impl Age {
    pub(crate) fn new(config: &SaConfig) -> Self {
        Self {
            lifetime: config.lifetime,
            added: None,
            first_used: None,
            timer: Timer::default(),
            born: 0,
            esn_told: config.seq,
            aevents: ReportedNumbers::default(),
            request: config.request.clone(),
        }
    }

    pub(crate) fn unschedule(&mut self, id: SaId, timers: &mut Timers<SaId>) {
        timers.set(id, &mut self.timer, None);
    }
}
