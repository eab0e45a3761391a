//! The node's ports: configuration and state of each link in the datapath, and the queue of packets to be sent on it.

use base::{Counters, DropReason, Origin, PortId};
use offload::{Features, gso};
use packet::{CopyReason, Cut, Maker, Memory, Packet};
use wire::eth::{self, MacAddr};
use wire::vlan;

use crate::node::drop_watch::{DropReport, DropWatch};
use crate::node::link_set::LinkSet;
use crate::node::qdisc::PortQdisc;

/// Limit of the truesize of packets queued for a busy link.
pub const TX_QUEUE_BYTES: usize = 8 << 20;

/// Bit of the ids of the host side's devices. No link has it: links are numbered from 1.
const HOST_SIDE: u32 = 1 << 31;

/// Port of the host side's device of a link.
#[must_use]
pub const fn host_port(link: PortId) -> PortId {
    PortId(link.0 | HOST_SIDE)
}

/// Link whose host side's device a port is; `None` for any other port.
#[must_use]
pub(crate) const fn link_of_host_port(port: PortId) -> Option<PortId> {
    match port.0.checked_sub(HOST_SIDE) {
        Some(link) => Some(PortId(link)),
        None => None,
    }
}

/// Configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The link's name.
    pub name: String,
    /// The station address of an Ethernet link; `None` for a link that carries bare IP packets.
    pub mac: Option<MacAddr>,
    /// The layer-3 MTU in bytes.
    pub mtu: usize,
    /// Offloads of the link.
    pub features: Features,
    /// Whether packets that it receives, and those decrypted from them, are coalesced (`ethtool -K … gro`).
    pub gro: bool,
    /// Whether ESP that it receives may be decrypted before IP input, where Linux's GRO does it (`ethtool -K … rx-esp-gro`).
    pub esp_gro: bool,
}

/// Role of the host's own network stack at a link. With a role, the stack shares addresses with the node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostRole {
    /// The stack has no part in the link: packet sockets and AF_XDP.
    #[default]
    None,
    /// The stack is at the other end: TUN and TAP devices.
    Peer,
    /// The stack shares the link's address: UDP sockets.
    SharesAddress,
}

/// Fat packets of a port, and the wire packets that each stands for (`segs`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FatCounts {
    /// Received packets that were fat at IP input: coalesced here, or by the link.
    pub rx_gro_packets: u64,
    /// The wire packets in them.
    pub rx_gro_segs: u64,
    /// Received ESP packets that were decrypted before IP input.
    pub rx_esp_gro_packets: u64,
    /// Sent packets that were fat, for the link to segment.
    pub tx_gso_packets: u64,
    /// The wire packets in them.
    pub tx_gso_segs: u64,
    /// Packets that were segmented here before they were sent.
    pub tx_gso_cut_packets: u64,
    /// The wire packets that they were segmented into.
    pub tx_gso_cut_segs: u64,
}

/// Device behind a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Device {
    /// A link: packets are received and sent by it.
    Link,
    /// The device of the host side of a link, with the id [`host_port`] of that link: the sockets behind it send and receive.
    HostSide,
    /// A bridge: its device, by which this node sends and receives frames (Linux `br_device.c`).
    Bridge,
    /// A VLAN of another link (Linux `net/8021q`).
    Vlan {
        /// The link below.
        lower: PortId,
        /// The VLAN, 1 to 4094.
        vid: u16,
    },
    /// A VRF (Linux `drivers/net/vrf.c`): IP packets of its links pass by it on their way in, and packets of the node itself in
    /// its domain on their way out.
    Vrf,
}

impl Device {
    /// Tells whether a packet that is sent by the device goes on to other ports.
    pub(crate) const fn has_ports_below(self) -> bool {
        matches!(self, Self::Bridge | Self::Vlan { .. } | Self::Vrf)
    }
}

