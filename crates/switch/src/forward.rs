//! The decision about one frame (Linux `br_handle_frame`, `br_handle_frame_finish`, `br_dev_xmit`, `br_forward`, `br_flood`).

use base::{Instant, LinkId};
use wire::MacAddr;
use wire::vlan::Tci;

use crate::bridge::Bridge;
use crate::fdb::{FdbKey, FdbKind, Hit, Learning, OWN_PORT, PortNumber};
use crate::frame::{Egress, Exit, Frame, Refusal, Upward, Verdict};
use crate::mtu::is_too_big;
use crate::port::{LinkLocalGroup, Port, PortState};
use crate::vid::Vid;

/// Kinds of destination that a flood tells apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flood {
    UnknownUnicast,
    Multicast,
    Broadcast,
}

/// A frame that has been let in: the VLAN that it is in, and its tag inside the bridge.
#[derive(Clone, Copy, Debug)]
struct Inside {
    from: PortNumber,
    /// Whether the port that it came by is isolated.
    is_isolated: bool,
    vid: Option<Vid>,
    tag: Option<Tci>,
}

/// The place where a frame is counted as dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CountedAt {
    IngressError,
    Ingress,
    /// The port that refused it has counted it.
    Egress,
}

impl Bridge {
    /// Decides about a frame that a port has received, and learns its source.
    pub fn receive(&mut self, now: Instant, port: LinkId, frame: &Frame, egress: &mut Egress) -> Verdict {
        egress.clear();
        self.fdb.set_now(now);
        let Some(&number) = self.numbers.get(&port) else { return Verdict::Drop(Refusal::PortUnknown) };
        self.port_mut(number).stats.count_rx(frame.len);
        match self.handle_received(number, frame, egress) {
            Ok(verdict) => verdict,
            Err((refusal, counted_at)) => {
                let stats = &mut self.port_mut(number).stats;
                match counted_at {
                    CountedAt::IngressError => stats.rx_errors += 1,
                    CountedAt::Ingress => stats.rx_dropped += 1,
                    CountedAt::Egress => {}
                }
                Verdict::Drop(refusal)
            }
        }
    }

    /// Decides about a frame that this node sends by the bridge's own port.
    pub fn send(&mut self, now: Instant, frame: &Frame, egress: &mut Egress) -> Verdict {
        egress.clear();
        self.fdb.set_now(now);
        self.stats.count_tx(frame.len);
        match self.handle_sent(frame, egress) {
            Ok(verdict) => verdict,
            Err((refusal, _)) => {
                self.stats.tx_dropped += 1;
                Verdict::Drop(refusal)
            }
        }
    }

    fn handle_received(
        &mut self,
        from: PortNumber,
        frame: &Frame,
        egress: &mut Egress,
    ) -> Result<Verdict, (Refusal, CountedAt)> {
        if !frame.src.is_unicast() {
            return Err((Refusal::SourceInvalid, CountedAt::IngressError));
        }
        let ingress = |refusal| (refusal, CountedAt::Ingress);
        if let Some(group) = LinkLocalGroup::of(frame.dst)
            && !self.forwards_group(from, group).map_err(ingress)?
        {
            self.learn_link_local(from, frame);
            return Ok(Verdict::LinkLocal);
        }
        let Port { config, vlans, .. } = self.port_at(from);
        let config = *config;
        if !config.state.can_learn() {
            return Err(ingress(Refusal::IngressState));
        }
        let (vid, tag) = if self.vlan_filtering {
            let (vid, tci) = vlans.classify(frame.tag).map_err(ingress)?;
            (Some(vid), Some(tci))
        } else {
            (None, frame.tag)
        };
        // A frame that another trunk of the same wire brings has come by the active one too.
        if config.trunk.is_some() && self.active_trunk(vid).is_some_and(|active| active != from) {
            return Err(ingress(Refusal::StandbyTrunk));
        }
        let src = FdbKey::new(vid, frame.src);
        if config.locked && !self.fdb.get(src).is_some_and(|hit| hit.owner == from && hit.kind != FdbKind::Local) {
            return Err(ingress(Refusal::Locked));
        }
        if config.learning {
            self.learn(from, src);
        }
        if config.state == PortState::Learning {
            return Err(ingress(Refusal::IngressState));
        }
        let inside = Inside { from, is_isolated: config.isolated, vid, tag };
        egress.vid = vid;
        self.forward_received(inside, frame, egress)
    }

