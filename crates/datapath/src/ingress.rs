//! From a link's packet to IP input: link layer, ESP, GRO.

use std::net::IpAddr;
use std::ops::ControlFlow;

use base::{DropReason, LinkId, Mib};
use fib::{Station, arp};
use ipsec::Ipsec;
use offload::{Features, gso, ip_headers};
use packet::{Burst, Csum, Memory, Packet, PktType};
use wire::eth::{self, EtherType};
use wire::ip::{self, Info};
use wire::{MacAddr, Protocol, Spi, Version, ipv4, ipv6, tcp, udp, vlan};

use crate::glue::{Asking, Gluing};
use crate::{Datapath, Turn};

/// IP version that a link-layer header names; `None` where there is no such header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing(Option<Version>);

impl Framing {
    /// No link-layer header.
    const NONE: Self = Self(None);

    /// Tells whether a packet of `version` may stand behind the header.
    pub(crate) fn allows(self, version: Version) -> bool {
        self.0.is_none_or(|named| named == version)
    }
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

impl Datapath {
    /// Takes in one packet as the link had it. What is inside waits in GRO until a [`flush`](Self::flush) that lets go of it.
    pub(crate) fn receive(&mut self, turn: Turn<'_>, link: LinkId, mut pkt: Packet) {
        self.ports.tap_wire(turn.mem, link, &pkt);
        match self.link_layer(turn, link, &mut pkt) {
            Ok(Some(framing)) => self.open(turn, pkt, framing),
            Ok(None) => {}
            Err(reason) => self.drop(&pkt, reason),
        }
    }

    /// Takes off the link-layer header, notes how it was addressed, and says what it said if an IP packet is left. ARP ends
    /// here.
    fn link_layer(&mut self, turn: Turn<'_>, link: LinkId, pkt: &mut Packet) -> Result<Option<Framing>, DropReason> {
        let port = self.ports.get(link).ok_or(DropReason::LinkDown)?;
        let Some(mac) = port.config.mac else { return Ok(Some(Framing::NONE)) };
        if !pkt.may_pull(turn.mem, eth::Header::LEN)? {
            return Err(DropReason::EthTruncated);
        }
        let header = eth::Header::ref_from(pkt.head())?;
        let (dst, ethertype) = (header.dst(), header.ethertype());
        pkt.meta.pkt_type = match dst {
            dst if dst == mac => PktType::Host,
            dst if dst.is_multicast() => PktType::Group,
            _ => return Err(DropReason::EthNotForUs),
        };
        pkt.pull(eth::Header::LEN);
        match pull_priority_tags(turn.mem, pkt, ethertype)? {
            EtherType::ARP => self.arp(turn, Station { link, mac }, pkt).map(|()| None),
            EtherType::IPV4 => Ok(Some(Framing(Some(Version::V4)))),
            EtherType::IPV6 => Ok(Some(Framing(Some(Version::V6)))),
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
            Err(DropReason::GsoEncapsulation) => return self.cut_inside(turn, pkt, framing),
            Err(reason) => return self.malformed(turn, pkt, reason, framing),
        };
        if !self.is_our_esp(&pkt, &info) {
            return self.glue(turn, pkt);
        }
        self.open_esp(turn, pkt, &info);
    }

