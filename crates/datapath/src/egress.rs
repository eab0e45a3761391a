//! From a decision to the link: policy, MTU, ESP, neighbour, fitting the device (Linux `ip_output`, `xfrm_output`).

use base::{DropReason, LinkId, Mib, SaId};
use fib::{Decision, Resolution};
use host::icmp::Problem;
use ipsec::{Bundle, Decision as Policy, Dir, Mode, PolicyId, Train};
use offload::{Features, checksum, gso, ip_headers};
use packet::{Cut, Gso, GsoKind, Memory, Packet};
use wire::ip::Info;
use wire::{Version, ipv4, ipv6, tcp, udp};

use crate::forward::Hop;
use crate::{Datapath, IpPacket, Turn};

/// Where a packet goes that ciphers have yet to seal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub(crate) hop: Hop,
    /// What the path takes.
    pub(crate) mtu: usize,
}

/// The SAs that packets go through, the innermost first, and the path behind them all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers<'a> {
    pub(crate) sas: &'a [SaId],
    /// The link that it begins with.
    pub(crate) dev: LinkId,
    /// What it takes.
    pub(crate) mtu: usize,
}

impl Datapath {
    /// Sends an IP packet, fat or not, by `hop`; through IPsec if a policy says so.
    pub(crate) fn output(&mut self, turn: Turn<'_>, ip: IpPacket, hop: Hop) {
        // An error quotes what it is about.
        let quotes_secret = ip.pkt.meta.link == LinkId::NONE && !ip.pkt.meta.sec_path.is_empty();
        if self.ipsec.is_idle() && !quotes_secret {
            return self.output_clear(turn, ip, hop);
        }
        match self.ipsec.lookup(turn.now, &ip.flowi(hop.dev, self.fib.domain(hop.dev)), &mut self.counters) {
            Policy::Bypass if quotes_secret || self.is_doubtful(Dir::Out, &ip, hop.dev) => {
                self.counters.count(Mib::XfrmOutPolError);
                self.drop(&ip.pkt, DropReason::PolicyClear);
            }
            Policy::Bypass => self.output_clear(turn, ip, hop),
            Policy::Protect(bundle) => self.output_esp(turn, ip, &bundle, hop),
            Policy::Hold(policy) => self.hold(turn, ip, hop, policy),
            Policy::Drop(reason) => self.drop(&ip.pkt, reason),
        }
    }

    /// Has a packet wait for the SA that this policy asks for, or go right behind those that have waited for it.
    #[cold]
    fn hold(&mut self, turn: Turn<'_>, ip: IpPacket, hop: Hop, policy: PolicyId) {
        if self.ipsec.let_go(policy) {
            self.release(turn);
            return self.output(turn, ip, hop);
        }
        let flow = ip.flowi(hop.dev, self.fib.domain(hop.dev));
        if let Err((pkt, reason)) = self.ipsec.hold(turn.mem, turn.now, policy, &flow, ip.pkt) {
            self.drop(&pkt, reason);
        }
    }

    fn output_clear(&mut self, turn: Turn<'_>, mut ip: IpPacket, hop: Hop) {
        let Some(link_mtu) = self.mtu_of(hop.dev) else { return self.drop(&ip.pkt, DropReason::LinkDown) };
        // What goes beyond the link is for the sender to know (Linux's `ip_forward_use_pmtu=0`).
        let is_own = ip.pkt.meta.link == LinkId::NONE;
        let mtu = if is_own { self.path_mtu(turn, hop.dev, ip.info.dst, link_mtu) } else { link_mtu };
        let mut fits = wire_len(&ip.pkt, &ip.info) <= mtu;
        if !fits && !may_fragment(&ip) {
            let Some(rest) = self.refuse_too_big(turn, ip, mtu, hop.dev) else { return };
            (ip, fits) = (rest, true);
        }
        if let Err(reason) = self.count_hop(turn, &mut ip, hop) {
            return self.drop(&ip.pkt, reason);
        }
        if fits {
            return self.emit(turn, ip.pkt, hop);
        }
        let mut pieces = std::mem::take(&mut self.scratch.pieces);
        self.fragment(turn, ip.pkt, mtu, hop.dev, &mut pieces);
        for piece in pieces.drain(..) {
            self.emit(turn, piece, hop);
        }
        self.scratch.pieces = pieces;
    }

