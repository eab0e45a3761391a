//! State transitions of an SA by use and time (Linux `xfrm_state_check_expire`,
//! `xfrm_timer_handler`).

use base::{Instant, SaId};
use xfrm::Lifetime;

use super::Sad;
use crate::events::{Event, Events, SaExpired};
use crate::sa::{Age, Expired, Sa, State};
use crate::shared::SharedChange;
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
        let (cpu, request) = (self.cpu(), self.age.request.clone());
        Event::SaExpired(SaExpired {
            hard,
            src,
            dst,
            spi,
            mark,
            mode,
            reqid,
            if_id,
            dir,
            cpu,
            first_used,
            stats,
            request,
        })
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
        let is_first = sa.age.first_used.replace(sa.age.first_used.unwrap_or(now)).is_none();
        let was_dying = sa.dying;
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
        let is_dying = sa.dying && !was_dying;
        let renewals = sa.age.renewals;
        sa.schedule(timers);
        self.dying += usize::from(is_dying);
        if is_first {
            self.tell(SharedChange::SaUsed { sa: id, at: now });
        }
        if is_dying {
            self.tell(SharedChange::SaDying { sa: id, renewals });
        }
        result
    }

    /// Replaces the lifetime of an SA, which is no longer dying. Its use stays counted.
    pub(super) fn renew(&mut self, id: SaId, lifetime: Lifetime) {
        let owner = self.place.id;
        let Some((sa, timers, _, changes)) = self.with_clock(id) else { return };
        sa.age.lifetime = lifetime;
        sa.age.renewals = sa.age.renewals.wrapping_add(1);
        let was_dying = std::mem::take(&mut sa.dying);
        (sa.next_bytes, sa.next_packets) = (0, 0);
        *changes += 1;
        if owner == sa.owner() {
            sa.schedule(timers);
        }
        self.dying -= usize::from(was_dying);
    }

    /// Starts the lifetime of an added SA, at its owner.
    pub(super) fn start(&mut self, id: SaId) {
        let owner = self.place.id;
        if let Some((sa, timers, ..)) = self.with_clock(id).filter(|(sa, ..)| sa.owner() == owner) {
            sa.schedule(timers);
        }
    }

    /// Continues the lifetime of another SA, which was added and first used at these times.
    pub(crate) fn resume_lifetime(&mut self, id: SaId, added: Instant, first_used: Option<Instant>) {
        let owner = self.place.id;
        let Some((sa, timers, ..)) = self.with_clock(id) else { return };
        (sa.age.added, sa.age.first_used) = (Some(added), first_used);
        if sa.owner() == owner {
            sa.schedule(timers);
            self.resumed.push(id);
        }
    }

    /// Reports the soft expiry of resumed SAs that are dying.
    pub(crate) fn report_resumed(&mut self) {
        for id in std::mem::take(&mut self.resumed) {
            let dying = self.get(id).filter(|sa| sa.dying).map(|sa| sa.expired(false));
            if let Some(event) = dying {
                self.events.push(event);
            }
        }
    }

    /// Time of the next change by time.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let of_larvae = self.larvae.poll_timeout().filter(|_| self.place.is_first());
        self.timers.next().into_iter().chain(of_larvae).min()
    }

    /// Handles expired timers.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.timers.pop(now) {
            self.grow_older(id, now);
        }
        while self.place.is_first()
            && let Some(seq) = self.larvae.pop_due(now)
        {
            if self.place.has_others() {
                self.shared.push(SharedChange::LarvalEnded { seq, is_reported: true });
            } else {
                self.end_larval(seq, true);
            }
        }
    }

    /// Ends a larval SA. The first shard reports that.
    pub(crate) fn end_larval(&mut self, seq: u32, is_reported: bool) {
        self.changes += 1;
        let Some(gone) = self.larvae.remove(seq) else { return };
        if is_reported && self.place.is_first() {
            self.events.push(gone.expired());
        }
    }

    /// Removes an SA that has reached its hard limit. Its owner, which has counted its packets, reports that.
    pub(crate) fn end(&mut self, id: SaId) {
        let Some(gone) = self.take(id) else { return };
        if self.owns(&gone) {
            self.events.push(gone.expired(true));
        }
    }

    /// Follows an SA's owner, to which it is dying, unless its lifetime has been replaced meanwhile.
    pub(crate) fn follow_dying(&mut self, id: SaId, renewals: u32) {
        if let Some(sa) = self.get_mut(id).filter(|sa| sa.age.renewals == renewals) {
            let was_dying = std::mem::replace(&mut sa.dying, true);
            self.changes += 1;
            self.dying += usize::from(!was_dying);
        }
    }

    /// Follows an SA's owner, which has used it.
    pub(crate) fn follow_use(&mut self, id: SaId, at: Instant) {
        if let Some(sa) = self.get_mut(id) {
            sa.age.first_used.get_or_insert(at);
        }
    }

    fn grow_older(&mut self, id: SaId, now: Instant) {
        let Some((sa, timers, events, changes)) = self.with_clock(id) else { return };
        sa.age.timer.clear();
        let added = *sa.age.added.get_or_insert(now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let Lifetime { soft, hard } = sa.age.lifetime;
        if sa.state == State::Expired || is_due(hard.at(added, sa.age.first_used)) {
            sa.state = State::Expired;
            *changes += 1;
            if self.place.has_others() {
                self.shared.push(SharedChange::SaEnded { sa: id });
            } else {
                self.end(id);
            }
            return;
        }
        let is_dying = !sa.dying && is_due(soft.at(added, sa.age.first_used));
        let renewals = sa.age.renewals;
        if is_dying {
            sa.warn(events, changes);
        }
        if let Some(aevent) = sa.look_at_numbers(now, events.has_number_listener()) {
            events.push(Event::Numbers(aevent));
        }
        sa.schedule(timers);
        self.dying += usize::from(is_dying);
        if is_dying {
            self.tell(SharedChange::SaDying { sa: id, renewals });
        }
    }
}
