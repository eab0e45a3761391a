//! A node: a datapath and its memory.

use base::{Domain, DropReason, IfAddr, Instant, PortId, TableId};
use datapath::{Datapath, PortConfig};
use fib::{Route, RouteKind, Rule, Vrf};
use offload::Features;
use packet::{Memory, Packet};
use wire::{MacAddr, eth};

use crate::addresses::AddAddress;
use crate::soft_device::SoftDevice;

/// A node under test.
#[derive(Debug)]
pub struct Node {
    /// The datapath.
    pub datapath: Datapath,
    /// Memory.
    pub mem: Memory,
    /// Devices between the node's ports and their wires.
    pub(crate) devices: Vec<(PortId, SoftDevice)>,
}

/// Options of a port, without its number and addresses.
#[derive(Clone, Copy, Debug)]
pub struct PortOptions {
    /// The station address of an Ethernet port.
    pub mac: Option<MacAddr>,
    /// The layer-3 MTU.
    pub mtu: usize,
    /// Offloads of the device.
    pub features: Features,
}

impl PortOptions {
    /// A device for bare IP packets with all offloads.
    pub const BARE: Self = Self { mac: None, mtu: 1500, features: Features::ALL };

    /// An Ethernet device without offloads.
    pub const fn ethernet(last: u8) -> Self {
        Self { mac: Some(MacAddr([2, 0, 0, 0, 0, last])), mtu: 1500, features: Features::NONE }
    }

    /// The same options with another MTU.
    #[must_use]
    pub const fn mtu(self, mtu: usize) -> Self {
        Self { mtu, ..self }
    }

    /// The same options with other features.
    #[must_use]
    pub const fn features(self, features: Features) -> Self {
        Self { features, ..self }
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// A node without ports.
    pub fn new() -> Self {
        Self { datapath: Datapath::new(), mem: Memory::heap(), devices: Vec::new() }
    }

    /// Adds port `id` with these addresses, such as `10.1.0.254/24`.
    ///
    /// # Panics
    /// If an address is invalid.
    pub fn port(&mut self, id: u32, options: PortOptions, addresses: &[&str]) -> PortId {
        let id = PortId(id);
        for addr in addresses {
            self.datapath.fib.add_address(id, addr.parse::<IfAddr>().expect("an address"));
        }
        let PortOptions { mac, mtu, features } = options;
        self.datapath
            .set_port(id, PortConfig { name: format!("port{}", id.0), mac, mtu, features, gro: true, esp_gro: true });
        id
    }

    /// Attaches a device that offloads ESP between a port and its wire.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn attach(&mut self, id: PortId, device: &SoftDevice) {
        self.datapath.set_device(Instant::ZERO, &self.mem, id, Some(Box::new(device.clone())));
        let mut config = self.datapath.ports.get(id).expect("a port").config.clone();
        config.features.esp = true;
        self.datapath.set_port(id, config);
        self.devices.push((id, device.clone()));
    }

    /// Runs a port's device on packets towards the wire.
    pub fn to_wire(&self, now: Instant, id: PortId, packets: &mut Vec<Packet>) {
        if let Some((device, l3)) = self.device(id) {
            device.transmit(&self.mem, now, l3, packets);
        }
    }

    /// Runs a port's device on packets from the wire.
    pub fn from_wire(&self, now: Instant, id: PortId, packets: &mut Vec<Packet>) {
        if let Some((device, l3)) = self.device(id) {
            device.receive(&self.mem, now, l3, packets);
        }
    }

    fn device(&self, id: PortId) -> Option<(&SoftDevice, usize)> {
        let (_, device) = self.devices.iter().find(|(other, _)| *other == id)?;
        let is_ethernet = self.datapath.ports.get(id).is_some_and(|port| port.config.mac.is_some());
        Some((device, if is_ethernet { eth::EthHeader::LEN } else { 0 }))
    }

    /// Adds a VRF with the device number `device` and the member ports `slaves`, which have no addresses yet.
    pub fn vrf(&mut self, device: u32, table: u32, slaves: &[u32]) -> PortId {
        let device = PortId(device);
        self.datapath.fib.set_vrf(device, Some(Vrf { table: TableId(table), up: true }));
        slaves.iter().for_each(|&slave| self.datapath.fib.set_domain(PortId(slave), Domain::vrf(device)));
        for v4 in [true, false] {
            let mut rules = Rule::first(v4);
            rules.insert(1, Rule::ask_vrf());
            self.datapath.fib.set_rules(v4, rules);
        }
        device
    }

    /// Adds a route to `to` on `dev`, through the gateway `via` if one is given.
    ///
    /// # Panics
    /// If an argument is invalid, or the route exists.
    pub fn route(&mut self, to: &str, via: Option<&str>, dev: PortId) {
        let via = via.map(|via| via.parse().expect("an address"));
        self.route_of(to, RouteKind::Unicast { via, dev });
    }

    /// Adds a route of any kind.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    pub fn route_of(&mut self, to: &str, kind: RouteKind) {
        let route = Route { prefix: to.parse().expect("a prefix"), kind, metric: 0 };
        self.datapath.fib.add(TableId::MAIN, route).expect("a new route");
    }

    /// Receives packets in one burst.
    ///
    /// # Panics
    /// If some packets are not taken.
    pub fn rx(&mut self, now: Instant, link: PortId, mut burst: Vec<Packet>) {
        self.datapath.handle_rx(now, &self.mem, link, &mut burst);
        assert!(burst.is_empty(), "a burst is taken whole");
    }

    /// Receives consecutive bursts; each is available when the preceding one has been taken.
    ///
    /// # Panics
    /// If some packets are not taken.
    pub fn rx_all(&mut self, now: Instant, link: PortId, bursts: impl IntoIterator<Item = Vec<Packet>>) {
        for mut burst in bursts {
            self.datapath.receive_burst(now, &self.mem, link, &mut burst);
            assert!(burst.is_empty(), "a burst is taken whole");
        }
        self.datapath.finish(now, &self.mem);
    }

    /// Receives one plain packet.
    ///
    /// # Panics
    /// If no memory is free.
    pub fn rx_bytes(&mut self, now: Instant, link: PortId, bytes: &[u8]) {
        let pkt = Packet::with_data(&self.mem, bytes).expect("memory");
        self.rx(now, link, vec![pkt]);
    }

    /// Removes the packets to send, and returns each in a separate buffer.
    pub fn tx(&mut self, link: PortId) -> Vec<Packet> {
        let mut packets = Vec::new();
        for pkt in self.datapath.take_tx(link).map(std::mem::take).unwrap_or_default() {
            pkt.into_frames(&mut packets);
        }
        packets
    }

    /// Handles timeouts.
    pub fn timeout(&mut self, now: Instant) {
        self.datapath.handle_timeout(now, &self.mem);
    }

    /// All drops so far: the number of the link, or 0 for packets of the node, the reason, the count.
    pub fn drops(&self) -> Vec<(u32, DropReason, u64)> {
        self.datapath.ports.drop_counts().map(|(link, reason, n)| (link.map_or(0, |link| link.0), reason, n)).collect()
    }

    /// Number of packets that wait for a neighbour.
    pub fn waiting(&self) -> usize {
        self.datapath.neighbours.iter().map(|neighbour| neighbour.queued).sum()
    }

    /// Number of pages that packets hold.
    pub fn pages_in_use(&self) -> usize {
        self.mem.small().in_use() + self.mem.large().in_use()
    }
}
