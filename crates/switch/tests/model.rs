//! The bridge compared with the plain bridge in `oracle`, over random configurations, frames and times.

mod oracle;

use std::collections::BTreeMap;
use std::time::Duration;

use base::{Instant, PortId};
use oracle::{OWN, Oracle, OracleEntry, Places};
use proptest::prelude::*;
use switch::{
    Bridge, Egress, FdbChange, FdbKind, FdbRequest, Frame, PortConfig, PortState, Refusal, TICK, TrunkPriority,
    Verdict, Vid, VlanFlags,
};
use wire::MacAddr;
use wire::vlan::Tci;

/// Links 1 to 4, added and removed so that a port's number in the bridge equals its link's.
const PORTS: u32 = 4;

#[derive(Clone, Debug)]
enum Op {
    Receive(u32, u8, u8, Option<u16>),
    Send(u8, Option<u16>),
    Wait(u64),
    Expire,
    AddPorts,
    RemovePort(u32),
    State(u32, u8),
    Flags(u32, [bool; 7], u8, Option<u8>),
    Link(u32, bool),
    AddVlan(u32, u16, bool, bool),
    RemoveVlan(u32, u16),
    Mac(u32, u8),
    AddFdb(u32, u8, u16, FdbKind, bool),
    Filtering(bool),
    Ageing(u64),
}

/// Addresses of stations, ports, the bridge and groups, and invalid ones.
fn mac(n: u8) -> MacAddr {
    match n {
        0..=5 => MacAddr([2, 0, 0, 0, 0, n]),
        6 => MacAddr::BROADCAST,
        7 => MacAddr([1, 0, 0x5e, 0, 0, 1]),
        8 => MacAddr::ZERO,
        _ => MacAddr([2, 1, 0, 0, 0, n]),
    }
}

fn tag() -> impl Strategy<Value = Option<u16>> {
    let vid = prop_oneof![4 => 0u16..5, 1 => Just(4095)];
    prop::option::of((vid, prop_oneof![Just(0), Just(3 << 13), Just(0xf << 12)]).prop_map(|(vid, pcp)| vid | pcp))
}

fn op() -> impl Strategy<Value = Op> {
    let port = || 1..=PORTS;
    let any_port = || OWN..=PORTS;
    let kind = prop_oneof![Just(FdbKind::Local), Just(FdbKind::Static), Just(FdbKind::Dynamic)];
    prop_oneof![
        20 => (port(), prop_oneof![10 => 9u8..14, 1 => 0u8..9], 0u8..14, tag()).prop_map(|(p, s, d, t)| Op::Receive(p, s, d, t)),
        4 => (0u8..14, tag()).prop_map(|(d, t)| Op::Send(d, t)),
        3 => (0u64..2_000).prop_map(Op::Wait),
        1 => Just(Op::Expire),
        1 => Just(Op::AddPorts),
        1 => port().prop_map(Op::RemovePort),
        2 => (port(), 0u8..5).prop_map(|(p, s)| Op::State(p, s)),
        3 => (port(), any::<[bool; 7]>(), 0u8..4, prop::option::of(0u8..3)).prop_map(|(p, f, l, t)| Op::Flags(p, f, l, t)),
        2 => (port(), any::<bool>()).prop_map(|(p, up)| Op::Link(p, up)),
        4 => (any_port(), 1u16..5, any::<bool>(), any::<bool>()).prop_map(|(p, v, pvid, u)| Op::AddVlan(p, v, pvid, u)),
        2 => (any_port(), 1u16..5).prop_map(|(p, v)| Op::RemoveVlan(p, v)),
        1 => (any_port(), 0u8..6).prop_map(|(p, m)| Op::Mac(p, m)),
        2 => (any_port(), 0u8..14, 0u16..5, kind, any::<bool>()).prop_map(|(p, m, v, k, s)| Op::AddFdb(p, m, v, k, s)),
        1 => any::<bool>().prop_map(Op::Filtering),
        1 => prop_oneof![Just(0), Just(3_000)].prop_map(Op::Ageing),
    ]
}

struct World {
    bridge: Bridge,
    oracle: Oracle,
    tick: u64,
    egress: Egress,
    /// Database reconstructed from the change notifications, by address and VLAN.
    known: BTreeMap<([u8; 6], u16), Entry>,
}

/// Port, kind and stickiness of an entry.
type Entry = (Option<PortId>, FdbKind, bool);

