//! Tree of bridges with VLANs, hosts at their ports, and frames that are counted at each host: the destination gets
//! each frame once, and other hosts do not get it.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{DropReason, Instant, PortId};
use offload::{CsumOffload, Features, checksum};
use packet::Packet;
use sim::{End, Flow, Host, Medium, Node, PortOptions, Rng, Wire, World, stream_byte};
use switch::{TrunkPriority, Vid, VlanFlags};
use wire::MacAddr;
use wire::ip::Info;

const OWN: PortId = PortId(99);
const VLANS: [u16; 3] = [10, 20, 30];

/// Length of a message's part of the stream: the message's number is the upper half of its TCP sequence numbers.
const MESSAGE: usize = 0x1_0000;

/// A host in a VLAN. Hosts of different VLANs have the same addresses.
#[derive(Clone, Copy, Debug)]
struct Station {
    vlan: u16,
    mac: MacAddr,
    /// Whether the station's address has moved to another station.
    has_left: bool,
}

/// A frame from a station to another one or to all.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: Option<usize>,
    len: usize,
    /// Number of stations at the time of sending.
    stations: usize,
}

struct Site {
    world: World,
    rng: Rng,
    stations: Vec<Station>,
    messages: Vec<Message>,
    /// Received bytes by station and message.
    received: BTreeMap<(usize, usize), usize>,
    /// Next free link number of each bridge.
    free: Vec<u32>,
    /// Both ends of the active trunk, if there is a second trunk.
    active: Option<[(usize, PortId); 2]>,
}

/// A device with randomly negotiated virtio-net features.
fn features(rng: &mut Rng) -> Features {
    let csum = *rng.pick(&[CsumOffload::Any, CsumOffload::Any, CsumOffload::None]);
    let cuts = csum == CsumOffload::Any;
    let yes = |rng: &mut Rng| rng.below(4) > 0;
    Features {
        sg: yes(rng),
        frag_list: yes(rng),
        frames: false,
        csum,
        tso4: cuts && yes(rng),
        tso6: cuts && yes(rng),
        ..Features::NONE
    }
}

impl Site {
    /// `has_spare`: the first two bridges are joined by a second trunk, on standby.
    fn new(seed: u64, has_spare: bool) -> Self {
        let mut site = Self {
            world: World::new(seed),
            rng: Rng::new(seed ^ 0x5eed),
            stations: Vec::new(),
            messages: Vec::new(),
            received: BTreeMap::new(),
            free: Vec::new(),
            active: None,
        };
        for at in 0..2 + site.rng.below(4) {
            let mut node = Node::new();
            node.datapath.add_bridge(OWN, "br0".to_owned(), MacAddr([2, 0xb, at as u8, 0, 0, 0]), 1500).unwrap();
            node.datapath.bridge_mut(OWN).unwrap().set_vlan_filtering(true);
            site.world.add_node(node);
            site.free.push(1);
            if at > 0 {
                let parent = site.rng.below(at);
                let ends = site.join(at, parent);
                if has_spare && at == 1 {
                    let spare = site.join(at, parent);
                    site.set_trunks(ends, 2);
                    site.set_trunks(spare, 1);
                    site.active = Some(ends);
                }
            }
        }
        for vlan in VLANS {
            for number in 0..2 + site.rng.below(3) {
                let bridge = site.rng.below(site.world.nodes.len());
                site.station(vlan, MacAddr([2, 1, 0, 0, 0, number as u8]), bridge);
            }
        }
        site
    }

    /// Adds a port in some VLANs; if they are untagged, the first is its PVID.
    fn port(&mut self, bridge: usize, vlans: &[u16], is_tagged: bool, features: Features) -> PortId {
        let link = PortId(self.free[bridge]);
        self.free[bridge] += 1;
        let node = &mut self.world.nodes[bridge];
        node.port(link.0, PortOptions::ethernet(link.0 as u8).features(features), &[]);
        node.datapath.set_bridge(Instant::ZERO, &node.mem, link, Some(OWN)).unwrap();
        let bridge = node.datapath.bridge_mut(OWN).unwrap();
        let first = Vid::new(1).unwrap();
        bridge.remove_vlans(Some(link), first, first).unwrap();
        for &vlan in vlans {
            let vid = Vid::new(vlan).unwrap();
            let flags = VlanFlags { is_pvid: !is_tagged, is_untagged: !is_tagged };
            bridge.add_vlans(Some(link), vid, vid, flags).unwrap();
        }
        link
    }