/// IP packets that passed by a virtual port. A link counts its own.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    /// Packets in; a super-packet is one (Linux `vrf_rx_stats`).
    pub rx_packets: u64,
    /// Bytes in, from the IP header on.
    pub rx_bytes: u64,
    /// Packets out.
    pub tx_packets: u64,
    /// Bytes out, from the IP header on.
    pub tx_bytes: u64,
    /// Packets without a route when they were dequeued from the queueing discipline (Linux `vrf_tx_error`).
    pub tx_errors: u64,
}

/// Port of the datapath: a link or a virtual device.
#[derive(Debug)]
pub struct Port {
    /// Configuration.
    pub config: PortConfig,
    /// Device.
    pub device: Device,
    /// Counters of a virtual device.
    pub traffic: Traffic,
    /// Whether packets may be sent by the port.
    pub up: bool,
    /// Device of the bridge that this port is a port of.
    pub(crate) bridge: Option<PortId>,
    /// Whether it has devices of its VLANs.
    pub(crate) has_vlans: bool,
    /// Counts of super-packets.
    pub fat: FatCounts,
    /// Packets that fit the link, in the order in which they leave.
    tx: Vec<Packet>,
    /// Sum of the truesize of `tx`; `None` when a caller has taken packets, so that it has to be added up again.
    tx_bytes: Option<usize>,
    /// Whether the link was busy when packets were last offered.
    is_busy: bool,
    /// Queueing discipline that packets pass before `tx`.
    pub(crate) qdisc: Option<Box<PortQdisc>>,
    /// Places at which packets are copied for captures.
    pub(crate) tap: TapPoints,
    /// Whether packet sockets of the host side get copies of passing frames.
    pub(crate) is_watched: bool,
    /// Place of the host's own stack.
    pub(crate) host: HostRole,
    /// Counters of IPv6, those that [links have](base::Mib::is_of_links).
    pub counters: Box<Counters>,
    shortcuts: Shortcuts,
}

/// Shortcuts that the packets received by a port may take: every stage that they skip is a no-op there. Only
/// [`Datapath::update_shortcuts`](crate::Datapath) decides that.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Shortcuts {
    /// Run of ESP packets that match the receive template (`rx::shortcut::esp_run`).
    pub(crate) esp_run: bool,
    /// Train of fragments behind equal headers (`rx::shortcut::fragment_train`).
    pub(crate) fragment_train: bool,
}

impl Port {
    fn new(device: Device, config: PortConfig) -> Self {
        Self {
            config,
            device,
            traffic: Traffic::default(),
            up: true,
            bridge: None,
            has_vlans: false,
            fat: FatCounts::default(),
            tx: Vec::new(),
            tx_bytes: None,
            is_busy: false,
            qdisc: None,
            tap: TapPoints::default(),
            is_watched: false,
            host: HostRole::default(),
            counters: Box::default(),
            shortcuts: Shortcuts::default(),
        }
    }

    /// Tells whether packets may be sent by the port: it is a link, a bridge or a VLAN device, and up.
    pub(crate) fn is_running(&self) -> bool {
        self.up && matches!(self.device, Device::Link | Device::Bridge | Device::Vlan { .. })
    }

    /// Offset of the IP header in packets that this port sends.
    pub(crate) fn l3(&self) -> usize {
        if self.config.mac.is_some() { eth::EthHeader::LEN } else { 0 }
    }

    /// The shortcuts that packets received by this port may take.
    #[inline]
    pub(crate) fn shortcuts(&self) -> Shortcuts {
        self.shortcuts
    }

    /// Sets the shortcuts; `is_clear` is true if received packets pass no tap, hook or VRF.
    pub(crate) fn set_shortcuts(&mut self, is_clear: bool) {
        self.shortcuts = Shortcuts { esp_run: is_clear && self.config.esp_gro, fragment_train: is_clear };
    }

    /// Queue of packets to be sent, for the caller to take from.
    pub(crate) fn take_tx(&mut self) -> &mut Vec<Packet> {
        self.tx_bytes = None;
        &mut self.tx
    }

    /// Truesize of the packets queued for the link.
    pub fn tx_bytes(&self) -> usize {
        self.tx_bytes.unwrap_or_else(|| self.tx.iter().map(Packet::truesize).sum())
    }

