//! `fatpath bench trunk`: TCP between a guest and the wire, through the model of a POWER partition's virtual Ethernet adapters.
//!
//! Path: guest adapter, hypervisor's LAN, trunk adapter, bridge, NIC (an in-memory link), and the reverse; and from
//! guest to guest. The stream arrives in fat packets of 44 segments, MTU 1500, as from a TCP stack or a NIC with GRO.
//!
//! - `off`: neither checksum offload nor large send: the stack in front of an adapter segments packets and computes
//!   their checksums, and a guest verifies them.
//! - `checksum`: TCP checksums stay partial, and packets are segmented.
//! - `large-send`: packets stay fat, in the new style.
//! - `cut`, `linearized`, `in-place`: as `large-send`, from the NIC alone, where GRO has built packets with a frag
//!   list: the trunk adapter segments them, copies them into its transmit buffer, or describes fragments in place, on a
//!   LAN with 64 descriptors.
//! - `in-place-6`: the same on a LAN with six descriptors, as in the interface: four fragments are described, all later
//!   ones are copied.
//!
//! Group `trunk` has `off`, `checksum` and `large-send` in both directions. In groups `to-nic` and `guest-to-guest` the
//! case `in-place` is that of a guest whose packets lie in pages of 32 KiB.
//!
//! `segments_per_call` is the number of segments per send call to the hypervisor, `copies_per_segment` the number of
//! copies by adapters and hypervisor per segment, and `cpu_ns` the CPU time per segment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Instant, PortId};
use datapath::{Datapath, PortConfig};
use ibmveth::{Adapter, AdapterConfig, AdapterPlace, Firmware, FragListMode, Lan, SharedLan, TrunkAdapter, TxOffloads};
use link::memory::{End, MemoryLink, pair};
use link::{Layer, Link, Sent};
use offload::{Features, checksum};
use packet::{Memory, Packet};
use sim::Flow;
use wire::ip::Info;
use wire::{EtherType, MacAddr, eth};

use super::case::{Comparison, Copied, Group, Load, Plan, Turn};
use super::cpu::thread_time;

/// Number of fat packets in a turn in each direction.
const PACKETS: usize = 8;

/// Segments of a fat packet, and their payload: 1500 bytes with timestamps.
const SEGMENTS: usize = 44;
const MSS: usize = 1448;
const PAYLOAD: usize = SEGMENTS * MSS;

/// Bytes of a page of a guest's own packets.
const GUEST_PAGE: usize = 32 * 1024;

/// Number of descriptors of a LAN that sends a complete packet in place.
const DESCRIPTORS: usize = 64;

const TRUNK: PortId = PortId(1);
const NIC: PortId = PortId(2);
const BRIDGE: PortId = PortId(3);

const LARGE_SEND: Comparison =
    Comparison { of: "large-send/off", over: &["large-send"], under: &["off"], figure: None };
const CHECKSUM: Comparison = Comparison { of: "checksum/off", over: &["checksum"], under: &["off"], figure: None };
const GUEST_IN_PLACE: Comparison =
    Comparison { of: "in-place/large-send", over: &["in-place"], under: &["large-send"], figure: None };

const TRUNK_RATIOS: &[Comparison] = &[
    Comparison { of: "linearized/cut", over: &["linearized"], under: &["cut"], figure: None },
    Comparison { of: "in-place/linearized", over: &["in-place"], under: &["linearized"], figure: None },
    Comparison { of: "in-place-6/linearized", over: &["in-place-6"], under: &["linearized"], figure: None },
    LARGE_SEND,
    CHECKSUM,
];

/// Path of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// Guest to NIC.
    Out,
    /// NIC to guest.
    Back,
    /// Both.
    Both,
    /// Guest to guest.
    Inside,
}

impl Way {
    /// Number of streams through the hypervisor.
    const fn streams(self) -> usize {
        if matches!(self, Self::Both) { 2 } else { 1 }
    }
}

/// Shape of packets at the source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Shape {
    Linear,
    /// A head with the headers, and pages of a guest.
    Pages,
    /// One segment in the head, and the others in the frag list.
    FragList,
}