    /// Joins two bridges by a wire with all VLANs, tagged.
    fn join(&mut self, a: usize, b: usize) -> [(usize, PortId); 2] {
        let is_cable = self.rng.below(2) == 0;
        let ends = [a, b].map(|bridge| {
            let features = if is_cable { Features::NONE } else { features(&mut self.rng) };
            (bridge, self.port(bridge, &VLANS, true, features))
        });
        // A tag is not part of the MTU.
        let wire = Wire::new(if is_cable { Medium::Cable } else { Medium::Guest }, 1504);
        let [a, b] = ends.map(|(bridge, link)| End::Port(bridge, link));
        self.world.join(wire, a, b);
        ends
    }

    fn set_trunks(&mut self, ends: [(usize, PortId); 2], priority: u8) {
        for (bridge, link) in ends {
            let bridge = self.world.nodes[bridge].datapath.bridge_mut(OWN).unwrap();
            let config = *bridge.port(link).unwrap().config();
            let trunk = TrunkPriority::new(priority);
            bridge.configure(link, switch::PortConfig { trunk, ..config }).unwrap();
        }
    }

    fn station(&mut self, vlan: u16, mac: MacAddr, bridge: usize) -> usize {
        let is_cable = self.rng.below(3) == 0;
        let features = if is_cable { Features::NONE } else { features(&mut self.rng) };
        let link = self.port(bridge, &[vlan], false, features);
        let host = self.world.add_host(Host::ethernet(mac, &[], MacAddr::ZERO));
        let wire = Wire::new(if is_cable { Medium::Cable } else { Medium::Guest }, 1500);
        self.world.join(wire, End::Port(bridge, link), End::Host(host));
        self.stations.push(Station { vlan, mac, has_left: false });
        host
    }

    /// Sends a message, thin or fat, in either family.
    fn send(&mut self, from: usize, to: Option<usize>) {
        let len = if self.rng.below(2) == 0 { 1 + self.rng.below(1400) } else { 1401 + self.rng.below(60_000) };
        let number = self.messages.len();
        let flow = if self.rng.below(2) == 0 {
            Flow::new("10.9.0.1", "10.9.0.2")
        } else {
            Flow::new("fd00:9::1", "fd00:9::2")
        };
        let host = &mut self.world.hosts[from];
        host.gateway = to.map_or(MacAddr::BROADCAST, |to| self.stations[to].mac);
        let pkt = flow.fat_tcp(&host.mem, (number * MESSAGE) as u32, len, 1400);
        host.send(pkt);
        self.messages.push(Message { from, to, len, stations: self.stations.len() });
    }

    /// Sends from random stations to others of their VLANs, and to all.
    fn talk(&mut self, messages: usize) {
        for _ in 0..messages {
            let from = self.rng.below(self.stations.len());
            let others: Vec<usize> = self.others_of(from).collect();
            if self.stations[from].has_left {
                continue;
            }
            let to = if self.rng.below(8) == 0 || others.is_empty() { None } else { Some(*self.rng.pick(&others)) };
            self.send(from, to);
            if self.rng.below(2) == 0 {
                let pause = self.rng.duration(Duration::from_micros(100));
                self.world.run(pause);
            }
        }
        self.world.run(Duration::from_secs(1));
    }

    /// Sends a broadcast from each station, so that every bridge learns its address.
    fn announce(&mut self) {
        for from in 0..self.stations.len() {
            if !self.stations[from].has_left {
                self.send(from, None);
                self.world.run(Duration::from_millis(1));
            }
        }
        self.world.run(Duration::from_secs(1));
    }

    fn others_of(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        let vlan = self.stations[from].vlan;
        (0..self.stations.len())
            .filter(move |&to| to != from && self.stations[to].vlan == vlan && !self.stations[to].has_left)
    }

    /// Checks the packets that hosts have received: complete segments of messages for them, with correct checksums.
    fn collect(&mut self) {
        for at in 0..self.stations.len() {
            let host = &mut self.world.hosts[at];
            let mut thin = Vec::new();
            for pkt in host.take() {
                offload::fit(&host.mem, &Features::NONE, pkt, 0, &mut thin).unwrap();
            }
            thin.iter().for_each(|pkt| self.collect_one(at, pkt));
        }
    }

    fn collect_one(&mut self, at: usize, pkt: &Packet) {
        let bytes = pkt.to_vec();
        let info = Info::parse(&bytes, bytes.len()).unwrap();
        assert!(bytes.len() <= 1500 && checksum::verify(pkt, &info), "{info:?}");
        let segment = info.payload(&bytes);
        let seq = u32::from_be_bytes(segment[4..8].try_into().unwrap());
        let payload = &segment[usize::from(segment[12] >> 4) * 4..];
        assert!((seq..).zip(payload).all(|(at, &byte)| byte == stream_byte(at)));
        let number = seq as usize / MESSAGE;
        let message = self.messages[number];
        let (station, from) = (self.stations[at], self.stations[message.from]);
        assert_eq!(station.vlan, from.vlan, "{message:?} has crossed to {station:?}");
        assert_ne!(at, message.from, "{message:?} has come back");
        assert!(message.to.is_none_or(|to| self.stations[to].mac == station.mac), "{message:?} at {station:?}");
        *self.received.entry((at, number)).or_default() += payload.len();
    }