    /// Tells whether the link was busy when packets were last offered.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Fits `pkt`, whose IP header begins at `l3`, to the link, and queues it.
    ///
    /// # Errors
    /// As [`offload::fit`]; [`DropReason::TxQueueFull`] when the queue is at its limit.
    pub(crate) fn enqueue(&mut self, mem: &Memory, pkt: Packet, l3: usize) -> Result<&[Packet], DropReason> {
        debug_assert!(pkt.meta.esp.is_none(), "only its device encrypts the packet: {:?}", pkt.meta.esp);
        let before = self.tx.len();
        let waiting = self.tx_bytes();
        let is_fat = pkt.meta.cut.gso().is_some();
        offload::fit(mem, &self.config.features, pkt, l3, &mut self.tx)?;
        if is_fat {
            self.count_fat(before);
        }
        self.admit(mem, before, waiting)
    }

    /// Queues a packet that the link's device encrypts, as it is.
    ///
    /// # Errors
    /// [`DropReason::TxQueueFull`] when the queue is at its limit.
    pub(crate) fn enqueue_for_device(&mut self, mem: &Memory, pkt: Packet) -> Result<&[Packet], DropReason> {
        let before = self.tx.len();
        let waiting = self.tx_bytes();
        self.tx.push(pkt);
        self.admit(mem, before, waiting)
    }

    /// Admits the packets from `before` on, which were queued behind packets with a truesize of `waiting`.
    ///
    /// # Errors
    /// [`DropReason::TxQueueFull`] when the queue is at its limit: they are dropped.
    #[inline]
    fn admit(&mut self, mem: &Memory, before: usize, waiting: usize) -> Result<&[Packet], DropReason> {
        let added = |tx: &[Packet]| tx[before..].iter().map(Packet::truesize).sum::<usize>();
        let mut all = waiting + added(&self.tx);
        if all > TX_QUEUE_BYTES {
            self.tx.truncate(before);
            self.tx_bytes = Some(waiting);
            return Err(DropReason::TxQueueFull);
        }
        if self.is_busy {
            self.tx[before..].iter_mut().for_each(|pkt| pkt.release_device_frames(mem));
            all = waiting + added(&self.tx);
        }
        self.tx_bytes = Some(all);
        Ok(&self.tx[before..])
    }

    /// Sets whether the link is busy. Packets queued for a busy link are copied out of device frames, so that the device which
    /// received them does not run out of frames.
    pub(crate) fn set_busy(&mut self, mem: &Memory, is_busy: bool) {
        if is_busy && !self.is_busy {
            self.take_tx().iter_mut().for_each(|pkt| pkt.release_device_frames(mem));
        }
        self.is_busy = is_busy;
    }

    /// Counts a fat packet, which was queued as the packets from that index on.
    fn count_fat(&mut self, from: usize) {
        let Self { fat, tx, .. } = self;
        match &tx[from..] {
            [one] if one.meta.cut.gso().is_some() => {
                fat.tx_gso_packets += 1;
                fat.tx_gso_segs += one.meta.cut.segs();
            }
            cut => {
                fat.tx_gso_cut_packets += 1;
                fat.tx_gso_cut_segs += cut.len() as u64;
            }
        }
    }
}

/// Captures that are on at a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TapPoints {
    /// Packets of the wire: before GRO, after segmentation.
    pub wire: bool,
    /// Packets of the datapath: after GRO, before segmentation.
    pub fat: bool,
}

/// A packet copied for a capture.
#[derive(Debug)]
pub struct Tapped {
    /// The link.
    pub link: PortId,
    /// Whether the capture was of fat packets, or of the wire.
    pub fat: bool,
    /// Whether the packet was outbound.
    pub outbound: bool,
    /// Bytes from the link-layer header on in a capture of the wire, from the IP header on in one of fat packets.
    pub bytes: Vec<u8>,
}

/// Limit of captured packets in the queue; later ones are lost to the capture only.
const MAX_TAPPED: usize = 4096;

/// Destination of frames that are copied for packet sockets: no station's address.
const NO_STATION: MacAddr = MacAddr([2, 0xfa, 0x70, 0, 0, 1]);

