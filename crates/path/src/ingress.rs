//! From a link's packet to IP input: link layer, ESP, GRO.

use std::net::IpAddr;
use std::ops::ControlFlow;

use base::{DropReason, LinkId, Mib};
use fib::{Decision, Station, arp};
use ipsec::Ipsec;
use offload::ip_headers;
use packet::{Burst, Csum, Packet};
use wire::eth::{self, EtherType};
use wire::ip::{self, Info};
use wire::{MacAddr, Protocol, Spi, Version, ipv4, ipv6, tcp, udp};

use crate::glue::{Asking, Gluing};
use crate::{Path, Turn};

/// What a link-layer header says of the IP packet behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// Its version; `None` where there is no such header.
    version: Option<Version>,
    /// Whether everybody on the link got it.
    for_all: bool,
}

impl Framing {
    /// Whether an answer may go to who sent an IPv6 packet, as far as the link layer says (RFC 4443 §2.4 e).
    pub(crate) fn lets_answer_v6(self) -> bool {
        !self.for_all && self.version.is_none_or(|version| version == Version::V6)
    }

    /// Of a packet without a link-layer header, on its own.
    const NONE: Self = Self { version: None, for_all: false };
}

/// What comes behind a burst.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Then {
    /// More.
    More,
    /// More, by a device that is short of frames: it gets back those that no threads are at.
    MoreOfFew,
    /// Nothing.
    Nothing,
}

impl Path {
    /// Takes in one packet as the link had it. What is inside waits in GRO until a [`flush`](Self::flush) that lets go of it.
    pub(crate) fn receive(&mut self, turn: Turn<'_>, link: LinkId, mut pkt: Packet) {
        self.ports.tap_wire(turn.mem, link, &pkt);
        match self.link_layer(turn, link, &mut pkt) {
            Ok(Some(framing)) => self.open(turn, pkt, framing),
            Ok(None) => {}
            Err(reason) => self.drop(&pkt, reason),
        }
    }

    /// Takes off the link-layer header, and says what it said if an IP packet is left. ARP ends here.
    fn link_layer(&mut self, turn: Turn<'_>, link: LinkId, pkt: &mut Packet) -> Result<Option<Framing>, DropReason> {
        let port = self.ports.get(link).ok_or(DropReason::LinkDown)?;
        let Some(mac) = port.config.mac else { return Ok(Some(Framing::NONE)) };
        if !pkt.may_pull(turn.mem, eth::Header::LEN)? {
            return Err(DropReason::EthTruncated);
        }
        let header = eth::Header::ref_from(pkt.head())?;
        let (dst, ethertype) = (header.dst(), header.ethertype());
        let for_all = dst.is_multicast();
        if !(for_all || dst == mac) || pkt.meta.vlan.is_some() {
            return Err(DropReason::EthNotForUs);
        }
        pkt.pull(eth::Header::LEN);
        match ethertype {
            EtherType::ARP => self.arp(turn, Station { link, mac }, pkt).map(|()| None),
            EtherType::IPV4 => Ok(Some(Framing { version: Some(Version::V4), for_all })),
            EtherType::IPV6 => Ok(Some(Framing { version: Some(Version::V6), for_all })),
            _ => Err(DropReason::EthNotForUs),
        }
    }

    fn arp(&mut self, turn: Turn<'_>, here: Station, pkt: &mut Packet) -> Result<(), DropReason> {
        pkt.linearize(turn.mem)?;
        let Self { fib, neighbours, actions, .. } = self;
        let domain = fib.domain(here.link);
        let is_own = |addr| fib.is_local(domain, IpAddr::V4(addr));
        arp::handle(neighbours, turn.now, turn.mem, here, is_own, pkt.head(), actions)?;
        self.act(turn);
        Ok(())
    }

    /// Opens ESP as long as there is some, and gives what is left to GRO.
    fn open(&mut self, turn: Turn<'_>, mut pkt: Packet, framing: Framing) {
        if pkt.meta.esp.is_some() {
            return self.receive_offloaded(turn, pkt, framing);
        }
        let info = match self.headers(turn, &mut pkt, framing) {
            Ok(info) => info,
            Err(reason) => return self.malformed(turn, pkt, reason, framing),
        };
        if !self.is_our_esp(&pkt, &info) {
            return self.glue(turn, pkt);
        }
        self.open_esp(turn, pkt, &info);
    }

