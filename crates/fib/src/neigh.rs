//! Neighbours: which link-layer address a next hop has, and who waits for it (RFC 4861 §7.3, RFC 826).
//!
//! One state machine serves ARP and neighbour discovery, as in Linux. An unknown next hop is asked for three times, a
//! second apart, while its packets wait; what is known is used, and asked about again when it has not been heard of
//! for long (RFC 4861 App. C).
//!
//! A stranger may make this node look for addresses that nobody has, so everything is bounded: the number of
//! neighbours, the packets and bytes that wait for one, and the bytes that wait for all of them. When the table is
//! full, who never answered goes first and who is reachable goes last (RFC 6583 §7.1); whom the operator has set stays.
//! Nor do waiting packets keep a device's frames from it.

mod state;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use base::{DropReason, Instant, LinkId};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use packet::{Memory, Packet};
use wire::MacAddr;

use state::{State, Waiting};

/// How long and how often; how much at most. The defaults are Linux's, from RFC 4861 §10.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Solicitations to everybody before an unknown neighbour counts as failed (`mcast_solicit`).
    pub multicast_probes: u8,
    /// Solicitations to a known neighbour before it counts as failed (`ucast_solicit`).
    pub unicast_probes: u8,
    /// Time between them (`retrans_time_ms`).
    pub retransmit: Duration,
    /// How long a neighbour that answered counts as reachable (`base_reachable_time_ms`). Not randomised.
    pub reachable: Duration,
    /// How long a neighbour in use may take to be heard of before it is probed (`delay_first_probe_time`).
    pub delay: Duration,
    /// How long a failed neighbour is remembered (`gc_stale_time`).
    pub failed: Duration,
    /// Neighbours at most, without those that are permanent (`gc_thresh3`).
    pub entries: usize,
    /// Packets that may wait for one neighbour; one always may.
    pub waiting_packets: usize,
    /// Their memory, by `truesize` (`unres_qlen_bytes`).
    pub waiting_bytes: usize,
    /// The memory of the packets that wait for any neighbour.
    pub waiting_bytes_total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            multicast_probes: 3,
            unicast_probes: 3,
            retransmit: Duration::from_secs(1),
            reachable: Duration::from_secs(30),
            delay: Duration::from_secs(5),
            failed: Duration::from_secs(60),
            entries: 1024,
            waiting_packets: 32,
            waiting_bytes: 212_992,
            waiting_bytes_total: 8 << 20,
        }
    }
}

/// What became of a packet for a next hop.
#[derive(Debug)]
pub enum Resolution {
    /// It may go, to this link-layer address.
    Send(MacAddr, Packet),
    /// It waits; an [`Action`] will say what becomes of it.
    Queued,
    /// It is given back, for this reason.
    Dropped(Packet, DropReason),
}

/// What the owner of [`Neighbours`] has to do.
#[derive(Debug)]
pub enum Action {
    /// Ask on `link` who has `target`.
    Solicit {
        /// The link.
        link: LinkId,
        /// The address that is looked for.
        target: IpAddr,
        /// Whom to ask: the neighbour itself if it is known, else everybody.
        unicast_to: Option<MacAddr>,
    },
    /// Send on `link` a packet that waited.
    Send {
        /// The link.
        link: LinkId,
        /// The link-layer address of its next hop.
        to: MacAddr,
        /// The packet.
        packet: Packet,
    },
    /// Send on `link` a frame that is complete: an answer to somebody who asked for our address.
    Answer {
        /// The link.
        link: LinkId,
        /// The frame, from its Ethernet header on.
        frame: Packet,
    },
    /// Drop a packet that waited. [`DropReason::NeighbourFailed`] asks for an ICMP error to its sender.
    Drop {
        /// The link that it should have gone by.
        link: LinkId,
        /// The packet.
        packet: Packet,
        /// Why.
        reason: DropReason,
    },
    /// Tell the operator: another station uses this node's own address.
    Conflict {
        /// The link.
        link: LinkId,
        /// The address.
        addr: IpAddr,
        /// The other station.
        station: MacAddr,
    },
}

/// What a neighbour's message says about its link-layer address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// It asked for one of our addresses and named its own: a neighbour worth knowing. An ARP request to us, a
    /// neighbour solicitation with a source link-layer address (RFC 4861 §7.2.3).
    Asked(MacAddr),
    /// It said where it is. Who does not look for it learns nothing. An ARP reply, or a request to others; a neighbour
    /// advertisement (RFC 4861 §7.2.5).
    Advertised {
        /// Its link-layer address, if it named it.
        mac: Option<MacAddr>,
        /// We had asked: it is reachable both ways.
        solicited: bool,
        /// This may replace another link-layer address.
        overrides: bool,
    },
}

