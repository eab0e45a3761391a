//! The node's ports: what the path has to know of each link, and what waits to be sent on it.

use base::{DropReason, IfAddr, LinkId};
use offload::Features;
use packet::Packet;
use wire::eth::MacAddr;

/// Memory that packets may pin in front of a link that takes no more, as counted by their truesize.
pub const TX_QUEUE_BYTES: usize = 8 << 20;

/// What a port is told about its link.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The link's name.
    pub name: String,
    /// The station address of an Ethernet link; `None` for a link that carries bare IP packets.
    pub mac: Option<MacAddr>,
    /// The layer-3 MTU in bytes.
    pub mtu: usize,
    /// This node's own addresses on the link.
    pub addresses: Vec<IfAddr>,
    /// What the link takes over from us.
    pub features: Features,
}

/// One link as the path sees it.
#[derive(Debug)]
pub struct Port {
    /// What it was told.
    pub config: PortConfig,
    /// Whether packets may go out by it.
    pub up: bool,
    /// Packets that fit the link, in the order in which they leave.
    pub(crate) tx: Vec<Packet>,
    /// Where captured packets are copied from.
    pub(crate) tap: TapPoints,
}

/// Which captures are on at a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TapPoints {
    /// What the wire sees: before GRO, after segmentation.
    pub wire: bool,
    /// What the path sees: after GRO, before segmentation.
    pub fat: bool,
}

/// A packet that a capture asked for.
#[derive(Debug)]
pub struct Tapped {
    /// The link.
    pub link: LinkId,
    /// Whether it was seen fat, or as on the wire.
    pub fat: bool,
    /// Whether it was on its way out.
    pub outbound: bool,
    /// Its bytes, from the link-layer header on.
    pub bytes: Vec<u8>,
}

/// The ports by their number, and the drops of each.
#[derive(Debug, Default)]
pub struct Ports {
    ports: Vec<Option<Port>>,
    drops: Vec<[u64; DropReason::COUNT]>,
}

impl Ports {
    /// The port of that link.
    pub fn get(&self, link: LinkId) -> Option<&Port> {
        self.ports.get(link.0 as usize)?.as_ref()
    }

    /// The port of that link.
    pub fn get_mut(&mut self, link: LinkId) -> Option<&mut Port> {
        self.ports.get_mut(link.0 as usize)?.as_mut()
    }

    /// Puts a port in place, or gives the one that is there another configuration; what waits in it stays.
    pub(crate) fn set(&mut self, link: LinkId, config: PortConfig) {
        let at = link.0 as usize;
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        match &mut self.ports[at] {
            Some(port) => port.config = config,
            empty => *empty = Some(Port { config, up: true, tx: Vec::new(), tap: TapPoints::default() }),
        }
    }

    /// Takes a port away, with what waits in it.
    pub(crate) fn remove(&mut self, link: LinkId) -> Option<Port> {
        self.ports.get_mut(link.0 as usize)?.take()
    }

    /// Every port with its number.
    pub fn iter(&self) -> impl Iterator<Item = (LinkId, &Port)> {
        self.ports.iter().enumerate().filter_map(|(at, port)| Some((LinkId(at as u32), port.as_ref()?)))
    }

    /// Counts a packet of `link` that was dropped.
    pub fn drop(&mut self, link: LinkId, reason: DropReason) {
        self.drops(link, reason, 1);
    }

    /// Counts `n` packets of `link` that were dropped.
    pub fn drops(&mut self, link: LinkId, reason: DropReason, n: u64) {
        let at = link.0 as usize;
        if self.drops.len() <= at {
            self.drops.resize(at + 1, [0; DropReason::COUNT]);
        }
        self.drops[at][reason as usize] += n;
    }

    /// Every drop that happened: the link that the packets came in by ([`LinkId::NONE`] for our own), why, how many.
    pub fn drop_counts(&self) -> impl Iterator<Item = (LinkId, DropReason, u64)> + '_ {
        self.drops.iter().enumerate().flat_map(|(at, counts)| {
            let counted = DropReason::ALL.iter().zip(counts).filter(|&(_, &count)| count > 0);
            counted.map(move |(&reason, &count)| (LinkId(at as u32), reason, count))
        })
    }
}
