//! What neighbours ask of the path: to solicit them, to send what waited, to give it up.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base::{DropReason, Instant, LinkId, Mib};
use fib::{Action, Known, Station, arp, nd};
use host::icmp::Problem;
use ipsec::device::Treatment;
use ipsec::{Bundle, Decision as Policy, Flowi, Mode};
use offload::ip_headers;
use packet::{Esp, Memory, Packet};
use wire::eth::{self, EtherType};
use wire::{FlowKey, MacAddr, Version};

use crate::egress::Layers;
use crate::ip_input::flow_of;
use crate::{Datapath, IpPacket, Turn};

/// How often the operator is told at most that another station has one of our addresses.
const TELL_EVERY: Duration = Duration::from_secs(10);

impl Datapath {
    /// Does what the neighbours asked for, until they ask for no more.
    pub(crate) fn act(&mut self, turn: Turn<'_>) {
        while !self.actions.is_empty() {
            let mut actions = std::mem::replace(&mut self.actions, std::mem::take(&mut self.scratch.actions));
            for action in actions.drain(..) {
                self.act_one(turn, action);
            }
            self.scratch.actions = actions;
        }
    }

    fn act_one(&mut self, turn: Turn<'_>, action: Action) {
        match action {
            Action::Solicit { link, target, unicast_to } => match self.solicitation(turn, link, target, unicast_to) {
                Ok(frame) => self.say(turn, link, frame),
                Err(reason) => self.ports.drop(LinkId::NONE, reason),
            },
            Action::Send { link, to, packet } => self.frame(turn, link, to, packet),
            Action::Answer { link, frame } => {
                if eth::Header::ref_from(frame.head()).is_ok_and(|header| header.ethertype() == EtherType::IPV6) {
                    self.count(link, Mib::Icmp6OutMsgs);
                    self.count(link, Mib::Icmp6OutNeighborAdvertisements);
                }
                self.say(turn, link, frame);
            }
            Action::Drop { packet, reason, .. } => self.give_up(turn, packet, reason),
            Action::Conflict { link, addr, station } => {
                if self.conflict_told.is_none_or(|told| told + TELL_EVERY <= turn.now) {
                    self.conflict_told = Some(turn.now);
                    let name = self.ports.get(link).map_or("?", |port| &port.config.name);
                    tracing::warn!("{name}: {station} uses our address {addr}");
                }
            }
        }
    }

    /// Sends a frame of ARP or neighbour discovery. A policy for a transport between neighbours is for what they say of
    /// themselves too (Linux `icmp6_dst_alloc`); one for a tunnel is not, because the link does not lead through it.
    fn say(&mut self, turn: Turn<'_>, link: LinkId, mut frame: Packet) {
        let header = eth::Header::ref_from(frame.head()).copied();
        let (Ok(header), false) = (header, self.ipsec.is_idle()) else {
            return self.enqueue(turn.mem, link, frame, eth::Header::LEN);
        };
        if header.ethertype() == EtherType::IPV6
            && let Ok(flow) = FlowKey::parse(&frame.head()[eth::Header::LEN..], frame.len() - eth::Header::LEN)
            && let Policy::Protect(bundle) =
                self.protection(turn, &Flowi { link, domain: self.fib.domain(link), ..flow.into() })
            && bundle.iter().all(|&id| self.ipsec.sa(id).is_some_and(|sa| sa.mode() == Mode::Transport))
        {
            frame.pull(eth::Header::LEN);
            return self.say_protected(turn, link, header.dst(), frame, &bundle);
        }
        self.enqueue(turn.mem, link, frame, eth::Header::LEN);
    }

    /// What the policies say of neighbour discovery of `flow`, after what has waited for an SA that is there now.
    fn protection(&mut self, turn: Turn<'_>, flow: &Flowi) -> Policy {
        match self.ipsec.lookup(turn.now, flow, &mut self.counters) {
            Policy::Hold(policy) if self.ipsec.let_go(policy) => {
                self.release(turn);
                self.ipsec.lookup(turn.now, flow, &mut self.counters)
            }
            decision => decision,
        }
    }