    /// Opens the packets of a burst that are ESP like the one before them, so that all that was found out about that one is
    /// true of them. That is for links with GRO; where a capture is on, each is looked at on its own.
    #[inline]
    pub(crate) fn open_run(&mut self, turn: Turn<'_>, link: LinkId, burst: &mut Burst<'_>) {
        let port = self.ports.get(link).filter(|port| port.config.gro && !port.tap.wire);
        let Some(mac) = port.map(|port| port.config.mac) else { return };
        let l3 = |pkt: &Packet| begins_at(mac, pkt);
        if self.ipsec.close_here(turn.now) {
            // What was inside may have been ESP as well.
            self.pass_opened(turn);
        }
        loop {
            let Self { ipsec, gro, scratch, ports, counters, .. } = self;
            let mut gluing = Gluing { gro, ports, mem: turn.mem, glued: &mut scratch.glued };
            let run = ipsec.open_run(turn.mem, turn.now, burst, l3, counters, &mut gluing);
            let Some(run) = run else {
                if !self.ipsec.has_opened() {
                    return;
                }
                // What is through makes room for more.
                self.pass_opened(turn);
                continue;
            };
            let v4 = run.version == Version::V4;
            self.count_all(link, if v4 { Mib::IpInReceives } else { Mib::Ip6InReceives }, run.packets);
            self.count_all(link, if v4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers }, run.packets);
            if let Some(pkt) = run.broken {
                self.pass(turn, pkt);
            }
        }
    }

    /// Counts a packet of ESP that is for us, and opens it.
    #[inline]
    pub(crate) fn open_esp(&mut self, turn: Turn<'_>, pkt: Packet, info: &Info) {
        let v4 = info.version() == Version::V4;
        self.count(pkt.meta.link, if v4 { Mib::IpInReceives } else { Mib::Ip6InReceives });
        self.decrypt(turn, pkt, info);
    }

    /// Gives a packet to GRO if its link is one that is glued.
    #[inline]
    fn glue(&mut self, turn: Turn<'_>, pkt: Packet) {
        let glued = &mut self.scratch.glued;
        match self.ports.get(pkt.meta.link) {
            Some(port) if port.config.gro => self.gro.receive(turn.mem, pkt, glued),
            _ => {
                if self.gro.held() > 0 {
                    self.gro.flush_between(pkt.head(), glued);
                }
                glued.push(pkt);
            }
        }
    }

    /// The IP headers, which have to be what the link layer said.
    pub(crate) fn headers(&mut self, turn: Turn<'_>, pkt: &mut Packet, framing: Framing) -> Result<Info, DropReason> {
        let (link, v4) = (pkt.meta.link, Version::of(pkt.head()) != Ok(Version::V6));
        let info = ip_headers(turn.mem, pkt).inspect_err(|&reason| self.count_malformed(link, reason, v4))?;
        let is_for_others = || match self.decide(self.fib.domain(link), info.dst) {
            Decision::Local { .. } | Decision::Broadcast { .. } | Decision::Multicast => false,
            Decision::Forward { .. } | Decision::Drop(_) => self.own_link_local(pkt.meta.link) != Some(info.dst),
        };
        // What everybody got is not for us to send on, nor to answer that it cannot be (RFC 1122 §3.2.2, §3.3.6).
        if framing.version.is_some_and(|version| version != info.version()) || framing.for_all && is_for_others() {
            return Err(DropReason::EthNotForUs);
        }
        // Completed on the way out, a checksum anywhere else would change what was decided about.
        if matches!(pkt.meta.csum, Csum::Partial { .. }) && !is_transport_check(pkt.meta.csum, &info) {
            return Err(DropReason::VirtioHeader);
        }
        Ok(info)
    }

    /// Opens a packet or a train of ESP that is for us.
    pub(crate) fn decrypt(&mut self, turn: Turn<'_>, pkt: Packet, info: &Info) {
        let link = pkt.meta.link;
        self.count(link, if info.version() == Version::V4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers });
        let mut opened = std::mem::take(&mut self.scratch.opened);
        self.ipsec.submit_open(turn.mem, turn.now, pkt, info, &mut opened, &mut self.counters);
        for reason in opened.drops.drain(..) {
            self.ports.drop(link, reason);
        }
        opened.keepalives = 0;
        self.scratch.glued.append(&mut opened.not_esp);
        self.scratch.opened = opened;
    }

    /// Passes on what ciphers are through with, in order: to GRO, or to be opened further. A packet has at most as many
    /// layers as a security path has room for.
    pub(crate) fn pass_opened(&mut self, turn: Turn<'_>) {
        loop {
            let Self { ipsec, gro, ports, scratch, counters, .. } = self;
            let gluing = Gluing { gro, ports, mem: turn.mem, glued: &mut scratch.glued };
            match ipsec.pass_opened(turn.mem, turn.now, counters, &mut Asking(gluing)) {
                ControlFlow::Break(pkt) => self.pass(turn, pkt),
                ControlFlow::Continue(()) => return,
            }
        }
    }

    /// Opens further what came out of ESP and may be ESP again. At the rest GRO looks closely enough, and IP input later.
    pub(crate) fn pass(&mut self, turn: Turn<'_>, pkt: Packet) {
        if self.may_be_esp(pkt.head()) { self.open(turn, pkt, Framing::NONE) } else { self.glue(turn, pkt) }
    }

    /// Tells whether a packet that begins with `head` may be [ours](Self::is_our_esp): TCP is not, nor is UDP to a port of
    /// which nobody expects ESP.
    #[inline]
    fn may_be_esp(&self, head: &[u8]) -> bool {
        let is_encap = || {
            let (dst, udp) = match Version::of(head).ok()? {
                Version::V4 => (IpAddr::V4(ipv4::Header::ref_from(head).ok()?.dst()), head.get(ipv4::Header::LEN..)?),
                Version::V6 => (IpAddr::V6(ipv6::Header::ref_from(head).ok()?.dst()), head.get(ipv6::Header::LEN..)?),
            };
            Some(self.ipsec.sad().is_encap_port(dst, udp::Header::ref_from(udp).ok()?.dport()))
        };
        match ip::plain_protocol(head) {
            Some(Protocol::TCP) => false,
            Some(Protocol::UDP) => is_encap().unwrap_or(true),
            _ => true,
        }
    }

    /// Tells whether a packet is ESP, or ESP in UDP, whose way ends here: at this node, or at a host that it opens ESP
    /// for. A fragment has to be reassembled first.
    #[inline]
    pub(crate) fn is_our_esp(&self, pkt: &Packet, info: &Info) -> bool {
        let sad = self.ipsec.sad();
        let esp_at = match info.protocol {
            _ if info.fragment.is_some() => return false,
            Protocol::ESP => info.header_len,
            Protocol::UDP => {
                let mut header = [0; udp::Header::LEN];
                let is_encap = pkt.read_at(info.header_len, &mut header)
                    && udp::Header::ref_from(&header).is_ok_and(|udp| sad.is_encap_port(info.dst, udp.dport()));
                if !is_encap {
                    return false;
                }
                info.header_len + udp::Header::LEN
            }
            _ => return false,
        };
        let mut spi = [0; size_of::<u32>()];
        self.is_local(self.fib.domain(pkt.meta.link), info.dst)
            || pkt.read_at(esp_at, &mut spi)
                && sad.opens_for_others(info.dst, Spi(u32::from_be_bytes(spi)), pkt.meta.mark)
    }

    /// Ends a burst: what ciphers hold goes on, in order, until they hold no more than what is with a device, and what GRO
    /// holds. If more arrives `then`, threads are not waited for, and GRO keeps what may go on.
    pub(crate) fn flush(&mut self, turn: Turn<'_>, then: Then) {
        let work = if then == Then::Nothing { Ipsec::work } else { Ipsec::help };
        loop {
            // What is inside may be ESP again.
            while work(&mut self.ipsec, turn.now) {
                self.pass_opened(turn);
                self.send_sealed(turn);
            }
            let mut glued = std::mem::take(&mut self.scratch.glued);
            let keeps = match then {
                Then::More => true,
                Then::MoreOfFew => self.ipsec.is_opening(),
                Then::Nothing => false,
            };
            if !keeps {
                self.gro.flush(&mut glued);
            }
            if glued.is_empty() {
                self.scratch.glued = glued;
                return;
            }
            for pkt in glued.drain(..) {
                self.input(turn, pkt);
            }
            // Its storage goes back unless something has come in meanwhile.
            if self.scratch.glued.is_empty() {
                self.scratch.glued = glued;
            }
        }
    }
}