    /// Protects a packet by the SAs of `bundle`, the innermost first, and sends what comes of it to the end of the
    /// outermost tunnel, in the domain of the link that it would have left by (Linux `xfrm_dst_lookup`).
    fn output_esp(&mut self, turn: Turn<'_>, mut ip: IpPacket, bundle: &Bundle, mut hop: Hop) {
        let sas = || bundle.iter().filter_map(|&id| self.ipsec.sa(id));
        let mut end = ip.info.dst;
        if let Some(tunnel) = sas().rfind(|sa| sa.mode() == Mode::Tunnel) {
            end = tunnel.end();
            match self.decide(self.fib.domain(hop.dev), end) {
                Decision::Forward { dev, next_hop } => hop = Hop { dev, next_hop },
                decision => {
                    self.counters.count(Mib::XfrmOutBundleGenError);
                    let reason = if let Decision::Drop(reason) = decision { reason } else { DropReason::NoRoute };
                    return self.drop(&ip.pkt, reason);
                }
            }
        }
        let Some(port) = self.ports.get(hop.dev).filter(|port| port.up) else {
            return self.drop(&ip.pkt, DropReason::LinkDown);
        };
        let features = port.config.features;
        let outer_mtu = self.path_mtu(turn, hop.dev, end, port.config.mtu);
        let layers = Layers { sas: bundle, dev: hop.dev, mtu: outer_mtu };
        let mtu = self.inner_mtu(turn, layers, 0);
        let v4 = ip.info.version() == Version::V4;
        // Transport mode protects whole datagrams alone (RFC 4303 §3.1.1): what is too long is cut afterwards.
        let whole = sas().next().is_some_and(|sa| sa.mode() == Mode::Transport);
        let mtu = if v4 { mtu } else { mtu.max(ipv6::MIN_MTU) };
        let mut fits = wire_len(&ip.pkt, &ip.info) <= mtu;
        if !fits && !may_fragment(&ip) {
            let Some(rest) = self.refuse_too_big(turn, ip, mtu, hop.dev) else { return };
            (ip, fits) = (rest, true);
        }
        if let Err(reason) = self.count_hop(turn, &mut ip, hop) {
            return self.drop(&ip.pkt, reason);
        }
        let mut pieces = std::mem::take(&mut self.scratch.pieces);
        if fits || whole {
            pieces.push(ip.pkt);
        } else {
            // Before ESP, so that the peer has nothing to reassemble (RFC 4301 §7).
            self.fragment(turn, ip.pkt, mtu, hop.dev, &mut pieces);
        }
        let Some((&outermost, within)) = bundle.split_last() else { return };
        self.seal(turn, layers, within.len(), &mut pieces);
        let sa = self.ipsec.sa(outermost);
        let is_offloaded = sa.is_some_and(|sa| sa.offload().is_some());
        let train = match sa.is_some_and(|sa| sa.encap().is_some()) {
            true if features.uso => Train::Udp,
            _ if features.frames => Train::Frames,
            _ => Train::None,
        };
        let leaving = Leaving { hop, mtu: outer_mtu };
        for piece in pieces.drain(..) {
            let link = piece.meta.link;
            let submitted = if is_offloaded {
                self.submit_offloaded(turn, outermost, piece, train, leaving)
            } else {
                self.submit(turn, outermost, piece, train, leaving)
            };
            if let Err(reason) = submitted {
                self.ports.drop(link, reason);
            }
        }
        self.scratch.pieces = pieces;
        self.send_sealed(turn);
    }

    /// Gives a packet to the ciphers, and notes where it goes then.
    pub(crate) fn submit(
        &mut self,
        turn: Turn<'_>,
        sa: SaId,
        pkt: Packet,
        train: Train,
        leaving: Leaving,
    ) -> Result<(), DropReason> {
        let Self { ipsec, counters, .. } = self;
        let before = ipsec.sealing();
        let result = ipsec.submit_seal(turn.mem, turn.now, sa, pkt, train, leaving.mtu, counters);
        // Near the end of its SA a fat packet is submitted segment by segment, and maybe not to the end.
        let submitted = ipsec.sealing() - before;
        self.leaving.extend(std::iter::repeat_n(leaving, submitted));
        result
    }

    /// Sends what ciphers are through with, in order.
    pub(crate) fn send_sealed(&mut self, turn: Turn<'_>) {
        let mut leaving = std::mem::take(&mut self.scratch.leaving);
        while self.ipsec.next_sealed(turn.mem, &mut leaving) {
            let Leaving { hop, mtu } = self.leaving.pop_front().expect("one for each packet that was submitted");
            for pkt in leaving.drain(..) {
                let outside = Version::of(pkt.head());
                let requests = if outside == Ok(Version::V4) { Mib::IpOutRequests } else { Mib::Ip6OutRequests };
                self.count_all(hop.dev, requests, pkt.meta.cut.packets());
                self.emit_sealed(turn, pkt, mtu, hop);
            }
        }
        self.scratch.leaving = leaving;
    }