    /// Sends a packet of neighbour discovery through these SAs to a station that needs not be looked for. A device that
    /// numbers the packets of its SA is left this one too.
    fn say_protected(&mut self, turn: Turn<'_>, link: LinkId, to: MacAddr, mut pkt: Packet, bundle: &Bundle) {
        let mtu = self.ports.get(link).map_or(0, |port| port.config.mtu);
        let treatment = match bundle[..] {
            [sa] => self.treat(turn, sa, &mut pkt, link, mtu),
            _ => Ok(Treatment::Software),
        };
        match treatment {
            Ok(Treatment::Device) => self.frame(turn, link, to, pkt),
            Ok(Treatment::Refused(reason)) | Err(reason) => self.drop(&pkt, reason),
            Ok(Treatment::Software | Treatment::Cipher) => {
                let mut sealed = vec![pkt];
                self.seal(turn, Layers { sas: bundle, dev: link, mtu }, bundle.len(), &mut sealed);
                sealed.into_iter().for_each(|pkt| self.frame(turn, link, to, pkt));
            }
        }
    }

    /// The frame that asks on `link` who has `target`.
    fn solicitation(
        &mut self,
        turn: Turn<'_>,
        link: LinkId,
        target: IpAddr,
        unicast_to: Option<MacAddr>,
    ) -> Result<Packet, DropReason> {
        let mac = self.ports.get(link).and_then(|port| port.config.mac).ok_or(DropReason::LinkDown)?;
        let here = Station { link, mac };
        let source = self.fib.source(link, target);
        Ok(match target {
            IpAddr::V4(target) => {
                let source = if let Some(IpAddr::V4(source)) = source { source } else { Ipv4Addr::UNSPECIFIED };
                arp::solicit(turn.mem, here, source, target, unicast_to)?
            }
            IpAddr::V6(target) => {
                let source = if let Some(IpAddr::V6(source)) = source { source } else { mac.link_local() };
                self.count(link, Mib::Icmp6OutMsgs);
                self.count(link, Mib::Icmp6OutNeighborSolicits);
                nd::solicit(turn.mem, here, source, target, unicast_to)?
            }
        })
    }

    /// Puts an Ethernet header in front of an IP packet and lets it wait to be sent.
    pub(crate) fn frame(&mut self, turn: Turn<'_>, link: LinkId, to: MacAddr, mut pkt: Packet) {
        let Some(mac) = self.ports.get(link).and_then(|port| port.config.mac) else {
            return self.drop(&pkt, DropReason::LinkDown);
        };
        let ethertype = match Version::of(pkt.head()) {
            Ok(Version::V4) => EtherType::IPV4,
            Ok(Version::V6) => EtherType::IPV6,
            Err(why) => return self.drop(&pkt, why.into()),
        };
        let header = eth::Header::new(to, mac, ethertype);
        if pkt.push_each(header.as_bytes()) {
            return self.enqueue(turn.mem, link, pkt, eth::Header::LEN);
        }
        while let Some(packet) = pkt.take_frame() {
            self.frame(turn, link, to, packet);
        }
        match pkt.push(turn.mem, eth::Header::LEN) {
            Ok(front) => front.copy_from_slice(header.as_bytes()),
            Err(dry) => return self.drop(&pkt, dry.into()),
        }
        self.enqueue(turn.mem, link, pkt, eth::Header::LEN);
    }

    /// Drops a packet that waited in vain for its next hop. Its sender is told if that did not answer.
    pub(crate) fn give_up(&mut self, turn: Turn<'_>, mut pkt: Packet, reason: DropReason) {
        // An error would quote in clear what is laid out as ESP.
        if reason != DropReason::NeighbourFailed || matches!(pkt.meta.esp, Some(Esp::Seal { .. })) {
            return self.drop(&pkt, reason);
        }
        let parsed = ip_headers(turn.mem, &mut pkt).and_then(|info| Ok((info, flow_of(turn, &mut pkt, &info)?)));
        match parsed {
            Ok((info, flow)) => self.reject(turn, &IpPacket { pkt, info, flow }, reason, Problem::HostUnreachable),
            Err(_) => self.drop(&pkt, reason),
        }
    }

    /// Has a neighbour known as the operator says, or the `protocol` (`RTPROT_*`) that does; 0 says nothing of that.
    pub fn set_neighbour(
        &mut self,
        now: Instant,
        mem: &Memory,
        link: LinkId,
        addr: IpAddr,
        known: Known,
        protocol: u8,
    ) {
        self.neighbours.set(now, link, addr, known, &mut self.actions);
        if protocol != 0 {
            self.neighbours.set_protocol(link, addr, protocol);
        }
        self.settle(Turn { now, mem });
    }

    /// Forgets who was known on a link, and drops what waited for them.
    pub(crate) fn forget_neighbours(&mut self, turn: Turn<'_>, link: LinkId) {
        self.neighbours.remove_link(link, &mut self.actions);
        self.settle(turn);
    }
}
