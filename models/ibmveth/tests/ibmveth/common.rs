//! A LAN with adapters, and verifiable frames.

use ibmveth::{
    Adapter, AdapterConfig, AdapterPlace, Attributes, BufDesc, Firmware, FrameFlags, Lan, PoolConfig, Refusal, RxEntry,
    TxOffloads, Unit,
};
use offload::{Features, checksum};
use packet::{Memory, Packet};
use sim::Flow;
use wire::ip::Info;
use wire::{EtherType, MacAddr, Protocol, Version, eth};

/// Payload of a segment.
pub(crate) const MSS: u16 = 1400;

/// Small pools, so that tests are fast.
pub(crate) const POOLS: [PoolConfig; 5] = {
    let mut pools = PoolConfig::DEFAULT;
    let mut at = 0;
    while at < pools.len() {
        pools[at].count = 16;
        at += 1;
    }
    pools
};

pub(crate) fn config() -> AdapterConfig {
    AdapterConfig { pools: POOLS, ..AdapterConfig::default() }
}

pub(crate) const fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Flows of both versions of IP.
pub(crate) fn flows() -> [Flow; 2] {
    [Flow::new("10.0.0.1", "10.0.0.2"), Flow::new("fd00::1", "fd00::2")]
}

/// A LAN, and memory for received packets.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) lan: Lan,
    pub(crate) mem: Memory,
    pub(crate) adapters: Vec<Adapter>,
    pub(crate) units: Vec<Unit>,
}

impl World {
    pub(crate) fn new(firmware: Firmware) -> Self {
        Self { lan: Lan::new(firmware), mem: Memory::heap(), adapters: Vec::new(), units: Vec::new() }
    }

    /// Two guests with a current hypervisor.
    pub(crate) fn pair() -> Self {
        let mut world = Self::new(Firmware::CURRENT);
        for last in 1..=2 {
            world.add(AdapterPlace::guest(mac(last)), config());
        }
        world
    }

    /// Adds an adapter, and opens it.
    pub(crate) fn add(&mut self, place: AdapterPlace, config: AdapterConfig) -> usize {
        let unit = self.lan.add_adapter(place).unwrap();
        let mut adapter = Adapter::probe(&mut self.lan, unit, config).unwrap();
        adapter.open(&mut self.lan).unwrap();
        self.adapters.push(adapter);
        self.units.push(unit);
        self.units.len() - 1
    }

    pub(crate) fn set(&mut self, at: usize, offloads: TxOffloads) -> Result<(), ibmveth::SettingError> {
        self.adapters[at].set_offloads(&mut self.lan, offloads)
    }

    pub(crate) fn send(&mut self, from: usize, pkt: Packet) -> Result<(), ibmveth::TxError> {
        self.adapters[from].transmit(&mut self.lan, 0, pkt)
    }

    /// Fits a packet to an adapter as a stack does, and sends the result.
    pub(crate) fn fit_and_send(&mut self, from: usize, pkt: Packet) {
        let mut fitted = Vec::new();
        let features = self.adapters[from].features();
        offload::fit(&self.mem, &features, pkt, eth::EthHeader::LEN, &mut fitted).unwrap();
        fitted.into_iter().for_each(|pkt| self.send(from, pkt).unwrap());
    }

    pub(crate) fn receive(&mut self, at: usize) -> Vec<Packet> {
        let mut packets = Vec::new();
        while self.adapters[at].poll(&mut self.lan, &self.mem, 64, &mut packets) > 0 {}
        packets
    }