    /// Runs packets through the first `n` of these SAs at once.
    pub(crate) fn seal(&mut self, turn: Turn<'_>, layers: Layers<'_>, n: usize, packets: &mut Vec<Packet>) {
        let mut sealed = std::mem::take(&mut self.scratch.sealed);
        for (at, &sa) in layers.sas[..n].iter().enumerate() {
            let mtu = self.inner_mtu(turn, layers, at + 1);
            for pkt in packets.drain(..) {
                let (link, Self { ipsec, counters, .. }) = (pkt.meta.link, &mut *self);
                let result = ipsec.seal(turn.mem, turn.now, sa, pkt, Train::None, mtu, &mut sealed, counters);
                if let Err(reason) = result {
                    self.ports.drop(link, reason);
                }
            }
            std::mem::swap(packets, &mut sealed);
        }
        self.scratch.sealed = sealed;
    }

    /// What the path takes of packets that are through the first `n` of these SAs and go through the others. What is sealed
    /// for the end of a tunnel goes on from the end of the one around it, and that way may be narrower (Linux
    /// `xfrm_init_pmtu`).
    fn inner_mtu(&self, turn: Turn<'_>, layers: Layers<'_>, n: usize) -> usize {
        let Layers { sas, dev, mtu } = layers;
        (n..sas.len()).rev().fold(mtu, |mtu, at| {
            let inner_mtu = self.ipsec.sa(sas[at]).map_or(mtu, |sa| sa.inner_mtu(mtu));
            let mut within = sas[..at].iter().filter_map(|&id| self.ipsec.sa(id));
            let tunnel = within.rfind(|sa| sa.mode() == Mode::Tunnel);
            tunnel.map_or(inner_mtu, |tunnel| self.path_mtu(turn, dev, tunnel.end(), inner_mtu))
        })
    }

    /// Sends a sealed packet. One that is too long all the same is fragmented (Linux sets `ignore_df`).
    pub(crate) fn emit_sealed(&mut self, turn: Turn<'_>, mut pkt: Packet, mtu: usize, hop: Hop) {
        let fits = match pkt.meta.cut {
            Cut::Gso(_) => Info::parse(pkt.head(), pkt.len()).is_ok_and(|info| wire_len(&pkt, &info) <= mtu),
            Cut::Frames(frames) => usize::from(frames.size) <= mtu,
            Cut::Whole | Cut::Fragment => pkt.len() <= mtu,
        };
        if fits {
            return self.emit(turn, pkt, hop);
        }
        if let Cut::Frames(_) = pkt.meta.cut {
            while let Some(frame) = pkt.take_frame() {
                self.emit_sealed(turn, frame, mtu, hop);
            }
            return self.emit_sealed(turn, pkt, mtu, hop);
        }
        if self.ports.get(hop.dev).is_some_and(|port| port.config.features.ufo) {
            return self.emit_to_be_fragmented(turn, pkt, mtu, hop);
        }
        let mut fragments = std::mem::take(&mut self.scratch.sealed);
        self.fragment(turn, pkt, mtu, hop.dev, &mut fragments);
        for fragment in fragments.drain(..) {
            self.emit(turn, fragment, hop);
        }
        self.scratch.sealed = fragments;
    }

    /// Sends the datagrams of a sealed train one by one by a link that fragments them itself. Those that are longer than `mtu`
    /// may be fragmented on the way too.
    #[cold]
    fn emit_to_be_fragmented(&mut self, turn: Turn<'_>, pkt: Packet, mtu: usize, hop: Hop) {
        let link = pkt.meta.link;
        let mut datagrams = Vec::new();
        let cut = match pkt.meta.cut {
            Cut::Gso(_) => gso::segment(turn.mem, &Features::BY_REFERENCE, pkt, 0, &mut datagrams),
            Cut::Whole | Cut::Frames(_) | Cut::Fragment => {
                pkt.into_frames(&mut datagrams);
                Ok(())
            }
        };
        if let Err(reason) = cut {
            return self.ports.drop(link, reason);
        }
        for mut datagram in datagrams {
            if datagram.len() <= mtu {
                self.emit(turn, datagram, hop);
                continue;
            }
            datagram.meta.cut = Cut::Fragment;
            match may_be_fragmented(turn.mem, &mut datagram) {
                Ok(()) => self.emit(turn, datagram, hop),
                Err(reason) => self.drop(&datagram, reason),
            }
        }
    }

