//! Reorder queue: jobs leave in the order of submission, in whatever order they finish.

use std::collections::VecDeque;

/// Position in a reorder queue.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Ticket(u64);

/// Jobs in the order of submission; some are in flight.
#[derive(Debug)]
pub(crate) struct ReorderQueue<J> {
    /// `None` for a job in flight.
    places: VecDeque<Option<J>>,
    /// Ticket of the first place.
    first: u64,
}

impl<J> Default for ReorderQueue<J> {
    fn default() -> Self {
        Self { places: VecDeque::new(), first: 0 }
    }
}

impl<J> ReorderQueue<J> {
    /// Reserves the last place for a job that goes in flight.
    pub(crate) fn reserve(&mut self) -> Ticket {
        self.places.push_back(None);
        Ticket(self.first + self.places.len() as u64 - 1)
    }

    /// Appends a job that is done.
    pub(crate) fn push(&mut self, job: J) {
        self.places.push_back(Some(job));
    }

    /// Puts a job that was in flight into its place.
    ///
    /// # Panics
    /// If the job was not in flight.
    pub(crate) fn put_back(&mut self, ticket: Ticket, job: J) {
        let at = ticket.0.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let place = at.and_then(|at| self.places.get_mut(at)).expect("a place of this queue");
        assert!(place.replace(job).is_none(), "a job came back twice");
    }

    /// Removes the first job, if it is done.
    pub(crate) fn pop(&mut self) -> Option<J> {
        let job = self.places.front_mut()?.take()?;
        self.places.pop_front();
        self.first += 1;
        Some(job)
    }

    /// Tells whether the first job is done.
    pub(crate) fn has_first(&self) -> bool {
        matches!(self.places.front(), Some(Some(_)))
    }

    /// Number of jobs, done or in flight.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reorder_queue_jobs_done_in_any_order_leave_in_order(
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut queue = ReorderQueue::default();
            let mut in_flight = Vec::new();
            let mut handed_in = 0;
            let mut got = Vec::new();
            for (what, pick) in steps {
                match what {
                    0 => {
                        in_flight.push((queue.reserve(), handed_in));
                        handed_in += 1;
                    }
                    1 => {
                        queue.push(handed_in);
                        handed_in += 1;
                    }
                    _ if in_flight.is_empty() => {}
                    _ => {
                        let (ticket, job) = in_flight.swap_remove(pick.index(in_flight.len()));
                        queue.put_back(ticket, job);
                    }
                }
                got.extend(std::iter::from_fn(|| queue.pop()));
                prop_assert_eq!(got.len() + queue.len(), handed_in);
            }
            for (ticket, job) in in_flight.into_iter().rev() {
                queue.put_back(ticket, job);
            }
            got.extend(std::iter::from_fn(|| queue.pop()));
            prop_assert_eq!(got, (0..handed_in).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "a job came back twice")]
    fn reorder_queue_job_put_back_twice_panics() {
        let mut queue = ReorderQueue::default();
        let ticket = queue.reserve();
        queue.put_back(ticket, 1);
        queue.put_back(ticket, 1);
    }
}
