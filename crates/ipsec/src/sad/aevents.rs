//! Reports of an SA's numbers while it is used, so that another node can go on with it: after so many packets, and
//! after a while (Linux `xfrm_replay_notify`, `xfrm_replay_timer_handler`).
//!
//! A packet is noticed where its SA's limits are looked at closely, and the numbers are compared when time next passes: once
//! for all packets of a burst. Without a listener nothing is looked at closely for this.

use base::{Instant, SaId};
use xfrm::AeventLimits;

use super::Sad;
use crate::sa::Sa;
use crate::sa::aevents::{Aevent, Numbers};

impl Sa {
    /// When its numbers are told of again.
    pub fn aevent_limits(&self) -> AeventLimits {
        self.age.aevents.limits
    }

    /// Sets after how many packets, or how long, numbers are reported.
    pub fn set_aevent_limits(&mut self, limits: AeventLimits) {
        self.age.aevents.limits = limits;
    }

    /// Takes its numbers for told of: the operator has set them.
    pub fn note_numbers_told(&mut self) {
        self.age.aevents.told = self.numbers();
    }

    const fn numbers(&self) -> Numbers {
        let seen = if self.replay.size() > 0 { self.stats.packets } else { 0 };
        Numbers { oseq: self.out.last(), seq: self.replay.top(), seen }
    }

    /// Looks at its numbers, and has its next packet noticed. Some: they are to be told of.
    pub(super) fn look_at_numbers(&mut self, now: Instant, heard: bool) -> Option<Aevent> {
        let numbers = self.numbers();
        let added = self.age.added.unwrap_or(now);
        let told = self.age.aevents.look(now, added, numbers, heard);
        if heard {
            self.next_packets = 0;
        }
        told.map(|by_time| Aevent { sa: self.id(), by_time })
    }
}

impl Sad {
    /// Says whether the listener is told of numbers. It is told of those that change from now on.
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
