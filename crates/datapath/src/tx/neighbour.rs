//! Neighbours: resolution of next hops, and its actions: sending solicitations, sending queued packets, dropping them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base::{DropReason, Mib, Origin, PortId};
use fib::{Action, Resolution, Station, arp, nd};
use host::icmp::Problem;
use ipsec::device::OffloadDecision;
use ipsec::{Bundle, Decision as Policy};
use packet::Packet;
use wire::eth::{self, EtherType};
use wire::{FlowKey, MacAddr};
use xfrm::{Flowi, Mode};

use super::sa_path::{self, SaStack};
use super::{device, esp_device};
use crate::next::Hop;
use crate::node::shard::Stage;
use crate::node::trace::Step;
use crate::{Cx, Datapath, IpPacket, Next, hand_over, ila_errors, local_out, trace};

/// Least time between two log lines about another station with one of our addresses.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Runs the pending actions of the neighbour tables, until there are none.
pub(crate) fn run_neighbour_actions(dp: &mut Datapath, cx: Cx<'_>) {
    while !dp.actions.is_empty() {
        let mut actions = std::mem::replace(&mut dp.actions, std::mem::take(&mut dp.scratch.actions));
        for action in actions.drain(..) {
            run_neighbour_action(dp, cx, action);
        }
        dp.scratch.actions = actions;
    }
}

fn run_neighbour_action(dp: &mut Datapath, cx: Cx<'_>, action: Action) {
    match action {
        Action::Solicit { link, target, unicast_to } => match solicitation(dp, cx, link, target, unicast_to) {
            Ok(frame) => send_discovery(dp, cx, link, frame),
            Err(reason) => dp.ports.drop(Origin::NODE, reason).end(),
        },
        Action::Send { link, to, packet } => {
            device::run_framed(dp, cx, link, to, packet);
        }
        Action::Answer { link, frame } => {
            if eth::EthHeader::ref_from(frame.head()).is_ok_and(|header| header.ethertype() == EtherType::IPV6) {
                dp.count(link, Mib::Icmp6OutMsgs);
                dp.count(link, Mib::Icmp6OutNeighborAdvertisements);
            }
            send_discovery(dp, cx, link, frame);
        }
        Action::Drop { packet, reason, .. } => {
            let mut ip = IpPacket::unparsed(packet);
            let next = abandon(dp, cx, &mut ip, reason);
            dp.defer(ip, next);
        }
        Action::Conflict { link, addr, station } => {
            if dp.conflict_logged.is_none_or(|logged| logged + LOG_EVERY <= cx.now) {
                dp.conflict_logged = Some(cx.now);
                let name = dp.ports.get(link).map_or("?", |port| &port.config.name);
                tracing::warn!(link = name, "{name}: {station} uses our address {addr}");
            }
        }
    }
}

/// Sends a frame of ARP or neighbour discovery. A transport mode policy between neighbours applies to neighbour discovery as well
/// (Linux `icmp6_dst_alloc`); a tunnel mode policy does not, because the link is outside the tunnel.
pub(crate) fn send_discovery(dp: &mut Datapath, cx: Cx<'_>, link: PortId, mut frame: Packet) {
    let header = eth::EthHeader::ref_from(frame.head()).copied();
    let (Ok(header), false) = (header, dp.ipsec.is_idle()) else {
        return device::enqueue(dp, cx, link, frame, eth::EthHeader::LEN);
    };
    if header.ethertype() == EtherType::IPV6
        && let Ok(flow) = FlowKey::parse(&frame.head()[eth::EthHeader::LEN..], frame.len() - eth::EthHeader::LEN)
    {
        match dp.ipsec.lookup(cx.now, &discovery_flow(dp, link, flow), &mut dp.counters) {
            // Packets that waited for an SA which was added go first.
            Policy::Hold(policy) if dp.ipsec.release_if_ready(policy) => {
                local_out::release(dp, cx);
                return dp.defer(IpPacket::unparsed(frame), Next::Discovery(link));
            }
            Policy::Protect(bundle)
                if bundle.iter().all(|&id| dp.ipsec.sa(id).is_some_and(|sa| sa.mode() == Mode::Transport)) =>
            {
                if let Some(owner) = hand_over::owner_of_sas(dp, &bundle) {
                    let stage = Stage::Next(Next::Discovery(link));
                    return hand_over::hand_over(dp, cx, IpPacket::unparsed(frame), owner, stage);
                }
                frame.pull(eth::EthHeader::LEN);
                return send_protected_discovery(dp, cx, link, header.dst(), frame, &bundle);
            }
            _ => {}
        }
    }
    device::enqueue(dp, cx, link, frame, eth::EthHeader::LEN);
}

