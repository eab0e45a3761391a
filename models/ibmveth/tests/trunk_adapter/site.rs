//! Guests, a trunk adapter, a bridge and a wire without offloads, and verifiable frames.

use std::sync::{Arc, Mutex, MutexGuard};

use base::{Instant, PortId};
use ibmveth::{Adapter, AdapterConfig, AdapterPlace, Firmware, Lan, PoolConfig, SharedLan, TrunkAdapter, Unit};
use link::{Link, Sent};
use offload::Features;
use packet::{Memory, Packet};
use sim::{Flow, Node, PortOptions};
use switch::{Vid, VlanFlags};
use wire::{EtherType, MacAddr, eth, ipv4};

pub(crate) const NOW: Instant = Instant::from_nanos(1_000_000_000);
pub(crate) const TRUNK: PortId = PortId(1);
pub(crate) const WIRE: PortId = PortId(2);
const BRIDGE: PortId = PortId(9);

/// Tagged VLAN of guests and wire, in addition to the untagged one.
pub(crate) const VLAN: u16 = 5;

/// Payload of a segment.
pub(crate) const MSS: u16 = 1400;

/// Addresses of the guest, and of a station behind the wire.
pub(crate) const GUEST: MacAddr = mac(1);
pub(crate) const STATION: MacAddr = mac(0x21);

pub(crate) const fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Flows from a guest, of both versions of IP.
pub(crate) fn flows() -> [Flow; 2] {
    [Flow::new("10.1.0.1", "10.1.0.2"), Flow::new("fd00::1", "fd00::2")]
}

/// Small pools, so that tests are fast.
pub(crate) fn config() -> AdapterConfig {
    let pools = PoolConfig::DEFAULT.map(|pool| PoolConfig { count: 64, ..pool });
    AdapterConfig { pools, ..AdapterConfig::default() }
}

/// Network under test.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) lan: SharedLan,
    pub(crate) guest: Adapter,
    pub(crate) guest_unit: Unit,
    pub(crate) trunk: TrunkAdapter,
    pub(crate) node: Node,
}

impl Site {
    /// A guest and a trunk adapter with these settings, and a wire whose device has the features `egress`.
    pub(crate) fn new(firmware: Firmware, guest: AdapterConfig, trunk: AdapterConfig, egress: Features) -> Self {
        let lan = Arc::new(Mutex::new(Lan::new(firmware)));
        let mut locked = lan.lock().unwrap();
        let place = AdapterPlace { vlans: vec![VLAN], ..AdapterPlace::guest(GUEST) };
        let guest_unit = locked.add_adapter(place).unwrap();
        let mut adapter = Adapter::probe(&mut locked, guest_unit, guest).unwrap();
        adapter.open(&mut locked).unwrap();
        let unit = locked.add_adapter(AdapterPlace::trunk(mac(2), 2, vec![VLAN])).unwrap();
        drop(locked);
        let trunk = TrunkAdapter::open("trunk0", &lan, unit, trunk).unwrap();
        let mut node = Node::new();
        let options = PortOptions::ethernet(2).mtu(trunk.mtu()).features(trunk.features());
        node.port(TRUNK.0, options, &[]);
        node.port(WIRE.0, PortOptions::ethernet(3).features(egress), &[]);
        node.datapath.add_bridge(BRIDGE, "br0".to_owned(), mac(9), 1500).unwrap();
        for id in [TRUNK, WIRE] {
            node.datapath.set_bridge(NOW, &node.mem, id, Some(BRIDGE)).unwrap();
        }
        let bridge = node.datapath.bridge_mut(BRIDGE).unwrap();
        bridge.set_vlan_filtering(true);
        let vid = Vid::new(VLAN).unwrap();
        for id in [TRUNK, WIRE] {
            bridge.add_vlans(Some(id), vid, vid, VlanFlags::default()).unwrap();
        }
        Self { lan, guest: adapter, guest_unit, trunk, node }
    }