    /// Received frames, segmented and with checksums completed, as on a wire without offloads.
    pub(crate) fn receive_finished(&mut self, at: usize) -> Vec<Vec<u8>> {
        let packets = self.receive(at);
        finished(&self.mem, packets)
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

/// Prepends an Ethernet header, with a tag if `vid` is given, to an IP packet.
pub(crate) fn framed(mem: &Memory, mut pkt: Packet, dst: MacAddr, src: MacAddr, vid: Option<u16>) -> Packet {
    let is_v4 = pkt.to_vec()[0] >> 4 == 4;
    let header = eth::EthHeader::new(dst, src, if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 });
    pkt.push(mem, eth::EthHeader::LEN).unwrap().copy_from_slice(header.as_bytes());
    pkt.meta.vlan = vid;
    offload::insert_tag(mem, &mut pkt, eth::EthHeader::LEN).unwrap();
    pkt
}

/// A fat frame with `len` bytes of payload.
pub(crate) fn fat(mem: &Memory, flow: &Flow, len: usize, dst: u8, src: u8) -> Packet {
    framed(mem, flow.fat_tcp(mem, 1, len, MSS), mac(dst), mac(src), None)
}

/// A frame that needs no offload.
pub(crate) fn plain(mem: &Memory, ip: &[u8], dst: MacAddr, src: MacAddr) -> Packet {
    framed(mem, Packet::with_data(mem, ip).unwrap(), dst, src, None)
}

/// Checks the checksums of a frame on the wire, and returns its payload.
pub(crate) fn payload(mem: &Memory, frame: &[u8], case: &str) -> Vec<u8> {
    let l3 = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let ip = &frame[l3..];
    let mut pkt = Packet::with_data(mem, ip).unwrap();
    let info: Info = offload::ip_headers(mem, &mut pkt).unwrap_or_else(|why| panic!("{case}: {why:?}"));
    assert!(checksum::verify(&pkt, &info), "{case}: checksum");
    if info.version() == Version::V4 {
        assert_eq!(wire::checksum::fold(wire::checksum::sum(&ip[..info.header_len])), 0xffff, "{case}: header");
    }
    let header = match info.protocol {
        Protocol::TCP => usize::from(ip[info.header_len + 12] >> 4) * 4,
        _ => 8,
    };
    ip[info.header_len + header..info.total_len].to_vec()
}

/// An adapter without a driver: the test writes its descriptors and buffers.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) unit: Unit,
    next: usize,
    buffers: Vec<u32>,
}

impl Raw {
    /// Registers the adapter, with buffers of 64 KiB whose correlators are 0, 1, 2.
    pub(crate) fn new(world: &mut World, place: AdapterPlace, set: Attributes) -> Self {
        let mac = place.mac;
        let unit = world.lan.add_adapter(place).unwrap();
        world.lan.illan_attributes(unit, Attributes::NONE, set).unwrap();
        world.lan.register(unit, 64, mac).unwrap();
        let mut raw = Self { unit, next: 0, buffers: Vec::new() };
        for correlator in 0..8u64 {
            let mut bytes = vec![0; 65_536];
            bytes[..8].copy_from_slice(&correlator.to_be_bytes());
            let address = raw.map(world, &bytes);
            world.lan.add_buffer(unit, BufDesc::new(FrameFlags::NONE, 65_536, address)).unwrap();
            raw.buffers.push(address);
        }
        raw
    }

    pub(crate) fn map(&self, world: &mut World, bytes: &[u8]) -> u32 {
        let mut buf = world.mem.take(0, bytes.len()).unwrap();
        buf.put(bytes.len()).unwrap().copy_from_slice(bytes);
        world.lan.io(self.unit).map(buf).unwrap()
    }

    /// Sends a frame with these flags, and an MSS in the call.
    pub(crate) fn send(&self, world: &mut World, bytes: &[u8], flags: FrameFlags, mss: u16) -> Result<(), Refusal> {
        let address = self.map(world, bytes);
        let desc = BufDesc::new(flags, bytes.len(), address);
        let answer = world.lan.send(self.unit, &[desc], 0, mss);
        world.lan.io(self.unit).unmap(address).unwrap();
        answer.result
    }

    /// The next entry of the adapter's queue, with the bytes of its buffer up to the frame's end.
    pub(crate) fn receive(&mut self, world: &mut World) -> Option<(RxEntry, Vec<u8>)> {
        let entry = RxEntry::decode(&world.lan.rx_entry(self.unit, self.next));
        if !entry.toggle() {
            return None;
        }
        self.next += 1;
        let address = self.buffers[entry.correlator as usize];
        let len = entry.offset() + entry.length as usize;
        let bytes = world.lan.io(self.unit).bytes(address, len).unwrap().to_vec();
        Some((entry, bytes))
    }
}