/// Flow of neighbour discovery that leaves by `link`.
fn discovery_flow(dp: &Datapath, link: PortId, flow: FlowKey) -> Flowi {
    Flowi { link: Some(link), domain_device: dp.fib.domain(link).vrf_device(), ..flow.into() }
}

/// Sends a packet of neighbour discovery through these SAs to a known station. A device that numbers the packets of its SA also
/// numbers this one.
fn send_protected_discovery(
    dp: &mut Datapath,
    cx: Cx<'_>,
    link: PortId,
    to: MacAddr,
    mut pkt: Packet,
    bundle: &Bundle,
) {
    let mtu = dp.ports.get(link).map_or(0, |port| port.config.mtu);
    let treatment = match bundle[..] {
        [sa] => esp_device::offload_decision(dp, cx, sa, &mut pkt, link, mtu),
        _ => Ok(OffloadDecision::Software),
    };
    match treatment {
        Ok(OffloadDecision::Device) => {
            device::run_framed(dp, cx, link, to, pkt);
        }
        Ok(OffloadDecision::Refused(reason)) | Err(reason) => dp.count_drop(&pkt, reason).end(),
        Ok(OffloadDecision::Software | OffloadDecision::Cipher) => {
            let mut sealed = vec![pkt];
            sa_path::seal(dp, cx, SaStack { sas: bundle, dev: link, mtu }, 0..bundle.len(), &mut sealed);
            for pkt in sealed {
                device::run_framed(dp, cx, link, to, pkt);
            }
        }
    }
}

/// Solicitation on `link` for `target`.
fn solicitation(
    dp: &mut Datapath,
    cx: Cx<'_>,
    link: PortId,
    target: IpAddr,
    unicast_to: Option<MacAddr>,
) -> Result<Packet, DropReason> {
    let mac = dp.ports.get(link).and_then(|port| port.config.mac).ok_or(DropReason::LinkDown)?;
    let here = Station { link, mac };
    let source = dp.fib.source(link, target);
    Ok(match target {
        IpAddr::V4(target) => {
            let source = if let Some(IpAddr::V4(source)) = source { source } else { Ipv4Addr::UNSPECIFIED };
            arp::solicit(cx.mem, here, source, target, unicast_to)?
        }
        IpAddr::V6(target) => {
            let source = if let Some(IpAddr::V6(source)) = source { source } else { mac.link_local() };
            dp.count(link, Mib::Icmp6OutMsgs);
            dp.count(link, Mib::Icmp6OutNeighborSolicits);
            nd::solicit(cx.mem, here, source, target, unicast_to)?
        }
    })
}

/// Drops a packet whose next hop was not resolved, with an ICMP error if the next hop did not answer.
fn abandon(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, reason: DropReason) -> Next {
    if reason != DropReason::NeighbourFailed || ip.parse(cx).is_err() {
        return Next::Drop(reason);
    }
    if let Err(reason) = ila_errors::undo(dp, cx, ip) {
        return Next::Drop(reason);
    }
    Next::Reject(reason, Problem::HostUnreachable)
}

/// Resolves the link-layer address of a packet's next hop, and frames the packet; while the address is unknown the packet is
/// queued.
pub(super) fn resolve(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    let Hop { dev, next_hop, .. } = hop;
    // The packet is moved only if it has to wait.
    if let Some(to) = dp.neighbours.station(cx.now, dev, next_hop) {
        return device::frame(dp, cx, dev, to, &mut ip.pkt);
    }
    trace::step(dp, cx, &mut ip.pkt, Step::Resolve { dev });
    match dp.neighbours.resolve(cx.now, cx.mem, dev, next_hop, ip.pkt.take(), &mut dp.actions) {
        Resolution::Send(to, pkt) => {
            ip.pkt.put(pkt);
            device::frame(dp, cx, dev, to, &mut ip.pkt)
        }
        Resolution::Queued => Next::Done,
        Resolution::Dropped(pkt, reason) => {
            ip.pkt.put(pkt);
            abandon(dp, cx, ip, reason)
        }
    }
}
