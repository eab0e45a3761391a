//! Fragments for this node, and the identifications of those that it makes.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use base::{Counters, DropReason, LinkId, Mib};
use fib::Decision;
use host::icmp::Problem;
use ipsec::Dir;
use offload::ip_headers;
use packet::{Burst, Packet};
use reassembly::{Asker, CutShort, Table, Train, Verdict};
use wire::{Protocol, Version};

use crate::ingress::{Framing, begins_at};
use crate::ip_input::{check_addresses, flow_of, is_link_local};
use crate::local::Cast;
use crate::{Datapath, IpPacket, Turn};

/// The counters of links that reassembly moves as fragments come.
const REASSEMBLY: [Mib; 4] = [Mib::Ip6ReasmReqds, Mib::Ip6ReasmOKs, Mib::Ip6ReasmFails, Mib::Ip6InHdrErrors];

fn moved(counters: &Counters) -> [u64; REASSEMBLY.len()] {
    REASSEMBLY.map(|which| counters.get(which))
}

/// Identifications for fragments that this node makes, which nobody else can foresee (RFC 7739).
#[derive(Debug, Default)]
pub(crate) struct FragmentIds {
    key: RandomState,
    used: u64,
}

impl FragmentIds {
    /// One that was not used lately.
    pub(crate) fn next(&mut self) -> u32 {
        self.used = self.used.wrapping_add(1);
        self.key.hash_one(self.used) as u32
    }
}

impl Datapath {
    /// Keeps a fragment for this node until its datagram is whole, and delivers that.
    pub(crate) fn reassemble(&mut self, turn: Turn<'_>, ip: IpPacket, cast: Cast) {
        let link = ip.pkt.meta.link;
        let IpPacket { pkt, info, .. } = ip;
        let asker = Asker { domain: self.fib.domain(link), ..Asker::LOCAL };
        let before = moved(&self.counters);
        let verdict = self.reassembly.handle_fragment(turn.now, turn.mem, asker, pkt, &info, &mut self.counters);
        self.credit(link, before);
        self.drop_evicted();
        self.conclude(turn, link, verdict, cast);
    }

    /// Takes in the fragments for this node at the front of a burst that come behind equal headers, without a look at what
    /// is the same for all. Where a capture is on, each is looked at on its own.
    #[inline]
    pub(crate) fn join_trains(&mut self, turn: Turn<'_>, link: LinkId, burst: &mut Burst<'_>) {
        let port = self.ports.get(link).filter(|port| !port.tap.wire && !port.tap.fat);
        let Some(mac) = port.map(|port| port.config.mac) else { return };
        let domain = self.fib.domain(link);
        let mut is_any = false;
        while let Some(first) = burst.first()
            && let Some(l3) = begins_at(mac, first)
            && let Some(train) = Train::of(first, l3)
            && self.is_for_us(domain, link, train.addresses())
        {
            let train = train.in_domain(domain);
            self.make_way(turn, &first.head()[l3..]);
            let l3 = |pkt: &Packet| begins_at(mac, pkt);
            let Self { reassembly, counters, .. } = self;
            let v4 = train.version() == Version::V4;
            let before = (!v4).then(|| moved(counters));
            let taken = reassembly.handle_train(turn.now, turn.mem, &train, burst, l3, counters);
            if let Some(before) = before {
                self.credit(link, before);
            }
            let Some((packets, verdict)) = taken else { break };
            is_any = true;
            self.count_all(link, if v4 { Mib::IpInReceives } else { Mib::Ip6InReceives }, packets);
            self.conclude(turn, link, verdict, Cast::Unicast);
            if self.ipsec.has_opened() {
                self.pass_opened(turn);
            }
        }
        if is_any {
            self.drop_evicted();
        }
    }

    /// Counts for `link` what reassembly has counted for the node: those that had to make room for its fragments included.
    fn credit(&mut self, link: LinkId, before: [u64; REASSEMBLY.len()]) {
        let after = moved(&self.counters);
        let Some(port) = self.ports.get_mut(link).filter(|_| after != before) else { return };
        for (which, (after, before)) in REASSEMBLY.into_iter().zip(after.into_iter().zip(before)) {
            port.counters.add(which, after.wrapping_sub(before));
        }
    }

    /// Whether packets between such addresses are for this node alone.
    fn is_for_us(&self, domain: LinkId, link: LinkId, [src, dst]: [IpAddr; 2]) -> bool {
        !is_link_local(dst)
            && check_addresses(src, dst).is_ok()
            && self.is_local(domain, dst)
            && !self.is_martian(domain, link, src)
    }

    /// Whether packets to such an address are for everybody on a link, or for a group.
    fn is_for_all(&self, domain: LinkId, dst: IpAddr) -> bool {
        matches!(self.decide(domain, dst), Decision::Broadcast { .. } | Decision::Multicast)
    }

    /// Lets go on what came before a packet that begins with `header`, and must not be overtaken by it.
    fn make_way(&mut self, turn: Turn<'_>, header: &[u8]) {
        self.gro.flush_between(header, &mut self.scratch.glued);
        if !self.scratch.glued.is_empty() {
            let mut glued = std::mem::take(&mut self.scratch.glued);
            for pkt in glued.drain(..) {
                self.input(turn, pkt);
            }
            // Its storage goes back unless something has come in meanwhile.
            if self.scratch.glued.is_empty() {
                self.scratch.glued = glued;
            }
        }
    }

