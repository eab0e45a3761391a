//! Part of a node that is one of several shards: which shard it is, packets that others continue, and updates for all.

use std::collections::HashMap;
use std::net::IpAddr;

use base::{Domain, PortId, ShardCount, ShardId, ShardPlace};
use ipsec::Bundle;
use packet::Memory;

use crate::ip_packet::IpPacket;
use crate::next::{Hop, Next, PendingTx};

/// The shard that a node is, and what it has for the others.
#[derive(Debug)]
pub(crate) struct Shard {
    place: ShardPlace,
    /// Packets that other shards continue.
    pub(crate) outbox: Vec<HandOver>,
    /// Update that all other shards learn.
    pub(crate) updates: Vec<Update>,
    pub(crate) fences: Fences,
}

/// Neighbours whose addresses the first shard has told while packets to them may be on their way to that shard. Further packets wait until a
/// fence behind those has come back, so that none is overtaken.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    last: u32,
    open: HashMap<(PortId, IpAddr), Fence>,
    /// Number of all packets that wait.
    held: usize,
}

#[derive(Debug, Default)]
struct Fence {
    /// Number of the fence that is on its way; `None` if the queue had no room for it.
    number: Option<u32>,
    held: Vec<(IpPacket, Hop)>,
}

/// Limit of packets that wait for fences.
const MAX_HELD: usize = 1024;

impl Fences {
    /// Number of a fence to be handed over, unless there is one on its way. `is_new`: also if none was wanted before.
    pub(crate) fn open(&mut self, neighbour: (PortId, IpAddr), is_new: bool) -> Option<u32> {
        if !is_new && !self.open.contains_key(&neighbour) {
            return None;
        }
        let fence = self.open.entry(neighbour).or_default();
        if fence.number.is_some() {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        fence.number = Some(self.last);
        fence.number
    }

    /// Holds a packet while a fence of its neighbour is on its way. `None` if there is none; `Some(false)` at the limit.
    pub(crate) fn hold(&mut self, mem: &Memory, ip: &mut IpPacket, hop: Hop) -> Option<bool> {
        let fence = self.open.get_mut(&(hop.dev, hop.next_hop)).filter(|fence| fence.number.is_some())?;
        if self.held >= MAX_HELD {
            return Some(false);
        }
        ip.pkt.release_device_frames(mem);
        fence.held.push((std::mem::replace(ip, IpPacket::empty()), hop));
        self.held += 1;
        Some(true)
    }

    /// Records that the queue had no room for a fence, and returns the packets that wait for it.
    pub(crate) fn refuse(&mut self, neighbour: (PortId, IpAddr)) -> Vec<(IpPacket, Hop)> {
        let Some(fence) = self.open.get_mut(&neighbour) else { return Vec::new() };
        fence.number = None;
        self.held -= fence.held.len();
        std::mem::take(&mut fence.held)
    }

    /// Closes a fence that has come back, if it is the last one for its neighbour, and returns the packets that wait for it.
    pub(crate) fn close(&mut self, neighbour: (PortId, IpAddr), number: u32) -> Option<Vec<(IpPacket, Hop)>> {
        let is_last = self.open.get(&neighbour).is_some_and(|fence| fence.number == Some(number));
        is_last.then(|| self.forget(neighbour))
    }

    /// Forgets a neighbour, and returns the packets that wait for it.
    pub(crate) fn forget(&mut self, neighbour: (PortId, IpAddr)) -> Vec<(IpPacket, Hop)> {
        let held = self.open.remove(&neighbour).unwrap_or_default().held;
        self.held -= held.len();
        held
    }

    /// Forgets the neighbours on a link, and returns the packets that wait for them.
    pub(crate) fn forget_link(&mut self, link: PortId) -> Vec<(IpPacket, Hop)> {
        let forgotten: Vec<_> = self.open.keys().copied().filter(|&(on, _)| on == link).collect();
        forgotten.into_iter().flat_map(|neighbour| self.forget(neighbour)).collect()
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
#[derive(Debug)]
pub(crate) enum Stage {
    /// A stage of the loop.
    Next(Next),
    /// ARP by a link, whose link-layer header is removed.
    Arp(PortId),
    /// Reception of a frame by a port of a bridge.
    Frame(PortId),
    /// Decryption of a packet of a train, which was counted as received.
    Esp,
    /// Encryption by further SAs of a packet's policy.
    Protect {
        /// All SAs of the policy, the innermost first.
        sas: Bundle,
        /// Number of SAs that have sealed the packet.
        sealed: usize,
        /// Path of the result.
        pending: PendingTx,
    },
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
        /// Number of the fence there.
        number: u32,
        /// The link of a neighbour.
        link: PortId,
        /// The neighbour.
        addr: IpAddr,
    },
}

/// Change that one shard has learnt from the network, and all have to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Update {
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
    /// Change of SAs or policies, which every shard makes, also the one that tells it.
    Ipsec(ipsec::SharedChange),
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

impl Update {
    /// Tells whether the shard that tells it makes it at its place among the others' as well.
    pub const fn is_for_all(&self) -> bool {
        matches!(self, Self::Ipsec(_))
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self::new(ShardPlace::default())
    }
}

impl Shard {
    pub(crate) fn new(place: ShardPlace) -> Self {
        Self { place, outbox: Vec::new(), updates: Vec::new(), fences: Fences::default() }
    }

    /// Tells whether the node has other shards.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.place.has_others()
    }

    /// The shard that the node is.
    pub(crate) fn id(&self) -> ShardId {
        self.place.id
    }

    /// Number of shards.
    pub(crate) fn count(&self) -> ShardCount {
        self.place.count
    }

    /// Tells whether this is the first shard, which owns what exists once: neighbours, links with one queue, queueing disciplines.
    #[inline]
    pub(crate) fn is_first(&self) -> bool {
        self.place.is_first()
    }

    /// The owner, if it is another shard.
    #[inline]
    pub(crate) fn elsewhere(&self, owner: ShardId) -> Option<ShardId> {
        self.place.elsewhere(owner)
    }

    /// Tells the others something, if there are any.
    pub(crate) fn tell(&mut self, updates: Update) {
        if self.has_others() {
            self.updates.push(updates);
        }
    }
}

impl HandOver {
    /// The shard that continues.
    pub const fn to(&self) -> ShardId {
        self.to
    }
}
