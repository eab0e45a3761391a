//! Reports of an SA's numbers for another node that may take over: after a number of packets, and after a time (Linux
//! `xfrm_replay_notify`, `xfrm_replay_timer_handler`).
//!
//! The slow path of admission notes that a packet used the SA, and the next timer compares the numbers: once for all
//! packets of a burst. Without a listener this costs nothing.

use base::{Instant, SaId};
use xfrm::AeventLimits;

use super::Sad;
use crate::sa::Sa;
use crate::sa::aevents::{Aevent, Numbers};

impl Sa {
    /// Thresholds of its reports.
    pub fn aevent_limits(&self) -> AeventLimits {
        self.age.aevents.limits
    }

    /// Sets the number of packets and the time after which numbers are reported.
    pub fn set_aevent_limits(&mut self, limits: AeventLimits) {
        self.age.aevents.limits = limits;
    }

    /// Takes its numbers for reported: the operator has set them.
    pub fn note_numbers_reported(&mut self) {
        self.age.aevents.reported = self.numbers();
    }

    const fn numbers(&self) -> Numbers {
        let seen = if self.replay.size() > 0 { self.stats.packets } else { 0 };
        Numbers { oseq: self.out.last(), seq: self.replay.top(), seen }
    }

    /// Compares its numbers, and lets the next packet take the slow path. Some: a report is due.
    pub(super) fn look_at_numbers(&mut self, now: Instant, enabled: bool) -> Option<Aevent> {
        let numbers = self.numbers();
        let added = self.age.added.unwrap_or(now);
        let reported = self.age.aevents.look(now, added, numbers, enabled);
        if enabled {
            self.next_packets = 0;
        }
        reported.map(|by_time| Aevent { sa: self.id(), by_time })
    }
}

impl Sad {
    /// Sets whether the listener gets reports, of numbers that change from now on.
    pub(crate) fn enable_numbers(&mut self, enabled: bool) {
        if self.events.enable_numbers(enabled) || !enabled {
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