/// Setting of a case.
#[derive(Clone, Copy, Debug)]
struct Setting {
    way: Way,
    offloads: TxOffloads,
    shape: Shape,
    mode: FragListMode,
    descriptors: usize,
}

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let of = |way, offloads| Setting {
        way,
        offloads,
        shape: Shape::Linear,
        mode: FragListMode::Linearize,
        descriptors: Firmware::DESCRIPTORS,
    };
    let plain = |way| {
        let offloads = [("off", TxOffloads::NONE), ("checksum", TxOffloads::CSUM), ("large-send", TxOffloads::ALL)];
        offloads.map(|(name, offloads)| (name, of(way, offloads))).to_vec()
    };
    let list =
        |mode, descriptors| Setting { shape: Shape::FragList, mode, descriptors, ..of(Way::Back, TxOffloads::ALL) };
    let pages = |way| Setting { shape: Shape::Pages, mode: FragListMode::InPlace, ..of(way, TxOffloads::ALL) };
    let mut trunk = plain(Way::Both);
    trunk.extend([
        ("cut", list(FragListMode::Cut, Firmware::DESCRIPTORS)),
        ("linearized", list(FragListMode::Linearize, Firmware::DESCRIPTORS)),
        ("in-place", list(FragListMode::InPlace, DESCRIPTORS)),
        ("in-place-6", list(FragListMode::InPlace, Firmware::DESCRIPTORS)),
    ]);
    let with_pages = |way| {
        let mut cases = plain(way);
        cases.push(("in-place", pages(way)));
        cases
    };
    const PLAIN: &[Comparison] = &[LARGE_SEND, CHECKSUM];
    const GUEST: &[Comparison] = &[LARGE_SEND, CHECKSUM, GUEST_IN_PLACE];
    vec![
        group("trunk", trunk, TRUNK_RATIOS),
        group("to-nic", with_pages(Way::Out), GUEST),
        group("from-nic", plain(Way::Back), PLAIN),
        group("guest-to-guest", with_pages(Way::Inside), GUEST),
    ]
}

