//! Forwarding decision on one frame (Linux `br_handle_frame`, `br_handle_frame_finish`, `br_dev_xmit`, `br_forward`,
//! `br_flood`).

use base::{Instant, PortId};
use wire::MacAddr;
use wire::vlan::Tci;

use crate::bridge::Bridge;
use crate::fdb::{BRIDGE_DEVICE, FdbKey, FdbKind, Hit, Learning, PortNumber};
use crate::frame::{Egress, Exit, Frame, Refusal, Upward, Verdict};
use crate::mtu::is_too_big;
use crate::port::{LinkLocalGroup, Port, PortState};
use crate::vid::Vid;

/// Kinds of destination, each with its own flood setting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flood {
    UnknownUnicast,
    Multicast,
    Broadcast,
}

/// A frame accepted at ingress: its VLAN, and its tag inside the bridge.
#[derive(Clone, Copy, Debug)]
struct Inside {
    from: PortNumber,
    /// Whether the ingress port is isolated.
    is_isolated: bool,
    vid: Option<Vid>,
    tag: Option<Tci>,
}

/// Counter of a dropped frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CountedAt {
    IngressError,
    Ingress,
    /// The egress port has counted the frame.
    Egress,
}

impl Bridge {
    /// Decides on a frame that a port has received, and learns its source.
    pub fn receive(&mut self, now: Instant, port: PortId, frame: &Frame, egress: &mut Egress) -> Verdict {
        egress.clear();
        self.fdb.set_now(now);
        let Some(&number) = self.numbers.get(&port) else { return Verdict::Drop(Refusal::PortUnknown) };
        self.port_mut(number).stats.count_rx(frame.len);
        match self.handle_received(now, number, frame, egress) {
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

    /// Decides on a frame that this node sends through the bridge's device.
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
        now: Instant,
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
            self.learn_link_local(now, from, frame);
            return Ok(Verdict::LinkLocal);
        }
        let Port { config, vlans, .. } = self.port_at(from);
        let config = *config;
        if !config.state.can_learn() {
            return Err(ingress(Refusal::IngressState));
        }
        let (vid, tag) = if self.vlan_filtering {
            let (vid, tci) = vlans.classify(frame.tag).map_err(ingress)?;
            if frame.has_payload_tag && !config.payload_tags {
                return Err(ingress(Refusal::PayloadTag));
            }
            (Some(vid), Some(tci))
        } else {
            (None, frame.tag)
        };
        self.vlan_counters.count_rx(vid, frame.len);
        // A standby trunk receives the same frames as the active trunk, so these are duplicates.
        if config.trunk.is_some() && self.active_trunk(vid).is_some_and(|active| active != from) {
            return Err(ingress(Refusal::StandbyTrunk));
        }
        let src = FdbKey::new(vid, frame.src);
        if config.locked && !self.fdb.get(src).is_some_and(|hit| hit.owner == from && hit.kind != FdbKind::Local) {
            return Err(ingress(Refusal::Locked));
        }
        if config.learning {
            self.learn(now, from, src);
        }
        if config.state == PortState::Learning {
            return Err(ingress(Refusal::IngressState));
        }
        let inside = Inside { from, is_isolated: config.isolated, vid, tag };
        egress.vid = vid;
        self.forward_received(inside, frame, egress)
    }

    /// Finds the destinations of a frame accepted at ingress.
    fn forward_received(
        &mut self,
        inside: Inside,
        frame: &Frame,
        egress: &mut Egress,
    ) -> Result<Verdict, (Refusal, CountedAt)> {
        if let Some(flood) = group_flood(frame.dst) {
            let flooded = self.flood(inside, frame, flood, egress);
            return self.pass_up(inside, frame, egress).or(flooded);
        }
        let forwarded = match self.fdb.get(FdbKey::new(inside.vid, frame.dst)) {
            Some(Hit { kind: FdbKind::Local, .. }) => {
                return self.pass_up(inside, frame, egress).map_err(|refusal| (refusal, CountedAt::Ingress));
            }
            Some(hit) => {
                self.fdb.mark_used(hit);
                self.forward_to(hit.owner, inside, frame, egress)
            }
            None => self.flood(inside, frame, Flood::UnknownUnicast, egress),
        };
        if self.is_promiscuous { self.pass_up(inside, frame, egress).or(forwarded) } else { forwarded }
    }

    fn handle_sent(&mut self, frame: &Frame, egress: &mut Egress) -> Result<Verdict, (Refusal, CountedAt)> {
        let (vid, tag) = if self.vlan_filtering {
            let (vid, tci) = self.vlans.classify(frame.tag).map_err(|refusal| (refusal, CountedAt::Ingress))?;
            (Some(vid), Some(tci))
        } else {
            (None, frame.tag)
        };
        self.vlan_counters.count_rx(vid, frame.len);
        let inside = Inside { from: BRIDGE_DEVICE, is_isolated: false, vid, tag };
        egress.vid = vid;
        if let Some(flood) = group_flood(frame.dst) {
            return self.flood(inside, frame, flood, egress);
        }
        match self.fdb.get(FdbKey::new(vid, frame.dst)) {
            Some(Hit { owner: BRIDGE_DEVICE, .. }) => Err((Refusal::OwnAddress, CountedAt::Ingress)),
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
        // This bridge runs no STP; it passes STP frames, so that neighbouring bridges can detect loops through it.
        Ok(is_in_mask || group == LinkLocalGroup::BRIDGE)
    }

    /// Learns the source of a frame that is not forwarded beyond this link (Linux `__br_handle_local_finish`).
    fn learn_link_local(&mut self, now: Instant, from: PortNumber, frame: &Frame) {
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
            self.learn(now, from, FdbKey::new(vid, frame.src));
        }
    }