    /// Cuts a fat packet inside a tunnel, and takes in its segments one by one: from here on a fat packet has TCP or UDP right
    /// behind its IP header. They go on at once: the segments of a whole burst of such packets may be more than memory holds.
    #[cold]
    fn cut_inside(&mut self, turn: Turn<'_>, pkt: Packet, framing: Framing) {
        let link = pkt.meta.link;
        let mut segments = std::mem::take(&mut self.scratch.segments);
        match gso::segment(turn.mem, &Features::BY_REFERENCE, pkt, 0, &mut segments) {
            Ok(()) => segments.drain(..).for_each(|segment| self.open(turn, segment, framing)),
            Err(reason) => self.ports.drop(link, reason),
        }
        self.scratch.segments = segments;
        self.flush(turn, Then::More);
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

    /// Counts a packet of ESP that is for us, and opens it if its outer headers are right.
    #[inline]
    pub(crate) fn open_esp(&mut self, turn: Turn<'_>, pkt: Packet, info: &Info) {
        let v4 = info.version() == Version::V4;
        self.count(pkt.meta.link, if v4 { Mib::IpInReceives } else { Mib::Ip6InReceives });
        if let Some(pkt) = self.check_outer(turn, pkt, info) {
            self.decrypt(turn, pkt, info);
        }
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

    /// The IP headers, which have to be what the link layer said. [`DropReason::GsoEncapsulation`] for a fat packet that is to be
    /// [cut](Self::cut_inside) inside a tunnel.
    pub(crate) fn headers(&mut self, turn: Turn<'_>, pkt: &mut Packet, framing: Framing) -> Result<Info, DropReason> {
        let (link, v4) = (pkt.meta.link, Version::of(pkt.head()) != Ok(Version::V6));
        let info = ip_headers(turn.mem, pkt).inspect_err(|&reason| self.count_malformed(link, reason, v4))?;
        if !framing.allows(info.version()) {
            return Err(DropReason::EthNotForUs);
        }
        // Completed on the way out, a checksum anywhere else would change what was decided about.
        if let Csum::Partial { start, .. } = pkt.meta.csum
            && !is_transport_check(pkt.meta.csum, &info)
        {
            let is_inside = pkt.meta.cut.gso().is_some() && usize::from(start) > info.header_len;
            return Err(if is_inside { DropReason::GsoEncapsulation } else { DropReason::VirtioHeader });
        }
        Ok(info)
    }

    /// Opens a packet or a train of ESP that is for us.
    pub(crate) fn decrypt(&mut self, turn: Turn<'_>, pkt: Packet, info: &Info) {
        let (link, v4) = (pkt.meta.link, info.version() == Version::V4);
        self.count(link, if v4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers });
        let mut opened = std::mem::take(&mut self.scratch.opened);
        self.ipsec.submit_open(turn.mem, turn.now, pkt, info, &mut opened, &mut self.counters);
        for reason in opened.drops.drain(..) {
            self.ports.drop(link, reason);
        }
        let keepalives = std::mem::take(&mut opened.keepalives);
        self.counters.add(if v4 { Mib::UdpInDatagrams } else { Mib::Udp6InDatagrams }, keepalives);
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

    /// Tells whether a packet is ESP, or ESP in UDP, that this node opens: for itself, or for a host. A fragment has to be
    /// reassembled first. A train of UDP may have ESP anywhere in it.
    #[inline]
    pub(crate) fn is_our_esp(&self, pkt: &Packet, info: &Info) -> bool {
        let sad = self.ipsec.sad();
        let esp_at = match info.protocol {
            _ if info.fragment.is_some() => return false,
            Protocol::ESP => info.header_len,
            Protocol::UDP => {
                let mut header = [0; udp::Header::LEN];
                if !pkt.read_at(info.header_len, &mut header) {
                    return false;
                }
                let Ok(header) = udp::Header::ref_from(&header) else { return false };
                if !sad.is_encap_port(info.dst, header.dport()) {
                    return false;
                }
                let at = info.header_len + udp::Header::LEN;
                let len = header.len().min(info.payload_len()).saturating_sub(udp::Header::LEN);
                let mut front = [0; ipsec::ENCAP_PEEK];
                let front = &mut front[..len.min(ipsec::ENCAP_PEEK)];
                let mut is_esp = || pkt.read_at(at, front) && ipsec::is_esp_in_udp(front);
                if pkt.meta.cut.gso().is_none() && !is_esp() {
                    return false;
                }
                at
            }
            _ => return false,
        };
        let mut spi = [0; size_of::<u32>()];
        self.is_local(self.fib.domain(pkt.meta.link), info.dst)
            || pkt.meta.pkt_type == PktType::Host
                && pkt.read_at(esp_at, &mut spi)
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

/// Takes off the tags of a frame that name no VLAN, and gives the type of what is behind them: such a frame counts as untagged
/// (IEEE 802.1Q §6.9, Linux `__netif_receive_skb_core`).
///
/// # Errors
/// [`DropReason::EthNotForUs`] for a VLAN; no link is in one.
#[inline]
fn pull_priority_tags(mem: &Memory, pkt: &mut Packet, ethertype: EtherType) -> Result<EtherType, DropReason> {
    if ethertype.is_vlan() || pkt.meta.vlan.is_some() { pull_tags(mem, pkt, ethertype) } else { Ok(ethertype) }
}

#[cold]
fn pull_tags(mem: &Memory, pkt: &mut Packet, mut ethertype: EtherType) -> Result<EtherType, DropReason> {
    if pkt.meta.vlan.take().is_some_and(|tci| vlan::Tci(tci).vid() != 0) {
        return Err(DropReason::EthNotForUs);
    }
    while ethertype.is_vlan() {
        if !pkt.may_pull(mem, vlan::Header::LEN)? {
            return Err(DropReason::EthTruncated);
        }
        let tag = vlan::Header::ref_from(pkt.head())?;
        if tag.tci().vid() != 0 {
            return Err(DropReason::EthNotForUs);
        }
        ethertype = tag.ethertype();
        pkt.pull(vlan::Header::LEN);
    }
    Ok(ethertype)
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