/// Ports by number.
#[derive(Debug, Default)]
pub(crate) struct PortTable {
    /// Numbers are given in turn, so that most places of a node that has run for long are empty.
    ports: Vec<Option<Box<Port>>>,
    /// Ports that packets were queued at. A port whose queue is empty again is removed when it is met.
    queued: LinkSet,
}

impl PortTable {
    /// The port of that number.
    #[inline]
    pub(crate) fn get(&self, id: PortId) -> Option<&Port> {
        self.ports.get(id.0 as usize)?.as_deref()
    }

    /// The port of that number.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// Adds a port, or changes the configuration of an existing one; the packets queued in it stay.
    pub(crate) fn set(&mut self, id: PortId, device: Device, config: PortConfig) {
        let at = id.0 as usize;
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        match &mut self.ports[at] {
            Some(port) => {
                port.config = config;
                port.device = device;
            }
            empty => *empty = Some(Box::new(Port::new(device, config))),
        }
    }

    /// Removes a port, with the packets queued in it.
    pub(crate) fn remove(&mut self, id: PortId) -> Option<Port> {
        self.ports.get_mut(id.0 as usize)?.take().map(|port| *port)
    }

    /// Tells whether there never was a port.
    #[inline]
    fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Place of a port; `None` beyond the largest number.
    #[inline]
    fn place(&self, id: PortId) -> Option<&Option<Box<Port>>> {
        self.ports.get(id.0 as usize)
    }

    /// Place of a port; `None` beyond the largest number.
    #[inline]
    fn place_mut(&mut self, id: PortId) -> Option<&mut Option<Box<Port>>> {
        self.ports.get_mut(id.0 as usize)
    }

    /// Every port with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.ports.iter().enumerate().filter_map(|(at, port)| Some((PortId(at as u32), port.as_deref()?)))
    }

    /// Every port with its number.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PortId, &mut Port)> {
        self.ports.iter_mut().enumerate().filter_map(|(at, port)| Some((PortId(at as u32), port.as_deref_mut()?)))
    }

    /// As `Port::enqueue`.
    pub(crate) fn enqueue(
        &mut self,
        mem: &Memory,
        id: PortId,
        pkt: Packet,
        l3: usize,
    ) -> Result<&[Packet], DropReason> {
        self.queued_port(id)?.enqueue(mem, pkt, l3)
    }

    /// A port that is about to have packets to be sent.
    #[inline]
    fn queued_port(&mut self, id: PortId) -> Result<&mut Port, DropReason> {
        let port = self.ports.get_mut(id.0 as usize).and_then(Option::as_deref_mut).ok_or(DropReason::LinkDown)?;
        self.queued.insert(id);
        Ok(port)
    }

    /// The port of the lowest number from `first` on that has packets to be sent.
    pub(crate) fn next_to_send(&mut self, first: PortId) -> Option<PortId> {
        while let Some(id) = self.queued.next(first) {
            if self.get(id).is_some_and(|port| !port.tx.is_empty()) {
                return Some(id);
            }
            self.queued.remove(id);
        }
        None
    }

    /// Copies a frame that is about to be sent by a link to the device of that link, for promiscuous packet sockets.
    #[cold]
    fn copy_sent(&mut self, mem: &Memory, link: PortId, frame: &Packet) {
        if frame.meta.maker != Maker::Socket {
            self.copy_frame(mem, link, frame);
        }
    }

    /// Copies a frame to the device of a link, addressed to no station. If the queue is full, the copy is lost to packet sockets
    /// only.
    fn copy_frame(&mut self, mem: &Memory, link: PortId, frame: &Packet) {
        let Ok(copy) = frame.copy(mem, CopyReason::HostSide) else { return };
        let mut frames = Vec::new();
        match copy.meta.cut {
            Cut::Frames(_) => copy.into_frames(&mut frames),
            Cut::Whole | Cut::Gso(_) | Cut::Fragment => frames.push(copy),
        }
        for mut frame in frames {
            let Ok(head) = frame.writable_head(mem) else { return };
            let Ok(header) = eth::EthHeader::mut_from(head) else { return };
            header.set_dst(NO_STATION);
            frame.meta.esp = None;
            let l3 = offload::behind_tags(mem, &mut frame, eth::EthHeader::LEN);
            if let Err(reason) = self.enqueue(mem, link, frame, l3) {
                tracing::trace!(link = link.0, reason = reason.name(), "no copy for packet sockets");
            }
        }
    }
}

