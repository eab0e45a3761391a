//! Input of the node under test: packets of flows, answers and messages of stations, malformed packets.

use std::net::IpAddr;
use std::rc::Rc;

use base::PortId;
use ila::{CsumMode, Direction, Rewrite};
use packet::{Memory, Packet};
use sim::{Flow, Rng};
use wire::eth::{EthHeader, EtherType};
use wire::{MacAddr, Protocol, Version, arp, icmpv6, ipv4, ipv6, nd};

use crate::setup::*;

/// Constructor of a packet in the memory of its shard.
pub(crate) type Make = Rc<dyn Fn(&Memory) -> Packet>;

/// A packet that arrives.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) link: PortId,
    pub(crate) make: Make,
}

/// Bytes that begin each marker in a payload.
pub(crate) const MAGIC: [u8; 3] = [0xfa, 0x70, 0x5e];

/// Length of a marker: the magic bytes, the flow in three bytes, and the number of the packet in two.
pub(crate) const MARKER_LEN: usize = 8;

/// First number of stations of bare links that send one flow.
const STRANGERS: u16 = 0x400;

/// Payload of a packet: its marker, again and again, so that each fragment and each segment has one.
fn marked(flow: u32, number: u16, len: usize) -> Vec<u8> {
    let mut marker = MAGIC.to_vec();
    marker.extend(&flow.to_be_bytes()[1..]);
    marker.extend(number.to_be_bytes());
    marker.into_iter().cycle().take(len).collect()
}

/// Generator of input.
pub(crate) struct Source {
    pub(crate) rng: Rng,
    flows: u32,
    strangers: u16,
    ids: u16,
}

/// Packets of a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Udp,
    Tcp,
    FatTcp,
    FatUdp,
    /// Datagrams that the node fragments.
    Big,
    /// Fragments of datagrams, through the node.
    Fragments,
    /// Whole datagrams and fragments of others.
    Mixed,
    Ping,
    BigPing,
    PingInFragments,
    ToIla,
    /// One packet that the node answers with an error, or drops.
    Refused,
    Malformed,
}

const KINDS: [Kind; 13] = [
    Kind::Udp,
    Kind::Tcp,
    Kind::FatTcp,
    Kind::FatUdp,
    Kind::Big,
    Kind::Fragments,
    Kind::Mixed,
    Kind::Ping,
    Kind::BigPing,
    Kind::PingInFragments,
    Kind::ToIla,
    Kind::Refused,
    Kind::Malformed,
];

