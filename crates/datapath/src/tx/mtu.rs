//! MTU: packets that do not fit the path are fragmented, or answered with an ICMP error.

use base::{DropReason, Mib, PortId};
use host::icmp::Problem;
use offload::{Features, checksum, gso, ip_headers};
use packet::{Cut, Gso, GsoKind, Memory, Packet};
use wire::ip::Info;
use wire::{Version, ipv4, ipv6, udp};

use crate::ip_packet::wire_len;
use crate::mib::MibPair;
use crate::next::Hop;
use crate::tx::tcp::fit_tcp;
use crate::tx::transmit::transmit_packet;
use crate::{Cx, Datapath, IpPacket, Next, hop_limit, route_encap};

/// Output of a packet in clear: checks the MTU, and fragments where that is allowed.
pub(super) fn output_clear(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    let Some(link_mtu) = dp.mtu_of(hop.dev) else { return Next::Drop(DropReason::LinkDown) };
    // Forwarding ignores the path MTU beyond the link, which is the sender's matter (Linux's `ip_forward_use_pmtu=0`).
    let is_own = ip.pkt.meta.origin.is_local();
    let mtu = match is_own {
        true => limit_to_fragments(ip, dp.path_mtu(cx, hop.dev, ip.info.dst, link_mtu)),
        // The host at the other end accepts whole datagrams.
        false if dp.defrag.contains(&hop.dev) => usize::from(u16::MAX),
        false => link_mtu,
    };
    let mut fits = match fit_tcp(dp, cx, ip, hop.dev, mtu) {
        Ok(is_cut) => is_cut || wire_len(&ip.pkt, &ip.info) <= mtu,
        Err(reason) => return Next::Drop(reason),
    };
    if !fits && !may_fragment(dp, ip) {
        if let Some(next) = refuse_too_big(dp, cx, ip, mtu, hop.dev) {
            return next;
        }
        fits = true;
    }
    if let Err(reason) = hop_limit::count_hop(dp, cx, ip, hop) {
        return Next::Drop(reason);
    }
    let hop = match route_encap::translate_sent(dp, cx, ip, hop, !fits) {
        Ok(hop) => hop,
        Err(reason) => return Next::Drop(reason),
    };
    if fits {
        return Next::Transmit(hop);
    }
    let mut pieces = std::mem::take(&mut dp.scratch.pieces);
    fragment(dp, cx, ip.pkt.take(), mtu, hop.dev, &mut pieces);
    for piece in pieces.drain(..) {
        transmit_packet(dp, cx, piece, hop);
    }
    dp.scratch.pieces = pieces;
    Next::Done
}

/// MTU for a packet on a path of `mtu` bytes. The kernel of the host side may know of a narrower path, or a program has set a limit
/// (`IPV6_MTU`): a datagram of this node that was fragmented there gets no longer fragments here (Linux `ip_do_fragment`,
/// `ip6_fragment`).
pub(super) fn limit_to_fragments(ip: &IpPacket, mtu: usize) -> usize {
    match (ip.frag_max_size.filter(|_| ip.pkt.meta.origin.is_local()), ip.info.version()) {
        (None, _) => mtu,
        (Some(longest), Version::V4) => mtu.min(longest),
        (Some(longest), Version::V6) => mtu.min(longest.max(ipv6::MIN_MTU)),
    }
}

