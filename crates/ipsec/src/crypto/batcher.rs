//! Batches of received packets, one for each SA, before they are queued for decryption.

use std::collections::VecDeque;

use super::box_pool::PooledBox;
use crate::open_job::OpenJob;

/// Open batches, each a job with the packets of one SA, in the order in which they began. The latest is the one that
/// began or was found last.
#[derive(Debug, Default)]
pub(crate) struct Batcher {
    jobs: VecDeque<PooledBox<OpenJob>>,
    latest: usize,
}

impl Batcher {
    /// Tells whether there is no batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Number of batches.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Latest batch.
    #[inline]
    pub(crate) fn latest(&self) -> Option<&OpenJob> {
        self.jobs.get(self.latest).map(|job| &**job)
    }

    /// Latest batch, to append packets to.
    #[inline]
    pub(crate) fn latest_mut(&mut self) -> Option<&mut OpenJob> {
        self.jobs.get_mut(self.latest).map(|job| &mut **job)
    }

    /// The newest batch that `matches`, which becomes the latest. `None` without one, or if a newer batch is of an SA
    /// that replaces the batch's SA: a packet that joined the older batch would overtake packets of the newer batch,
    /// and both may be of one flow.
    #[inline]
    pub(crate) fn find(&mut self, matches: impl Fn(&OpenJob) -> bool) -> Option<&mut OpenJob> {
        if !self.latest().is_some_and(&matches) {
            let found = self.jobs.iter().rposition(|job| matches(job))?;
            if self.jobs.range(found + 1..).any(|later| self.jobs[found].is_rekeyed_by(later)) {
                return None;
            }
            self.latest = found;
        }
        self.latest_mut()
    }

    /// Appends a batch, which becomes the latest.
    pub(crate) fn push(&mut self, job: PooledBox<OpenJob>) -> &mut OpenJob {
        self.latest = self.jobs.len();
        self.jobs.push_back(job);
        &mut self.jobs[self.latest]
    }

    /// Removes the oldest batch. If it was the latest, the newest one becomes the latest: a packet that joins that
    /// overtakes none.
    pub(crate) fn pop(&mut self) -> Option<PooledBox<OpenJob>> {
        let popped = self.jobs.pop_front();
        self.latest = self.latest.checked_sub(1).unwrap_or_else(|| self.jobs.len().saturating_sub(1));
        popped
    }

    /// Number of batches up to the latest.
    pub(crate) fn up_to_latest(&self) -> usize {
        self.jobs.len().min(self.latest + 1)
    }
}
