//! Hand-over of packets between the shards of a node: to the owner of what only one shard may have.
//!
//! | what | owner | handed over at |
//! |---|---|---|
//! | fragments that are reassembled | by their addresses | local input, forwarding |
//! | neighbours: ARP, neighbour discovery, unknown next hops | the first shard, which tells the others the addresses that it knows | link layer, local input, transmission |
//! | queueing disciplines; links without a queue in this shard | the first shard | device |
//! | bridges: frames received by their ports, and sent by their devices | the first shard | reception; device |
//! | sockets of the host side | the first shard | local input; device |
//! | an SA: its numbers, its window, its key | chosen when it is added ([`Sa::owner`](ipsec::Sa::owner)) | local input, output |
//! | messages of IKE | the first shard | local input |
//!
//! A packet that no shard has to hand over stays in the shard whose queue received it.

use std::net::IpAddr;

use base::{DropReason, PortId, SaId, ShardId};

use crate::ip_packet::IpPacket;
use crate::next::Hop;
use crate::node::shard::{HandOver, Stage};
use crate::node::trace::Step;
use crate::{Cx, Datapath, Next, trace};

/// Hands a packet to the shard that owns a stage.
#[cold]
pub(crate) fn hand_over(dp: &mut Datapath, cx: Cx<'_>, mut ip: IpPacket, to: ShardId, stage: Stage) {
    trace::step(dp, cx, &mut ip.pkt, Step::HandOver { to });
    ip.pkt.meta.trace = dp.trace.number_to_hand_over(ip.pkt.meta.trace);
    // A device's frames belong to this shard's link.
    ip.pkt.release_device_frames(cx.mem);
    dp.shard.outbox.push(HandOver { to, ip, stage });
}

/// Hands a packet between two stages of the loop to the shard that owns the second.
#[cold]
pub(crate) fn hand_over_before(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, to: ShardId, next: Next) -> Next {
    let ip = std::mem::replace(ip, IpPacket::empty());
    hand_over(dp, cx, ip, to, Stage::Next(next));
    Next::Done
}

/// Hands a packet to the first shard, which resolves the neighbour, or holds the packet until those before it were sent there.
#[cold]
pub(crate) fn hand_over_unresolved(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, to: ShardId, hop: Hop) -> Next {
    match dp.shard.fences.hold(cx.mem, ip, hop) {
        Some(true) => Next::Done,
        Some(false) => Next::Drop(DropReason::ShardQueueFull),
        None => {
            let neighbour = (hop.dev, hop.next_hop);
            let next = hand_over_before(dp, cx, ip, to, Next::Transmit(hop));
            // The queue may have had no room for the fence before.
            send_fence(dp, neighbour, false);
            next
        }
    }
}

/// Hands packets that have waited for a fence to the first shard.
pub(crate) fn hand_over_held(dp: &mut Datapath, held: Vec<(IpPacket, Hop)>) {
    let Datapath { shard, trace, .. } = dp;
    let packets = held.into_iter().map(|(mut ip, hop)| {
        ip.pkt.meta.trace = trace.number_to_hand_over(ip.pkt.meta.trace);
        HandOver { to: ShardId::FIRST, ip, stage: Stage::Next(Next::Transmit(hop)) }
    });
    shard.outbox.extend(packets);
}

/// Hands a fence to the first shard, unless there is one on its way.
pub(crate) fn send_fence(dp: &mut Datapath, (link, addr): (PortId, IpAddr), is_new: bool) {
    let Some(number) = dp.shard.fences.open((link, addr), is_new) else { return };
    let stage = Stage::Fence { from: dp.shard.id(), number, link, addr };
    dp.shard.outbox.push(HandOver { to: ShardId::FIRST, ip: IpPacket::empty(), stage });
}

/// Another shard that seals the packets of the first of these SAs.
#[inline]
pub(crate) fn owner_of_sas(dp: &Datapath, sas: &[SaId]) -> Option<ShardId> {
    if !dp.shard.has_others() {
        return None;
    }
    dp.ipsec.owner_elsewhere(*sas.first()?)
}

/// Another shard that reassembles a fragment's datagram.
#[inline]
pub(crate) fn owner_of_fragments(dp: &Datapath, ip: &IpPacket) -> Option<ShardId> {
    owner_between(dp, ip.info.src, ip.info.dst)
}

/// Tells whether another shard reassembles the fragments between these addresses.
#[inline]
pub(crate) fn is_train_elsewhere(dp: &Datapath, [src, dst]: [IpAddr; 2]) -> bool {
    owner_between(dp, src, dst).is_some()
}

#[inline]
fn owner_between(dp: &Datapath, src: IpAddr, dst: IpAddr) -> Option<ShardId> {
    let shard = &dp.shard;
    let owner = shard.has_others().then(|| shard.count().owner_of_fragments(src, dst))?;
    shard.elsewhere(owner)
}

/// The first shard, if this is another one and the neighbour has to be resolved.
#[inline]
pub(crate) fn owner_of_neighbour(dp: &Datapath, link: PortId, next_hop: IpAddr) -> Option<ShardId> {
    let is_elsewhere = !dp.shard.is_first() && !dp.neighbours.is_resolved(link, next_hop);
    is_elsewhere.then_some(ShardId::FIRST)
}