    fn learn(&mut self, now: Instant, from: PortNumber, src: FdbKey) {
        let limit = self.port_at(from).config.fdb_limit;
        let learning = self.fdb.learn(src, from, limit);
        if learning == Learning::Known {
            return;
        }
        let port = self.port_mut(from);
        let link = port.link();
        let stats = &mut port.learn_stats;
        match learning {
            Learning::New => stats.learnt += 1,
            Learning::Moved { from: before } => {
                stats.moved += 1;
                let before = (before != BRIDGE_DEVICE).then(|| self.port_at(before).link());
                self.loop_watch.moved(now, src, before, link);
            }
            Learning::Full => stats.full += 1,
            Learning::Own => {
                stats.pinned += 1;
                self.loop_watch.own_address(now, src, link);
            }
            Learning::Pinned => stats.pinned += 1,
            Learning::Known | Learning::Off => {}
        }
    }

    /// Sends a frame to the port of its destination.
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

    /// Sends a frame to each port that accepts it. Unknown unicast goes to the active trunk of its VLAN alone, unless the
    /// trunk is the ingress port.
    fn flood(
        &mut self,
        inside: Inside,
        frame: &Frame,
        flood: Flood,
        egress: &mut Egress,
    ) -> Result<Verdict, (Refusal, CountedAt)> {
        if flood == Flood::UnknownUnicast
            && let Some(trunk) = self.active_trunk(inside.vid).filter(|&trunk| trunk != inside.from)
            && self.port_at(trunk).config.unicast_flood
        {
            return self.forward_to(trunk, inside, frame, egress);
        }
        let mut refusal = Refusal::NoPort;
        for at in 1..self.ports.len() {
            let Some(port) = &self.ports[at] else { continue };
            if !takes_flood(port, inside.from, flood) {
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

    /// Tells whether a frame leaves through a port, and returns its tag there.
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
        if to.config.trunk.is_some() && self.active_trunk(inside.vid) != Some(to.number) {
            return Err(Refusal::StandbyTrunk);
        }
        if is_too_big(frame, inside.vid.is_some(), to.mtu) {
            return Err(Refusal::TooBig);
        }
        Ok(tag)
    }

    #[inline]
    fn exit(&mut self, to: PortNumber, tag: Option<Tci>, frame: &Frame, egress: &mut Egress) {
        let port = self.port_mut(to);
        port.stats.count_tx(frame.len);
        egress.exits.push(Exit { port: port.link, tag });
        self.vlan_counters.count_tx(egress.vid, frame.len);
    }

    /// Passes a frame to the bridge's device (Linux `br_pass_frame_up`).
    fn pass_up(&mut self, inside: Inside, frame: &Frame, egress: &mut Egress) -> Result<Verdict, Refusal> {
        let tag = match (inside.vid, inside.tag) {
            (Some(vid), Some(tci)) => match self.vlans.egress_tag(vid, tci) {
                Some(tag) => tag,
                None => return Err(Refusal::OwnVlan),
            },
            (_, tag) => tag,
        };
        self.stats.count_rx(frame.len);
        self.vlan_counters.count_tx(inside.vid, frame.len);
        egress.up = Some(Upward { tag });
        Ok(Verdict::Forward)
    }
}

/// The kind of flood of a group address; `None` for unicast.
fn group_flood(dst: MacAddr) -> Option<Flood> {
    if dst == MacAddr::BROADCAST {
        Some(Flood::Broadcast)
    } else if dst.is_multicast() {
        Some(Flood::Multicast)
    } else {
        None
    }
}

/// Tells whether a port's settings allow a flood. Groups and broadcasts of the bridge itself are always flooded.
fn takes_flood(port: &Port, from: PortNumber, flood: Flood) -> bool {
    match flood {
        Flood::UnknownUnicast => port.config.unicast_flood,
        Flood::Multicast => port.config.multicast_flood || from == BRIDGE_DEVICE,
        Flood::Broadcast => port.config.broadcast_flood || from == BRIDGE_DEVICE,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::LoopSign;
    use crate::bridge::FdbRequest;
    use crate::port::{GroupMask, PortConfig, TrunkPriority};
    use crate::stats::{PortStats, VlanStats};
    use crate::vlans::VlanFlags;

    const OWN: &str = "02:00:00:00:00:00";
    const A: &str = "02:aa:00:00:00:01";
    const B: &str = "02:aa:00:00:00:02";
    const UNKNOWN: &str = "02:aa:00:00:00:ff";
    const GROUP: &str = "01:00:5e:01:02:03";
    const ALL: &str = "ff:ff:ff:ff:ff:ff";

    fn vid(number: u16) -> Vid {
        Vid::new(number).unwrap()
    }

    fn mac(text: &str) -> MacAddr {
        text.parse().unwrap()
    }

    /// A bridge with ports 1, 2 and 3, whose addresses end in their numbers.
    fn bridge() -> Bridge {
        let mut bridge = Bridge::new(mac(OWN)).unwrap();
        for number in 1..=3 {
            bridge.add_port(PortId(number), MacAddr([2, 0, 0, 0, 0, number as u8]), 1500).unwrap();
        }
        bridge
    }

    #[test]
    fn loop_is_reported_once_in_ten_seconds_with_both_ports() {
        let mut bridge = bridge();
        let mut egress = Egress::default();
        let second = |n| Instant::ZERO + Duration::from_secs(n);
        let mut moved = |bridge: &mut Bridge, now: Instant, n: u32| {
            for turn in 0..n {
                bridge.receive(now, PortId(1 + turn % 2), &frame(A, ALL, None), &mut egress);
            }
        };
        // A station that changes its port some times is no loop.
        moved(&mut bridge, second(0), 5);
        assert!(!bridge.has_loop_signs());
        moved(&mut bridge, second(10), 7);
        let [LoopSign::Moves { mac: found, vid: None, from: Some(from), to }] = bridge.take_loop_signs()[..] else {
            panic!("one sign")
        };
        assert_eq!((found, from.0 + to.0), (mac(A), 3));
        moved(&mut bridge, second(19), 100);
        assert!(!bridge.has_loop_signs());
        moved(&mut bridge, second(20), 7);
        assert_eq!(bridge.take_loop_signs().len(), 1);
        let total: u64 = bridge.ports().map(|port| port.learn_stats().moved).sum();
        assert!(total > 110, "{total}");
        let mut egress = Egress::default();
        for _ in 0..9 {
            bridge.receive(second(30), PortId(2), &frame("02:00:00:00:00:01", ALL, None), &mut egress);
        }
        let own = LoopSign::OwnAddress { mac: mac("02:00:00:00:00:01"), vid: None, port: PortId(2) };
        assert_eq!(bridge.take_loop_signs(), [own]);
    }

    fn configure(bridge: &mut Bridge, port: u32, change: impl FnOnce(&mut PortConfig)) {
        let mut config = *bridge.port(PortId(port)).unwrap().config();
        change(&mut config);
        bridge.configure(PortId(port), config).unwrap();
    }

    fn frame(src: &str, dst: &str, tag: Option<u16>) -> Frame {
        let tag = tag.map(Tci);
        Frame { dst: mac(dst), src: mac(src), tag, has_payload_tag: false, is_gso: false, len: 60 }
    }

    /// Destinations as text: ports with their tags in hexadecimal, `up` for the bridge's device; or the refusal.
    fn text(verdict: Verdict, egress: &Egress) -> String {
        let tagged = |name: String, tag: Option<Tci>| tag.map_or(name.clone(), |tci| format!("{name}:{:x}", tci.0));
        let exits = egress.exits.iter().map(|exit| tagged(exit.port.0.to_string(), exit.tag));
        let up = egress.up.map(|up| tagged("up".to_owned(), up.tag));
        match verdict {
            Verdict::Forward => exits.chain(up).collect::<Vec<_>>().join(" "),
            Verdict::LinkLocal | Verdict::Drop(_) => {
                assert!(egress.exits.is_empty() && egress.up.is_none(), "{verdict:?} {egress:?}");
                format!("{verdict:?}")
            }
        }
    }

    fn rx(bridge: &mut Bridge, port: u32, frame: &Frame) -> String {
        let mut egress = Egress::default();
        let verdict = bridge.receive(Instant::ZERO, PortId(port), frame, &mut egress);
        bridge.check_invariants();
        text(verdict, &egress)
    }

    fn send(bridge: &mut Bridge, frame: &Frame) -> String {
        let mut egress = Egress::default();
        let verdict = bridge.send(Instant::ZERO, frame, &mut egress);
        text(verdict, &egress)
    }

    #[test]
    fn vlan_counts_a_frame_once_in_and_once_for_each_way_out() {
        let mut bridge = bridge();
        bridge.set_vlan_filtering(true);
        rx(&mut bridge, 1, &frame(A, ALL, None));
        assert_eq!(bridge.vlan_stats(vid(1)), VlanStats::default(), "not enabled");
        bridge.set_vlan_stats_enabled(true);
        // Two ports and the bridge itself; then one port, and a frame outside the port's VLANs.
        rx(&mut bridge, 1, &frame(A, ALL, None));
        rx(&mut bridge, 2, &frame(B, A, None));
        rx(&mut bridge, 2, &frame(B, A, Some(7)));
        send(&mut bridge, &frame(OWN, A, None));
        let want = VlanStats { rx_packets: 3, rx_bytes: 3 * 46, tx_packets: 5, tx_bytes: 5 * 46 };
        assert_eq!((bridge.vlan_stats(vid(1)), bridge.vlan_stats(vid(7))), (want, VlanStats::default()));
        bridge.set_vlan_stats_enabled(false);
        rx(&mut bridge, 2, &frame(B, A, None));
        assert_eq!(bridge.vlan_stats(vid(1)), want);
        // The VLAN has no more ports.
        for port in [None, Some(1), Some(2), Some(3)] {
            bridge.remove_vlans(port.map(PortId), vid(1), vid(1)).unwrap();
        }
        bridge.add_vlans(Some(PortId(1)), vid(1), vid(1), VlanFlags::default()).unwrap();
        assert_eq!(bridge.vlan_stats(vid(1)), VlanStats::default());
    }

    #[test]
    fn bridge_floods_until_it_has_learnt() {
        let mut bridge = bridge();
        let steps = [
            (1, A, B, "2 3"),
            (2, B, A, "1"),
            (1, A, B, "2"),
            (1, A, UNKNOWN, "2 3"),
            (1, A, GROUP, "2 3 up"),
            (1, A, ALL, "2 3 up"),
            (1, A, OWN, "up"),
            (1, A, "02:00:00:00:00:01", "up"),
            (1, A, "02:00:00:00:00:03", "up"),
            (1, B, A, "Drop(SamePort)"),
            (3, A, B, "1"),
            (9, A, B, "Drop(PortUnknown)"),
        ];
        for (port, src, dst, want) in steps {
            assert_eq!(rx(&mut bridge, port, &frame(src, dst, None)), want, "{src} by {port} to {dst}");
        }
    }

    #[test]
    fn invalid_source_is_an_error_and_not_learnt() {
        for src in [GROUP, ALL, "00:00:00:00:00:00"] {
            let mut bridge = bridge();
            let entries = bridge.fdb_len();
            assert_eq!(rx(&mut bridge, 1, &frame(src, A, None)), "Drop(SourceInvalid)");
            let want = PortStats { rx_packets: 1, rx_bytes: 60, rx_errors: 1, ..PortStats::ZERO };
            assert_eq!((bridge.port(PortId(1)).unwrap().stats(), bridge.fdb_len()), (want, entries));
        }
    }

    #[test]
    fn own_address_as_source_is_not_learnt_but_forwarded() {
        let mut bridge = bridge();
        for src in [OWN, "02:00:00:00:00:02"] {
            assert_eq!(rx(&mut bridge, 1, &frame(src, UNKNOWN, None)), "2 3");
            assert_eq!(rx(&mut bridge, 3, &frame(A, src, None)), "up");
        }
        assert_eq!(bridge.port(PortId(1)).unwrap().learn_stats().pinned, 2);
    }

    #[test]
    fn link_local_groups_are_forwarded_by_masks() {
        // Group, bridge's mask, port's mask.
        let cases = [
            (0x0, 0, 0, "2 3 up"),
            (0x0, 0, 1, "2 3 up"),
            (0x1, 0, 0, "Drop(Pause)"),
            (0x2, 0, 0, "LinkLocal"),
            (0x2, 0, 4, "2 3 up"),
            (0x3, 0, 0, "LinkLocal"),
            (0x3, 8, 0, "2 3 up"),
            (0x3, 0, 8, "2 3 up"),
            (0xe, 0, 0, "LinkLocal"),
            (0xe, 0x4000, 0, "2 3 up"),
            (0xf, 0x4000, 0, "LinkLocal"),
        ];
        for (group, bridge_mask, port_mask, want) in cases {
            let mut bridge = bridge();
            bridge.set_group_mask(GroupMask::for_bridge(bridge_mask).unwrap());
            configure(&mut bridge, 1, |config| config.group_mask = GroupMask::for_port(port_mask).unwrap());
            let dst = format!("01:80:c2:00:00:0{group:x}");
            assert_eq!(rx(&mut bridge, 1, &frame(A, &dst, None)), want, "{group:x} {bridge_mask:x} {port_mask:x}");
        }
    }

    #[test]
    fn link_local_frame_is_learnt_in_learning_states() {
        let lldp = "01:80:c2:00:00:0e";
        // State, learning, link-local learning, expected learning.
        let cases = [
            (PortState::Forwarding, true, true, true),
            (PortState::Learning, true, true, true),
            (PortState::Blocking, true, true, false),
            (PortState::Disabled, true, true, false),
            (PortState::Forwarding, false, true, false),
            (PortState::Forwarding, true, false, false),
        ];
        for (state, learning, link_local, want) in cases {
            let mut bridge = bridge();
            bridge.set_link_local_learning(link_local);
            configure(&mut bridge, 1, |config| (config.state, config.learning) = (state, learning));
            assert_eq!(rx(&mut bridge, 1, &frame(A, lldp, None)), "LinkLocal", "{state:?}");
            assert_eq!(bridge.learnt(PortId(1)) == 1, want, "{state:?} {learning} {link_local}");
        }
        // Sources outside the port's VLANs are not learnt.
        let mut bridge = bridge();
        bridge.set_vlan_filtering(true);
        assert_eq!(rx(&mut bridge, 1, &frame(A, lldp, Some(5))), "LinkLocal");
        assert_eq!(bridge.learnt(PortId(1)), 0);
    }

    #[test]
    fn port_state_rules_ingress_learning_and_egress() {
        use PortState::{Blocking, Disabled, Forwarding, Learning, Listening};
        // State of port 1, destinations of its frame, whether the source is learnt, destinations of a frame to an
        // address at port 1, and of a flood.
        let cases = [
            (Disabled, "Drop(IngressState)", false, "Drop(EgressState)", "3"),
            (Listening, "Drop(IngressState)", false, "Drop(EgressState)", "3"),
            (Learning, "Drop(IngressState)", true, "Drop(EgressState)", "3"),
            (Blocking, "Drop(IngressState)", false, "Drop(EgressState)", "3"),
            (Forwarding, "2 3", true, "1", "1 3"),
        ];
        for (state, from, is_learnt, to, flooded) in cases {
            let mut bridge = bridge();
            rx(&mut bridge, 1, &frame(B, UNKNOWN, None));
            configure(&mut bridge, 1, |config| config.state = state);
            assert_eq!(rx(&mut bridge, 1, &frame(A, UNKNOWN, None)), from, "{state:?}");
            assert_eq!(bridge.learnt(PortId(1)) == 2, is_learnt, "{state:?}");
            assert_eq!(rx(&mut bridge, 2, &frame(UNKNOWN, B, None)), to, "{state:?}");
            assert_eq!(
                rx(&mut bridge, 2, &frame("02:aa:00:00:00:03", "02:aa:00:00:00:04", None)),
                flooded,
                "{state:?}"
            );
        }
    }

    #[test]
    fn flood_flags_hold_for_others_and_not_for_own_groups() {
        // Flags of port 2: unicast, multicast, broadcast; destinations of each kind from port 1 and from the bridge.
        let cases = [
            ([false, true, true], ["3", "2 3 up", "2 3 up"], ["1 3", "1 2 3", "1 2 3"]),
            ([true, false, true], ["2 3", "3 up", "2 3 up"], ["1 2 3", "1 2 3", "1 2 3"]),
            ([true, true, false], ["2 3", "2 3 up", "3 up"], ["1 2 3", "1 2 3", "1 2 3"]),
        ];
        for ([unicast, multicast, broadcast], received, sent) in cases {
            let mut bridge = bridge();
            configure(&mut bridge, 2, |config| {
                config.unicast_flood = unicast;
                config.multicast_flood = multicast;
                config.broadcast_flood = broadcast;
            });
            let dsts = [UNKNOWN, GROUP, ALL];
            assert_eq!(dsts.map(|dst| rx(&mut bridge, 1, &frame(A, dst, None))), received);
            assert_eq!(dsts.map(|dst| send(&mut bridge, &frame(OWN, dst, None))), sent);
        }
    }

    #[test]
    fn isolated_ports_reach_only_others() {
        let mut bridge = bridge();
        for port in [1, 2] {
            configure(&mut bridge, port, |config| config.isolated = true);
        }
        rx(&mut bridge, 2, &frame(B, UNKNOWN, None));
        let cases = [(1, A, B, "Drop(Isolated)"), (1, A, UNKNOWN, "3"), (1, A, ALL, "3 up"), (1, A, OWN, "up")];
        for (port, src, dst, want) in cases {
            assert_eq!(rx(&mut bridge, port, &frame(src, dst, None)), want, "{dst}");
        }
        assert_eq!(rx(&mut bridge, 3, &frame(UNKNOWN, ALL, None)), "1 2 up");
        assert_eq!(send(&mut bridge, &frame(OWN, B, None)), "2");
        assert_eq!(bridge.port(PortId(2)).unwrap().stats().tx_dropped, 1);
    }

    #[test]
    fn hairpin_port_gets_its_own_frames_back() {
        let mut bridge = bridge();
        configure(&mut bridge, 1, |config| config.hairpin = true);
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "1 2 3");
        rx(&mut bridge, 1, &frame(B, UNKNOWN, None));
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "1");
    }

    #[test]
    fn locked_port_takes_known_sources_only() {
        let mut bridge = bridge();
        configure(&mut bridge, 1, |config| config.locked = true);
        assert_eq!(rx(&mut bridge, 1, &frame(A, UNKNOWN, None)), "Drop(Locked)");
        // An address at another port, and the bridge's own.
        rx(&mut bridge, 2, &frame(B, UNKNOWN, None));
        for src in [B, OWN, "02:00:00:00:00:01"] {
            assert_eq!(rx(&mut bridge, 1, &frame(src, UNKNOWN, None)), "Drop(Locked)", "{src}");
        }
        let request = FdbRequest {
            port: Some(PortId(1)),
            mac: mac(A),
            vid: None,
            kind: FdbKind::Static,
            is_sticky: false,
            create: true,
            exclusive: true,
        };
        bridge.add_fdb(Instant::ZERO, &request).unwrap();
        assert_eq!(rx(&mut bridge, 1, &frame(A, UNKNOWN, None)), "2 3");
        assert_eq!(bridge.port(PortId(1)).unwrap().stats().rx_dropped, 4);
    }

    #[test]
    fn port_without_learning_learns_nothing() {
        let mut bridge = bridge();
        configure(&mut bridge, 1, |config| config.learning = false);
        rx(&mut bridge, 1, &frame(A, UNKNOWN, None));
        assert_eq!(rx(&mut bridge, 2, &frame(B, A, None)), "1 3");
    }

    /// VLAN 1 untagged on all; 5 tagged on 1 and 2, untagged and PVID on 3; the bridge in 1 and, tagged, in 5.
    fn filtering() -> Bridge {
        let mut bridge = bridge();
        for port in [Some(PortId(1)), Some(PortId(2)), None] {
            bridge.add_vlans(port, vid(5), vid(5), VlanFlags::default()).unwrap();
        }
        bridge.add_vlans(Some(PortId(3)), vid(5), vid(5), VlanFlags::DEFAULT_PVID).unwrap();
        bridge.set_vlan_filtering(true);
        bridge
    }

    #[test]
    fn filtering_bridge_keeps_frames_in_their_vlan() {
        let steps = [
            // Untagged on port 1: VLAN 1, in which port 3 is untagged although its PVID is 5.
            (1, A, ALL, None, "2 3 up"),
            (1, A, ALL, Some(5), "2:5 3 up:5"),
            (3, B, ALL, None, "1:5 2:5 up:5"),
            // The VLAN's tag keeps the priority of a priority tag.
            (3, B, ALL, Some(0x6000), "1:6005 2:6005 up:6005"),
            (3, B, ALL, Some(0x7000), "1:7005 2:7005 up:7005"),
            (3, B, ALL, Some(1), "1 2 up"),
            (1, A, ALL, Some(6), "Drop(IngressVlan)"),
            (1, A, ALL, Some(0xfff), "Drop(IngressVlan)"),
            // B is known in VLANs 5 and 1 at port 3.
            (1, A, B, Some(0x2005), "3"),
            (1, A, B, None, "3"),
            (2, UNKNOWN, A, Some(0x2005), "1:2005"),
            (2, UNKNOWN, OWN, Some(5), "up:5"),
            (2, UNKNOWN, OWN, None, "up"),
        ];
        let mut bridge = filtering();
        for (port, src, dst, tag, want) in steps {
            assert_eq!(rx(&mut bridge, port, &frame(src, dst, tag)), want, "{src} by {port} to {dst} in {tag:x?}");
        }
    }

    #[test]
    fn untagged_frame_without_pvid_is_dropped() {
        let mut bridge = filtering();
        bridge.remove_vlans(Some(PortId(1)), vid(1), vid(1)).unwrap();
        for tag in [None, Some(0), Some(0xe000)] {
            assert_eq!(rx(&mut bridge, 1, &frame(A, ALL, tag)), "Drop(NoPvid)", "{tag:?}");
        }
        assert_eq!(bridge.port(PortId(1)).unwrap().stats().rx_dropped, 3);
        assert_eq!(rx(&mut bridge, 2, &frame(B, ALL, None)), "3 up");
    }

    #[test]
    fn address_outside_the_vlan_of_its_port_is_dropped() {
        let mut bridge = filtering();
        let request = FdbRequest {
            port: Some(PortId(2)),
            mac: mac(B),
            vid: Some(vid(5)),
            kind: FdbKind::Static,
            is_sticky: false,
            create: true,
            exclusive: true,
        };
        bridge.add_fdb(Instant::ZERO, &request).unwrap();
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, Some(5))), "2:5");
        // Static entries stay when their port leaves the VLAN.
        bridge.remove_vlans(Some(PortId(2)), vid(5), vid(5)).unwrap();
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, Some(5))), "Drop(EgressVlan)");
        assert_eq!(bridge.port(PortId(2)).unwrap().stats().tx_dropped, 1);
    }

    #[test]
    fn bridge_device_outside_the_vlan_receives_nothing() {
        let mut bridge = filtering();
        bridge.remove_vlans(None, vid(5), vid(5)).unwrap();
        assert_eq!(rx(&mut bridge, 1, &frame(A, ALL, Some(5))), "2:5 3");
        // The address of port 1 is local in VLAN 5, of which the bridge is not a member; the bridge's own address is
        // unknown there.
        assert_eq!(rx(&mut bridge, 2, &frame(B, "02:00:00:00:00:01", Some(5))), "Drop(OwnVlan)");
        assert_eq!(rx(&mut bridge, 2, &frame(B, OWN, Some(5))), "1:5 3");
        assert_eq!(send(&mut bridge, &frame(OWN, ALL, Some(5))), "Drop(IngressVlan)");
    }

    #[test]
    fn bridge_without_filtering_passes_tags_unseen() {
        let mut bridge = bridge();
        assert_eq!(rx(&mut bridge, 1, &frame(A, ALL, Some(0xffff))), "2:ffff 3:ffff up:ffff");
        // One address for all VLANs.
        assert_eq!(rx(&mut bridge, 2, &frame(B, A, Some(7))), "1:7");
        assert_eq!(rx(&mut bridge, 2, &frame(B, A, None)), "1");
        let mut egress = Egress::default();
        bridge.receive(Instant::ZERO, PortId(1), &frame(A, B, Some(7)), &mut egress);
        assert_eq!(egress.vid, None);
    }

    #[test]
    fn bridge_device_sends_like_a_port() {
        let mut bridge = filtering();
        rx(&mut bridge, 2, &frame(B, UNKNOWN, Some(5)));
        let cases = [
            (OWN, B, Some(0x4005), "2:4005"),
            (OWN, B, None, "1 2 3"),
            (OWN, ALL, None, "1 2 3"),
            (OWN, GROUP, Some(5), "1:5 2:5 3"),
            (OWN, OWN, None, "Drop(OwnAddress)"),
            // The address of a port is reached through that port, as on Linux.
            (OWN, "02:00:00:00:00:02", None, "2"),
            (OWN, B, Some(6), "Drop(IngressVlan)"),
            // The source of a frame sent by this node is not checked.
            (GROUP, B, Some(5), "2:5"),
        ];
        let entries = bridge.fdb_len();
        for (src, dst, tag, want) in cases {
            assert_eq!(send(&mut bridge, &frame(src, dst, tag)), want, "{dst} {tag:x?}");
        }
        assert_eq!(bridge.fdb_len(), entries);
        let want = PortStats { tx_packets: 8, tx_bytes: 480, tx_dropped: 2, ..PortStats::ZERO };
        assert_eq!(bridge.stats(), want);
    }

    #[test]
    fn promiscuous_bridge_device_receives_every_frame() {
        let mut bridge = bridge();
        rx(&mut bridge, 2, &frame(B, UNKNOWN, None));
        for (is_promiscuous, want) in
            [(true, ["2 up", "2 3 up", "up", "1 3 up", "up"]), (false, ["2", "2 3", "up", "1 3 up", "Drop(SamePort)"])]
        {
            bridge.set_promiscuous(is_promiscuous);
            let got = [(1, A, B), (1, A, UNKNOWN), (1, A, OWN), (2, B, ALL), (1, A, A)]
                .map(|(port, src, dst)| rx(&mut bridge, port, &frame(src, dst, None)));
            assert_eq!(got, want);
            assert_eq!([OWN, "02:00:00:00:00:02", B].map(|dst| bridge.is_own(mac(dst))), [true, true, !is_promiscuous]);
        }
    }

    #[test]
    fn service_tag_counts_in_a_bridge_that_filters() {
        let mut bridge = bridge();
        rx(&mut bridge, 2, &frame(B, UNKNOWN, None));
        let long = Frame { has_payload_tag: true, len: 14 + 8 + 1500, ..frame(A, B, None) };
        assert_eq!(rx(&mut bridge, 1, &long), "2");
        bridge.set_vlan_filtering(true);
        assert_eq!(rx(&mut bridge, 1, &long), "Drop(TooBig)");
    }

    /// A station at port 1, whose PVID is the native VLAN of the trunk at port 2, sends a tag within its frame: without
    /// `payload_tags` it leaves untagged, and the bridge behind the trunk would take the inner tag for its VLAN.
    #[test]
    fn tag_in_the_payload_is_refused_where_the_port_says_so() {
        let mut bridge = bridge();
        let hopping = Frame { has_payload_tag: true, ..frame(A, UNKNOWN, None) };
        let tagged = Frame { tag: Some(Tci(1)), ..hopping };
        for filtering in [false, true] {
            bridge.set_vlan_filtering(filtering);
            for accepts in [true, false] {
                configure(&mut bridge, 1, |config| config.payload_tags = accepts);
                let is_refused = filtering && !accepts;
                for frame in [&hopping, &tagged] {
                    assert_eq!(rx(&mut bridge, 1, frame) == "Drop(PayloadTag)", is_refused, "{filtering} {accepts}");
                }
                // Frames of other ports, and frames without a second tag, are not concerned.
                assert_eq!(rx(&mut bridge, 1, &frame(A, UNKNOWN, None)), "2 3");
                assert_eq!(rx(&mut bridge, 3, &Frame { src: mac(B), ..hopping }), "1 2");
            }
        }
        assert_eq!(bridge.port(PortId(1)).unwrap().stats().rx_dropped, 2);
    }

    #[test]
    fn long_frame_is_an_error_of_the_egress_port() {
        let mut bridge = bridge();
        bridge.set_mtu(PortId(3), 9000).unwrap();
        rx(&mut bridge, 2, &frame(B, UNKNOWN, None));
        let long = |dst: &str, is_gso: bool| Frame { len: 14 + 1505, is_gso, ..frame(A, dst, None) };
        assert_eq!(rx(&mut bridge, 1, &long(B, false)), "Drop(TooBig)");
        assert_eq!(rx(&mut bridge, 1, &long(UNKNOWN, false)), "3");
        assert_eq!(rx(&mut bridge, 1, &long(UNKNOWN, true)), "2 3");
        assert_eq!(rx(&mut bridge, 1, &Frame { has_payload_tag: true, ..long(B, false) }), "2");
        bridge.set_mtu(PortId(3), 1500).unwrap();
        assert_eq!(rx(&mut bridge, 1, &long(UNKNOWN, false)), "Drop(TooBig)");
        let stats = |port| bridge.port(PortId(port)).unwrap().stats();
        assert_eq!((stats(2).tx_errors, stats(3).tx_errors, stats(1).rx_dropped), (3, 1, 0));
    }

    #[test]
    fn statistics_count_frames_and_bytes_once() {
        let mut bridge = bridge();
        rx(&mut bridge, 1, &Frame { len: 100, ..frame(A, UNKNOWN, None) });
        rx(&mut bridge, 2, &Frame { len: 200, ..frame(B, A, None) });
        rx(&mut bridge, 1, &Frame { len: 60, ..frame(A, A, None) });
        let want = [
            PortStats { rx_packets: 2, rx_bytes: 160, rx_dropped: 1, tx_packets: 1, tx_bytes: 200, ..PortStats::ZERO },
            PortStats { rx_packets: 1, rx_bytes: 200, tx_packets: 1, tx_bytes: 100, ..PortStats::ZERO },
            PortStats { tx_packets: 1, tx_bytes: 100, ..PortStats::ZERO },
        ];
        assert_eq!([1, 2, 3].map(|port| bridge.port(PortId(port)).unwrap().stats()), want);
        assert_eq!(bridge.stats(), PortStats::ZERO);
    }

    #[test]
    fn flooded_frame_without_a_port_is_dropped() {
        let mut bridge = bridge();
        for port in [2, 3] {
            bridge.set_link_up(PortId(port), false).unwrap();
        }
        assert_eq!(rx(&mut bridge, 1, &frame(A, UNKNOWN, None)), "Drop(NoPort)");
        assert_eq!(rx(&mut bridge, 1, &frame(A, ALL, None)), "up");
        assert_eq!(bridge.port(PortId(1)).unwrap().stats().rx_dropped, 1);
    }

    /// Port 1 is ordinary, 2 and 3 are trunks of priority 1 and 2; port 4 is ordinary.
    fn trunks() -> Bridge {
        let mut bridge = bridge();
        bridge.add_port(PortId(4), mac("02:00:00:00:00:04"), 1500).unwrap();
        for (port, priority) in [(2, 1), (3, 2)] {
            configure(&mut bridge, port, |config| config.trunk = TrunkPriority::new(priority));
        }
        bridge
    }

    #[test]
    fn unknown_unicast_goes_to_the_active_trunk_alone() {
        let mut bridge = trunks();
        let steps = [
            (1, A, UNKNOWN, "3"),
            (1, A, ALL, "3 4 up"),
            (1, A, GROUP, "3 4 up"),
            // From the active trunk: to ordinary ports. From the standby trunk: nowhere.
            (3, B, UNKNOWN, "1 4"),
            (3, B, ALL, "1 4 up"),
            (3, B, A, "1"),
            (2, UNKNOWN, A, "Drop(StandbyTrunk)"),
            (2, UNKNOWN, ALL, "Drop(StandbyTrunk)"),
            (4, UNKNOWN, B, "3"),
            (4, UNKNOWN, A, "1"),
        ];
        for (port, src, dst, want) in steps {
            assert_eq!(rx(&mut bridge, port, &frame(src, dst, None)), want, "{src} by {port} to {dst}");
        }
        assert_eq!(bridge.learnt(PortId(2)), 0);
        assert_eq!(send(&mut bridge, &frame(OWN, "02:aa:00:00:00:77", None)), "3");
    }

    #[test]
    fn standby_trunk_sends_nothing_even_by_static_entries() {
        let mut bridge = trunks();
        let request = FdbRequest {
            port: Some(PortId(2)),
            mac: mac(B),
            vid: None,
            kind: FdbKind::Static,
            is_sticky: false,
            create: true,
            exclusive: true,
        };
        bridge.add_fdb(Instant::ZERO, &request).unwrap();
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "Drop(StandbyTrunk)");
        assert_eq!(bridge.port(PortId(2)).unwrap().stats().tx_dropped, 1);
        bridge.set_link_up(PortId(3), false).unwrap();
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "2");
    }

    /// Link of the active trunk of a VLAN, or with `None` of all frames in a bridge without VLAN filtering.
    fn active_trunk(bridge: &Bridge, vid: Option<Vid>) -> Option<PortId> {
        bridge.active_trunk(vid).map(|number| bridge.port_at(number).link())
    }

    #[test]
    fn trunk_fails_over_by_priority_and_back() {
        let mut bridge = trunks();
        rx(&mut bridge, 3, &frame(B, UNKNOWN, None));
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "3");
        bridge.set_link_up(PortId(3), false).unwrap();
        assert_eq!(active_trunk(&bridge, None), Some(PortId(2)));
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "2");
        assert_eq!(rx(&mut bridge, 2, &frame(B, A, None)), "1");
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "2");
        // Addresses learnt at the trunk of lower priority are flushed.
        bridge.set_link_up(PortId(3), true).unwrap();
        assert_eq!((bridge.learnt(PortId(2)), bridge.learnt(PortId(1))), (0, 1));
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "3");
        // If no trunk is up, ordinary ports are flooded.
        for port in [2, 3] {
            bridge.set_link_up(PortId(port), false).unwrap();
        }
        assert_eq!(active_trunk(&bridge, None), None);
        assert_eq!(rx(&mut bridge, 1, &frame(A, B, None)), "4");
    }

    #[test]
    fn equal_trunk_priorities_prefer_the_lower_link() {
        let mut bridge = trunks();
        configure(&mut bridge, 2, |config| config.trunk = TrunkPriority::new(2));
        assert_eq!(active_trunk(&bridge, None), Some(PortId(2)));
        configure(&mut bridge, 2, |config| config.trunk = None);
        assert_eq!(active_trunk(&bridge, None), Some(PortId(3)));
        bridge.remove_port(PortId(3)).unwrap();
        assert_eq!(active_trunk(&bridge, None), None);
        bridge.check_invariants();
    }

    #[test]
    fn each_vlan_has_its_own_active_trunk() {
        let mut bridge = trunks();
        for (port, number) in [(2, 5), (3, 6), (1, 5), (1, 6)] {
            bridge.add_vlans(Some(PortId(port)), vid(number), vid(number), VlanFlags::default()).unwrap();
        }
        bridge.set_vlan_filtering(true);
        let cases = [(None, "3"), (Some(5), "2:5"), (Some(6), "3:6")];
        for (tag, want) in cases {
            assert_eq!(rx(&mut bridge, 1, &frame(A, UNKNOWN, tag)), want, "{tag:?}");
        }
        let actives = [1, 5, 6, 7].map(|number| active_trunk(&bridge, Some(vid(number))));
        assert_eq!(actives, [Some(PortId(3)), Some(PortId(2)), Some(PortId(3)), None]);
        // Tagged frames of VLAN 5 arrive on the active trunk of that VLAN.
        assert_eq!(rx(&mut bridge, 2, &frame(B, A, Some(5))), "1:5");
        assert_eq!(rx(&mut bridge, 2, &frame(B, A, None)), "Drop(StandbyTrunk)");
        // The trunk of higher priority joins VLAN 5: addresses learnt at the other one are flushed.
        bridge.add_vlans(Some(PortId(3)), vid(5), vid(5), VlanFlags::default()).unwrap();
        assert_eq!((bridge.learnt(PortId(2)), rx(&mut bridge, 1, &frame(A, B, Some(5))).as_str()), (0, "3:5"));
    }

    #[test]
    fn trunk_without_unicast_flood_leaves_it_to_others() {
        let mut bridge = trunks();
        configure(&mut bridge, 3, |config| config.unicast_flood = false);
        assert_eq!(rx(&mut bridge, 1, &frame(A, UNKNOWN, None)), "4");
        assert_eq!(rx(&mut bridge, 1, &frame(A, ALL, None)), "3 4 up");
    }

    #[test]
    fn entry_is_used_by_forwarded_frames_alone() {
        let mut bridge = bridge();
        rx(&mut bridge, 1, &frame(A, UNKNOWN, None));
        let mut egress = Egress::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        bridge.send(at(10), &frame(OWN, A, None), &mut egress);
        let used = |bridge: &mut Bridge| bridge.fdb_entry(at(20), mac(A), None).unwrap().used.as_secs();
        assert_eq!(used(&mut bridge.clone()), 20);
        bridge.receive(at(15), PortId(2), &frame(B, A, None), &mut egress);
        assert_eq!(used(&mut bridge), 5);
    }
}