    /// Does what follows from fragments that came by `link`.
    fn conclude(&mut self, turn: Turn<'_>, link: LinkId, verdict: Verdict, cast: Cast) {
        match verdict {
            Verdict::Held => {}
            Verdict::Whole { pkt, .. } => self.deliver_whole(turn, pkt, cast),
            // Who delivers does not only look on.
            Verdict::Pass { pkt, packets } => {
                self.ports.drops(link, DropReason::FragmentLength, packets);
                self.drop(&pkt, DropReason::FragmentLength);
            }
            Verdict::Restarted { packets } => self.ports.drops(link, DropReason::FragmentDistance, packets),
            Verdict::Drop { reason, packets } => self.ports.drops(link, reason, packets),
            Verdict::Refuse { pkt, reason, code, pointer } => {
                self.refuse_fragment(turn, pkt, reason, Problem::Parameter { code, at: pointer });
            }
        }
    }

    /// Drops a fragment, or what was made of all, and tells its sender what is wrong with it.
    #[cold]
    fn refuse_fragment(&mut self, turn: Turn<'_>, mut pkt: Packet, reason: DropReason, problem: Problem) {
        let parsed = ip_headers(turn.mem, &mut pkt).and_then(|info| Ok((info, flow_of(turn, &mut pkt, &info)?)));
        let Ok((info, flow)) = parsed else { return self.drop(&pkt, reason) };
        let (link, ip) = (pkt.meta.link, IpPacket { pkt, info, flow });
        // What policies keep out is not told which protocols are known (Linux `ip6_protocol_deliver_rcu`).
        if reason == DropReason::ProtocolUnknown {
            if let Err(reason) = self.check_policy(turn, Dir::In, &ip, link) {
                return self.drop(&ip.pkt, reason);
            }
            self.count(link, Mib::Ip6InUnknownProtos);
        }
        self.reject(turn, &ip, reason, problem);
    }

    /// Counts what made room for others.
    pub(crate) fn drop_evicted(&mut self) {
        for gone in self.reassembly.drain_evicted() {
            self.ports.drops(gone.link, DropReason::FragmentEvicted, gone.packets);
        }
    }

    /// Drops a packet whose IP headers are wrong. If it is a fragment for this node whose headers are cut short, its
    /// sender is told (RFC 7112 §5).
    #[cold]
    pub(crate) fn malformed(&mut self, turn: Turn<'_>, mut pkt: Packet, reason: DropReason, framing: Framing) {
        let (own, domain) = (self.own_link_local(pkt.meta.link), self.fib.domain(pkt.meta.link));
        let is_ours = |cut: &CutShort| self.fib.is_local_or_anycast(domain, cut.info.dst) || own == Some(cut.info.dst);
        let cut_short = CutShort::find(turn.mem, &mut pkt).filter(|cut| framing.allows(Version::V6) && is_ours(cut));
        let Some(CutShort { info, reason, code, pointer }) = cut_short else { return self.drop(&pkt, reason) };
        self.count(pkt.meta.link, Mib::Ip6ReasmReqds);
        self.drop(&pkt, reason);
        // What the link padded it with is nothing to quote.
        pkt.trim(info.total_len);
        self.tell(turn, &pkt, &info, Problem::Parameter { code, at: pointer });
    }

    /// Delivers what was put together: ESP is opened now, and what is inside begins anew.
    fn deliver_whole(&mut self, turn: Turn<'_>, mut pkt: Packet, cast: Cast) {
        let parsed = ip_headers(turn.mem, &mut pkt).and_then(|info| Ok((info, flow_of(turn, &mut pkt, &info)?)));
        match parsed {
            Ok((info, _)) if self.is_our_esp(&pkt, &info) => {
                if let Some(pkt) = self.check_extensions(turn, pkt, &info) {
                    self.decrypt(turn, pkt, &info);
                }
            }
            // Discovery is not fragmented (RFC 6980 §5, Linux `ndisc_suppress_frag_ndisc`).
            Ok((info, flow)) if info.protocol == Protocol::ICMPV6 && wire::nd::is_discovery(flow.sport as u8) => {
                self.drop(&pkt, DropReason::NeighbourMalformed);
            }
            Ok((info, flow)) => self.deliver(turn, IpPacket { pkt, info, flow }, cast),
            Err(reason) => self.drop(&pkt, reason),
        }
    }

    /// Gives up the datagrams that were not whole in time, and says so to whoever sent a first fragment (RFC 792,
    /// RFC 8200 §4.5).
    pub(crate) fn expire(&mut self, turn: Turn<'_>) {
        let mut expired = std::mem::take(&mut self.scratch.expired);
        let Self { reassembly, ports, counters, .. } = self;
        reassembly.handle_timeout(turn.now, |link| ports.get(link).is_some(), counters, &mut expired);
        for gone in expired.drain(..) {
            self.ports.drops(gone.link, DropReason::FragmentTimeout, gone.packets);
            if gone.table == Table::V6
                && let Some(port) = self.ports.get_mut(gone.link)
            {
                port.counters.count(Mib::Ip6ReasmTimeout);
                port.counters.count(Mib::Ip6ReasmFails);
            }
            // What went to a whole subnet looks like any other packet by its address alone (RFC 1122 §3.2.2).
            if let Some((pkt, info)) = gone.first
                && !self.is_for_all(self.fib.domain(gone.link), info.dst)
            {
                self.tell(turn, &pkt, &info, Problem::ReassemblyTimeExceeded);
            }
        }
        self.scratch.expired = expired;
        self.act(turn);
    }
}
