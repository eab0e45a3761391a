//! Timers: deadlines by their owners.

use std::collections::BTreeSet;

use base::Instant;

/// Deadlines by owner, one each. Every operation costs a logarithm of their number.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    /// Ordered by time.
    due: BTreeSet<(Instant, K)>,
}

/// The current deadline of an owner; kept by it, and changed by [`Timers`] alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timer(Option<Instant>);

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { due: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Timers<K> {
    /// Sets the deadline of `who` to `at`, or clears it with `None`.
    #[inline]
    pub(crate) fn set(&mut self, who: K, timer: &mut Timer, at: Option<Instant>) {
        if timer.0 == at {
            return;
        }
        if let Some(before) = timer.0 {
            self.due.remove(&(before, who));
        }
        if let Some(at) = at {
            self.due.insert((at, who));
        }
        timer.0 = at;
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Removes an owner whose deadline has passed by `now`. Its own [`Timer`] has to be [cleared](Timer::clear).
    pub(crate) fn pop(&mut self, now: Instant) -> Option<K> {
        let &(at, who) = self.due.first()?;
        (at <= now).then(|| {
            self.due.pop_first();
            who
        })
    }
}

impl Timer {
    /// Clears the deadline, which has passed.
    pub(crate) const fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_fires_once_at_its_latest_deadline() {
        let at = Instant::from_nanos;
        let mut timers = Timers::default();
        let mut a = Timer::default();
        let mut b = Timer::default();
        timers.set('a', &mut a, Some(at(5)));
        timers.set('b', &mut b, Some(at(3)));
        timers.set('a', &mut a, Some(at(2)));
        assert_eq!((timers.next(), timers.pop(at(1))), (Some(at(2)), None));
        assert_eq!(timers.pop(at(9)), Some('a'));
        a.clear();
        timers.set('a', &mut a, Some(at(9)));
        timers.set('b', &mut b, None);
        assert_eq!((timers.pop(at(9)), timers.pop(at(9)), timers.next()), (Some('a'), None, None));
    }
}