/// Transmits an encrypted packet, fragmented if it is still too long (Linux sets `ignore_df`).
pub(crate) fn run_fitted(dp: &mut Datapath, cx: Cx<'_>, mut pkt: Packet, mtu: usize, mut hop: Hop) {
    if hop.encap.is_some() {
        let mut ip = IpPacket::unparsed(pkt);
        match route_encap::translate_unparsed(dp, cx, &mut ip, hop) {
            Ok(left) => hop = left,
            Err(reason) => return dp.count_drop(&ip.pkt, reason).end(),
        }
        pkt = ip.pkt.take();
    }
    let fits = match pkt.meta.cut {
        Cut::Gso(_) => Info::parse(pkt.head(), pkt.len()).is_ok_and(|info| wire_len(&pkt, &info) <= mtu),
        Cut::Frames(frames) => usize::from(frames.size) <= mtu,
        Cut::Whole | Cut::Fragment => pkt.len() <= mtu,
    };
    if fits {
        return transmit_packet(dp, cx, pkt, hop);
    }
    if let Cut::Frames(_) = pkt.meta.cut {
        while let Some(frame) = pkt.take_frame() {
            run_fitted(dp, cx, frame, mtu, hop);
        }
        return run_fitted(dp, cx, pkt, mtu, hop);
    }
    if dp.ports.get(hop.dev).is_some_and(|port| port.config.features.ufo) {
        return transmit_to_fragmenting_link(dp, cx, pkt, mtu, hop);
    }
    let mut fragments = std::mem::take(&mut dp.scratch.sealed);
    fragment(dp, cx, pkt, mtu, hop.dev, &mut fragments);
    for fragment in fragments.drain(..) {
        transmit_packet(dp, cx, fragment, hop);
    }
    dp.scratch.sealed = fragments;
}

/// Sends the datagrams of an encrypted train one by one by a link that fragments them itself. Datagrams longer than `mtu` may also
/// be fragmented by routers.
#[cold]
fn transmit_to_fragmenting_link(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet, mtu: usize, hop: Hop) {
    let origin = pkt.meta.origin.get();
    let mut datagrams = Vec::new();
    let cut = match pkt.meta.cut {
        Cut::Gso(_) => gso::segment(cx.mem, &Features::BY_REFERENCE, pkt, 0, &mut datagrams),
        Cut::Whole | Cut::Frames(_) | Cut::Fragment => {
            pkt.into_frames(&mut datagrams);
            Ok(())
        }
    };
    if let Err(reason) = cut {
        return dp.ports.drop(origin, reason).end();
    }
    for mut datagram in datagrams {
        if datagram.len() > mtu {
            datagram.meta.cut = Cut::Fragment;
            if let Err(reason) = clear_dont_fragment(cx.mem, &mut datagram) {
                dp.defer(IpPacket::unparsed(datagram), Next::Drop(reason));
                continue;
            }
        }
        transmit_packet(dp, cx, datagram, hop);
    }
}

/// Fragments a packet that leaves by `dev` to `mtu` bytes. A fat packet is segmented first (Linux `ip_finish_output_gso`).
pub(crate) fn fragment(dp: &mut Datapath, cx: Cx<'_>, mut pkt: Packet, mtu: usize, dev: PortId, out: &mut Vec<Packet>) {
    let origin = pkt.meta.origin.get();
    let before = out.len();
    let version = Version::of(pkt.head()).unwrap_or(Version::V6);
    let result = if pkt.meta.cut.gso().is_some() {
        let mut segments = Vec::new();
        gso::segment(cx.mem, &Features::BY_REFERENCE, pkt, 0, &mut segments).map(|()| {
            for segment in segments {
                fragment(dp, cx, segment, mtu, dev, out);
            }
        })
    } else {
        checksum::complete(cx.mem, &mut pkt, 0)
            .and_then(|()| match version {
                Version::V4 => fragment_v4(dp, cx, pkt, mtu, out),
                Version::V6 => reassembly::fragment_v6(cx.mem, pkt, mtu, dp.fragment_ids.next_v6(), out),
            })
            .inspect(|()| {
                dp.count(dev, MibPair::FRAG_OKS.of(version));
                let made = (out.len() - before) as u64;
                dp.count_all(dev, MibPair::FRAG_CREATES.of(version), made);
            })
    };
    if let Err(reason) = result {
        dp.count(dev, MibPair::FRAG_FAILS.of(version));
        dp.ports.drop(origin, reason).end();
    }
}

/// Fragments of an IPv4 packet. One of our own gets an identification, as a packet of a socket may have none, and loses Don't
/// Fragment (Linux `ip_do_fragment`).
fn fragment_v4(
    dp: &mut Datapath,
    cx: Cx<'_>,
    mut pkt: Packet,
    mtu: usize,
    out: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    if pkt.meta.origin.is_local() {
        clear_dont_fragment(cx.mem, &mut pkt)?;
        dp.fragment_ids.identify(cx.mem, &mut pkt)?;
    }
    reassembly::fragment(cx.mem, pkt, mtu, out)
}