    /// Checks that every message from number `first` on arrived once at each of its destinations.
    fn check_from(&mut self, first: usize) {
        self.collect();
        for (number, message) in self.messages.iter().enumerate().skip(first) {
            for at in 0..message.stations {
                let station = self.stations[at];
                let is_meant = match message.to {
                    Some(to) => at == to,
                    None => station.vlan == self.stations[message.from].vlan && at != message.from,
                };
                let got = self.received.get(&(at, number)).copied().unwrap_or_default();
                let is_right = got == if is_meant { message.len } else { 0 };
                assert!(is_right || station.has_left, "message {number}, {message:?}: {got} bytes at {station:?}");
            }
        }
    }

    /// Checks the invariants: no frame was dropped in flight, no page is leaked, tables agree.
    fn check_nodes(&self) {
        for node in &self.world.nodes {
            // A flooded frame is dropped at bridges without its destination.
            let ends = [DropReason::BridgeNoPort, DropReason::BridgeSamePort];
            assert!(node.drops().iter().all(|(_, reason, _)| ends.contains(reason)), "{:?}", node.drops());
            assert_eq!(node.pages_in_use(), 0);
            node.datapath.bridge(OWN).unwrap().check_invariants();
        }
    }
}

fn each_seed(mut check: impl FnMut(u64)) {
    (0..40).for_each(&mut check);
}

#[test]
fn frame_reaches_its_station_in_its_vlan_once() {
    each_seed(|seed| {
        let mut site = Site::new(seed, false);
        // The first messages meet unknown addresses, the later ones learnt, then expired addresses.
        for _ in 0..2 {
            site.talk(30);
            site.announce();
            site.talk(30);
            site.world.run(Duration::from_secs(301));
            assert!(site.world.nodes.iter().all(|node| {
                let bridge = node.datapath.bridge(OWN).unwrap();
                bridge.ports().all(|port| bridge.learnt(port.link()) == 0)
            }));
        }
        site.check_from(0);
        site.check_nodes();
    });
}

#[test]
fn frame_follows_a_station_that_has_moved() {
    each_seed(|seed| {
        let mut site = Site::new(seed, false);
        site.announce();
        for _ in 0..4 {
            let moving = site.rng.below(site.stations.len());
            if site.stations[moving].has_left {
                continue;
            }
            let Station { vlan, mac, .. } = site.stations[moving];
            let bridge = site.rng.below(site.world.nodes.len());
            site.stations[moving].has_left = true;
            let moved = site.station(vlan, mac, bridge);
            let first = site.messages.len();
            site.send(moved, None);
            site.world.run(Duration::from_millis(1));
            site.talk(20);
            site.check_from(first);
            let left = site.received.keys().filter(|&&(at, number)| at == moving && number >= first);
            let misdirected = left.filter(|&&(_, number)| site.messages[number].to.is_some()).count();
            assert_eq!(misdirected, 0, "frames still go where {mac} was");
        }
        site.check_nodes();
    });
}

#[test]
fn frames_go_by_the_standby_trunk_when_the_active_fails() {
    each_seed(|seed| {
        let mut site = Site::new(seed, true);
        site.announce();
        site.talk(20);
        site.check_from(0);
        site.check_nodes();
        let active = site.active.unwrap();
        for is_up in [false, true] {
            for (bridge, link) in active {
                let node = &mut site.world.nodes[bridge];
                node.datapath.bridge_mut(OWN).unwrap().set_link_up(link, is_up).unwrap();
            }
            let first = site.messages.len();
            // Addresses learnt at the other trunk are unknown now, so frames for them are sent on this one.
            site.talk(20);
            site.announce();
            site.talk(20);
            site.check_from(first);
            site.check_nodes();
        }
    });
}

#[test]
fn troubled_wires_take_no_frame_to_another_vlan() {
    each_seed(|seed| {
        let mut site = Site::new(seed, false);
        let wires = site.world.stats.len();
        for _ in 0..6 {
            for at in 0..wires {
                let wire = site.world.wire(at);
                let [loss, late, twice, busy] = [0; 4].map(|_| site.rng.below(200) as u16);
                site.world.set_wire(at, wire.troubled(loss, late, twice, busy));
            }
            site.talk(20);
            site.collect();
        }
        let (sent, got) = (site.messages.len(), site.received.len());
        assert!(got > sent / 4, "{got} of {sent}");
        site.check_nodes();
    });
}