    /// Finds the places of a frame that a port has let in.
    fn forward_received(
        &mut self,
        inside: Inside,
        frame: &Frame,
        egress: &mut Egress,
    ) -> Result<Verdict, (Refusal, CountedAt)> {
        let mut is_for_us = self.is_promiscuous;
        let outcome = if let Some(flood) = group_flood(frame.dst) {
            is_for_us = true;
            self.flood(inside, frame, flood, egress)
        } else {
            match self.fdb.get(FdbKey::new(inside.vid, frame.dst)) {
                Some(Hit { kind: FdbKind::Local, .. }) => {
                    return self.pass_up(inside, frame, egress).map_err(|refusal| (refusal, CountedAt::Ingress));
                }
                Some(hit) => {
                    self.fdb.mark_used(hit);
                    self.forward_to(hit.owner, inside, frame, egress)
                }
                None => self.flood(inside, frame, Flood::UnknownUnicast, egress),
            }
        };
        if is_for_us && self.pass_up(inside, frame, egress).is_ok() {
            return Ok(Verdict::Forward);
        }
        outcome
    }

    fn handle_sent(&mut self, frame: &Frame, egress: &mut Egress) -> Result<Verdict, (Refusal, CountedAt)> {
        let (vid, tag) = if self.vlan_filtering {
            let (vid, tci) = self.vlans.classify(frame.tag).map_err(|refusal| (refusal, CountedAt::Ingress))?;
            (Some(vid), Some(tci))
        } else {
            (None, frame.tag)
        };
        let inside = Inside { from: OWN_PORT, is_isolated: false, vid, tag };
        egress.vid = vid;
        if let Some(flood) = group_flood(frame.dst) {
            return self.flood(inside, frame, flood, egress);
        }
        match self.fdb.get(FdbKey::new(vid, frame.dst)) {
            Some(Hit { owner: OWN_PORT, .. }) => Err((Refusal::OwnAddress, CountedAt::Ingress)),
            Some(hit) => self.forward_to(hit.owner, inside, frame, egress),
            None => self.flood(inside, frame, Flood::UnknownUnicast, egress),
        }
    }

    /// Tells whether a link-local group is forwarded like any other.
    fn forwards_group(&self, from: PortNumber, group: LinkLocalGroup) -> Result<bool, Refusal> {
        if group == LinkLocalGroup::PAUSE {
            return Err(Refusal::Pause);
        }
        let is_in_mask = self.port_at(from).config.group_mask.contains(group) || self.group_mask.contains(group);
        // Without STP its frames pass, so that bridges around this one find loops through it.
        Ok(is_in_mask || group == LinkLocalGroup::BRIDGE && !self.stp)
    }

    /// Learns the source of a frame that goes no further than this link (Linux `__br_handle_local_finish`).
    fn learn_link_local(&mut self, from: PortNumber, frame: &Frame) {
        let Port { config, vlans, .. } = self.port_at(from);
        if !config.learning || !config.state.can_learn() || !self.link_local_learning {
            return;
        }
        let vid = if self.vlan_filtering {
            let Ok((vid, _)) = vlans.classify(frame.tag) else { return };
            Some(vid)
        } else {
            None
        };
        let is_standby = config.trunk.is_some() && self.active_trunk(vid).is_some_and(|active| active != from);
        if !is_standby {
            self.learn(from, FdbKey::new(vid, frame.src));
        }
    }

    fn learn(&mut self, from: PortNumber, src: FdbKey) {
        let limit = self.port_at(from).config.fdb_limit;
        let learning = self.fdb.learn(src, from, limit);
        if learning == Learning::Known {
            return;
        }
        let stats = &mut self.port_mut(from).learn_stats;
        match learning {
            Learning::New => stats.learnt += 1,
            Learning::Moved => stats.moved += 1,
            Learning::Full => stats.full += 1,
            Learning::Pinned => stats.pinned += 1,
            Learning::Known | Learning::Off => {}
        }
    }

    /// Sends a frame to the one port that its destination is behind.
    fn forward_to(
        &mut self,
        to: PortNumber,
        inside: Inside,
        frame: &Frame,
        egress: &mut Egress,
    ) -> Result<Verdict, (Refusal, CountedAt)> {
        match self.leave(self.port_at(to), inside, frame) {
            Ok(tag) => {
                self.exit(to, tag, frame, egress);
                Ok(Verdict::Forward)
            }
            Err(Refusal::SamePort) => Err((Refusal::SamePort, CountedAt::Ingress)),
            Err(refusal) => {
                let stats = &mut self.port_mut(to).stats;
                let counter = if refusal == Refusal::TooBig { &mut stats.tx_errors } else { &mut stats.tx_dropped };
                *counter += 1;
                Err((refusal, CountedAt::Egress))
            }
        }
    }

