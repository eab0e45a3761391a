//! What arrives now and is not handed in yet.

use std::collections::VecDeque;

use super::box_pool::Placed;
use crate::open_job::OpenJob;

/// Jobs that grow, each by the packets of another SA, in the order in which they began. One of them is at hand: it began or
/// was found last.
#[derive(Debug, Default)]
pub(crate) struct Collecting {
    jobs: VecDeque<Placed<OpenJob>>,
    latest: usize,
}

impl Collecting {
    /// Tells whether nothing arrives.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The one at hand.
    #[inline]
    pub(crate) fn latest(&self) -> Option<&OpenJob> {
        self.jobs.get(self.latest).map(|job| &**job)
    }

    /// The same, to grow.
    #[inline]
    pub(crate) fn latest_mut(&mut self) -> Option<&mut OpenJob> {
        self.jobs.get_mut(self.latest).map(|job| &mut **job)
    }

    /// The last job that `is_it`, which is at hand from now on. `None` if there is none, or if packets of an SA that replaces its
    /// SA came later: a packet that joined it would overtake those, which may be of its flow.
    #[inline]
    pub(crate) fn find(&mut self, is_it: impl Fn(&OpenJob) -> bool) -> Option<&mut OpenJob> {
        if !self.latest().is_some_and(&is_it) {
            let found = self.jobs.iter().rposition(|job| is_it(job))?;
            if self.jobs.range(found + 1..).any(|later| self.jobs[found].is_rekeyed_by(later)) {
                return None;
            }
            self.latest = found;
        }
        self.latest_mut()
    }

    /// Puts one behind the others. It is at hand from now on.
    pub(crate) fn push(&mut self, job: Placed<OpenJob>) -> &mut OpenJob {
        self.latest = self.jobs.len();
        self.jobs.push_back(job);
        &mut self.jobs[self.latest]
    }

    /// Takes off the one that began first. If it was at hand, the next one is.
    pub(crate) fn pop(&mut self) -> Option<Placed<OpenJob>> {
        self.latest = self.latest.saturating_sub(1);
        self.jobs.pop_front()
    }

    /// How many there are up to the one at hand.
    pub(crate) fn up_to_latest(&self) -> usize {
        self.jobs.len().min(self.latest + 1)
    }
}