/// Packet that is counted as dropped. A call that counts a drop returns it, so that a `Result<_, DropReason>` stands for a drop that
/// nothing has counted yet.
#[derive(Debug)]
#[must_use = "the packet goes to no other stage"]
pub struct Dropped(());

const _: () = assert!(size_of::<Dropped>() == 0, "a packet's path has no more to carry");

impl Dropped {
    /// Ends a packet's way in a function that returns no next stage.
    #[inline(always)]
    pub fn end(self) {}
}

/// The ports by their number, and the drops of each.
#[derive(Debug, Default)]
pub struct Ports {
    table: PortTable,
    /// Devices of the host side, by the numbers of their links. Their own numbers, of [`host_port`], are beyond those of `table`.
    hosts: PortTable,
    /// Links that have a queueing discipline.
    pub(crate) shaped: Vec<PortId>,
    /// Ports whose packets leave in another shard.
    elsewhere: Vec<PortId>,
    drops: Vec<[u64; DropReason::COUNT]>,
    pub(crate) drop_watch: DropWatch,
    tapped: Vec<Tapped>,
}

impl Ports {
    /// The port of that number: a link, a virtual device, or a device of the host side.
    #[inline]
    pub fn get(&self, id: PortId) -> Option<&Port> {
        match self.table.place(id) {
            Some(port) => port.as_deref(),
            None => self.hosts.get(link_of_host_port(id)?),
        }
    }

    /// The port of that number: a link, a virtual device, or a device of the host side.
    #[inline]
    pub fn get_mut(&mut self, id: PortId) -> Option<&mut Port> {
        let Self { table, hosts, .. } = self;
        match table.place_mut(id) {
            Some(port) => port.as_deref_mut(),
            None => hosts.get_mut(link_of_host_port(id)?),
        }
    }

    /// Tells whether a link has a device of the host side.
    #[inline]
    pub(crate) fn has_host_port(&self, link: PortId) -> bool {
        self.hosts.get(link).is_some()
    }

    /// Tells whether any link has had a device of the host side.
    #[inline]
    pub(crate) fn has_host_side(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Links that have a device of the host side.
    pub(crate) fn with_host_port(&self) -> impl Iterator<Item = PortId> {
        self.hosts.iter().map(|(link, _)| link)
    }

    /// Adds a port, or changes the configuration of an existing one; the packets queued in it stay.
    pub(crate) fn set(&mut self, id: PortId, device: Device, config: PortConfig) {
        match link_of_host_port(id) {
            None => self.table.set(id, device, config),
            Some(link) => self.hosts.set(link, device, config),
        }
    }

    /// Removes a port, with the packets queued in it.
    pub(crate) fn remove(&mut self, id: PortId) -> Option<Port> {
        self.shaped.retain(|&shaped| shaped != id);
        self.set_elsewhere(id, false);
        match link_of_host_port(id) {
            None => self.table.remove(id),
            Some(link) => self.hosts.remove(link),
        }
    }

    /// Tells whether packets pass a queueing discipline before they go to the link, or leave in another shard.
    #[inline]
    pub(crate) fn has_detour(&self, link: PortId) -> bool {
        self.is_shaped(link) || self.is_elsewhere(link)
    }

    /// Tells whether packets pass a queueing discipline before they go to the link.
    #[inline]
    pub(crate) fn is_shaped(&self, link: PortId) -> bool {
        !self.shaped.is_empty() && self.get(link).is_some_and(|port| port.qdisc.is_some())
    }

    /// Tells whether packets leave by the port in another shard, the first one.
    #[inline]
    pub(crate) fn is_elsewhere(&self, port: PortId) -> bool {
        !self.elsewhere.is_empty() && self.elsewhere.contains(&port)
    }

    /// Sets whether packets leave by a port in the first shard.
    pub(crate) fn set_elsewhere(&mut self, port: PortId, is_elsewhere: bool) {
        self.elsewhere.retain(|&other| other != port);
        if is_elsewhere {
            self.elsewhere.push(port);
        }
    }

    /// Numbers of links and virtual devices are below this one.
    pub fn end(&self) -> u32 {
        self.table.ports.len() as u32
    }

    /// Every link and virtual device with its number, without the devices of the host side.
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.table.iter()
    }

