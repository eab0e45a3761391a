//! Hosts: a guest behind a bare IP device, or a host on an Ethernet wire.

use std::net::IpAddr;

use host::icmp::echo_reply;
use packet::{Memory, Packet};
use wire::ip::Info;
use wire::nd::{AdvertFlags, LinkAddr, Nd, Neighbour};
use wire::{EtherType, MacAddr, Protocol, arp, eth, icmpv6, ipv6, nd};

/// A host, which keeps received packets, and answers pings and requests for its link-layer address.
#[derive(Debug)]
pub struct Host {
    /// Memory.
    pub mem: Memory,
    /// Link-layer address, on Ethernet.
    pub mac: Option<MacAddr>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Link-layer address of the host's gateway, on Ethernet.
    pub gateway: MacAddr,
    /// Whether the host answers requests for its link-layer address.
    pub answers: bool,
    /// Received IP packets, without their Ethernet headers.
    pub inbox: Vec<Packet>,
    pub(crate) outbox: Vec<Packet>,
}

impl Host {
    /// A guest behind a device for bare IP packets.
    pub fn guest() -> Self {
        Self {
            mem: Memory::heap(),
            mac: None,
            addresses: Vec::new(),
            gateway: MacAddr::ZERO,
            answers: true,
            inbox: Vec::new(),
            outbox: Vec::new(),
        }
    }

    /// A host on Ethernet that sends all packets to `gateway`.
    ///
    /// # Panics
    /// If an address is invalid.
    pub fn ethernet(mac: MacAddr, addresses: &[&str], gateway: MacAddr) -> Self {
        let addresses = addresses.iter().map(|addr| addr.parse().expect("an address")).collect();
        Self { mac: Some(mac), addresses, gateway, ..Self::guest() }
    }

    /// Sends an IP packet.
    ///
    /// # Panics
    /// If no memory is free.
    pub fn send(&mut self, pkt: Packet) {
        let to = self.gateway;
        self.send_to(pkt, to);
    }

    /// Sends a plain IP packet.
    ///
    /// # Panics
    /// If no memory is free.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let pkt = Packet::with_data(&self.mem, bytes).expect("memory");
        self.send(pkt);
    }

    /// Removes and returns the received packets.
    pub fn take(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.inbox)
    }

    fn send_to(&mut self, mut pkt: Packet, to: MacAddr) {
        if let Some(mac) = self.mac {
            let ethertype = if pkt.head()[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
            let header = eth::EthHeader::new(to, mac, ethertype);
            pkt.push(&self.mem, eth::EthHeader::LEN).expect("memory").copy_from_slice(header.as_bytes());
        }
        self.outbox.push(pkt);
    }

    /// Receives a frame.
    pub(crate) fn receive(&mut self, mut pkt: Packet) {
        let mut asker = self.gateway;
        if let Some(mac) = self.mac {
            let header = eth::EthHeader::ref_from(pkt.head()).expect("a frame");
            let (dst, ethertype) = (header.dst(), header.ethertype());
            asker = header.src();
            if !(dst == mac || dst.is_multicast()) {
                return;
            }
            pkt.pull(eth::EthHeader::LEN);
            if ethertype == EtherType::ARP {
                return self.answer_arp(mac, pkt.head());
            }
        }
        let info = Info::parse(pkt.head(), pkt.len()).expect("nodes send packets that are well-formed");
        let kind = info.payload(pkt.head()).first().copied();
        let is_mine = self.addresses.contains(&info.dst);
        match (info.protocol, kind) {
            (Protocol::ICMPV6, Some(nd::NEIGHBOUR_SOLICIT)) if self.mac.is_some() => {
                self.answer_nd(asker, &info, pkt.head());
            }
            (Protocol::ICMP, Some(8)) | (Protocol::ICMPV6, Some(128)) if is_mine => {
                let reply = echo_reply(&self.mem, pkt, &info, info.dst, &[]).expect("a good ping");
                self.send_to(reply, asker);
            }
            _ => self.inbox.push(pkt),
        }
    }

    fn answer_arp(&mut self, mac: MacAddr, bytes: &[u8]) {
        let request = arp::ArpHeader::parse(bytes).expect("nodes speak ARP");
        let target = request.target_ip();
        if request.operation() != arp::Operation::REQUEST || !self.has(target.into()) {
            return;
        }
        let reply = arp::ArpHeader::reply((mac, target), (request.sender_mac(), request.sender_ip()));
        let header = eth::EthHeader::new(request.sender_mac(), mac, EtherType::ARP);
        let frame = [header.as_bytes(), reply.as_bytes()].concat();
        self.outbox.push(Packet::with_data(&self.mem, &frame).expect("memory"));
    }

    fn answer_nd(&mut self, asker: MacAddr, info: &Info, head: &[u8]) {
        let (Some(mac), IpAddr::V6(src), IpAddr::V6(dst)) = (self.mac, info.src, info.dst) else { return };
        let request = Nd::parse(info.payload(head), src, dst, info.ttl).expect("nodes speak ND");
        let Some(Nd::NeighbourSolicit { target, .. }) = request else { return };
        if !self.has(target.into()) {
            return;
        }
        let flags = AdvertFlags { router: false, solicited: true, overriding: true };
        let mut message = Neighbour::advert(target, flags).as_bytes().to_vec();
        message.extend_from_slice(LinkAddr::target(mac).as_bytes());
        icmpv6::fill_check(&mut message, target, src).expect("a message");
        let mut header = ipv6::Ipv6Header::new(target, src, Protocol::ICMPV6, message.len() as u16);
        header.set_hop_limit(nd::HOP_LIMIT);
        let packet = [header.as_bytes(), &message].concat();
        let packet = Packet::with_data(&self.mem, &packet).expect("memory");
        self.send_to(packet, asker);
    }

    fn has(&self, addr: IpAddr) -> bool {
        self.answers && self.addresses.contains(&addr)
    }
}
