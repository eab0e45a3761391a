//! Fragments for this node, and the identifications of those that it makes.

use base::{Counters, DropReason, Mib, Origin, PortId};
use host::icmp::Problem;
use offload::checksum;
use packet::{Burst, Csum, Packet};
use reassembly::{ReassemblyContext, Train, TruncatedChain, User, Verdict};
use wire::ip::Info;
use wire::{Protocol, Version};
use xfrm::{Dir, Mode};

use crate::ip_packet::Framing;
use crate::next::Cast;
use crate::{Cx, Datapath, IpPacket, Next, local_out, policy};

/// Reassembly counters that are kept per link.
const REASSEMBLY: [Mib; 4] = [Mib::Ip6ReasmReqds, Mib::Ip6ReasmOKs, Mib::Ip6ReasmFails, Mib::Ip6InHdrErrors];

fn moved(counters: &Counters) -> [u64; REASSEMBLY.len()] {
    REASSEMBLY.map(|which| counters.get(which))
}

/// Holds a fragment for this node until its datagram is complete; the datagram goes to local input.
pub(super) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Next {
    let origin = ip.pkt.meta.origin;
    let link = origin.device();
    let context = ReassemblyContext { domain: dp.fib.domain(link), ..ReassemblyContext::LOCAL };
    let before = moved(&dp.counters);
    let verdict = dp.reassembly.handle_fragment(cx.now, cx.mem, context, ip.pkt.take(), &ip.info, &mut dp.counters);
    count_for_link(dp, link, before);
    drop_evicted(dp);
    apply_verdict(dp, cx, ip, origin.get(), verdict, cast)
}

/// Holds a fragment for `user`, which is not local delivery, until its datagram is complete; the datagram is then in `ip`. Otherwise
/// returns the next stage.
pub(crate) fn gather(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, user: User) -> Option<Next> {
    let origin = ip.pkt.meta.origin.get();
    let link = origin.device();
    let context = ReassemblyContext { user, domain: dp.fib.domain(link) };
    let before = moved(&dp.counters);
    let verdict = dp.reassembly.handle_fragment(cx.now, cx.mem, context, ip.pkt.take(), &ip.info, &mut dp.counters);
    count_for_link(dp, link, before);
    drop_evicted(dp);
    if let Verdict::Whole { pkt, largest } = verdict {
        ip.pkt.put(pkt);
        ip.frag_max_size = Some(largest);
        return ip.parse(cx).err().map(Next::Drop);
    }
    Some(apply_verdict(dp, cx, ip, origin, verdict, Cast::Unicast))
}

/// Reassembles the fragments of one train at the front of a burst at once; `None` if they have to be handled one by one.
pub(crate) fn handle_train(
    dp: &mut Datapath,
    cx: Cx<'_>,
    link: PortId,
    train: &Train,
    burst: &mut Burst<'_>,
    l3: impl Fn(&Packet) -> Option<usize>,
) -> Option<(u64, Verdict)> {
    let Datapath { reassembly, counters, .. } = dp;
    // IPv4 has no counters of links.
    let before = (train.version() == Version::V6).then(|| moved(counters));
    let taken = reassembly.handle_train(cx.now, cx.mem, train, burst, l3, counters);
    if let Some(before) = before {
        count_for_link(dp, link, before);
    }
    taken
}

/// Counts for `link` what reassembly has counted for the node, datagrams evicted for its fragments included.
fn count_for_link(dp: &mut Datapath, link: PortId, before: [u64; REASSEMBLY.len()]) {
    let after = moved(&dp.counters);
    let Some(port) = dp.ports.get_mut(link).filter(|_| after != before) else { return };
    for (which, (after, before)) in REASSEMBLY.into_iter().zip(after.into_iter().zip(before)) {
        port.counters.add(which, after.wrapping_sub(before));
    }
}

/// Applies a verdict of reassembly about fragments from `origin`.
pub(crate) fn apply_verdict(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    origin: Origin,
    verdict: Verdict,
    cast: Cast,
) -> Next {
    match verdict {
        Verdict::Held => Next::Done,
        Verdict::Whole { pkt, .. } => {
            ip.pkt.put(pkt);
            whole(dp, cx, ip, cast)
        }
        Verdict::Restarted { packets } => dp.ports.drops(origin, DropReason::FragmentDistance, packets).into(),
        Verdict::Drop { reason, packets } => dp.ports.drops(origin, reason, packets).into(),
        Verdict::Refuse { pkt, reason, code, pointer } => {
            ip.pkt.put(pkt);
            refuse_fragment(dp, cx, ip, reason, Problem::Parameter { code, at: pointer })
        }
    }
}