impl Source {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, flows: 0, strangers: 0, ids: 0 }
    }

    /// Packets of some flows, each flow's in order. `refused` limits the flows that the node answers with errors; no others are by links
    /// that are down.
    pub(crate) fn traffic(&mut self, flows: usize, mut refused: usize, down: &[PortId]) -> Vec<Input> {
        let mut queues: Vec<Vec<Input>> = Vec::new();
        for _ in 0..flows {
            let kind = *self.rng.pick(&KINDS);
            if matches!(kind, Kind::Refused | Kind::Malformed) {
                if refused == 0 {
                    continue;
                }
                refused -= 1;
            }
            let mut flow = self.flow(kind, down);
            flow.reverse();
            queues.push(flow);
        }
        let mut inputs = Vec::new();
        while !queues.is_empty() {
            let at = self.rng.below(queues.len());
            let run = 1 + self.rng.below(6);
            let queue = &mut queues[at];
            for _ in 0..run {
                inputs.extend(queue.pop());
            }
            if queue.is_empty() {
                queues.swap_remove(at);
            }
        }
        inputs
    }

    /// Number of a flow that no other has.
    fn next_flow(&mut self) -> u32 {
        self.flows += 1;
        self.flows
    }

    /// Number of a station that has sent nothing yet, of a bare link.
    fn stranger(&mut self) -> u16 {
        self.strangers += 1;
        STRANGERS + self.strangers
    }

    /// Packets of one flow.
    fn flow(&mut self, kind: Kind, down: &[PortId]) -> Vec<Input> {
        let is_down = |link: &PortId| down.contains(link) || (*link == VLAN && down.contains(&ETHERNET));
        let mut links = DOMAINS[usize::from(self.rng.happens(200))].to_vec();
        links.retain(|link| kind == Kind::Refused || !is_down(link));
        if links.len() < 2 {
            links = vec![INSIDE, SINGLE];
        }
        let bare: Vec<PortId> = links.iter().copied().filter(|&link| mac_of(link).is_none()).collect();
        let is_v4 = self.rng.happens(500);
        let from = match kind {
            Kind::FatTcp | Kind::FatUdp => {
                *self.rng.pick(if links.contains(&INSIDE) { &[INSIDE] } else { &[RED_BARE] })
            }
            Kind::Big | Kind::BigPing => *self.rng.pick(if links.contains(&INSIDE) { &[INSIDE] } else { &[RED_BARE] }),
            Kind::Refused | Kind::Malformed => *self.rng.pick(&bare),
            _ => *self.rng.pick(&links),
        };
        let others: Vec<PortId> = links.iter().copied().filter(|&link| link != from).collect();
        let to = *self.rng.pick(&others);
        let host = match kind {
            Kind::Refused | Kind::Malformed => self.stranger(),
            Kind::Fragments if bare.contains(&from) && self.rng.happens(300) => self.stranger(),
            _ => 1 + self.rng.below(12) as u16,
        };
        let is_v4 = is_v4 && kind != Kind::ToIla;
        let src = address(from, host, is_v4);
        let is_large = matches!(kind, Kind::FatTcp | Kind::FatUdp | Kind::Big);
        let mut dst = address(to, 1 + self.rng.below(40) as u16, is_v4);
        if is_v4 && !is_large && self.rng.happens(200) && matches!(to, ETHERNET | SMALL | SHAPED | VLAN | RED_ETHERNET)
        {
            dst = IpAddr::from([10, 20 + to.0 as u8, 0, self.rng.below(250) as u8]);
        }
        let mut flow = Flow::new(&src.to_string(), &dst.to_string());
        flow.sport = 1024 + self.rng.below(60_000) as u16;
        flow.dont_fragment = !is_v4 || self.rng.happens(500);
        // Few large packets may wait for a station.
        let packets = 1 + self.rng.below(if is_large { 2 } else { 5 }) as u16;
        let len = 8 * (1 + self.rng.below(150));
        let number = self.next_flow();
        let hosts = Ends { link: from, mac: station(from, host, 0), is_stranger: host >= STRANGERS };
        match kind {
            Kind::Udp => (0..packets).map(|nth| hosts.plain(flow.udp_with(&marked(number, nth, len)))).collect(),
            Kind::Tcp => {
                let step = len as u32;
                let segment = |nth| flow.tcp_with(1 + u32::from(nth) * step, &marked(number, nth, len));
                (0..packets).map(|nth| hosts.plain(segment(nth))).collect()
            }
            Kind::FatTcp => {
                let size = 8 * (1 + self.rng.below(140)) as u16;
                let (whole, step) = (len * 4, len as u32 * 4);
                let make = move |nth: u16| -> Make {
                    Rc::new(move |mem| {
                        flow.fat_tcp_with(mem, 1 + u32::from(nth) * step, &marked(number, nth, whole), size)
                    })
                };
                (0..packets).map(|nth| Input { link: from, make: make(nth) }).collect()
            }
            Kind::FatUdp => {
                let size = 8 * (8 + self.rng.below(140)) as u16;
                let whole = (usize::from(size) * 8).min(len * 4);
                let make = move |nth: u16| -> Make {
                    Rc::new(move |mem| flow.fat_udp_with(mem, &marked(number, nth, whole), size))
                };
                (0..packets).map(|nth| Input { link: from, make: make(nth) }).collect()
            }
            Kind::Big => {
                let flow = Flow { dont_fragment: false, ..flow };
                // IPv6 is not fragmented by routers.
                let len = if is_v4 { 1504 + 8 * self.rng.below(800) } else { len };
                let mut bytes = |nth| self.identified(flow.udp_with(&marked(number, nth, len)));
                (0..packets).map(|nth| hosts.plain(bytes(nth))).collect()
            }
            Kind::Fragments => {
                let flow = Flow { dont_fragment: false, ..flow };
                let cut = 8 * (32 + self.rng.below(60));
                let mut all = Vec::new();
                // A datagram of a stranger may be incomplete, which is one error.
                for nth in 0..if hosts.is_stranger { 1 } else { packets } {
                    let bytes = flow.udp_with(&marked(number, nth, 1000 + 8 * self.rng.below(300)));
                    all.extend(self.fragments(hosts, &bytes, cut));
                }
                all
            }
            Kind::Mixed => {
                let flow = Flow { dont_fragment: false, ..flow };
                let other = self.next_flow();
                let mut all = Vec::new();
                for nth in 0..2 * packets {
                    if self.rng.happens(500) {
                        all.push(hosts.plain(flow.udp_with(&marked(number, nth, len))));
                    } else {
                        let bytes = flow.udp_with(&marked(other, nth, 1000 + 8 * self.rng.below(60)));
                        all.extend(self.fragments(hosts, &bytes, 800));
                    }
                }
                all
            }
            Kind::Ping | Kind::BigPing | Kind::PingInFragments => {
                flow.dst = own(if self.rng.happens(700) { from } else { to }, is_v4);
                flow.dont_fragment = false;
                let len = match kind {
                    Kind::Ping => len,
                    _ => 1504 + 8 * self.rng.below(600),
                };
                let mut all = Vec::new();
                for nth in 0..packets {
                    let bytes = flow.ping_with(nth, &marked(number, nth, len));
                    match kind {
                        Kind::PingInFragments => all.extend(self.fragments(hosts, &bytes, 1240)),
                        _ => all.push(hosts.plain(self.identified(bytes))),
                    }
                }
                all
            }
            Kind::ToIla => {
                flow.dst = address(ETHERNET, 1 + self.rng.below(12) as u16, false);
                let bytes = |nth| to_ila(flow.udp_with(&marked(number, nth, len)));
                (0..packets).map(|nth| hosts.plain(bytes(nth))).collect()
            }
            Kind::Refused => vec![self.refused(hosts, flow, number)],
            Kind::Malformed => {
                // Without a marker, whose bits could become those of another flow.
                let mut bytes = flow.udp_with(&vec![0x55; len]);
                if self.rng.happens(300) {
                    bytes.truncate(self.rng.below(bytes.len()));
                }
                for _ in 0..1 + self.rng.below(3) {
                    if !bytes.is_empty() {
                        let at = self.rng.below(bytes.len().min(48));
                        bytes[at] ^= 1 << self.rng.below(8);
                    }
                }
                vec![hosts.plain(bytes)]
            }
        }
    }

    /// A packet that the node refuses.
    fn refused(&mut self, hosts: Ends, mut flow: Flow, number: u32) -> Input {
        let is_v4 = flow.version() == Version::V4;
        let len = 8 * (1 + self.rng.below(100));
        match self.rng.below(8) {
            0 => flow.ttl = 1,
            1 => {
                flow.dont_fragment = true;
                let len = 1600 + 8 * self.rng.below(500);
                return hosts.plain(flow.udp_with(&marked(number, 0, len)));
            }
            2 => flow.dst = own(hosts.link, is_v4),
            3 => {
                flow.dst = own(hosts.link, is_v4);
                return hosts.plain(flow.tcp_with(1, &marked(number, 0, len)));
            }
            4 => {
                flow.dst = own(hosts.link, is_v4);
                return hosts.plain(flow.raw(Protocol(200), &marked(number, 0, len)));
            }
            5 => flow.dst = if is_v4 { [10, 31, 0, 1].into() } else { [0xfd00, 0x31, 0, 0, 0, 0, 0, 1].into() },
            6 => flow.dst = if is_v4 { [10, 30, 0, 1].into() } else { [0xfd00, 0x99, 0, 0, 0, 0, 0, 1].into() },
            _ => {
                // A station that never answers.
                let link = if matches!(hosts.link, RED_BARE) { RED_ETHERNET } else { ETHERNET };
                flow.dst = address(link, 200 + self.rng.below(50) as u16, is_v4);
            }
        }
        hosts.plain(flow.udp_with(&marked(number, 0, len)))
    }

    /// The packet with an identification of its own, if it is IPv4.
    fn identified(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        self.ids = self.ids.wrapping_add(1);
        if bytes[0] >> 4 == 4 {
            ipv4::Ipv4Header::mut_from(&mut bytes).expect("a header").set_id(self.ids);
            ipv4::fill_check(&mut bytes).expect("a header");
        }
        bytes
    }

    /// The fragments of a packet, in some order; now and then one is lost, or comes twice.
    fn fragments(&mut self, hosts: Ends, bytes: &[u8], mtu: usize) -> Vec<Input> {
        let mem = Memory::heap();
        let bytes = self.identified(bytes.to_vec());
        let packet = Packet::with_data(&mem, &bytes).expect("memory");
        let mut out = Vec::new();
        let mtu = mtu.max(64);
        match bytes[0] >> 4 {
            4 => reassembly::fragment(&mem, packet, mtu, &mut out).expect("a datagram"),
            _ => reassembly::fragment_v6(&mem, packet, mtu, self.ids.into(), &mut out).expect("a datagram"),
        }
        let mut all: Vec<Vec<u8>> = out.iter().map(Packet::to_vec).collect();
        match self.rng.below(8) {
            0 => all.reverse(),
            1 => {
                let [a, b] = [self.rng.below(all.len()), self.rng.below(all.len())];
                all.swap(a, b);
            }
            2 if hosts.is_stranger => drop(all.remove(self.rng.below(all.len()))),
            3 => all.push(all[self.rng.below(all.len())].clone()),
            _ => {}
        }
        all.into_iter().map(|bytes| hosts.plain(bytes)).collect()
    }

    /// A message of a station about its link-layer address, or a request for the node's.
    pub(crate) fn message(&mut self, link: PortId, host: u16) -> Input {
        let moved = if self.rng.happens(200) { 1 } else { 0 };
        let mac = station(link, host, moved);
        let is_v4 = self.rng.happens(500);
        let kind = self.rng.below(3);
        let (here, node) = (address(link, host, is_v4), own(link, is_v4));
        let own_mac = mac_of(link).expect("an Ethernet link");
        match (here, node) {
            (IpAddr::V4(here), IpAddr::V4(node)) => {
                let message = match kind {
                    0 => arp::ArpHeader::request((mac, here), node),
                    1 => arp::ArpHeader::request((mac, here), here),
                    _ => arp::ArpHeader::reply((mac, here), (own_mac, node)),
                };
                frame(
                    link,
                    [MacAddr::BROADCAST, own_mac][usize::from(kind == 2)],
                    mac,
                    EtherType::ARP,
                    message.as_bytes(),
                )
            }
            (IpAddr::V6(here), IpAddr::V6(node)) => {
                let to = nd::solicited_node(node);
                match kind {
                    0 => discovery(
                        link,
                        (mac, MacAddr::multicast_v6(to)),
                        Flow::new(&here.to_string(), &to.to_string()),
                        {
                            let mut message = nd::Neighbour::solicit(node).as_bytes().to_vec();
                            message.extend(nd::LinkAddr::source(mac).as_bytes());
                            message
                        },
                    ),
                    _ => advert(link, mac, (here.into(), node.into()), kind == 1),
                }
            }
            _ => unreachable!("of one family"),
        }
    }
}

