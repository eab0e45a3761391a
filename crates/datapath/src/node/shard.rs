//! Part of a node that is one of several shards: which shard it is, packets that others continue, and news for all.

use std::collections::HashMap;
use std::net::IpAddr;

use base::{Domain, PortId, ShardCount, ShardId};

use crate::ip_packet::IpPacket;
use crate::next::Next;

/// The shard that a node is, and what it has for the others.
#[derive(Debug)]
pub(crate) struct Shard {
    id: ShardId,
    count: ShardCount,
    /// Packets that other shards continue.
    pub(crate) outbox: Vec<HandOver>,
    /// News that all other shards learn.
    pub(crate) news: Vec<News>,
    pub(crate) fences: Fences,
}

/// Neighbours that the first shard can be asked for: it has told their addresses. Packets go there directly once it has taken all that this shard
/// has handed over before, so that none is overtaken.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    last: u32,
    /// Number of the fence that is on its way; `None` if the queue had no room for it.
    open: HashMap<(PortId, IpAddr), Option<u32>>,
}

impl Fences {
    /// Number of a fence to be handed over, unless there is one on its way. `is_new`: also if none was asked for before.
    pub(crate) fn open(&mut self, neighbour: (PortId, IpAddr), is_new: bool) -> Option<u32> {
        if !is_new && !self.open.contains_key(&neighbour) {
            return None;
        }
        let number = self.open.entry(neighbour).or_default();
        if number.is_some() {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        *number = Some(self.last);
        *number
    }

    /// Records that the queue had no room for a fence.
    pub(crate) fn refuse(&mut self, neighbour: (PortId, IpAddr)) {
        if let Some(number) = self.open.get_mut(&neighbour) {
            *number = None;
        }
    }

    /// Tells whether a fence that has come back is the last one for its neighbour, and closes it then.
    pub(crate) fn close(&mut self, neighbour: (PortId, IpAddr), number: u32) -> bool {
        let is_last = self.open.get(&neighbour) == Some(&Some(number));
        if is_last {
            self.open.remove(&neighbour);
        }
        is_last
    }

    /// Forgets a neighbour, and a fence that is on its way.
    pub(crate) fn forget(&mut self, neighbour: (PortId, IpAddr)) {
        self.open.remove(&neighbour);
    }

    /// Forgets the neighbours on a link.
    pub(crate) fn forget_link(&mut self, link: PortId) {
        self.open.retain(|&(on, _), _| on != link);
    }
}

/// A packet that another shard continues, as that shard owns what the packet needs next. It refers to nothing of this shard.
#[derive(Debug)]
pub struct HandOver {
    pub(crate) to: ShardId,
    pub(crate) ip: IpPacket,
    pub(crate) stage: Stage,
}

/// Stage by which the other shard continues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// A stage of the loop.
    Next(Next),
    /// ARP by a link, whose link-layer header is removed.
    Arp(PortId),
    /// The queueing discipline and the device of a port.
    Device {
        /// The port.
        port: PortId,
        /// Offset of the IP header.
        l3: usize,
        /// As in [`QueuedPacket`](crate::node::qdisc::QueuedPacket).
        is_transmitted: bool,
    },
    /// No packet: the first shard tells the one that sent it that all before it were taken.
    Fence {
        /// The shard that sent it.
        from: ShardId,
        /// Its number there.
        number: u32,
        /// The link of a neighbour.
        link: PortId,
        /// The neighbour.
        addr: IpAddr,
    },
}

/// What one shard has learnt from the network, and all have to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum News {
    /// The link-layer address for packets to a neighbour; `None`: the shard that owns neighbours has to resolve it.
    Station(fib::SharedStation),
    /// Answer to a fence of one shard.
    Passed {
        /// The shard.
        to: ShardId,
        /// Number of the fence.
        number: u32,
        /// The neighbour as it is known behind all packets before the fence.
        station: fib::SharedStation,
    },
    /// MTU of the path in a domain to a destination, in bytes.
    PathMtu {
        /// The domain.
        domain: Domain,
        /// The destination.
        dst: IpAddr,
        /// Bytes.
        mtu: usize,
    },
}

impl Default for Shard {
    fn default() -> Self {
        Self::new(ShardId::FIRST, ShardCount::ONE)
    }
}

impl Shard {
    pub(crate) fn new(id: ShardId, count: ShardCount) -> Self {
        Self { id, count, outbox: Vec::new(), news: Vec::new(), fences: Fences::default() }
    }

    /// Tells whether the node has other shards.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.count != ShardCount::ONE
    }

    /// The number of this shard.
    pub(crate) fn id(&self) -> ShardId {
        self.id
    }

    /// Number of shards.
    pub(crate) fn count(&self) -> ShardCount {
        self.count
    }

    /// Tells whether this is the first shard, which owns what exists once: neighbours, links with one queue, queueing disciplines.
    #[inline]
    pub(crate) fn is_first(&self) -> bool {
        self.id == ShardId::FIRST
    }

    /// The owner, if it is another shard.
    #[inline]
    pub(crate) fn elsewhere(&self, owner: ShardId) -> Option<ShardId> {
        (owner != self.id).then_some(owner)
    }

    /// Tells the others something, if there are any.
    pub(crate) fn tell(&mut self, news: News) {
        if self.has_others() {
            self.news.push(news);
        }
    }
}

impl HandOver {
    /// The shard that continues.
    pub const fn to(&self) -> ShardId {
        self.to
    }
}