/// Drops a packet that does not fit the path by `dev`, with an ICMP error that has the MTU. The last datagram of a UDP train is kept
/// if it fits: only GRO has put it behind datagrams that do not fit. A last TCP segment that fits is dropped with the lost ones.
/// Returns the next stage if the whole packet is dropped.
#[cold]
pub(super) fn refuse_too_big(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    mtu: usize,
    dev: PortId,
) -> Option<Next> {
    if !last_datagram_fits(ip, mtu) {
        return Some(too_big(dp, ip, mtu, dev));
    }
    let origin = ip.pkt.meta.origin.get();
    let mut datagrams = match datagrams(cx.mem, ip) {
        Ok(datagrams) => datagrams,
        Err(reason) => return Some(dp.ports.drop(origin, reason).into()),
    };
    let last = datagrams.pop();
    let mut others = datagrams.into_iter();
    if let Some(first) = others.next() {
        let next = too_big(dp, &first, mtu, dev);
        dp.defer(first, next);
    }
    for other in others {
        dp.count_drop(&other.pkt, DropReason::PacketTooBig).end();
    }
    match last {
        Some(last) => {
            *ip = last;
            None
        }
        None => Some(Next::Done),
    }
}

/// Drops a packet that does not fit the path by `dev`, with an ICMP error that has the MTU.
fn too_big(dp: &mut Datapath, ip: &IpPacket, mtu: usize, dev: PortId) -> Next {
    if ip.info.version() == Version::V4 {
        dp.counters.count(Mib::IpFragFails);
    } else {
        dp.count(ip.pkt.meta.origin.device(), Mib::Ip6InTooBigErrors);
        dp.count(dev, Mib::Ip6FragFails);
    }
    Next::Reject(DropReason::PacketTooBig, Problem::TooBig { mtu })
}

/// Clears IPv4's Don't Fragment.
fn clear_dont_fragment(mem: &Memory, pkt: &mut Packet) -> Result<(), DropReason> {
    let head = pkt.writable_head(mem)?;
    if Version::of(head)? == Version::V4 {
        ipv4::Ipv4Header::mut_from(head)?.set_dont_fragment(false);
        ipv4::fill_check(head)?;
    }
    Ok(())
}

/// Tells whether a packet may be fragmented: its header allows it, or this node is its source and it is IPv6 (RFC 8200 §4.5) or for
/// a group or a broadcast address. The kernel of a socket sets Don't Fragment by the MTU of its own device, and no error about such
/// a packet could tell the socket another MTU.
pub(super) fn may_fragment(dp: &Datapath, ip: &IpPacket) -> bool {
    let origin = ip.pkt.meta.origin;
    let is_to_many = || dp.is_for_group(dp.fib.domain(origin.device()), ip.info.dst);
    //= RFC 8200 §4.5 source-alone: a packet is fragmented by its source only: a router answers with Packet Too Big
    !ip.info.dont_fragment || origin.is_local() && (ip.info.version() == Version::V6 || is_to_many())
}

/// The datagrams of a UDP train, by reference.
fn datagrams(mem: &Memory, ip: &mut IpPacket) -> Result<Vec<IpPacket>, DropReason> {
    let mut datagrams = Vec::new();
    gso::segment(mem, &Features::BY_REFERENCE, ip.pkt.take(), 0, &mut datagrams)?;
    let parse = |pkt| {
        let mut datagram = IpPacket::unparsed(pkt);
        let info = ip_headers(mem, &mut datagram.pkt)?;
        datagram.set_info(info);
        datagram.flow = ip.flow;
        Ok(datagram)
    };
    datagrams.into_iter().map(parse).collect()
}

/// Tells whether a packet is a UDP train whose last datagram is shorter than the others and no longer than `mtu`.
fn last_datagram_fits(ip: &IpPacket, mtu: usize) -> bool {
    let Cut::Gso(Gso { kind: GsoKind::Udp, size, .. }) = ip.pkt.meta.cut else { return false };
    let headers = ip.info.header_len + udp::UdpHeader::LEN;
    let payload = ip.pkt.len().saturating_sub(headers);
    let last = payload.checked_rem(size.into()).unwrap_or(0);
    last > 0 && last < payload && headers + last <= mtu
}