    /// Sends a frame to each port that takes it. Unknown unicast goes to the active trunk of its VLAN alone, unless it has come
    /// by that one.
    fn flood(
        &mut self,
        inside: Inside,
        frame: &Frame,
        flood: Flood,
        egress: &mut Egress,
    ) -> Result<Verdict, (Refusal, CountedAt)> {
        let active = self.active_trunk(inside.vid);
        if flood == Flood::UnknownUnicast
            && let Some(trunk) = active.filter(|&trunk| trunk != inside.from)
            && self.port_at(trunk).config.unicast_flood
        {
            return self.forward_to(trunk, inside, frame, egress);
        }
        let mut refusal = Refusal::NoPort;
        for at in 1..self.ports.len() {
            let Some(port) = &self.ports[at] else { continue };
            if !takes_flood(port, inside.from, flood) || port.config.trunk.is_some() && active != Some(port.number) {
                continue;
            }
            match self.leave(port, inside, frame) {
                Ok(tag) => self.exit(at as PortNumber, tag, frame, egress),
                Err(Refusal::TooBig) => {
                    self.port_mut(at as PortNumber).stats.tx_errors += 1;
                    refusal = Refusal::TooBig;
                }
                Err(_) => {}
            }
        }
        match (egress.exits.is_empty(), refusal) {
            (false, _) => Ok(Verdict::Forward),
            (true, Refusal::TooBig) => Err((refusal, CountedAt::Egress)),
            (true, _) => Err((refusal, CountedAt::Ingress)),
        }
    }

    /// Tells whether a frame leaves by a port, and the tag that it leaves with.
    #[inline]
    fn leave(&self, to: &Port, inside: Inside, frame: &Frame) -> Result<Option<Tci>, Refusal> {
        if inside.from == to.number && !to.config.hairpin {
            return Err(Refusal::SamePort);
        }
        if to.config.state != PortState::Forwarding {
            return Err(Refusal::EgressState);
        }
        let tag = match (inside.vid, inside.tag) {
            (Some(vid), Some(tci)) => to.vlans.egress_tag(vid, tci).ok_or(Refusal::EgressVlan)?,
            (_, tag) => tag,
        };
        if inside.is_isolated && to.config.isolated {
            return Err(Refusal::Isolated);
        }
        if is_too_big(frame, tag.is_some(), to.mtu) {
            return Err(Refusal::TooBig);
        }
        Ok(tag)
    }

    #[inline]
    fn exit(&mut self, to: PortNumber, tag: Option<Tci>, frame: &Frame, egress: &mut Egress) {
        let port = self.port_mut(to);
        port.stats.count_tx(frame.len);
        egress.exits.push(Exit { port: port.link, tag });
    }

    /// Gives a frame to the bridge's own port (Linux `br_pass_frame_up`).
    fn pass_up(&mut self, inside: Inside, frame: &Frame, egress: &mut Egress) -> Result<Verdict, Refusal> {
        let tag = match (inside.vid, inside.tag) {
            (Some(vid), Some(tci)) => match self.vlans.egress_tag(vid, tci) {
                Some(tag) => tag,
                None if self.is_promiscuous => Some(tci),
                None => return Err(Refusal::OwnVlan),
            },
            (_, tag) => tag,
        };
        self.stats.count_rx(frame.len);
        egress.up = Some(Upward { tag });
        Ok(Verdict::Forward)
    }
}

/// The kind of flood of a group address; `None` for a station's.
fn group_flood(dst: MacAddr) -> Option<Flood> {
    if dst == MacAddr::BROADCAST {
        Some(Flood::Broadcast)
    } else if dst.is_multicast() {
        Some(Flood::Multicast)
    } else {
        None
    }
}

/// Tells whether a port's settings let it take part in a flood. The bridge's own groups and broadcasts always go out.
fn takes_flood(port: &Port, from: PortNumber, flood: Flood) -> bool {
    match flood {
        Flood::UnknownUnicast => port.config.unicast_flood,
        Flood::Multicast => port.config.multicast_flood || from == OWN_PORT,
        Flood::Broadcast => port.config.broadcast_flood || from == OWN_PORT,
    }
}