    pub(crate) fn lan(&self) -> MutexGuard<'_, Lan> {
        self.lan.lock().unwrap()
    }

    /// Sends an IP packet from the guest's stack to the station.
    pub(crate) fn guest_sends(&mut self, ip: Packet, vid: Option<u16>) {
        let pkt = framed(&self.node.mem, ip, STATION, GUEST, vid);
        let mut fitted = Vec::new();
        offload::fit(&self.node.mem, &self.guest.features(), pkt, eth::EthHeader::LEN, &mut fitted).unwrap();
        let mut lan = self.lan.lock().unwrap();
        fitted.into_iter().for_each(|pkt| self.guest.transmit(&mut lan, 0, pkt).unwrap());
    }

    /// Passes packets received by the trunk adapter through the bridge. Returns the packets sent to the wire.
    pub(crate) fn drain_wire(&mut self) -> Vec<Packet> {
        let mut sent = Vec::new();
        loop {
            let mut burst = Vec::new();
            self.trunk.recv(&self.node.mem, &mut burst).unwrap();
            if burst.is_empty() {
                return sent;
            }
            self.node.rx(NOW, TRUNK, burst);
            sent.extend(self.node.tx(WIRE));
        }
    }

    /// Passes an IP packet for the guest from the wire through the bridge to the trunk adapter, which sends it.
    pub(crate) fn wire_brings(&mut self, ip: Packet, vid: Option<u16>) {
        let mut pkt = framed(&self.node.mem, ip, GUEST, STATION, vid);
        offload::insert_tag(&self.node.mem, &mut pkt, eth::EthHeader::LEN).unwrap();
        self.node.rx(NOW, WIRE, vec![pkt]);
        self.flush();
    }

    /// Sends the packets queued for the trunk adapter, fitted again if the adapter's features have changed.
    pub(crate) fn flush(&mut self) {
        let waiting = self.node.datapath.take_tx(TRUNK).unwrap();
        if self.trunk.send(waiting).unwrap() == Sent::Refit {
            let features = self.trunk.features();
            self.node.datapath.refit(NOW, &self.node.mem, TRUNK, features);
            let waiting = self.node.datapath.take_tx(TRUNK).unwrap();
            assert_eq!(self.trunk.send(waiting).unwrap(), Sent::All);
        }
    }

    /// Packets received by the guest.
    pub(crate) fn drain_guest(&mut self) -> Vec<Packet> {
        let mut got = Vec::new();
        while self.guest.poll(&mut self.lan.lock().unwrap(), &self.node.mem, 64, &mut got) > 0 {}
        got
    }
}

/// Puts an Ethernet header in front of an IP packet, with its tag as metadata.
fn framed(mem: &Memory, mut pkt: Packet, dst: MacAddr, src: MacAddr, vid: Option<u16>) -> Packet {
    let is_v4 = pkt.to_vec()[0] >> 4 == 4;
    let header = eth::EthHeader::new(dst, src, if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 });
    pkt.push(mem, eth::EthHeader::LEN).unwrap().copy_from_slice(header.as_bytes());
    pkt.meta.vlan = vid;
    pkt
}

/// Kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Four segments and a part of a fifth, with a partial checksum.
    Fat,
    /// One segment with a partial checksum: the first packet of a connection.
    Partial,
    /// One segment with its checksum.
    Plain,
    /// A datagram with a partial checksum.
    Udp,
    /// One byte: shorter than the minimum Ethernet frame.
    Small,
}

impl Load {
    pub(crate) const ALL: [Self; 5] = [Self::Fat, Self::Partial, Self::Plain, Self::Udp, Self::Small];

    const fn len(self) -> usize {
        match self {
            Self::Fat => 4 * MSS as usize + 100,
            Self::Small => 1,
            Self::Partial | Self::Plain | Self::Udp => 900,
        }
    }

    /// The packet, from the first byte of its stream on.
    pub(crate) fn packet(self, mem: &Memory, flow: &Flow) -> Packet {
        match self {
            Self::Fat | Self::Partial | Self::Small => flow.fat_tcp(mem, 1, self.len(), MSS),
            Self::Plain => Packet::with_data(mem, &flow.tcp(1, self.len())).unwrap(),
            Self::Udp => flow.fat_udp(mem, self.len(), MSS),
        }
    }

    /// The load's frames on a wire in every byte, computed from the stream alone.
    pub(crate) fn frames(self, flow: &Flow, dst: MacAddr, src: MacAddr, vid: Option<u16>) -> Vec<Vec<u8>> {
        let mut ips = Vec::new();
        if let Self::Udp = self {
            ips.push(flow.udp(self.len()));
        } else {
            for at in (0..self.len()).step_by(MSS.into()) {
                let len = (self.len() - at).min(MSS.into());
                let mut ip = flow.tcp(1 + at as u32, len);
                if flow.src.is_ipv4() {
                    // The IP identification counts segments.
                    let header = ipv4::Ipv4Header::mut_from(&mut ip).unwrap();
                    header.set_id(header.id() + (at / usize::from(MSS)) as u16);
                    header.fill_check();
                }
                ips.push(ip);
            }
        }
        let ethertype: u16 = if flow.src.is_ipv4() { 0x0800 } else { 0x86dd };
        let tag = vid.map(|vid| [[0x81, 0], vid.to_be_bytes()].concat()).unwrap_or_default();
        let frame = |ip: Vec<u8>| [&dst.0[..], &src.0, &tag, &ethertype.to_be_bytes(), &ip].concat();
        ips.into_iter().map(frame).collect()
    }
}

/// Packets as sent by a device without offloads.
pub(crate) fn finished(mem: &Memory, packets: Vec<Packet>) -> Vec<Vec<u8>> {
    let mut wire = Vec::new();
    for pkt in packets {
        let l3 = if pkt.to_vec()[12..14] == [0x81, 0] { 18 } else { 14 };
        offload::fit(mem, &Features::NONE, pkt, l3, &mut wire).unwrap();
    }
    wire.iter().map(Packet::to_vec).collect()
}
