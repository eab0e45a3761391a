//! A line: what was handed in comes out in the same order, whenever it is done.

use std::collections::VecDeque;

/// A place in a line.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Ticket(u64);

/// Jobs in the order in which they were handed in, of which some are away.
#[derive(Debug)]
pub(crate) struct Line<J> {
    /// `None` for a job that is away.
    places: VecDeque<Option<J>>,
    /// The ticket of the first place.
    first: u64,
}

impl<J> Default for Line<J> {
    fn default() -> Self {
        Self { places: VecDeque::new(), first: 0 }
    }
}

impl<J> Line<J> {
    /// A place behind all others, for a job that goes away.
    pub(crate) fn reserve(&mut self) -> Ticket {
        self.places.push_back(None);
        Ticket(self.first + self.places.len() as u64 - 1)
    }

    /// Puts a job that is done behind all others.
    pub(crate) fn push(&mut self, job: J) {
        self.places.push_back(Some(job));
    }

    /// Puts a job that is back into its place.
    ///
    /// # Panics
    /// When it was never away.
    pub(crate) fn put_back(&mut self, ticket: Ticket, job: J) {
        let at = ticket.0.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let place = at.and_then(|at| self.places.get_mut(at)).expect("a place of this line");
        assert!(place.replace(job).is_none(), "a job came back twice");
    }

    /// The first job, if it is there.
    pub(crate) fn pop(&mut self) -> Option<J> {
        let job = self.places.front_mut()?.take()?;
        self.places.pop_front();
        self.first += 1;
        Some(job)
    }

    /// Tells whether the first job is there.
    pub(crate) fn has_first(&self) -> bool {
        matches!(self.places.front(), Some(Some(_)))
    }

    /// How many jobs are in the line, there or away.
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
        fn what_comes_back_in_any_order_leaves_in_the_order_it_came(
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut line = Line::default();
            let (mut away, mut handed_in, mut got) = (Vec::new(), 0, Vec::new());
            for (what, pick) in steps {
                match what {
                    0 => {
                        away.push((line.reserve(), handed_in));
                        handed_in += 1;
                    }
                    1 => {
                        line.push(handed_in);
                        handed_in += 1;
                    }
                    _ if away.is_empty() => {}
                    _ => {
                        let (ticket, job) = away.swap_remove(pick.index(away.len()));
                        line.put_back(ticket, job);
                    }
                }
                got.extend(std::iter::from_fn(|| line.pop()));
                prop_assert_eq!(got.len() + line.len(), handed_in);
            }
            for (ticket, job) in away.into_iter().rev() {
                line.put_back(ticket, job);
            }
            got.extend(std::iter::from_fn(|| line.pop()));
            prop_assert_eq!(got, (0..handed_in).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "a job came back twice")]
    fn a_job_comes_back_once() {
        let mut line = Line::default();
        let ticket = line.reserve();
        line.put_back(ticket, 1);
        line.put_back(ticket, 1);
    }
}
