//! ARP requests and replies (RFC 826, RFC 5227; Linux's `arp_process`).

use std::net::{IpAddr, Ipv4Addr};

use base::{DropReason, Instant};
use packet::{Memory, Packet, PoolDry};
use wire::arp::{ArpHeader, Operation};
use wire::{EtherType, MacAddr};

use crate::neigh::{Action, LladdrUpdate, Neighbours};
use crate::station::{Station, frame};

/// The frame of a request for `target`: broadcast, or unicast to the neighbour. `sender` is an address of this node, or
/// unspecified if the node has none (a probe, RFC 5227 §2.1.1).
///
/// # Errors
/// [`PoolDry`].
pub fn solicit(
    mem: &Memory,
    here: Station,
    sender: Ipv4Addr,
    target: Ipv4Addr,
    unicast_to: Option<MacAddr>,
) -> Result<Packet, PoolDry> {
    let request = ArpHeader::request((here.mac, sender), target);
    let to = unicast_to.unwrap_or(MacAddr::BROADCAST);
    frame(mem, Packet::with_data(mem, request.as_bytes())?, here.mac, to, EtherType::ARP)
}

/// Handles an ARP packet received on `here.link`, from its first byte on: updates the entry of its sender, and replies
/// to a request for an address for which `is_own` is true.
///
/// A request to this node creates a STALE entry for its sender. Any other packet updates the entry of its sender and
/// creates none (RFC 826; Linux's `arp_accept=0`), so that announcements cannot fill the table.
///
/// # Errors
/// [`DropReason::ArpMalformed`] for an operation other than request and reply, or sender addresses that are not those
/// of one station; [`DropReason::NeighbourRateLimited`] if stations send too many requests; [`DropReason::NoMemory`] if
/// no page is free for the reply.
pub fn handle(
    neighbours: &mut Neighbours,
    now: Instant,
    mem: &Memory,
    here: Station,
    is_own: impl Fn(Ipv4Addr) -> bool,
    bytes: &[u8],
    actions: &mut Vec<Action>,
) -> Result<(), DropReason> {
    let arp = ArpHeader::parse(bytes)?;
    let (mac, sender, target) = (arp.sender_mac(), arp.sender_ip(), arp.target_ip());
    let is_request = match arp.operation() {
        Operation::REQUEST => true,
        Operation::REPLY => false,
        _ => return Err(DropReason::ArpMalformed),
    };
    if mac == here.mac {
        return Ok(()); // this node's own packet, looped back
    }
    if !mac.is_unicast() || !(is_host(sender) || sender.is_unspecified()) {
        return Err(DropReason::ArpMalformed);
    }
    if is_own(sender) {
        actions.push(Action::Conflict { link: here.link, addr: sender.into(), station: mac });
        return Ok(());
    }
    let to_us = is_own(target);
    if !sender.is_unspecified() {
        let update = match (is_request, to_us) {
            (true, true) => LladdrUpdate::Solicitation(mac),
            // An announcement contains its sender's address twice, and is never for this node.
            (true, false) => LladdrUpdate::Advertised { mac: Some(mac), solicited: false, overrides: true },
            (false, _) => {
                let solicited = to_us && arp.target_mac() == here.mac;
                LladdrUpdate::Advertised { mac: Some(mac), solicited, overrides: true }
            }
        };
        neighbours.learn(now, here.link, IpAddr::V4(sender), update, actions);
    }
    if is_request && to_us {
        if !neighbours.may_answer(now, here.link, IpAddr::V4(sender)) {
            return Err(DropReason::NeighbourRateLimited);
        }
        let reply = ArpHeader::reply((here.mac, target), (mac, sender));
        let reply = Packet::with_data(mem, reply.as_bytes())?;
        let frame = frame(mem, reply, here.mac, mac, EtherType::ARP)?;
        actions.push(Action::Answer { link: here.link, frame });
    }
    Ok(())
}

/// Tells whether the address may be a single station's.
fn is_host(addr: Ipv4Addr) -> bool {
    !(addr.is_unspecified() || addr.is_multicast() || addr.is_broadcast() || addr.is_loopback())
}
