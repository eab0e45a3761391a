//! State transitions of an SA by use and time (Linux `xfrm_state_check_expire`,
//! `xfrm_timer_handler`).

use base::{Instant, SaId};
use xfrm::Lifetime;

use super::Sad;
use crate::events::{Event, Events, SaExpired};
use crate::sa::{Age, Expired, Sa, State};
use crate::timers::Timers;

impl Sa {
    /// Time of its next change of state.
    fn next_change(&self) -> Option<Instant> {
        let Age { lifetime, added, first_used, aevents, .. } = &*self.age;
        let Some(added) = *added else { return Some(Instant::ZERO) };
        if self.state == State::Expired {
            return Some(Instant::ZERO);
        }
        let soft = if self.dying { None } else { lifetime.soft.at(added, *first_used) };
        [soft, lifetime.hard.at(added, *first_used), aevents.due()].into_iter().flatten().min()
    }

    fn schedule(&mut self, timers: &mut Timers<SaId>) {
        let (id, next) = (self.id(), self.next_change());
        timers.set(id, &mut self.age.timer, next);
    }

    /// Tells whether the next packet may take the fast path.
    #[inline]
    pub(crate) const fn is_far_from_limits(&self) -> bool {
        self.stats.bytes < self.next_bytes && self.stats.packets < self.next_packets
    }

    fn expired(&self, hard: bool) -> Event {
        let &Self { src, dst, spi, mark, mode, reqid, if_id, dir, stats, .. } = self;
        let first_used = self.age.first_used;
        let request = self.age.request.clone();
        Event::SaExpired(SaExpired { hard, src, dst, spi, mark, mode, reqid, if_id, dir, first_used, stats, request })
    }

    fn warn(&mut self, events: &mut Events, changes: &mut u64) {
        self.dying = true;
        *changes += 1;
        events.push(self.expired(false));
    }
}

impl Sad {
    /// Checks the limits of an SA that is [`State::Valid`] for one more packet. Its use before this packet counts.
    ///
    /// # Errors
    /// [`Expired`]; it is not valid from now on.
    #[inline]
    pub(crate) fn admit(&mut self, id: SaId, now: Instant) -> Result<(), Expired> {
        match self.get(id) {
            Some(sa) if !sa.is_far_from_limits() => self.admit_slowly(id, now),
            _ => Ok(()),
        }
    }

    #[cold]
    fn admit_slowly(&mut self, id: SaId, now: Instant) -> Result<(), Expired> {
        let Some((sa, timers, events, changes)) = self.with_clock(id) else { return Ok(()) };
        sa.age.first_used.get_or_insert(now);
        let (bytes, packets) = (sa.stats.bytes, sa.stats.packets);
        let Lifetime { soft, hard } = sa.age.lifetime;
        //= RFC 4301 §4.4.2.1 hard-limit: at the soft limit the key manager is notified, at the hard limit the SA ends
        //=   and no packet is sent or accepted by it
        let result = if hard.are_reached(bytes, packets) {
            sa.state = State::Expired;
            *changes += 1;
            Err(Expired)
        } else {
            if !sa.dying && soft.are_reached(bytes, packets) {
                sa.warn(events, changes);
            }
            let soft = if sa.dying { hard } else { soft };
            sa.next_bytes = soft.bytes.min(hard.bytes);
            sa.next_packets = soft.packets.min(hard.packets);
            if events.has_number_listener() {
                sa.age.aevents.touch();
            }
            Ok(())
        };
        sa.schedule(timers);
        result
    }

    /// Replaces the lifetime of an SA, which is no longer dying. Its use stays counted.
    pub(super) fn renew(&mut self, id: SaId, lifetime: Lifetime) {
        let Some((sa, timers, _, changes)) = self.with_clock(id) else { return };
        sa.age.lifetime = lifetime;
        sa.dying = false;
        (sa.next_bytes, sa.next_packets) = (0, 0);
        *changes += 1;
        sa.schedule(timers);
    }

    /// Starts the lifetime of an added SA.
    pub(super) fn start(&mut self, id: SaId) {
        if let Some((sa, timers, ..)) = self.with_clock(id) {
            sa.schedule(timers);
        }
    }

    /// Time of the next change by time.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next().into_iter().chain(self.larvae.poll_timeout()).min()
    }

    /// Handles expired timers.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.timers.pop(now) {
            self.grow_older(id, now);
        }
        while self.larvae.expire(now, &mut self.events) {
            self.changes += 1;
        }
    }

    fn grow_older(&mut self, id: SaId, now: Instant) {
        let Some((sa, timers, events, changes)) = self.with_clock(id) else { return };
        sa.age.timer.clear();
        let added = *sa.age.added.get_or_insert(now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let Lifetime { soft, hard } = sa.age.lifetime;
        if sa.state == State::Expired || is_due(hard.at(added, sa.age.first_used)) {
            if let Some(gone) = self.take(id) {
                self.events.push(gone.expired(true));
            }
            return;
        }
        if !sa.dying && is_due(soft.at(added, sa.age.first_used)) {
            sa.warn(events, changes);
        }
        if let Some(aevent) = sa.look_at_numbers(now, events.has_number_listener()) {
            events.push(Event::Numbers(aevent));
        }
        sa.schedule(timers);
    }
}