/// What the operator says of a neighbour (`ip neigh … nud`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Known {
    /// It has this link-layer address, whatever is heard.
    Permanent(MacAddr),
    /// It has this one, as if it had answered.
    Reachable(MacAddr),
    /// It has this one, or had it.
    Stale(MacAddr),
    /// It is to be forgotten.
    Nothing,
}

/// A neighbour as it is shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// The link that it is on.
    pub link: LinkId,
    /// Its address.
    pub addr: IpAddr,
    /// Its link-layer address, once known.
    pub mac: Option<MacAddr>,
    /// Linux's word for its state, such as `REACHABLE`.
    pub state: &'static str,
    /// How many packets wait for its link-layer address.
    pub queued: usize,
    /// Who said so (`RTPROT_*`); 0 if nobody did, or did not say who.
    pub protocol: u8,
}

type Key = (LinkId, IpAddr);

/// The neighbours on every link of a node.
pub struct Neighbours {
    limits: Limits,
    entries: HashMap<Key, State, RandomState>,
    /// How many of them are permanent.
    permanent: usize,
    /// Who has said what is known of some of them.
    protocols: HashMap<Key, u8, RandomState>,
    /// When whose state ends; one for each entry whose state has an end.
    timers: BTreeSet<(Instant, Key)>,
    /// Memory of all packets that wait.
    waiting_bytes: usize,
    /// Whose state has changed by itself, while somebody wants to know.
    changed: Option<Changed>,
}

/// Neighbours that have become known, unknown, or less sure by themselves.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changed {
    /// On which link, and who; those that are gone, too. Whoever changed twice is there twice.
    pub who: Vec<(LinkId, IpAddr)>,
    /// Those that have gone with their link, as they were.
    pub gone: Vec<Neighbour>,
    /// Whether there were more than are kept.
    pub more: bool,
}

/// Changes that are kept until they are asked for.
const MAX_CHANGED: usize = 1024;

impl Neighbours {
    /// Nobody is known yet.
    pub fn new(limits: Limits) -> Self {
        let (entries, protocols, timers) = (HashMap::default(), HashMap::default(), BTreeSet::new());
        Self { limits, entries, permanent: 0, protocols, timers, waiting_bytes: 0, changed: None }
    }

    /// Says whether somebody [wants to know](Self::take_changed) whose state changes.
    pub fn watch(&mut self, on: bool) {
        self.changed = if on { Some(self.changed.take().unwrap_or_default()) } else { None };
    }