fn group(name: &str, cases: Vec<(&'static str, Setting)>, ratios: &'static [Comparison]) -> Group {
    let plan = |(name, setting): (&'static str, Setting)| {
        let streams = setting.way.streams();
        let load = Load { packets: streams * PACKETS * SEGMENTS, payload: streams * PACKETS * PAYLOAD, small: false };
        Plan::new(name, load, move || Box::new(World::new(setting)))
    };
    Group { name: name.to_owned(), cases: cases.into_iter().map(plan).collect(), ratios }
}

/// Guests, their hypervisor, and the I/O server's switch.
struct World {
    setting: Setting,
    lan: SharedLan,
    guests: [Adapter; 2],
    trunk: TrunkAdapter,
    nic: MemoryLink,
    /// The peer on the NIC's wire.
    peer: MemoryLink,
    datapath: Datapath,
    mem: Memory,
    /// Packets to send, of the first guest and of the peer.
    out: Vec<Packet>,
    back: Vec<Packet>,
    burst: Vec<Packet>,
    turns: u64,
    /// Bytes of payload that arrived, and number of packets with wrong checksums.
    arrived: u64,
    wrong: u64,
    cpu: Duration,
}

const fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

const GUEST_MAC: MacAddr = mac(1);
const OTHER_MAC: MacAddr = mac(2);
const TRUNK_MAC: MacAddr = mac(3);
const NIC_MAC: MacAddr = mac(4);
const PEER_MAC: MacAddr = mac(5);

impl World {
    fn new(setting: Setting) -> Self {
        let Setting { offloads, mode, descriptors, .. } = setting;
        let lan = Arc::new(Mutex::new(Lan::new(Firmware { descriptors, ..Firmware::CURRENT })));
        let config = AdapterConfig { frag_list: mode, ..AdapterConfig::default() };
        let guest = |mac| {
            let mut lan = lock(&lan);
            let unit = lan.add_adapter(AdapterPlace::guest(mac)).expect("a place");
            let mut guest = Adapter::probe(&mut lan, unit, config).expect("an adapter");
            guest.set_offloads(&mut lan, offloads).expect("a hypervisor that agrees");
            guest.open(&mut lan).expect("a hypervisor without limits");
            guest
        };
        let guests = [guest(GUEST_MAC), guest(OTHER_MAC)];
        let unit = lock(&lan).add_adapter(AdapterPlace::trunk(TRUNK_MAC, 1, Vec::new())).expect("a place");
        let mut trunk = TrunkAdapter::open("trunk0", &lan, unit, config).expect("an adapter");
        trunk.set_offloads(offloads).expect("a hypervisor that agrees");
        // The first call returns the available features.
        let _ = trunk.send(&mut Vec::new());
        let end = |name: &str, mac| End { layer: Layer::Ethernet(mac), ..End::new(name) };
        let (nic, peer) = pair(end("nic0", NIC_MAC), end("peer", PEER_MAC));
        let mut this = Self {
            setting,
            lan,
            guests,
            datapath: switch(&trunk, &nic),
            trunk,
            nic,
            peer,
            mem: Memory::heap(),
            out: Vec::new(),
            back: Vec::new(),
            burst: Vec::new(),
            turns: 0,
            arrived: 0,
            wrong: 0,
            cpu: Duration::ZERO,
        };
        this.teach();
        this
    }

    /// Sends a frame from the guest and from the peer, so that the bridge learns their addresses.
    fn teach(&mut self) {
        let hello = |dst: MacAddr, src: MacAddr| {
            let bytes = [eth::EthHeader::new(dst, src, EtherType::ARP).as_bytes(), &[0; 46]].concat();
            Packet::with_data(&self.mem, &bytes).expect("a heap without limit")
        };
        let (guest, peer) = (hello(MacAddr::BROADCAST, GUEST_MAC), hello(MacAddr::BROADCAST, PEER_MAC));
        self.guests[0].transmit(&mut lock(&self.lan), 0, guest).expect("an open adapter");
        let _ = self.peer.send(&mut vec![peer]);
        self.drain_trunk();
        self.drain_nic();
        let mut none = Vec::new();
        for guest in &mut self.guests {
            guest.poll(&mut lock(&self.lan), &self.mem, usize::MAX, &mut none);
        }
        let _ = self.peer.recv(&self.mem, &mut none);
    }

    /// A packet of the stream, in the shape of the case.
    fn packet(&self, template: &Packet, dst: MacAddr, src: MacAddr, shape: Shape) -> Packet {
        let header = eth::EthHeader::new(dst, src, EtherType::IPV4);
        let bytes = [header.as_bytes(), template.head()].concat();
        let with = |bytes: &[u8]| Packet::with_data(&self.mem, bytes).expect("a heap without limit");
        let headers = bytes.len() - PAYLOAD;
        let mut pkt = match shape {
            Shape::Linear => with(&bytes),
            Shape::Pages => {
                let mut pkt = with(&bytes[..headers]);
                for page in bytes[headers..].chunks(GUEST_PAGE) {
                    pkt.push_frag(with(page).into_head()).expect("a few slots");
                }
                pkt
            }
            Shape::FragList => {
                let (first, others) = bytes.split_at(headers + MSS);
                let mut pkt = with(first);
                others.chunks(MSS).for_each(|piece| pkt.push_child(with(piece)));
                pkt
            }
        };
        pkt.meta = template.meta.clone();
        if let packet::Csum::Partial { start, .. } = &mut pkt.meta.csum {
            *start += eth::EthHeader::LEN as u16;
        }
        pkt
    }

    /// Passes packets received by the trunk adapter through the bridge to the NIC.
    fn drain_trunk(&mut self) {
        loop {
            let _ = self.trunk.recv(&self.mem, &mut self.burst);
            if self.burst.is_empty() {
                return;
            }
            self.datapath.handle_rx(Instant::ZERO, &self.mem, TRUNK, &mut self.burst);
            if let Some(waiting) = self.datapath.take_tx(NIC) {
                let _ = self.nic.send(waiting);
            }
        }
    }

    /// Passes packets received by the NIC through the bridge to the trunk adapter.
    fn drain_nic(&mut self) {
        let _ = self.nic.recv(&self.mem, &mut self.burst);
        self.datapath.handle_rx(Instant::ZERO, &self.mem, NIC, &mut self.burst);
        if let Some(waiting) = self.datapath.take_tx(TRUNK) {
            let sent = self.trunk.send(waiting);
            assert!(matches!(sent, Ok(Sent::All)), "features that stay: {sent:?}");
        }
    }

    /// Receives packets at a guest, and verifies checksums that no device has verified.
    fn drain_guest(&mut self, at: usize) {
        self.guests[at].poll(&mut lock(&self.lan), &self.mem, usize::MAX, &mut self.burst);
        for mut pkt in self.burst.drain(..) {
            pkt.pull(eth::EthHeader::LEN);
            let info = Info::parse(pkt.head(), pkt.len());
            let is_right = info.is_ok_and(|info| checksum::verify(&pkt, &info));
            self.wrong += u64::from(!is_right);
            self.arrived += payload(&pkt) as u64;
        }
    }

    /// Receives packets from the peer's wire, whose device verifies checksums.
    fn drain_peer(&mut self) {
        while self.peer.recv(&self.mem, &mut self.burst).is_ok() && !self.burst.is_empty() {
            for mut pkt in self.burst.drain(..) {
                pkt.pull(eth::EthHeader::LEN);
                self.arrived += payload(&pkt) as u64;
            }
        }
    }

    /// Sends a packet from a guest's adapter, fitted to it as by the guest's stack.
    fn guest_sends(&mut self, pkt: Packet) {
        let features = self.guests[0].features();
        let fitted = offload::fit(&self.mem, &features, pkt, eth::EthHeader::LEN, &mut self.burst);
        let mut lan = lock(&self.lan);
        for pkt in self.burst.drain(..) {
            self.wrong += u64::from(self.guests[0].transmit(&mut lan, 0, pkt).is_err());
        }
        self.wrong += u64::from(fitted.is_err());
    }
}

/// Length of the payload of a TCP packet; all packets have equal headers.
fn payload(pkt: &Packet) -> usize {
    const HEADERS: usize = 20 + 32;
    pkt.len().saturating_sub(HEADERS)
}

fn lock(lan: &SharedLan) -> MutexGuard<'_, Lan> {
    lan.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bridge between a trunk adapter and a NIC.
fn switch(trunk: &TrunkAdapter, nic: &MemoryLink) -> Datapath {
    let mut datapath = Datapath::new();
    let links: [(PortId, &dyn Link, MacAddr); 2] = [(TRUNK, trunk, TRUNK_MAC), (NIC, nic, NIC_MAC)];
    for (id, link, mac) in links {
        let features = Features { frames: false, ..link.features() };
        let name = link.name().to_owned();
        let config = PortConfig { name, mac: Some(mac), mtu: 1500, features, gro: false, esp_gro: false };
        datapath.set_port(id, config);
    }
    datapath.add_bridge(BRIDGE, "br0".to_owned(), mac(9), 1500).expect("the first bridge");
    for id in [TRUNK, NIC] {
        datapath.set_bridge(Instant::ZERO, &Memory::heap(), id, Some(BRIDGE)).expect("a link with stations");
    }
    datapath
}

impl Turn for World {
    fn prepare(&mut self) {
        let flow = Flow::new("10.0.0.1", "10.0.0.2");
        let Setting { way, shape, .. } = self.setting;
        let template = flow.fat_tcp(&self.mem, 1, PAYLOAD, MSS as u16);
        let to = if way == Way::Inside { OTHER_MAC } else { PEER_MAC };
        let count = |is_sent: bool| if is_sent { PACKETS } else { 0 };
        self.out = (0..count(way != Way::Back)).map(|_| self.packet(&template, to, GUEST_MAC, shape)).collect();
        let comes_back = matches!(way, Way::Back | Way::Both);
        self.back = (0..count(comes_back)).map(|_| self.packet(&template, GUEST_MAC, PEER_MAC, shape)).collect();
        self.turns += 1;
    }

    fn run(&mut self) {
        let begin = thread_time();
        for pkt in std::mem::take(&mut self.out) {
            self.guest_sends(pkt);
            if self.setting.way == Way::Inside {
                self.drain_guest(1);
            } else {
                self.drain_trunk();
                self.drain_peer();
            }
        }
        for pkt in std::mem::take(&mut self.back) {
            let _ = self.peer.send(&mut vec![pkt]);
            self.drain_nic();
            self.drain_guest(0);
        }
        self.cpu += thread_time().saturating_sub(begin);
    }

    fn copied(&self) -> Copied {
        let mut copied = Copied::of(&self.mem);
        for adapter in self.guests.iter().chain([self.trunk.adapter()]) {
            let headers = adapter.copies().filter(|(reason, _)| *reason == packet::CopyReason::SegmentHeader);
            let headers: u64 = headers.map(|(_, copied)| copied.bytes).sum();
            let all: u64 = adapter.copies().map(|(_, copied)| copied.bytes).sum();
            copied.headers += headers;
            copied.payload += all - headers;
        }
        copied.payload += lock(&self.lan).counters().copied_bytes;
        copied
    }

    fn check(&self) -> Result<(), String> {
        let all = self.turns * (self.setting.way.streams() * PACKETS * PAYLOAD) as u64;
        if (self.arrived, self.wrong) == (all, 0) {
            return Ok(());
        }
        Err(format!("{} of {all} bytes arrived, {} packets were wrong", self.arrived, self.wrong))
    }

    fn more(&mut self) -> Vec<(&'static str, f64)> {
        let lan = lock(&self.lan).counters();
        let adapters: u64 =
            self.guests.iter().chain([self.trunk.adapter()]).map(|it| it.counters().copied.copies).sum();
        let segments = (self.turns as usize * self.setting.way.streams() * PACKETS * SEGMENTS) as f64;
        vec![
            ("segments_per_call", segments / lan.calls.max(1) as f64),
            ("copies_per_segment", (adapters + lan.copies) as f64 / segments),
            ("cpu_ns", self.cpu.as_nanos() as f64 / segments),
        ]
    }
}

#[cfg(test)]
mod tests {
    use packet::Cut;

    use super::*;

    #[test]
    fn every_case_carries_its_stream() {
        groups().iter().for_each(Group::run_briefly);
    }

    #[test]
    fn super_packet_is_one_call_and_a_segmented_one_44() {
        let setting = Setting {
            way: Way::Back,
            offloads: TxOffloads::ALL,
            shape: Shape::FragList,
            mode: FragListMode::Linearize,
            descriptors: DESCRIPTORS,
        };
        for (mode, calls, copied) in [
            (FragListMode::Cut, SEGMENTS, PAYLOAD + SEGMENTS * 66),
            (FragListMode::Linearize, 1, PAYLOAD + 66),
            (FragListMode::InPlace, 1, 66),
        ] {
            let mut world = World::new(Setting { mode, ..setting });
            let before = (lock(&world.lan).counters().calls, world.trunk.adapter().counters().copied.bytes);
            world.prepare();
            world.run();
            world.check().expect("all of it");
            let after = (lock(&world.lan).counters().calls, world.trunk.adapter().counters().copied.bytes);
            let want = (before.0 + (PACKETS * calls) as u64, before.1 + (PACKETS * copied) as u64);
            assert_eq!(after, want, "{mode:?}");
        }
    }

    #[test]
    fn packet_of_every_shape_has_the_same_bytes() {
        let setting = Setting {
            way: Way::Out,
            offloads: TxOffloads::ALL,
            shape: Shape::Linear,
            mode: FragListMode::Linearize,
            descriptors: DESCRIPTORS,
        };
        let world = World::new(setting);
        let template = Flow::new("10.0.0.1", "10.0.0.2").fat_tcp(&world.mem, 1, PAYLOAD, MSS as u16);
        let shapes = [Shape::Linear, Shape::Pages, Shape::FragList];
        let packets = shapes.map(|shape| world.packet(&template, PEER_MAC, GUEST_MAC, shape));
        assert!(packets.iter().all(|pkt| pkt.to_vec() == packets[0].to_vec() && pkt.meta.cut == template.meta.cut));
        assert!(matches!(template.meta.cut, Cut::Gso(gso) if usize::from(gso.segs) == SEGMENTS));
    }
}
