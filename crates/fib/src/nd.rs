//! Messages of neighbour discovery: solicitations and advertisements of neighbours (RFC 4861 §7.2; Linux's
//! `ndisc_recv_ns`, `ndisc_recv_na`).

use std::net::{IpAddr, Ipv6Addr};

use base::{DropReason, Instant};
use packet::{Memory, Packet, PoolDry};
use wire::icmpv6::{self, Icmpv6};
use wire::ipv6::{self, Ipv6};
use wire::nd::{self, AdvertFlags, LinkAddr, Nd};
use wire::{EtherType, MacAddr, Protocol};

use crate::neigh::{Action, LladdrUpdate, Neighbours, Resolution};
use crate::station::{Station, frame};

/// Bytes of a solicitation or advertisement with its one option.
const MESSAGE_LEN: usize = nd::Neighbour::LEN + LinkAddr::LEN;

/// The frame of a solicitation for `target`: to its solicited-node group, or unicast to the neighbour. `source` is an
/// address of this node on the link.
///
/// # Errors
/// [`PoolDry`].
pub fn solicit(
    mem: &Memory,
    here: Station,
    source: Ipv6Addr,
    target: Ipv6Addr,
    unicast_to: Option<MacAddr>,
) -> Result<Packet, PoolDry> {
    let group = nd::solicited_node(target);
    let (dst, to) = unicast_to.map_or((group, MacAddr::multicast_v6(group)), |mac| (target, mac));
    let packet = message(mem, nd::Neighbour::solicit(target), LinkAddr::source(here.mac), source, dst)?;
    frame(mem, packet, here.mac, to, EtherType::IPV6)
}

/// Handles a solicitation or advertisement received on `here.link`, complete in `bytes` from its IPv6 header on:
/// updates the entry of its sender, and answers a solicitation for a target for which `own` returns the source address
/// of the advertisement: the target itself if it is this node's, another of the node's addresses if the target is
/// anycast. Router discovery is ignored.
///
/// # Errors
/// [`DropReason::NeighbourMalformed`] for messages that RFC 4861 §7.1 discards, fragments (RFC 6980 §5), and link-layer
/// addresses that are not those of one other station; [`DropReason::ChecksumWrong`]; [`DropReason::IcmpIgnored`] for
/// messages of other types; [`DropReason::NeighbourRateLimited`] if stations send too many solicitations;
/// [`DropReason::NoMemory`] if no page is free for the advertisement; the reasons of malformed headers.
pub fn handle(
    neighbours: &mut Neighbours,
    now: Instant,
    mem: &Memory,
    here: Station,
    own: impl Fn(Ipv6Addr, Ipv6Addr) -> Option<Ipv6Addr>,
    bytes: &[u8],
    actions: &mut Vec<Action>,
) -> Result<(), DropReason> {
    let (src, nd) = parse(bytes)?;
    let is_own = |addr| own(addr, addr) == Some(addr);
    let conflict = |addr: Ipv6Addr, station| Action::Conflict { link: here.link, addr: addr.into(), station };
    match nd {
        Nd::NeighbourSolicit { target, options } => {
            let mac = options.source_link_addr();
            if mac == Some(here.mac) {
                return Ok(()); // this node's own message, looped back
            }
            check_station(mac)?;
            if let Some(station) = mac.filter(|_| is_own(src)) {
                actions.push(conflict(src, station));
            } else if let Some(from) = own(target, src).filter(|_| !is_own(src)) {
                if let Some(mac) = mac {
                    neighbours.learn(now, here.link, IpAddr::V6(src), LladdrUpdate::Solicitation(mac), actions);
                }
                if !neighbours.may_answer(now, here.link, IpAddr::V6(src)) {
                    return Err(DropReason::NeighbourRateLimited);
                }
                // The advertisement does not count as a use of the entry; otherwise each soliciting station would be
                // probed (RFC 4861 §7.3.3).
                let to = if src.is_unspecified() {
                    Some(MacAddr::multicast_v6(nd::ALL_NODES))
                } else {
                    neighbours.mac(here.link, IpAddr::V6(src)).or(mac)
                };
                let packet = advert(mem, here, target, from, src)?;
                let resolution = match to {
                    Some(to) => Resolution::Send(to, packet),
                    None => neighbours.resolve(now, mem, here.link, IpAddr::V6(src), packet, actions),
                };
                send(mem, here, resolution, actions)?;
            }
        }
        Nd::NeighbourAdvert { target, flags, options } => {
            let mac = options.target_link_addr();
            if mac == Some(here.mac) {
                return Ok(());
            }
            check_station(mac)?;
            if is_own(target) {
                actions.extend(mac.map(|station| conflict(target, station)));
            } else {
                let AdvertFlags { solicited, overriding: overrides, .. } = flags;
                let update = LladdrUpdate::Advertised { mac, solicited, overrides };
                neighbours.learn(now, here.link, IpAddr::V6(target), update, actions);
            }
        }
        // This node neither is configured by routers nor advertises itself (Linux with `forwarding` set).
        Nd::RouterSolicit { .. } | Nd::RouterAdvert { .. } => {}
    }
    Ok(())
}

