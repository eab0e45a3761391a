//! Last reported sequence numbers of an SA, and the time of the next report.

use base::{Instant, SaId};
use xfrm::AeventLimits;

/// Report: an SA's numbers differ from those reported last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aevent {
    /// The SA.
    pub sa: SaId,
    /// Whether the time limit caused it; else the packet limit did.
    pub by_time: bool,
}

/// Numbers of an SA that were reported.
#[derive(Debug, Default)]
pub(crate) struct ReportedNumbers {
    pub(crate) limits: AeventLimits,
    pub(crate) reported: Numbers,
    /// Whether a packet used the SA since the last look.
    touched: bool,
    wait: Wait,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Numbers {
    pub(crate) oseq: u64,
    pub(crate) seq: u64,
    /// Number of packets that the window has accepted: late ones change nothing else.
    pub(crate) seen: u64,
}

/// Condition of the next report, apart from the number of packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Wait {
    /// The time limit, counted from the addition of the SA.
    #[default]
    First,
    Time(Instant),
    /// A change: the time limit passed without one (Linux `XFRM_TIME_DEFER`).
    Change,
}

impl Numbers {
    const fn is_ahead_by(&self, other: &Self, n: u32) -> bool {
        self.oseq.wrapping_sub(other.oseq) >= n as u64 || self.seq.wrapping_sub(other.seq) >= n as u64
    }
}

impl ReportedNumbers {
    /// Schedules a look at the numbers with the next timer.
    pub(crate) const fn touch(&mut self) {
        self.touched = true;
    }

    /// Time of the next look.
    pub(crate) const fn due(&self) -> Option<Instant> {
        match self.wait {
            _ if self.touched => Some(Instant::ZERO),
            Wait::Time(at) => Some(at),
            Wait::First | Wait::Change => None,
        }
    }

    /// Compares the numbers. Some: a report is due, because of time or not.
    pub(crate) fn look(&mut self, now: Instant, added: Instant, numbers: Numbers, enabled: bool) -> Option<bool> {
        let touched = std::mem::take(&mut self.touched);
        // Without a listener that has had a report there is no timer.
        if enabled && self.wait == Wait::First && !self.limits.time.is_zero() {
            let first = added + self.limits.time;
            self.wait = if first <= now { Wait::Change } else { Wait::Time(first) };
        }
        let is_over = matches!(self.wait, Wait::Time(at) if at <= now);
        let is_far = self.limits.packets > 0 && numbers.is_ahead_by(&self.reported, self.limits.packets);
        let changed = numbers != self.reported && (is_over || self.wait == Wait::Change);
        match (enabled, touched && is_far) {
            (true, true) => {}
            (true, false) if changed => {}
            _ => {
                if is_over {
                    self.wait = Wait::Change;
                }
                return None;
            }
        }
        self.reported = numbers;
        self.wait = if self.limits.time.is_zero() { Wait::First } else { Wait::Time(now + self.limits.time) };
        Some(!(touched && is_far))
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
    fn numbers_are_reported_after_two_packets_and_after_a_second() {
        let mut it = ReportedNumbers::default();
        // (time, used, sent, report)
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
    fn first_late_packet_is_reported_by_timer() {
        let mut it = ReportedNumbers { touched: true, ..ReportedNumbers::default() };
        assert_eq!(it.look(at(15), at(5), Numbers { oseq: 1, ..Numbers::default() }, true), Some(true));
    }

    #[test]
    fn lifetime_limit_of_zero_is_unlimited() {
        for (limits, want) in [
            (AeventLimits { packets: 0, ..AeventLimits::default() }, (None, Some(at(10)))),
            (AeventLimits { time: Duration::ZERO, ..AeventLimits::default() }, (Some(false), None)),
        ] {
            let mut it = ReportedNumbers { limits, touched: true, ..ReportedNumbers::default() };
            let reported = it.look(at(1), at(0), Numbers { seq: 1 << 33, ..Numbers::default() }, true);
            assert_eq!((reported, it.due()), want, "{limits:?}");
        }
    }

    #[test]
    fn late_packet_is_a_change_only_with_a_listener() {
        let late = Numbers { seen: 1, ..Numbers::default() };
        for enabled in [true, false] {
            let mut it = ReportedNumbers { wait: Wait::Time(at(1)), ..ReportedNumbers::default() };
            assert_eq!(it.look(at(1), at(0), late, enabled), enabled.then_some(true));
            assert_eq!(it.wait == Wait::Change, !enabled);
        }
    }
}
