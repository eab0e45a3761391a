//! Shards of a node: what each owns, packets that others have handed over, and updates of others.

use std::net::IpAddr;

use base::{DropReason, Instant, PortId, ShardCount, ShardId, ShardPlace};
use fib::{Known, SharedStation};
use ipsec::Ipsec;
use packet::Memory;

use crate::ip_packet::IpPacket;
use crate::local::esp;
use crate::node::fragment_ids::FragmentIds;
use crate::node::ports::host_port;
use crate::node::qdisc::QueuedPacket;
use crate::node::shard::{HandOver, Shard, Stage, Update};
use crate::node::trace::TraceNumbers;
use crate::run::{run, run_actions, run_deferred};
use crate::rx::{BurstEnd, flush, frames, l2};
use crate::tx::{device, xfrm};
use crate::{Cx, Datapath, Next, PortConfig, hand_over};

impl Datapath {
    /// Nodes without links, that are the shards of one.
    pub fn shards(count: ShardCount) -> Vec<Self> {
        let ids = FragmentIds::shards(count);
        let node = |(id, fragment_ids)| {
            let mut node = Self::new();
            node.fragment_ids = fragment_ids;
            let place = ShardPlace { id, count };
            node.shard = Shard::new(place);
            node.ipsec = Ipsec::of_shard(place);
            node.trace.numbers = TraceNumbers::of_shard(id, count);
            node.icmp_limit = host::RateLimit::shared_by(count);
            if count != ShardCount::ONE && id == ShardId::FIRST {
                node.neighbours.share();
            }
            node
        };
        count.all().zip(ids).map(node).collect()
    }

    /// Tells whether this is the first shard, or the only one.
    pub fn is_first_shard(&self) -> bool {
        self.shard.is_first()
    }

    /// The shard that this node is, and the number of shards.
    pub fn shard(&self) -> (ShardId, ShardCount) {
        (self.shard.id(), self.shard.count())
    }

    /// Sets whether packets leave by a port in another shard, the first one, as the link has no queue in this one.
    pub fn set_port_elsewhere(&mut self, id: PortId, is_elsewhere: bool) {
        if !self.shard.is_first() {
            self.ports.set_elsewhere(id, is_elsewhere);
        }
    }

    /// Adds, changes or removes the port of a link's device of the host side in a shard that does not have the device.
    pub fn set_host_port_elsewhere(&mut self, link: PortId, config: Option<PortConfig>) {
        let is_there = config.is_some();
        self.set_host_port(link, config);
        self.set_port_elsewhere(host_port(link), is_there);
    }