/// Drops a fragment, or the reassembled packet, with an ICMP error to its sender.
#[cold]
fn refuse_fragment(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, reason: DropReason, problem: Problem) -> Next {
    if ip.parse(cx).is_err() {
        return Next::Drop(reason);
    }
    // No error is sent about a packet that the policies drop (Linux `ip6_protocol_deliver_rcu`).
    if reason == DropReason::ProtocolUnknown {
        let link = ip.pkt.meta.origin.device();
        if let Err(reason) = policy::check(dp, cx, Dir::In, ip, link) {
            return Next::Drop(reason);
        }
        dp.count(link, Mib::Ip6InUnknownProtos);
    }
    Next::Reject(reason, problem)
}

/// Counts evicted datagrams.
pub(crate) fn drop_evicted(dp: &mut Datapath) {
    for gone in dp.reassembly.drain_evicted() {
        dp.ports.drops(gone.origin, DropReason::FragmentEvicted, gone.packets).end();
    }
}

/// Drops a packet with malformed IP headers. The sender of a first fragment for this node with a truncated header chain gets an
/// ICMP error (RFC 7112 §5).
#[cold]
pub(crate) fn malformed(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    reason: DropReason,
    framing: Framing,
) -> Next {
    let link = ip.pkt.meta.origin.device();
    let own = dp.own_link_local(link);
    let domain = dp.fib.domain(link);
    let is_ours = |cut: &TruncatedChain| dp.fib.is_local_or_anycast(domain, cut.info.dst) || own == Some(cut.info.dst);
    let cut_short = TruncatedChain::find(cx.mem, &mut ip.pkt).filter(|cut| framing.allows(Version::V6) && is_ours(cut));
    let Some(TruncatedChain { info, reason, code, pointer }) = cut_short else { return Next::Drop(reason) };
    dp.count(link, Mib::Ip6ReasmReqds);
    dp.count_drop(&ip.pkt, reason).end();
    // Link-layer padding is not quoted.
    ip.pkt.trim(info.total_len);
    ip.set_info(info);
    local_out::icmp_error(dp, cx, ip, Problem::Parameter { code, at: pointer })
}

/// Next stage of a reassembled packet.
fn whole(dp: &Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Next {
    let parsed = ip.parse(cx).and_then(|()| renew_checksum(dp, cx, ip));
    match parsed {
        // Discovery is not fragmented (RFC 6980 §5, Linux `ndisc_suppress_frag_ndisc`).
        Ok(()) if ip.info.protocol == Protocol::ICMPV6 && wire::nd::is_discovery(ip.flow.sport as u8) => {
            Next::Drop(DropReason::NeighbourMalformed)
        }
        Ok(()) => Next::Local(cast),
        Err(reason) => Next::Drop(reason),
    }
}

/// Makes the checksum of a datagram right whose fragments came through a NAT inside ESP: the sender's covers the addresses before
/// translation (RFC 3948 §3.1.2). ESP input does so for whole packets.
fn renew_checksum(dp: &Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    let sa = ip.pkt.meta.sec_path.last().and_then(|&id| dp.ipsec.sa(id));
    if sa.is_none_or(|sa| sa.mode() != Mode::Transport || sa.encap().is_none()) {
        return Ok(());
    }
    let Info { src, dst, protocol, header_len, total_len, .. } = ip.info;
    ip.pkt.linearize(cx.mem)?;
    let upper = ip.pkt.writable_head(cx.mem)?.get_mut(header_len..total_len);
    if upper.is_some_and(|upper| checksum::renew(src, dst, protocol, upper)) {
        ip.pkt.meta.csum = Csum::Unnecessary;
    }
    Ok(())
}

/// Drops datagrams that were not complete in time, with an ICMP error to the senders of first fragments (RFC 792, RFC 8200 §4.5).
pub(crate) fn expire(dp: &mut Datapath, cx: Cx<'_>) {
    let mut expired = std::mem::take(&mut dp.scratch.expired);
    let Datapath { reassembly, ports, counters, .. } = dp;
    reassembly.handle_timeout(cx.now, |link| ports.get(link).is_some(), counters, &mut expired);
    for gone in expired.drain(..) {
        dp.ports.drops(gone.origin, DropReason::FragmentTimeout, gone.packets).end();
        if gone.version == Version::V6
            && let Some(port) = dp.ports.get_mut(gone.origin.device())
        {
            port.counters.count(Mib::Ip6ReasmTimeout);
            port.counters.count(Mib::Ip6ReasmFails);
        }
        // The address alone does not show that a packet was a directed broadcast (RFC 1122 §3.2.2).
        //= RFC 8200 §4.5 timeout: a datagram that is incomplete after 60 seconds is dropped, with Time Exceeded
        //=   if its first fragment was received
        if let Some((pkt, info)) = gone.first
            && !dp.is_for_group(dp.fib.domain(gone.origin.device()), info.dst)
        {
            let mut ip = IpPacket::unparsed(pkt);
            ip.set_info(info);
            let next = local_out::icmp_error(dp, cx, &mut ip, Problem::ReassemblyTimeExceeded);
            dp.defer(ip, next);
        }
    }
    dp.scratch.expired = expired;
}