/// Checks a message as [`handle`] does, and changes nothing.
///
/// # Errors
/// As [`handle`], for malformed messages and messages of other types.
pub fn check(bytes: &[u8]) -> Result<(), DropReason> {
    parse(bytes).map(drop)
}

/// Source address and content of a message of neighbour discovery, complete in `bytes` from its IPv6 header on.
fn parse(bytes: &[u8]) -> Result<(Ipv6Addr, Nd<'_>), DropReason> {
    let packet = Ipv6::parse(bytes)?;
    let (header, chain) = (packet.header(), packet.chain()?);
    if chain.protocol != Protocol::ICMPV6 {
        return Err(DropReason::IcmpIgnored);
    }
    if chain.fragment.is_some() {
        return Err(DropReason::NeighbourMalformed);
    }
    let message = bytes.get(chain.offset..packet.total_len()).unwrap_or_default();
    let (src, dst) = (header.src(), header.dst());
    if !Icmpv6::parse(message)?.check_ok(src, dst) {
        return Err(DropReason::ChecksumWrong);
    }
    if src.is_multicast() {
        return Err(DropReason::IpSourceInvalid);
    }
    let nd = Nd::parse(message, src, dst, header.hop_limit())?.ok_or(DropReason::IcmpIgnored)?;
    Ok((src, nd))
}

/// Refuses a link-layer address that is a group address or zero.
fn check_station(mac: Option<MacAddr>) -> Result<(), DropReason> {
    match mac {
        Some(mac) if !mac.is_unicast() => Err(DropReason::NeighbourMalformed),
        _ => Ok(()),
    }
}

/// The advertisement of `target` for `asker`, `from` an address of this node (RFC 4861 §7.2.4). For an anycast
/// `target`, which differs from `from`, it has no Override flag (§7.2.7). In reply to a solicitation from the
/// unspecified address (duplicate address detection) it is sent to all nodes.
fn advert(mem: &Memory, here: Station, target: Ipv6Addr, from: Ipv6Addr, asker: Ipv6Addr) -> Result<Packet, PoolDry> {
    let solicited = !asker.is_unspecified();
    let dst = if solicited { asker } else { nd::ALL_NODES };
    let flags = AdvertFlags { router: true, solicited, overriding: from == target };
    message(mem, nd::Neighbour::advert(target, flags), LinkAddr::target(here.mac), from, dst)
}

/// Sends an advertisement if its receiver's link-layer address is known.
fn send(mem: &Memory, here: Station, answer: Resolution, actions: &mut Vec<Action>) -> Result<(), PoolDry> {
    match answer {
        Resolution::Send(to, packet) => {
            let frame = frame(mem, packet, here.mac, to, EtherType::IPV6)?;
            actions.push(Action::Answer { link: here.link, frame });
        }
        Resolution::Queued => {}
        Resolution::Dropped(packet, reason) => actions.push(Action::Drop { link: here.link, packet, reason }),
    }
    Ok(())
}

/// An IPv6 packet with a neighbour discovery message.
fn message(
    mem: &Memory,
    body: nd::Neighbour,
    option: LinkAddr,
    src: Ipv6Addr,
    dst: Ipv6Addr,
) -> Result<Packet, PoolDry> {
    let mut bytes = [0; ipv6::Ipv6Header::LEN + MESSAGE_LEN];
    let (front, message) = bytes.split_at_mut(ipv6::Ipv6Header::LEN);
    let mut header = ipv6::Ipv6Header::new(src, dst, Protocol::ICMPV6, MESSAGE_LEN as u16);
    header.set_hop_limit(nd::HOP_LIMIT);
    front.copy_from_slice(header.as_bytes());
    message[..nd::Neighbour::LEN].copy_from_slice(body.as_bytes());
    message[nd::Neighbour::LEN..].copy_from_slice(option.as_bytes());
    icmpv6::fill_check(message, src, dst).expect("a whole message");
    Packet::with_data(mem, &bytes)
}