    /// Same as [`iter`](Self::iter), to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PortId, &mut Port)> {
        self.table.iter_mut()
    }

    /// Passes an IP packet by a VRF: counts it, and copies it for a capture.
    #[inline]
    pub(crate) fn pass_vrf(&mut self, mem: &Memory, vrf: PortId, outbound: bool, pkt: &Packet) {
        let Some(port) = self.get_mut(vrf).filter(|port| port.device == Device::Vrf) else { return };
        let bytes = pkt.len() as u64;
        let Traffic { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } = &mut port.traffic;
        let (packets, total) = if outbound { (tx_packets, tx_bytes) } else { (rx_packets, rx_bytes) };
        *packets += 1;
        *total += bytes;
        let tap = port.tap;
        if tap.fat {
            record(&mut self.tapped, mem, Tapped { link: vrf, fat: true, outbound, bytes: Vec::new() }, pkt);
        }
        if tap.wire {
            record_cut(&mut self.tapped, mem, vrf, outbound, pkt, 0);
        }
    }

    /// Passes a frame by a VLAN device on its way out, with its IP header at `l3`: counts it, and copies it for captures.
    pub(crate) fn pass_vlan(&mut self, mem: &Memory, own: PortId, pkt: &Packet, l3: usize) {
        if let Some(port) = self.get_mut(own) {
            port.traffic.tx_packets += 1;
            port.traffic.tx_bytes += pkt.len() as u64;
            self.copy_passing(mem, own, pkt, l3);
        }
    }

    /// As [`pass_vlan`](Self::pass_vlan), by the device of a bridge: the bridge itself counts frames, the port fat ones.
    pub(crate) fn pass_bridge(&mut self, mem: &Memory, own: PortId, pkt: &Packet, l3: usize) {
        if let Some(port) = self.get_mut(own) {
            if pkt.meta.cut.gso().is_some() {
                port.fat.tx_gso_packets += 1;
                port.fat.tx_gso_segs += pkt.meta.cut.segs();
            }
            self.copy_passing(mem, own, pkt, l3);
        }
    }

    /// Copies a frame that passes a virtual device on its way out for promiscuous packet sockets and captures.
    fn copy_passing(&mut self, mem: &Memory, own: PortId, pkt: &Packet, l3: usize) {
        let Self { table, tapped, hosts, .. } = self;
        let Some(port) = table.get(own) else { return };
        if port.is_watched {
            hosts.copy_sent(mem, own, pkt);
        }
        if port.tap.wire {
            record_sent(tapped, mem, own, pkt, l3);
        }
    }

    /// Copies a frame that a link has received to the host side's device of the link, for promiscuous packet sockets.
    pub(crate) fn copy_received(&mut self, mem: &Memory, link: PortId, frame: &Packet) {
        self.hosts.copy_frame(mem, link, frame);
    }

    /// Counts a packet for which a VRF has no route.
    #[cold]
    pub(crate) fn fail_vrf(&mut self, vrf: PortId) {
        if let Some(port) = self.get_mut(vrf) {
            port.traffic.tx_errors += 1;
        }
    }

    /// Copies a packet for a capture of fat packets, if one is on.
    #[inline]
    pub(crate) fn tap_fat(&mut self, mem: &Memory, link: PortId, outbound: bool, pkt: &Packet) {
        if self.get(link).is_some_and(|port| port.tap.fat) {
            record(&mut self.tapped, mem, Tapped { link, fat: true, outbound, bytes: Vec::new() }, pkt);
        }
    }

    /// Copies a received packet for a capture of the wire, if one is on.
    #[inline]
    pub(crate) fn tap_wire(&mut self, mem: &Memory, link: PortId, pkt: &Packet) {
        if let Some(port) = self.get(link)
            && port.tap.wire
        {
            let l3 = port.l3();
            record_cut(&mut self.tapped, mem, link, false, pkt, l3);
        }
    }

    /// As `Port::enqueue`, with a copy for a capture of the wire.
    pub(crate) fn enqueue(&mut self, mem: &Memory, link: PortId, pkt: Packet, l3: usize) -> Result<(), DropReason> {
        let Self { table, tapped, hosts, .. } = self;
        let Some(port) = table.place(link) else {
            // Captures and packet sockets at a device of the host side are its kernel's.
            let link = link_of_host_port(link).ok_or(DropReason::LinkDown)?;
            return hosts.enqueue(mem, link, pkt, l3).map(drop);
        };
        let port = port.as_ref().ok_or(DropReason::LinkDown)?;
        if port.is_watched {
            hosts.copy_sent(mem, link, &pkt);
        }
        let tap = port.tap.wire;
        let has_tag = pkt.meta.vlan.is_some() && l3 >= eth::EthHeader::LEN;
        let queued = table.enqueue(mem, link, pkt, l3)?;
        if tap {
            // The tag is in the bytes now.
            let l3 = if has_tag { l3 + vlan::VlanHeader::LEN } else { l3 };
            queued.iter().for_each(|pkt| record_cut(tapped, mem, link, true, pkt, l3));
        }
        Ok(())
    }

    /// As `Port::enqueue_for_device`, with a copy for a capture of the wire: the bytes that the device gets, with the IP header at
    /// `l3`. Packet sockets get none.
    #[cold]
    pub(crate) fn enqueue_for_device(
        &mut self,
        mem: &Memory,
        link: PortId,
        pkt: Packet,
        l3: usize,
    ) -> Result<(), DropReason> {
        let Self { table, tapped, .. } = self;
        let port = table.queued_port(link)?;
        let tap = port.tap.wire;
        let queued = port.enqueue_for_device(mem, pkt)?;
        if tap {
            queued.iter().for_each(|pkt| record_cut(tapped, mem, link, true, pkt, l3));
        }
        Ok(())
    }

    /// Counts a packet that came in, if it is fat.
    #[inline]
    pub(crate) fn count_fat_received(&mut self, link: PortId, pkt: &Packet) {
        if pkt.meta.cut.gso().is_some()
            && let Some(port) = self.get_mut(link)
        {
            port.fat.rx_gro_packets += 1;
            port.fat.rx_gro_segs += pkt.meta.cut.segs();
        }
    }

    /// The link of the lowest number from `first` on whose host side's device has packets to be sent.
    pub(crate) fn next_to_send_to_host(&mut self, first: PortId) -> Option<PortId> {
        self.hosts.next_to_send(first)
    }

    /// The link of the lowest number from `first` on that has packets to be sent.
    pub(crate) fn next_to_send(&mut self, first: PortId) -> Option<PortId> {
        self.table.next_to_send(first)
    }

    /// Captured packets.
    pub(crate) fn take_tapped(&mut self) -> std::vec::Drain<'_, Tapped> {
        self.tapped.drain(..)
    }

    /// Counts a packet from there that was dropped.
    pub fn drop(&mut self, origin: Origin, reason: DropReason) -> Dropped {
        self.drops(origin, reason, 1)
    }

    /// Counts `n` packets from there that were dropped, and reports them, without their flow.
    pub(crate) fn drops(&mut self, origin: Origin, reason: DropReason, n: u64) -> Dropped {
        if self.drop_watch.is_on && n > 0 {
            let report = || DropReport { link: origin.port(), reason, packets: n, flow: None, esp: None };
            self.drop_watch.push(report, n);
        }
        self.count_drops(origin, reason, n)
    }

    /// Counts `n` packets from there that were dropped: the one place that does. The caller reports them.
    pub(crate) fn count_drops(&mut self, origin: Origin, reason: DropReason, n: u64) -> Dropped {
        if n == 0 {
            return Dropped(());
        }
        // Packets of a device of the host side are counted at its link.
        let link = origin.port().map(|port| link_of_host_port(port).unwrap_or(port));
        let name = link.and_then(|link| self.get(link)).map_or("-", |port| &port.config.name);
        tracing::trace!(link = name, reason = reason.name(), n, "drop");
        // No link has the number 0.
        let at = link.map_or(0, |link| link.0 as usize);
        if self.drops.len() <= at {
            self.drops.resize(at + 1, [0; DropReason::COUNT]);
        }
        self.drops[at][reason as usize] += n;
        Dropped(())
    }

    /// Number of dropped packets that came in by `link`.
    pub fn dropped(&self, link: PortId) -> u64 {
        self.drops.get(link.0 as usize).map_or(0, |counts| counts.iter().sum())
    }

    /// Numbers of links, 0 among them for packets of this node, that may have drops: those below this one.
    pub fn drop_links(&self) -> usize {
        self.drops.len()
    }

    /// Number of packets that came in by the link with this number, or are of this node (0), and were dropped for `reason`.
    pub fn dropped_for(&self, link: usize, reason: DropReason) -> u64 {
        self.drops.get(link).map_or(0, |counts| counts[reason as usize])
    }

    /// Counts of drops, by input link (`None` for packets of this node) and reason.
    pub fn drop_counts(&self) -> impl Iterator<Item = (Option<PortId>, DropReason, u64)> + '_ {
        self.drops.iter().enumerate().flat_map(|(at, counts)| {
            let counted = DropReason::ALL.iter().zip(counts).filter(|&(_, &count)| count > 0);
            let link = (at > 0).then_some(PortId(at as u32));
            counted.map(move |(&reason, &count)| (link, reason, count))
        })
    }
}