    /// Cuts a packet that leaves by `dev` to fragments of `mtu` bytes. A fat one is cut to its segments before (Linux `ip_finish_output_gso`).
    fn fragment(&mut self, turn: Turn<'_>, mut pkt: Packet, mtu: usize, dev: LinkId, out: &mut Vec<Packet>) {
        let link = pkt.meta.link;
        let before = out.len();
        let v4 = Version::of(pkt.head()) == Ok(Version::V4);
        let result = if pkt.meta.cut.gso().is_some() {
            let mut segments = Vec::new();
            gso::segment(turn.mem, &Features::BY_REFERENCE, pkt, 0, &mut segments).map(|()| {
                for segment in segments {
                    self.fragment(turn, segment, mtu, dev, out);
                }
            })
        } else {
            checksum::complete(turn.mem, &mut pkt, 0)
                .and_then(|()| match v4 {
                    true => self.fragment_v4(turn, pkt, mtu, out),
                    false => reassembly::fragment_v6(turn.mem, pkt, mtu, self.fragment_ids.next(), out),
                })
                .inspect(|()| {
                    self.count(dev, if v4 { Mib::IpFragOKs } else { Mib::Ip6FragOKs });
                    let made = (out.len() - before) as u64;
                    self.count_all(dev, if v4 { Mib::IpFragCreates } else { Mib::Ip6FragCreates }, made);
                })
        };
        if let Err(reason) = result {
            self.count(dev, if v4 { Mib::IpFragFails } else { Mib::Ip6FragFails });
            self.ports.drop(link, reason);
        }
    }

    /// An IPv4 packet of our own gets its identification when it needs one (RFC 6864 §4).
    fn fragment_v4(
        &mut self,
        turn: Turn<'_>,
        mut pkt: Packet,
        mtu: usize,
        out: &mut Vec<Packet>,
    ) -> Result<(), DropReason> {
        if pkt.meta.link == LinkId::NONE {
            let header = ipv4::Header::mut_from(pkt.writable_head(turn.mem)?)?;
            header.set_id(self.fragment_ids.next() as u16);
            ipv4::fill_check(pkt.writable_head(turn.mem)?)?;
        }
        reassembly::fragment(turn.mem, pkt, mtu, out)
    }

    /// Drops a packet that does not fit the way by `dev`, and says what would. Of a UDP train the last datagram is returned if it
    /// fits: only GRO has put it behind others that do not. A segment of TCP there follows lost ones, and goes with them.
    #[cold]
    fn refuse_too_big(&mut self, turn: Turn<'_>, ip: IpPacket, mtu: usize, dev: LinkId) -> Option<IpPacket> {
        if !last_datagram_fits(&ip, mtu) {
            self.too_big(turn, &ip, mtu, dev);
            return None;
        }
        let link = ip.pkt.meta.link;
        let mut datagrams = match datagrams(turn.mem, ip) {
            Ok(datagrams) => datagrams,
            Err(reason) => {
                self.ports.drop(link, reason);
                return None;
            }
        };
        let last = datagrams.pop();
        if let Some((first, others)) = datagrams.split_first() {
            self.too_big(turn, first, mtu, dev);
            others.iter().for_each(|other| self.drop(&other.pkt, DropReason::PacketTooBig));
        }
        last
    }

    /// Drops a packet that does not fit the way by `dev`, and says what would.
    fn too_big(&mut self, turn: Turn<'_>, ip: &IpPacket, mtu: usize, dev: LinkId) {
        if ip.info.version() == Version::V4 {
            self.counters.count(Mib::IpFragFails);
        } else {
            self.count(ip.pkt.meta.link, Mib::Ip6InTooBigErrors);
            self.count(dev, Mib::Ip6FragFails);
        }
        self.reject(turn, ip, DropReason::PacketTooBig, Problem::TooBig { mtu });
    }

    pub(crate) fn mtu_of(&self, link: LinkId) -> Option<usize> {
        self.ports.get(link).filter(|port| port.up).map(|port| port.config.mtu)
    }