    /// Packets for other shards, since the last call.
    pub fn take_handed_over(&mut self) -> std::vec::Drain<'_, HandOver> {
        self.shard.outbox.drain(..)
    }

    /// Tells whether there are packets for other shards.
    pub fn has_handed_over(&mut self) -> bool {
        if !self.shard.is_first() && self.ports.has_host_side() {
            self.hand_over_copies();
        }
        !self.shard.outbox.is_empty()
    }

    /// Hands copies of frames for packet sockets, which were queued for devices of the host side, to the first shard: it has the
    /// devices.
    fn hand_over_copies(&mut self) {
        let mut next = PortId(0);
        while let Some(link) = self.ports.next_to_send_to_host(next) {
            next = PortId(link.0 + 1);
            let Some(port) = self.ports.get_mut(host_port(link)) else { continue };
            let l3 = port.l3();
            let copies = std::mem::take(port.take_tx()).into_iter();
            let handed = copies.map(|pkt| {
                let stage = Stage::Device { port: host_port(link), l3, is_transmitted: false };
                HandOver { to: ShardId::FIRST, ip: IpPacket::unparsed(pkt), stage }
            });
            self.shard.outbox.extend(handed);
        }
    }

    /// Drops a packet that another shard has no room for. There may be others to hand over then, which waited behind it.
    pub fn refuse_handed_over(&mut self, packet: HandOver) {
        let HandOver { ip, stage, .. } = packet;
        match stage {
            Stage::Next(_) => self.count_drop(&ip.pkt, DropReason::ShardQueueFull).end(),
            Stage::Arp(_) | Stage::Esp | Stage::Protect { .. } => {
                self.count_packet_drop(&ip.pkt, ip.pkt.len(), DropReason::ShardQueueFull).end();
            }
            Stage::Frame(_) => self.count_frame_drop(&ip.pkt, DropReason::ShardQueueFull).end(),
            Stage::Fence { link, addr, .. } => {
                let held = self.shard.fences.refuse((link, addr));
                hand_over::hand_over_held(self, held);
            }
            Stage::Device { l3, .. } => self.count_packet_drop(&ip.pkt, l3, DropReason::ShardQueueFull).end(),
        }
    }

    /// Continues packets of other shards, in order. As [`receive_burst`](Self::receive_burst), it leaves packets in flight until
    /// [`finish`](Self::finish).
    pub fn receive_handed_over(&mut self, now: Instant, mem: &Memory, packets: impl IntoIterator<Item = HandOver>) {
        self.forget_if_changed();
        let cx = Cx { now, mem };
        for HandOver { mut ip, stage, .. } in packets {
            if !matches!(stage, Stage::Fence { .. }) {
                self.trace.take_over(ip.pkt.meta.trace);
            }
            match stage {
                Stage::Next(next) => run(self, cx, &mut ip, next),
                Stage::Arp(link) => l2::handed_over_arp(self, cx, link, &mut ip.pkt),
                Stage::Frame(link) => frames::receive(self, cx, link, ip.pkt.take()),
                Stage::Esp => esp::open_handed_over(self, cx, ip.pkt.take()),
                Stage::Protect { sas, sealed, pending } => {
                    xfrm::continue_handed_over(self, cx, ip.pkt.take(), &sas, sealed, pending);
                }
                Stage::Fence { from, number, link, addr } => {
                    let station = self.neighbours.shared_station(link, addr);
                    self.shard.tell(Update::Passed { to: from, number, station });
                }
                Stage::Device { port, l3, is_transmitted } => {
                    device::continue_handed_over(
                        self,
                        cx,
                        port,
                        QueuedPacket { pkt: ip.pkt.take(), l3, is_transmitted },
                    );
                }
            }
            if self.has_deferred() {
                run_deferred(self, cx);
            }
        }
        flush(self, cx, BurstEnd::MoreComing);
        run_actions(self, cx);
    }

    /// Changes that the other shards have to know, or [all](Update::is_for_all), since the last call.
    pub fn take_updates(&mut self) -> Vec<Update> {
        let Self { shard, neighbours, ipsec, .. } = self;
        shard.updates.extend(neighbours.take_shared().map(Update::Station));
        shard.updates.extend(ipsec.take_shared().map(Update::Ipsec));
        std::mem::take(&mut shard.updates)
    }

    /// Learns what a shard has told: another one, or this one if [all](Update::is_for_all) have to.
    pub fn follow(&mut self, now: Instant, mem: &Memory, updates: Update) {
        match updates {
            Update::Station(station) => {
                let cx = Cx { now, mem };
                self.follow_station(cx, station, false);
                self.drain_all(cx);
            }
            Update::Passed { to, number, station } if to == self.shard.id() => {
                let cx = Cx { now, mem };
                let Some(held) = self.shard.fences.close((station.link, station.addr), number) else { return };
                self.follow_station(cx, station, true);
                // They go before those of their flows that GRO holds.
                for (mut ip, hop) in held {
                    run(self, cx, &mut ip, Next::Transmit(hop));
                    if self.has_deferred() {
                        run_deferred(self, cx);
                    }
                }
                self.drain_all(cx);
            }
            Update::Passed { .. } => {}
            Update::Ipsec(change) => {
                self.ipsec.follow(now, change);
                self.forget_if_changed();
            }
            Update::PathMtu { domain, dst, mtu } => {
                self.fib.lower_path_mtu(now, domain, dst, mtu, usize::MAX);
            }
        }
    }

    /// Forgets a neighbour that the operator sets, in a shard that does not own neighbours: its packets go by the first shard, which makes the
    /// change before it takes them, and tells the address then.
    pub(crate) fn forget_shared_neighbour(&mut self, now: Instant, link: PortId, addr: IpAddr) {
        let held = self.shard.fences.forget((link, addr));
        hand_over::hand_over_held(self, held);
        self.neighbours.set(now, link, addr, Known::Nothing, &mut self.actions);
    }

    /// Learns how a neighbour is known to the first shard.
    fn follow_station(&mut self, cx: Cx<'_>, station: SharedStation, is_passed: bool) {
        let SharedStation { link, addr, mac } = station;
        match mac {
            None => self.forget_shared_neighbour(cx.now, link, addr),
            // The link may be gone here already.
            Some(_) if self.ports.get(link).is_none() => {}
            Some(mac) if is_passed || self.neighbours.mac(link, addr).is_some() => {
                self.neighbours.set(cx.now, link, addr, Known::Permanent(mac), &mut self.actions);
            }
            Some(_) => hand_over::send_fence(self, (link, addr), true),
        }
    }
}