/// Copies a packet for a capture, frame by frame if it has several, unless the capture queue is full.
fn record(tapped: &mut Vec<Tapped>, mem: &Memory, what: Tapped, pkt: &Packet) {
    let room = MAX_TAPPED.saturating_sub(tapped.len());
    let mut copy = |bytes: Vec<u8>| {
        mem.copied(CopyReason::Tap, bytes.len());
        tapped.push(Tapped { bytes, ..what });
    };
    match pkt.meta.cut {
        Cut::Frames(_) => pkt.frames().take(room).for_each(|frame| copy(frame.to_vec())),
        Cut::Whole | Cut::Gso(_) | Cut::Fragment if room > 0 => copy(pkt.to_vec()),
        Cut::Whole | Cut::Gso(_) | Cut::Fragment => {}
    }
}

/// Copies a frame that leaves by a virtual device for a capture of the wire, with the tag in its metadata.
#[cold]
fn record_sent(tapped: &mut Vec<Tapped>, mem: &Memory, link: PortId, pkt: &Packet, l3: usize) {
    if pkt.meta.vlan.is_none() {
        return record_cut(tapped, mem, link, true, pkt, l3);
    }
    let Ok(mut copy) = pkt.copy(mem, CopyReason::Tap) else { return };
    if let Ok(l3) = offload::insert_tag(mem, &mut copy, l3) {
        record_cut(tapped, mem, link, true, &copy, l3);
    }
}

/// Copies a packet, whose IP header begins at `l3`, for a capture of the wire: a fat packet in its segments.
#[cold]
fn record_cut(tapped: &mut Vec<Tapped>, mem: &Memory, link: PortId, outbound: bool, pkt: &Packet, l3: usize) {
    let tap = || Tapped { link, fat: false, outbound, bytes: Vec::new() };
    let mut segments = Vec::new();
    let is_fat = pkt.meta.cut.gso().is_some() && tapped.len() < MAX_TAPPED;
    if is_fat
        && let Ok(copy) = pkt.copy(mem, CopyReason::Tap)
        && gso::segment(mem, &Features::NONE, copy, l3, &mut segments).is_ok()
    {
        return segments.iter().for_each(|segment| record(tapped, mem, tap(), segment));
    }
    record(tapped, mem, tap(), pkt);
}