/// Where the IP header begins in a packet for the station `mac` alone, or of a link without stations.
#[inline]
pub(crate) fn begins_at(mac: Option<MacAddr>, pkt: &Packet) -> Option<usize> {
    mac.map_or(Some(0), |mac| behind_ethernet(mac, pkt))
}

/// Where the IP header begins in a frame to `mac` alone that has no tag, and whose type is the packet's version.
#[inline]
fn behind_ethernet(mac: MacAddr, pkt: &Packet) -> Option<usize> {
    let header = eth::Header::ref_from(pkt.head()).ok()?;
    let version = match header.ethertype() {
        EtherType::IPV4 => Version::V4,
        EtherType::IPV6 => Version::V6,
        _ => return None,
    };
    let is_whole = Version::of(pkt.head().get(eth::Header::LEN..)?) == Ok(version);
    (is_whole && header.dst() == mac && pkt.meta.vlan.is_none()).then_some(eth::Header::LEN)
}

/// Tells whether an unfinished checksum is that of the packet's own TCP or UDP.
fn is_transport_check(csum: Csum, info: &Info) -> bool {
    let check_at = match info.protocol {
        Protocol::TCP => tcp::CHECK_AT,
        Protocol::UDP => udp::CHECK_AT,
        _ => return false,
    };
    info.fragment.is_none() && csum == Csum::Partial { start: info.header_len as u16, offset: check_at as u16 }
}