fn link(port: u32) -> Option<PortId> {
    (port != OWN).then_some(PortId(port))
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            bridge: Bridge::new(mac(0)).unwrap(),
            oracle: Oracle::new(mac(0)),
            tick: 0,
            egress: Egress::default(),
            known: [0, 1].map(|vid| ((mac(0).0, vid), (None, FdbKind::Local, false))).into(),
        };
        world.bridge.watch_fdb(true);
        world.add_ports();
        world
    }

    fn now(&self) -> Instant {
        Instant::ZERO + TICK * self.tick as u32
    }

    fn add_ports(&mut self) {
        for port in 1..=PORTS {
            if !self.oracle.ports.contains_key(&port) {
                assert_eq!(self.bridge.add_port(PortId(port), mac(port as u8), 1500), Ok(port as u16));
                self.oracle.add_port(port, mac(port as u8));
            }
        }
    }

    fn places(&self, verdict: Verdict) -> Result<Places, Refusal> {
        match verdict {
            Verdict::Forward => {
                let exits = self.egress.exits.iter().map(|exit| (exit.port.0, exit.tag.map(|tci| tci.0)));
                let up = self.egress.up.map(|up| (OWN, up.tag.map(|tci| tci.0)));
                let places: Places = exits.chain(up).collect();
                assert_eq!(places.len(), self.egress.exits.len() + usize::from(self.egress.up.is_some()));
                Ok(places)
            }
            Verdict::Drop(refusal) => Err(refusal),
            Verdict::LinkLocal => panic!("no frame is link-local"),
        }
    }

    fn apply(&mut self, op: &Op) {
        self.oracle.set_tick(self.tick);
        let now = self.now();
        let frame = |src: u8, dst: u8, tag: Option<u16>| {
            let tag = tag.map(Tci);
            Frame { dst: mac(dst), src: mac(src), tag, has_payload_tag: false, is_gso: false, len: 60 }
        };
        let has = |oracle: &Oracle, port: u32| port == OWN || oracle.ports.contains_key(&port);
        match *op {
            Op::Receive(port, src, dst, tag) => {
                let want = if has(&self.oracle, port) {
                    self.oracle.receive(port, mac(src), mac(dst), tag)
                } else {
                    Err(Refusal::PortUnknown)
                };
                let verdict = self.bridge.receive(now, PortId(port), &frame(src, dst, tag), &mut self.egress);
                assert_eq!(self.places(verdict), want);
            }
            Op::Send(dst, tag) => {
                let want = self.oracle.send(mac(dst), tag);
                let verdict = self.bridge.send(now, &frame(0, dst, tag), &mut self.egress);
                assert_eq!(self.places(verdict), want);
            }
            Op::Wait(ticks) => self.tick += ticks,
            Op::Expire => {
                self.bridge.handle_timeout(now);
                assert!(self.bridge.poll_timeout().is_none_or(|at| at > now));
                assert_eq!(self.bridge.fdb_len(), self.oracle.fdb.len());
            }
            Op::AddPorts => self.add_ports(),
            Op::RemovePort(port) => {
                let removed = self.bridge.remove_port(PortId(port));
                assert_eq!(removed.is_ok(), has(&self.oracle, port));
                if removed.is_ok() {
                    self.oracle.remove_port(port);
                    // Port numbers stay equal to link numbers.
                    self.add_ports();
                }
            }
            Op::State(port, number) if has(&self.oracle, port) => {
                let state = PortState::from_number(number).unwrap();
                self.configure(port, |config| config.state = state);
                self.oracle.port_mut(port).state = state;
                self.oracle.settle_trunks();
            }
            Op::Flags(port, flags, limit, trunk) if has(&self.oracle, port) => {
                let [learning, unicast, multicast, broadcast, isolated, hairpin, locked] = flags;
                // Most ports learn and are not locked.
                let (learning, locked) = (learning || hairpin, locked && isolated);
                let limit = if limit == 0 { 1024 } else { u32::from(limit) };
                self.configure(port, |config| {
                    *config = PortConfig {
                        state: config.state,
                        learning,
                        unicast_flood: unicast,
                        multicast_flood: multicast,
                        broadcast_flood: broadcast,
                        isolated,
                        hairpin,
                        locked,
                        fdb_limit: limit,
                        trunk: trunk.and_then(TrunkPriority::new),
                        ..*config
                    };
                });
                let target = self.oracle.port_mut(port);
                target.learning = learning;
                target.floods = [unicast, multicast, broadcast];
                (target.isolated, target.hairpin, target.locked) = (isolated, hairpin, locked);
                (target.limit, target.trunk) = (limit as usize, trunk);
                self.oracle.settle_trunks();
            }
            Op::Link(port, is_up) if has(&self.oracle, port) => {
                self.bridge.set_link_up(PortId(port), is_up).unwrap();
                self.oracle.port_mut(port).state = if is_up { PortState::Forwarding } else { PortState::Disabled };
                if !is_up {
                    self.oracle.fdb.retain(|entry| entry.port != port || entry.is_static || entry.is_local);
                }
                self.oracle.settle_trunks();
            }
            Op::AddVlan(port, number, is_pvid, is_untagged) if has(&self.oracle, port) => {
                let vid = Vid::new(number).unwrap();
                self.bridge.add_vlans(link(port), vid, vid, VlanFlags { is_pvid, is_untagged }).unwrap();
                self.oracle.add_vlan(port, number, is_pvid, is_untagged);
                self.oracle.settle_trunks();
            }
            Op::RemoveVlan(port, number) if has(&self.oracle, port) => {
                let vid = Vid::new(number).unwrap();
                let was_member = self.oracle.port(port).vlans.contains_key(&number);
                assert_eq!(self.bridge.remove_vlans(link(port), vid, vid), Ok(usize::from(was_member)));
                self.oracle.remove_vlan(port, number);
                self.oracle.settle_trunks();
            }
            Op::Mac(port, n) if has(&self.oracle, port) => {
                match link(port) {
                    Some(link) => self.bridge.set_port_mac(link, mac(n)).unwrap(),
                    None => self.bridge.set_mac(mac(n)).unwrap(),
                }
                self.oracle.set_mac(port, mac(n));
            }
            Op::AddFdb(port, n, number, kind, is_sticky) if has(&self.oracle, port) => {
                let vid = Vid::new(number);
                let request =
                    FdbRequest { port: link(port), mac: mac(n), vid, kind, is_sticky, create: true, exclusive: false };
                if self.bridge.add_fdb(now, &request).is_ok() {
                    let each: Vec<u16> = self.oracle.port(port).vlans.keys().copied().collect();
                    self.oracle.set_fdb(port, mac(n), number, kind, is_sticky);
                    for number in each.into_iter().filter(|_| number == 0) {
                        self.oracle.set_fdb(port, mac(n), number, kind, is_sticky);
                    }
                }
            }
            Op::Filtering(is_on) => {
                self.bridge.set_vlan_filtering(is_on);
                self.oracle.filtering = is_on;
                self.oracle.settle_trunks();
            }
            Op::Ageing(ticks) => {
                // Expired entries stay removed, even under a longer ageing time.
                self.bridge.handle_timeout(now);
                self.bridge.set_ageing_time(TICK * ticks as u32);
                self.oracle.ageing = ticks;
                self.oracle.set_tick(self.tick);
                self.bridge.handle_timeout(now);
            }
            _ => {}
        }
    }

    fn configure(&mut self, port: u32, change: impl FnOnce(&mut PortConfig)) {
        let mut config = *self.bridge.port(PortId(port)).unwrap().config();
        change(&mut config);
        self.bridge.configure(PortId(port), config).unwrap();
    }

    fn check(&mut self) {
        self.bridge.check_invariants();
        self.oracle.set_tick(self.tick);
        let tick = self.tick;
        let tick_ago = |age: Duration| tick - (age.as_nanos() / TICK.as_nanos()) as u64;
        let now = self.now();
        let mut got: Vec<OracleEntry> = self
            .bridge
            .fdb_entries(now)
            .map(|entry| OracleEntry {
                mac: entry.mac,
                vid: entry.vid.map_or(0, Vid::get),
                port: entry.port.map_or(OWN, |link| link.0),
                is_local: entry.kind == FdbKind::Local,
                is_static: entry.kind != FdbKind::Dynamic,
                is_sticky: entry.is_sticky,
                is_by_user: entry.is_by_user,
                updated: tick_ago(entry.updated),
                used: tick_ago(entry.used),
            })
            .collect();
        let mut want = self.oracle.fdb.clone();
        got.sort_unstable();
        want.sort_unstable();
        assert_eq!(got, want);
        self.apply_changes();
    }

    /// Applies the recorded changes, after which a listener has every entry; an expired entry stays until its removal.
    fn apply_changes(&mut self) {
        let key = |mac: MacAddr, vid: Option<Vid>| (mac.0, vid.map_or(0, Vid::get));
        let noted = self.bridge.take_fdb_changes();
        assert!(!noted.is_truncated);
        for change in noted.changes {
            match change {
                FdbChange::Set(entry) => {
                    self.known.insert(key(entry.mac, entry.vid), (entry.port, entry.kind, entry.is_sticky));
                }
                FdbChange::Removed(entry) => {
                    let gone = self.known.remove(&key(entry.mac, entry.vid));
                    assert_eq!(gone, Some((entry.port, entry.kind, entry.is_sticky)), "{entry:?}");
                }
            }
        }
        let now = self.now();
        let live = self.bridge.fdb_entries(now);
        let live: BTreeMap<_, _> =
            live.map(|entry| (key(entry.mac, entry.vid), (entry.port, entry.kind, entry.is_sticky))).collect();
        let has_expired = |kind: FdbKind| kind == FdbKind::Dynamic;
        for (key, known) in &self.known {
            assert!(live.get(key).map_or(has_expired(known.1), |entry| entry == known), "{key:?}: {known:?}");
        }
        assert!(live.keys().all(|key| self.known.contains_key(key)));
        assert_eq!(self.known.len(), self.bridge.fdb_len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bridge_decides_and_learns_like_a_plain_one(ops in prop::collection::vec(op(), 1..200)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.check();
        }
    }
}