    /// Sends an IP packet that fits, in the segments it says, to its next hop.
    pub(crate) fn emit(&mut self, turn: Turn<'_>, mut pkt: Packet, hop: Hop) {
        let Hop { dev, next_hop } = hop;
        let Some(port) = self.ports.get(dev).filter(|port| port.up) else {
            return self.drop(&pkt, DropReason::LinkDown);
        };
        let bare = port.config.mac.is_none();
        self.ports.tap_fat(turn.mem, dev, true, &pkt);
        if bare {
            return self.enqueue(turn.mem, dev, pkt, 0);
        }
        if matches!(pkt.meta.cut, Cut::Frames(_)) && !self.neighbours.knows(dev, next_hop) {
            // What has to wait waits by itself.
            while let Some(frame) = pkt.take_frame() {
                self.resolve(turn, frame, hop);
            }
        }
        self.resolve(turn, pkt, hop);
    }

    fn resolve(&mut self, turn: Turn<'_>, pkt: Packet, hop: Hop) {
        let Hop { dev, next_hop } = hop;
        match self.neighbours.resolve(turn.now, turn.mem, dev, next_hop, pkt, &mut self.actions) {
            Resolution::Send(to, pkt) => self.frame(turn, dev, to, pkt),
            Resolution::Queued => {}
            Resolution::Dropped(pkt, reason) => self.give_up(turn, pkt, reason),
        }
    }

    /// Makes a packet, whose IP header begins at `l3`, fit its link and lets it wait to be sent.
    pub(crate) fn enqueue(&mut self, mem: &Memory, link: LinkId, mut pkt: Packet, l3: usize) {
        let (from, packets) = (pkt.meta.link, pkt.meta.cut.packets());
        if pkt.meta.esp.is_some()
            && let Err(reason) = self.direct(link, &mut pkt, l3)
        {
            return self.ports.drop(from, reason);
        }
        if let Err(reason) = self.ports.enqueue(mem, link, pkt, l3) {
            self.ports.drops(from, reason, packets);
        }
    }
}

/// Takes IPv4's Don't Fragment away.
fn may_be_fragmented(mem: &Memory, pkt: &mut Packet) -> Result<(), DropReason> {
    let head = pkt.writable_head(mem)?;
    if Version::of(head)? == Version::V4 {
        ipv4::Header::mut_from(head)?.set_dont_fragment(false);
        ipv4::fill_check(head)?;
    }
    Ok(())
}

/// Tells whether a packet may be cut to fit: it says so, or this node itself is its source (RFC 8200 §4.5).
fn may_fragment(ip: &IpPacket) -> bool {
    !ip.info.dont_fragment || ip.info.version() == Version::V6 && ip.pkt.meta.link == LinkId::NONE
}

/// How long a packet's longest segment is on the wire, in bytes with its IP header: what an MTU is about (Linux
/// `skb_gso_network_seglen`).
pub(crate) fn wire_len(pkt: &Packet, info: &Info) -> usize {
    let Cut::Gso(gso) = pkt.meta.cut else { return pkt.len() };
    let transport = match gso.kind {
        GsoKind::Udp => udp::Header::LEN,
        GsoKind::TcpV4 | GsoKind::TcpV6 => {
            let mut header = [0; tcp::Header::LEN];
            pkt.read_at(info.header_len, &mut header);
            tcp::Header::ref_from(&header).map_or(tcp::Header::LEN, tcp::Header::header_len)
        }
    };
    pkt.len().min(info.header_len + transport + usize::from(gso.size))
}

/// The datagrams of a UDP train, by reference.
fn datagrams(mem: &Memory, ip: IpPacket) -> Result<Vec<IpPacket>, DropReason> {
    let IpPacket { pkt, flow, .. } = ip;
    let mut datagrams = Vec::new();
    gso::segment(mem, &Features::BY_REFERENCE, pkt, 0, &mut datagrams)?;
    let parse = |mut pkt| Ok(IpPacket { info: ip_headers(mem, &mut pkt)?, pkt, flow });
    datagrams.into_iter().map(parse).collect()
}

/// Tells whether a packet is a UDP train whose last datagram is shorter than the others and no longer than `mtu`.
fn last_datagram_fits(ip: &IpPacket, mtu: usize) -> bool {
    let Cut::Gso(Gso { kind: GsoKind::Udp, size, .. }) = ip.pkt.meta.cut else { return false };
    let headers = ip.info.header_len + udp::Header::LEN;
    let payload = ip.pkt.len().saturating_sub(headers);
    let last = payload.checked_rem(size.into()).unwrap_or(0);
    last > 0 && last < payload && headers + last <= mtu
}