/// The link by which a flow's packets arrive, and the station that sends them.
#[derive(Clone, Copy)]
struct Ends {
    link: PortId,
    mac: MacAddr,
    /// Whether the station sends this flow alone, so that it may get an error.
    is_stranger: bool,
}

impl Ends {
    /// An IP packet, framed for its link.
    fn plain(self, ip: Vec<u8>) -> Input {
        match mac_of(self.link) {
            None => of_bytes(self.link, ip),
            Some(node) => {
                let ethertype =
                    if ip.first().is_some_and(|byte| byte >> 4 == 6) { EtherType::IPV6 } else { EtherType::IPV4 };
                frame(self.link, node, self.mac, ethertype, &ip)
            }
        }
    }
}

fn of_bytes(link: PortId, bytes: Vec<u8>) -> Input {
    Input { link, make: Rc::new(move |mem| Packet::with_data(mem, &bytes).expect("memory")) }
}

/// A frame; that of the VLAN device has a tag, and arrives by the link below.
fn frame(link: PortId, to: MacAddr, from: MacAddr, ethertype: EtherType, payload: &[u8]) -> Input {
    let mut bytes = EthHeader::new(to, from, ethertype).as_bytes().to_vec();
    bytes.extend(payload);
    if link != VLAN {
        return of_bytes(link, bytes);
    }
    let [high, low] = VID.to_be_bytes();
    bytes.splice(12..12, [0x81, 0, high, low]);
    of_bytes(ETHERNET, bytes)
}