    /// Whose state has changed by itself since this was last asked, as Linux tells of it (`neigh_update_notify`): not that
    /// somebody is looked for.
    pub fn take_changed(&mut self) -> Changed {
        self.changed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A neighbour, if it is known or looked for.
    pub fn get(&self, link: LinkId, addr: IpAddr) -> Option<Neighbour> {
        self.entries.get(&(link, addr)).map(|state| self.shown((link, addr), state))
    }

    fn shown(&self, key: Key, state: &State) -> Neighbour {
        let protocol = self.protocols.get(&key).copied().unwrap_or_default();
        let (link, addr) = key;
        Neighbour { link, addr, mac: state.mac(), state: state.word(), queued: state.queued(), protocol }
    }

    fn note(&mut self, key: Key) {
        if let Some(Changed { who, more, .. }) = &mut self.changed {
            match who.len() {
                MAX_CHANGED.. => *more = true,
                _ => who.push(key),
            }
        }
    }

    /// Tells whether a packet to `next_hop` need not wait.
    pub fn knows(&self, link: LinkId, next_hop: IpAddr) -> bool {
        match self.entries.get(&(link, next_hop)) {
            Some(state) => state.mac().is_some(),
            None => next_hop.is_multicast(),
        }
    }

    /// Finds the link-layer address for a packet to `next_hop`, or lets it wait until that is known. Groups need no
    /// neighbour (RFC 1112 §6.4, RFC 2464 §7).
    pub fn resolve(
        &mut self,
        now: Instant,
        mem: &Memory,
        link: LinkId,
        next_hop: IpAddr,
        packet: Packet,
        actions: &mut Vec<Action>,
    ) -> Resolution {
        let key = (link, next_hop);
        match self.entries.get_mut(&key) {
            Some(state) => match *state {
                State::Reachable { mac, .. }
                | State::Delay { mac, .. }
                | State::Probe { mac, .. }
                | State::Permanent { mac } => Resolution::Send(mac, packet),
                State::Stale { mac, .. } => {
                    let until = now + self.limits.delay;
                    *state = State::Delay { mac, until };
                    self.timers.insert((until, key));
                    Resolution::Send(mac, packet)
                }
                State::Incomplete { .. } => self.wait(mem, key, packet, actions),
                State::Failed { .. } => self.look_for(now, mem, key, packet, actions),
            },
            None => match next_hop {
                IpAddr::V4(group) if group.is_multicast() => Resolution::Send(MacAddr::multicast_v4(group), packet),
                IpAddr::V6(group) if group.is_multicast() => Resolution::Send(MacAddr::multicast_v6(group), packet),
                _ => self.look_for(now, mem, key, packet, actions),
            },
        }
    }

    /// Takes in what was heard from `addr`. Packets that waited for it go out as actions.
    pub fn learn(&mut self, now: Instant, link: LinkId, addr: IpAddr, heard: Heard, actions: &mut Vec<Action>) {
        let key = (link, addr);
        if let Some(state) = self.entries.get_mut(&key) {
            let Some(next) = state.after(now, heard, &self.limits) else { return };
            let (begun, mac, word) = (next.deadline(), next.mac(), next.word());
            let before = std::mem::replace(state, next);
            self.rearm(key, before.deadline(), begun);
            if (before.mac(), before.word()) != (mac, word) {
                self.note(key);
            }
            if let (State::Incomplete { waiting, .. }, Some(to)) = (before, mac) {
                self.waiting_bytes -= waiting.bytes();
                actions.extend(waiting.into_iter().map(|packet| Action::Send { link, to, packet }));
            }
        } else if let Heard::Asked(mac) = heard {
            self.make_room(actions);
            self.entries.insert(key, State::Stale { mac, since: now });
            self.note(key);
        }
    }

    /// Has a neighbour known as the operator says. Packets that waited for it go out as actions, or are dropped.
    pub fn set(&mut self, now: Instant, link: LinkId, addr: IpAddr, known: Known, actions: &mut Vec<Action>) {
        let key = (link, addr);
        let (state, to) = match known {
            Known::Nothing => return self.remove(key, actions),
            Known::Permanent(mac) => (State::Permanent { mac }, mac),
            Known::Reachable(mac) => (State::Reachable { mac, until: now + self.limits.reachable }, mac),
            Known::Stale(mac) => (State::Stale { mac, since: now }, mac),
        };
        if !state.is_permanent() && !self.entries.contains_key(&key) {
            self.make_room(actions);
        }
        let begun = state.deadline();
        self.permanent += usize::from(state.is_permanent());
        let before = self.entries.insert(key, state);
        self.permanent -= usize::from(before.as_ref().is_some_and(State::is_permanent));
        self.rearm(key, before.as_ref().and_then(State::deadline), begun);
        if let Some(State::Incomplete { waiting, .. }) = before {
            self.waiting_bytes -= waiting.bytes();
            actions.extend(waiting.into_iter().map(|packet| Action::Send { link, to, packet }));
        }
    }

    /// Notes who has said what is known of a neighbour (Linux `neigh_add`), as long as there is one.
    pub fn set_protocol(&mut self, link: LinkId, addr: IpAddr, protocol: u8) {
        if self.entries.contains_key(&(link, addr)) {
            self.protocols.insert((link, addr), protocol);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Moves on every neighbour whose time has come: asks again, or gives up, and then the packets that waited are
    /// dropped.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut Vec<Action>) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(state) = self.entries.get_mut(&key) else { continue };
            let (link, target) = key;
            let solicit = |unicast_to| Action::Solicit { link, target, unicast_to };
            let next = match state {
                State::Incomplete { sent, until, .. } if *sent < self.limits.multicast_probes => {
                    (*sent, *until) = (*sent + 1, now + self.limits.retransmit);
                    actions.push(solicit(None));
                    None
                }
                State::Probe { sent, until, mac } if *sent < self.limits.unicast_probes => {
                    (*sent, *until) = (*sent + 1, now + self.limits.retransmit);
                    actions.push(solicit(Some(*mac)));
                    None
                }
                State::Incomplete { .. } | State::Probe { .. } => {
                    Some(State::Failed { until: now + self.limits.failed })
                }
                State::Reachable { mac, .. } => Some(State::Stale { mac: *mac, since: now }),
                State::Delay { mac, .. } => {
                    actions.push(solicit(Some(*mac)));
                    Some(State::Probe { mac: *mac, sent: 1, until: now + self.limits.retransmit })
                }
                State::Failed { .. } => {
                    self.entries.remove(&key);
                    self.protocols.remove(&key);
                    self.note(key);
                    continue;
                }
                // They have no deadline, so no timer either.
                State::Stale { .. } | State::Permanent { .. } => None,
            };
            let before = next.map(|next| std::mem::replace(state, next));
            let begun = state.deadline();
            self.rearm(key, None, begun);
            if let Some(before) = before {
                self.note(key);
                self.give_up(link, before, actions);
            }
        }
    }

    /// Forgets everybody on `link`, which has gone down.
    pub fn remove_link(&mut self, link: LinkId, actions: &mut Vec<Action>) {
        let mut gone: Vec<Key> = self.entries.keys().copied().filter(|&(on, _)| on == link).collect();
        gone.sort_unstable();
        for key in gone {
            let was = self.get(key.0, key.1);
            self.remove(key, actions);
            if let Some((Changed { gone, more, .. }, was)) = self.changed.as_mut().zip(was) {
                match gone.len() {
                    MAX_CHANGED.. => *more = true,
                    _ => gone.push(was),
                }
            }
        }
    }

    /// How many neighbours there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tells whether nobody is known or looked for.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Every neighbour, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.entries.iter().map(|(&key, state)| self.shown(key, state))
    }

