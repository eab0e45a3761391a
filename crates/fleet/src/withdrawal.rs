//! Objects that are to be withdrawn, and wait.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time for which a withdrawal waits.
pub const GRACE: Duration = Duration::from_secs(10);

/// Number of withdrawals at which their share is looked at.
pub const MASS: usize = 100;

/// Share of the withdrawals among all mappings above which they are held: one in this number.
const SHARE: usize = 10;

/// Withdrawal that waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Waiting {
    since: Duration,
    /// An event has shown the deletion, or a second snapshot.
    is_confirmed: bool,
    /// The operator has approved it.
    is_approved: bool,
}

/// Withdrawals that wait, by their objects.
#[derive(Clone, Debug)]
pub(crate) struct Withdrawals<K>(BTreeMap<K, Waiting>);

impl<K> Default for Withdrawals<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord> Withdrawals<K> {
    /// Notes a withdrawal, unless it waits already. One that an event has shown is confirmed.
    pub(crate) fn begin(&mut self, key: K, now: Duration, is_confirmed: bool, is_approved: bool) {
        let waiting = self.0.entry(key).or_insert(Waiting { since: now, is_confirmed, is_approved });
        waiting.is_confirmed |= is_confirmed;
        waiting.is_approved |= is_approved;
    }

    /// Forgets a withdrawal: the object is there. Returns whether it waited.
    pub(crate) fn cancel(&mut self, key: K) -> bool {
        self.0.remove(&key).is_some()
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.0.contains_key(&key)
    }

    pub(crate) fn is_confirmed(&self, key: K) -> bool {
        self.0.get(&key).is_some_and(|waiting| waiting.is_confirmed)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Number of withdrawals without the operator's approval, the confirmed ones among them.
    pub(crate) fn unapproved(&self) -> (usize, usize) {
        let unapproved = self.0.values().filter(|waiting| !waiting.is_approved);
        unapproved.fold((0, 0), |(all, confirmed), waiting| (all + 1, confirmed + usize::from(waiting.is_confirmed)))
    }

    /// Confirms the withdrawals that have waited long enough: a second snapshot shows them. Those that are not `certain` wait for another
    /// one, after `later`.
    pub(crate) fn confirm(&mut self, now: Duration, later: Duration, certain: impl Fn(K) -> bool) {
        let is_open = |waiting: &Waiting| !waiting.is_confirmed && now >= waiting.since + GRACE;
        for (key, waiting) in self.0.iter_mut().filter(|(_, waiting)| is_open(waiting)) {
            if certain(*key) {
                waiting.is_confirmed = true;
            } else {
                waiting.since = now + later;
            }
        }
    }

    /// Approves all withdrawals. The next snapshot confirms them: an event may have been lost.
    pub(crate) fn approve(&mut self) {
        for waiting in self.0.values_mut() {
            waiting.is_approved = true;
            waiting.is_confirmed = false;
        }
    }

    /// Removes and returns the objects whose withdrawal is due. With `is_held`, these are the approved ones.
    pub(crate) fn take_due(&mut self, now: Duration, is_held: bool) -> Vec<K> {
        let is_due = |waiting: &Waiting| {
            waiting.is_confirmed && now >= waiting.since + GRACE && (waiting.is_approved || !is_held)
        };
        let due: Vec<K> = self.0.iter().filter(|(_, waiting)| is_due(waiting)).map(|(key, _)| *key).collect();
        for key in &due {
            self.0.remove(key);
        }
        due
    }

    /// Time of the next look at the store that may confirm a withdrawal.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        self.0.values().filter(|waiting| !waiting.is_confirmed).map(|waiting| waiting.since + GRACE).min()
    }

    /// Time at which the next confirmed withdrawal is due.
    pub(crate) fn next_due(&self, is_held: bool) -> Option<Duration> {
        let waiting = self.0.values().filter(|waiting| waiting.is_confirmed && (waiting.is_approved || !is_held));
        waiting.map(|waiting| waiting.since + GRACE).min()
    }
}

/// Whether a number of withdrawals is so large a share of the mappings that an operator has to approve it.
pub(crate) const fn is_mass(withdrawals: usize, mappings: usize) -> bool {
    withdrawals >= MASS && withdrawals * SHARE > mappings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mass_is_a_tenth_of_all_and_a_hundred() {
        for (withdrawals, mappings, want) in [
            (99, 99, false),
            (100, 100, true),
            (100, 999, true),
            (100, 1000, false),
            (101, 1000, true),
            (1000, 10_001, false),
        ] {
            assert_eq!(is_mass(withdrawals, mappings), want, "{withdrawals} of {mappings}");
        }
    }

    #[test]
    fn withdrawal_waits_for_time_and_confirmation() {
        let second = Duration::from_secs;
        let mut all = Withdrawals::<u8>::default();
        let none = Vec::<u8>::new();
        all.begin(1, second(0), true, false);
        all.begin(2, second(0), false, false);
        all.begin(3, second(5), false, false);
        assert_eq!(all.take_due(second(9), false), none.clone());
        assert_eq!((all.next_due(false), all.next_look()), (Some(second(10)), Some(second(10))));
        assert_eq!(all.take_due(second(10), true), none.clone());
        assert_eq!((all.next_due(true), all.unapproved()), (None, (3, 1)));
        assert_eq!(all.take_due(second(10), false), [1]);
        all.confirm(second(10), second(60), |_| true);
        assert_eq!(all.take_due(second(20), false), [2]);
        all.approve();
        assert_eq!(all.take_due(second(20), true), none.clone(), "not confirmed");
        all.confirm(second(20), second(60), |_| true);
        assert_eq!(all.take_due(second(20), true), [3]);
        all.begin(4, second(30), false, false);
        all.confirm(second(40), second(60), |_| false);
        assert_eq!((all.take_due(second(50), false), all.next_look()), (none, Some(second(110))));
    }
}
