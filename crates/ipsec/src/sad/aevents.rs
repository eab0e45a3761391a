//! What is told of an SA's numbers while it is used, so that another node can go on with it: after so many packets, and
//! after a while (Linux `xfrm_replay_notify`, `xfrm_replay_timer_handler`).
//!
//! A packet is noticed where its SA's limits are looked at closely, and the numbers are compared when time next passes: once
//! for all packets of a burst. Nobody looks closely for this while nobody listens.

use base::{Instant, SaId};

use super::Sad;
use crate::config::AeventLimits;
use crate::sa::Sa;

/// An SA's numbers are others than those that were told of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aevent {
    /// The SA.
    pub sa: SaId,
    /// Time has passed; else there were as many packets.
    pub by_time: bool,
}

/// What has been told of an SA's numbers.
#[derive(Debug, Default)]
pub(crate) struct Aevents {
    pub(super) limits: AeventLimits,
    told: Numbers,
    /// Whether a packet was noticed.
    touched: bool,
    wait: Wait,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Numbers {
    oseq: u64,
    seq: u64,
    /// Packets that a window has seen: those that come late move nothing else.
    seen: u64,
}

/// What is waited for beside as many packets as are told of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Wait {
    /// As long since it was added as it would be since it was told.
    #[default]
    First,
    Time(Instant),
    /// Time has passed without a change: the next one is told of (Linux `XFRM_TIME_DEFER`).
    Change,
}

impl Numbers {
    const fn of(sa: &Sa) -> Self {
        let seen = if sa.replay.size() > 0 { sa.stats.packets } else { 0 };
        Self { oseq: sa.out.last(), seq: sa.replay.top(), seen }
    }

    const fn is_ahead_by(&self, other: &Self, n: u32) -> bool {
        self.oseq.wrapping_sub(other.oseq) >= n as u64 || self.seq.wrapping_sub(other.seq) >= n as u64
    }
}

impl Aevents {
    /// Has the numbers looked at when time next passes.
    pub(super) const fn touch(&mut self) {
        self.touched = true;
    }

    /// When they are looked at.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.wait {
            _ if self.touched => Some(Instant::ZERO),
            Wait::Time(at) => Some(at),
            Wait::First | Wait::Change => None,
        }
    }

    /// Looks at them. Some: they are to be told of, because time has passed or not.
    fn look(&mut self, now: Instant, added: Instant, numbers: Numbers, heard: bool) -> Option<bool> {
        let touched = std::mem::take(&mut self.touched);
        // Whoever has not heard of it needs no timer for that.
        if heard && self.wait == Wait::First && !self.limits.time.is_zero() {
            let first = added + self.limits.time;
            self.wait = if first <= now { Wait::Change } else { Wait::Time(first) };
        }
        let is_over = matches!(self.wait, Wait::Time(at) if at <= now);
        let is_far = self.limits.packets > 0 && numbers.is_ahead_by(&self.told, self.limits.packets);
        let changed = numbers != self.told && (is_over || self.wait == Wait::Change);
        match (heard, touched && is_far) {
            (true, true) => {}
            (true, false) if changed => {}
            _ => {
                if is_over {
                    self.wait = Wait::Change;
                }
                return None;
            }
        }
        self.told = numbers;
        self.wait = if self.limits.time.is_zero() { Wait::First } else { Wait::Time(now + self.limits.time) };
        Some(!(touched && is_far))
    }
}

impl Sa {
    /// When its numbers are told of again.
    pub fn aevent_limits(&self) -> AeventLimits {
        self.age.aevents.limits
    }

    /// Has its numbers told of after so many packets, or so long.
    pub fn set_aevent_limits(&mut self, limits: AeventLimits) {
        self.age.aevents.limits = limits;
    }

    /// Takes its numbers for told of: the operator has set them.
    pub fn note_numbers_told(&mut self) {
        self.age.aevents.told = Numbers::of(self);
    }

    /// Looks at its numbers, and has its next packet noticed. Some: they are to be told of.
    pub(super) fn look_at_numbers(&mut self, now: Instant, heard: bool) -> Option<Aevent> {
        let numbers = Numbers::of(self);
        let added = self.age.added.unwrap_or(now);
        let told = self.age.aevents.look(now, added, numbers, heard);
        if heard {
            self.next_packets = 0;
        }
        told.map(|by_time| Aevent { sa: self.id(), by_time })
    }
}

impl Sad {
    /// Says whether somebody hears of numbers. Whoever begins to hears of those that change from now on.
    pub(crate) fn hear_numbers(&mut self, heard: bool) {
        if self.events.hear_numbers(heard) || !heard {
            return;
        }
        let ids: Vec<SaId> = self.iter().map(Sa::id).collect();
        for id in ids {
            if let Some(sa) = self.get_mut(id) {
                sa.next_packets = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const fn at(tenths: u64) -> Instant {
        Instant::from_nanos(tenths * 100_000_000)
    }

    #[test]
    fn numbers_are_told_of_after_two_packets_and_after_a_second_if_they_change() {
        let mut it = Aevents::default();
        // (when, a packet was noticed, sent, what is told)
        let looks = [
            (3, true, 1, None),
            (10, false, 1, Some(true)),
            (15, true, 2, None),
            (17, true, 3, Some(false)),
            (20, true, 4, None),
            (27, false, 4, Some(true)),
            (37, false, 4, None), // from now on each change counts
            (50, true, 5, Some(true)),
            (55, true, 9, Some(false)),
            (64, false, 9, None),
        ];
        for (tenths, touched, oseq, want) in looks {
            it.touched = touched;
            let numbers = Numbers { oseq, ..Numbers::default() };
            assert_eq!(it.look(at(tenths), at(0), numbers, true), want, "at {tenths}: {it:?}");
        }
        assert_eq!(it.due(), Some(at(65)));
    }

    #[test]
    fn the_first_packet_is_told_of_by_time_if_it_comes_late() {
        let mut it = Aevents { touched: true, ..Aevents::default() };
        assert_eq!(it.look(at(15), at(5), Numbers { oseq: 1, ..Numbers::default() }, true), Some(true));
    }

    #[test]
    fn a_limit_of_zero_is_none() {
        for (limits, want) in [
            (AeventLimits { packets: 0, ..AeventLimits::default() }, (None, Some(at(10)))),
            (AeventLimits { time: Duration::ZERO, ..AeventLimits::default() }, (Some(false), None)),
        ] {
            let mut it = Aevents { limits, touched: true, ..Aevents::default() };
            let told = it.look(at(1), at(0), Numbers { seq: 1 << 33, ..Numbers::default() }, true);
            assert_eq!((told, it.due()), want, "{limits:?}");
        }
    }

    #[test]
    fn a_late_packet_is_a_change_and_nothing_is_one_that_nobody_hears() {
        let late = Numbers { seen: 1, ..Numbers::default() };
        for heard in [true, false] {
            let mut it = Aevents { wait: Wait::Time(at(1)), ..Aevents::default() };
            assert_eq!(it.look(at(1), at(0), late, heard), heard.then_some(true));
            assert_eq!(it.wait == Wait::Change, !heard);
        }
    }
}