    /// Begins to look for a neighbour that is not known, with the packet that needs it.
    fn look_for(
        &mut self,
        now: Instant,
        mem: &Memory,
        key: Key,
        packet: Packet,
        actions: &mut Vec<Action>,
    ) -> Resolution {
        self.remove(key, actions);
        self.make_room(actions);
        let until = now + self.limits.retransmit;
        self.entries.insert(key, State::Incomplete { waiting: Waiting::default(), sent: 1, until });
        self.timers.insert((until, key));
        actions.push(Action::Solicit { link: key.0, target: key.1, unicast_to: None });
        self.wait(mem, key, packet, actions)
    }

    /// Lets a packet wait for an incomplete neighbour. It is the eldest that yields, as in Linux's
    /// `__neigh_event_send`: what is said last is what matters.
    fn wait(&mut self, mem: &Memory, key: Key, mut packet: Packet, actions: &mut Vec<Action>) -> Resolution {
        let Some(State::Incomplete { waiting, .. }) = self.entries.get_mut(&key) else {
            return Resolution::Dropped(packet, DropReason::NeighbourFailed);
        };
        packet.spare(mem);
        let (limits, need) = (&self.limits, packet.truesize());
        let reason = DropReason::NeighbourQueueFull;
        while waiting.len() >= limits.waiting_packets || waiting.bytes() + need > limits.waiting_bytes {
            let Some((eldest, bytes)) = waiting.pop() else { break };
            self.waiting_bytes -= bytes;
            actions.push(Action::Drop { link: key.0, packet: eldest, reason });
        }
        if self.waiting_bytes + need > limits.waiting_bytes_total {
            return Resolution::Dropped(packet, reason);
        }
        self.waiting_bytes += need;
        waiting.push(packet, need);
        Resolution::Queued
    }

    /// Makes room for one more neighbour.
    ///
    /// Takes those away that are worth least, an eighth of the table at once so that a scan costs little for each
    /// address. Of those that were heard of lately only one goes. Permanent ones stay (Linux `neigh_forced_gc`).
    fn make_room(&mut self, actions: &mut Vec<Action>) {
        if self.entries.len() - self.permanent < self.limits.entries {
            return;
        }
        let worth = |(&key, state): (&Key, &State)| Some((state.worth()?, key));
        let mut by_worth: Vec<_> = self.entries.iter().filter_map(worth).collect();
        let at_once = (self.limits.entries / 8).max(1);
        if at_once < by_worth.len() {
            by_worth.select_nth_unstable(at_once);
            by_worth.truncate(at_once);
        }
        by_worth.sort_unstable();
        let cheap = by_worth.iter().take_while(|(worth, _)| !worth.is_confirmed()).count().max(1);
        for (_, key) in by_worth.into_iter().take(cheap) {
            self.remove(key, actions);
            self.note(key);
        }
    }

    /// Forgets a neighbour and drops what waited for it.
    fn remove(&mut self, key: Key, actions: &mut Vec<Action>) {
        self.protocols.remove(&key);
        if let Some(state) = self.entries.remove(&key) {
            self.permanent -= usize::from(state.is_permanent());
            self.rearm(key, state.deadline(), None);
            self.give_up(key.0, state, actions);
        }
    }

    /// Drops what waited in a state that is over.
    fn give_up(&mut self, link: LinkId, before: State, actions: &mut Vec<Action>) {
        if let State::Incomplete { waiting, .. } = before {
            self.waiting_bytes -= waiting.bytes();
            let reason = DropReason::NeighbourFailed;
            actions.extend(waiting.into_iter().map(|packet| Action::Drop { link, packet, reason }));
        }
    }

    /// Puts a new deadline in the place of an old one.
    fn rearm(&mut self, key: Key, ended: Option<Instant>, begun: Option<Instant>) {
        if let Some(ended) = ended {
            self.timers.remove(&(ended, key));
        }
        if let Some(begun) = begun {
            self.timers.insert((begun, key));
        }
    }
}

impl Default for Neighbours {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
