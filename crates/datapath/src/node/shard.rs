//! Part of a node that is one of several shards: which shard it is, packets that others continue, and news for all.

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
}

/// What one shard has learnt from the network, and all have to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum News {
    /// The link-layer address for packets to a neighbour; `None`: the shard that owns neighbours has to resolve it.
    Station(fib::SharedStation),
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
        Self { id, count, outbox: Vec::new(), news: Vec::new() }
    }

    /// Tells whether the node has other shards.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.count != ShardCount::ONE
    }

    /// The shard that the node is.
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