fn discovery(link: PortId, (from, to): (MacAddr, MacAddr), mut flow: Flow, mut message: Vec<u8>) -> Input {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (flow.src, flow.dst) else { panic!("{flow:?}") };
    icmpv6::fill_check(&mut message, src, dst).expect("a message");
    flow.ttl = nd::HOP_LIMIT;
    frame(link, to, from, EtherType::IPV6, &flow.raw(Protocol::ICMPV6, &message))
}

/// Neighbour advertisement of a station to the node.
fn advert(link: PortId, mac: MacAddr, (here, node): (IpAddr, IpAddr), solicited: bool) -> Input {
    let IpAddr::V6(target) = here else { panic!("{here}") };
    let flags = nd::AdvertFlags { router: false, solicited, overriding: true };
    let mut message = nd::Neighbour::advert(target, flags).as_bytes().to_vec();
    message.extend(nd::LinkAddr::target(mac).as_bytes());
    let to = mac_of(link).expect("an Ethernet link");
    discovery(link, (mac, to), Flow::new(&here.to_string(), &node.to_string()), message)
}

/// The answer of a station that the node looks for; `None` if it never answers.
pub(crate) fn answer(link: PortId, target: IpAddr) -> Option<Input> {
    let (host, is_v4) = match target {
        IpAddr::V4(addr) => (u16::from_be_bytes([addr.octets()[2], addr.octets()[3]]), true),
        IpAddr::V6(addr) => (addr.segments()[7], false),
    };
    if host >= 200 {
        return None;
    }
    let mac = station(link, host, 0);
    let own_mac = mac_of(link)?;
    Some(match (target, own(link, is_v4)) {
        (IpAddr::V4(here), IpAddr::V4(node)) => {
            let reply = arp::ArpHeader::reply((mac, here), (own_mac, node));
            frame(link, own_mac, mac, EtherType::ARP, reply.as_bytes())
        }
        (here, node) => advert(link, mac, (here, node), true),
    })
}

/// The packet with the ILA address of its destination.
fn to_ila(mut bytes: Vec<u8>) -> Vec<u8> {
    let rewrite = Rewrite { locator: ILA, csum_mode: CsumMode::NeutralMap, diff: None };
    let header = ipv6::Ipv6Header::mut_from(&mut bytes).expect("IPv6");
    header.set_dst(rewrite.address(header.dst(), Direction::SirToIla));
    bytes
}
