//! ARP as a node speaks it (RFC 826, RFC 5227; Linux's `arp_process`).

use std::net::{IpAddr, Ipv4Addr};

use base::{DropReason, Instant};
use packet::{Memory, Packet, PoolDry};
use wire::arp::{Header, Operation};
use wire::{EtherType, MacAddr};

use crate::neigh::{Action, Heard, Neighbours};
use crate::station::{Station, frame};

/// The frame that asks who has `target`: a request to everybody, or to the neighbour itself. `sender` is one of our
/// addresses, or unspecified when we have none (a probe, RFC 5227 §2.1.1).
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
    let request = Header::request((here.mac, sender), target);
    let to = unicast_to.unwrap_or(MacAddr::BROADCAST);
    frame(mem, Packet::with_data(mem, request.as_bytes())?, here.mac, to, EtherType::ARP)
}

/// Takes in an ARP packet that came from `here.link`, from its first byte on: learns, and answers if it asks for an
/// address that `is_own` claims.
///
/// A request to us makes its sender a neighbour. Any other packet only corrects what is known of its sender, as
/// RFC 826 has it, so that a stranger cannot fill the table by announcing itself (Linux's `arp_accept=0`).
///
/// # Errors
/// [`DropReason::ArpMalformed`] for what RFC 826 does not know, or for a sender that no single station can be;
/// [`DropReason::NoMemory`] when there is no page for the answer.
pub fn handle(
    neighbours: &mut Neighbours,
    now: Instant,
    mem: &Memory,
    here: Station,
    is_own: impl Fn(Ipv4Addr) -> bool,
    bytes: &[u8],
    actions: &mut Vec<Action>,
) -> Result<(), DropReason> {
    let arp = Header::parse(bytes)?;
    let (mac, sender, target) = (arp.sender_mac(), arp.sender_ip(), arp.target_ip());
    let is_request = match arp.operation() {
        Operation::REQUEST => true,
        Operation::REPLY => false,
        _ => return Err(DropReason::ArpMalformed),
    };
    if mac == here.mac {
        return Ok(()); // our own, come back
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
        let heard = match (is_request, to_us) {
            (true, true) => Heard::Asked(mac),
            // An announcement names its sender twice, and is never for us.
            (true, false) => Heard::Advertised { mac: Some(mac), solicited: false, overrides: true },
            (false, _) => {
                let solicited = to_us && arp.target_mac() == here.mac;
                Heard::Advertised { mac: Some(mac), solicited, overrides: true }
            }
        };
        neighbours.learn(now, here.link, IpAddr::V4(sender), heard, actions);
    }
    if is_request && to_us {
        let reply = Header::reply((here.mac, target), (mac, sender));
        let reply = Packet::with_data(mem, reply.as_bytes())?;
        let frame = frame(mem, reply, here.mac, mac, EtherType::ARP)?;
        actions.push(Action::Answer { link: here.link, frame });
    }
    Ok(())
}

/// Tells whether one station can have the address.
fn is_host(addr: Ipv4Addr) -> bool {
    !(addr.is_unspecified() || addr.is_multicast() || addr.is_broadcast() || addr.is_loopback())
}
