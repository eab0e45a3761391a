//! ESP output: the SAs of a policy, jobs for the ciphers, and encrypted packets (Linux `xfrm_output`).

use std::net::IpAddr;

use base::{DropReason, LinkId, Mib, SaId};
use ipsec::{Bundle, Mode, Train};
use packet::Packet;
use wire::{Version, ipv6};

use super::{esp_device, mtu};
use crate::ip_packet::wire_len;
use crate::mib::MibPair;
use crate::next::Hop;
use crate::node::PendingTx;
use crate::node::trace::Step;
use crate::tx::tcp::fit_tcp;
use crate::{Cx, Datapath, IpPacket, Next, forward, trace};

/// The SAs that packets go through, the innermost first, and the path beyond them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaStack<'a> {
    pub(crate) sas: &'a [SaId],
    /// First link of the path.
    pub(crate) dev: LinkId,
    /// MTU of the path in bytes.
    pub(crate) mtu: usize,
}

/// Path of packets that go through SAs.
pub(crate) struct Path {
    /// First hop, to the end of the outermost tunnel.
    pub(crate) hop: Hop,
    /// MTU beyond the SAs in bytes.
    pub(crate) outer_mtu: usize,
    /// MTU for packets into the first SA.
    pub(crate) inner_mtu: usize,
}

/// Path of packets to `dst` by `hop` through the SAs of `bundle`, in the domain of the link that they would have left by.
///
/// # Errors
/// No route to the end of the outermost tunnel; [`DropReason::LinkDown`].
pub(crate) fn path_through(
    dp: &Datapath,
    cx: Cx<'_>,
    bundle: &[SaId],
    dst: IpAddr,
    mut hop: Hop,
) -> Result<Path, DropReason> {
    let mut sas = bundle.iter().filter_map(|&id| dp.ipsec.sa(id));
    let mut end = dst;
    if let Some(tunnel) = sas.rfind(|sa| sa.mode() == Mode::Tunnel) {
        end = tunnel.end();
        hop = Hop::of(dp.decide(dp.fib.domain(hop.dev), end))?;
    }
    let link_mtu = dp.mtu_of(hop.dev).ok_or(DropReason::LinkDown)?;
    let outer_mtu = dp.path_mtu(cx, hop.dev, end, link_mtu);
    let inner_mtu = inner_mtu_behind(dp, cx, SaStack { sas: bundle, dev: hop.dev, mtu: outer_mtu }, 0);
    let inner_mtu = if dst.is_ipv4() { inner_mtu } else { inner_mtu.max(ipv6::MIN_MTU) };
    Ok(Path { hop, outer_mtu, inner_mtu })
}

/// Protects a packet by the SAs of `bundle`, the innermost first, and sends the result to the end of the outermost tunnel, in the
/// domain of the link that the packet would have left by (Linux `xfrm_dst_lookup`).
pub(super) fn output(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, bundle: &Bundle, hop: Hop) -> Next {
    let path = match path_through(dp, cx, bundle, ip.info.dst, hop) {
        Ok(path) => path,
        Err(DropReason::LinkDown) => return Next::Drop(DropReason::LinkDown),
        Err(reason) => {
            dp.counters.count(Mib::XfrmOutBundleGenError);
            return Next::Drop(reason);
        }
    };
    let Path { hop, outer_mtu, inner_mtu } = path;
    let Some(port) = dp.ports.get(hop.dev) else { return Next::Drop(DropReason::LinkDown) };
    let features = port.config.features;
    let stack = SaStack { sas: bundle, dev: hop.dev, mtu: outer_mtu };
    // Transport mode protects whole datagrams alone (RFC 4303 §3.1.1): a datagram that is too long is fragmented afterwards.
    let whole = bundle.iter().find_map(|&id| dp.ipsec.sa(id)).is_some_and(|sa| sa.mode() == Mode::Transport);
    let mut fits = match fit_tcp(dp, cx, ip, hop.dev, inner_mtu) {
        Ok(is_cut) => is_cut || wire_len(&ip.pkt, &ip.info) <= inner_mtu,
        Err(reason) => return Next::Drop(reason),
    };
    //= RFC 4301 §8.2.1 inner-mtu: a packet that is too long once protected and may not be fragmented is answered
    //=   with the MTU that remains inside the SA
    if !fits && !mtu::may_fragment(ip) {
        if let Some(next) = mtu::refuse_too_big(dp, cx, ip, inner_mtu, hop.dev) {
            return next;
        }
        fits = true;
    }
    if let Err(reason) = forward::count_hop(dp, cx, ip, hop) {
        return Next::Drop(reason);
    }
    let mut pieces = std::mem::take(&mut dp.scratch.pieces);
    if fits || whole {
        pieces.push(ip.pkt.take());
    } else {
        // Before ESP, so that the peer has nothing to reassemble (RFC 4301 §7).
        mtu::fragment(dp, cx, ip.pkt.take(), inner_mtu, hop.dev, &mut pieces);
    }
    let Some((&outermost, within)) = bundle.split_last() else { return Next::Done };
    seal(dp, cx, stack, within.len(), &mut pieces);
    let sa = dp.ipsec.sa(outermost);
    let is_offloaded = sa.is_some_and(|sa| sa.offload().is_some());
    let train = match sa.is_some_and(|sa| sa.encap().is_some()) {
        // Segments are translated one by one.
        _ if hop.encap.is_some() => Train::None,
        true if features.uso => Train::Udp,
        _ if features.frames => Train::Frames,
        _ => Train::None,
    };
    let pending = PendingTx { hop, mtu: outer_mtu };
    for piece in pieces.drain(..) {
        let origin = piece.meta.origin.get();
        let submitted = if is_offloaded {
            esp_device::submit_offloaded(dp, cx, outermost, piece, train, pending)
        } else {
            submit(dp, cx, outermost, piece, train, pending)
        };
        if let Err(reason) = submitted {
            dp.ports.drop(origin, reason);
        }
    }
    dp.scratch.pieces = pieces;
    send_sealed(dp, cx);
    Next::Done
}

/// Submits a packet to the ciphers, and records its next hop.
pub(crate) fn submit(
    dp: &mut Datapath,
    cx: Cx<'_>,
    sa: SaId,
    mut pkt: Packet,
    train: Train,
    pending: PendingTx,
) -> Result<(), DropReason> {
    if dp.trace.is_on() {
        trace::step(dp, cx, &mut pkt, Step::Encrypt { sa });
    }
    let Datapath { ipsec, counters, .. } = dp;
    let before = ipsec.sealing();
    let result = ipsec.submit_seal(cx.mem, cx.now, sa, pkt, train, pending.mtu, counters);
    // Near the end of its SA's lifetime a fat packet is submitted segment by segment, and the last segments may be refused.
    let submitted = ipsec.sealing() - before;
    dp.pending_tx.extend(std::iter::repeat_n(pending, submitted));
    result
}

/// Transmits encrypted packets, in order.
pub(crate) fn send_sealed(dp: &mut Datapath, cx: Cx<'_>) {
    let mut sealed = std::mem::take(&mut dp.scratch.sealed_out);
    while dp.ipsec.next_sealed(cx.mem, &mut sealed) {
        let PendingTx { hop, mtu } = dp.pending_tx.pop_front().expect("one for each packet that was submitted");
        for pkt in sealed.drain(..) {
            let version = Version::of(pkt.head()).unwrap_or(Version::V6);
            dp.count_all(hop.dev, MibPair::OUT_REQUESTS.of(version), pkt.meta.cut.packets());
            mtu::run_fitted(dp, cx, pkt, mtu, hop);
        }
    }
    dp.scratch.sealed_out = sealed;
}

/// Runs packets through the first `n` of these SAs at once.
pub(crate) fn seal(dp: &mut Datapath, cx: Cx<'_>, stack: SaStack<'_>, n: usize, packets: &mut Vec<Packet>) {
    let mut sealed = std::mem::take(&mut dp.scratch.sealed);
    for (at, &sa) in stack.sas[..n].iter().enumerate() {
        let mtu = inner_mtu_behind(dp, cx, stack, at + 1);
        for pkt in packets.drain(..) {
            let origin = pkt.meta.origin.get();
            let Datapath { ipsec, counters, .. } = &mut *dp;
            let result = ipsec.seal(cx.mem, cx.now, sa, pkt, Train::None, mtu, &mut sealed, counters);
            if let Err(reason) = result {
                dp.ports.drop(origin, reason);
            }
        }
        std::mem::swap(packets, &mut sealed);
    }
    dp.scratch.sealed = sealed;
}

/// MTU for packets that have passed the first `n` of these SAs and go through the others. A packet encrypted for the end of a
/// tunnel continues from the end of the tunnel around it, and that path may be narrower (Linux `xfrm_init_pmtu`).
fn inner_mtu_behind(dp: &Datapath, cx: Cx<'_>, stack: SaStack<'_>, n: usize) -> usize {
    let SaStack { sas, dev, mtu } = stack;
    (n..sas.len()).rev().fold(mtu, |mtu, at| {
        let inner_mtu = dp.ipsec.sa(sas[at]).map_or(mtu, |sa| sa.inner_mtu(mtu));
        let mut within = sas[..at].iter().filter_map(|&id| dp.ipsec.sa(id));
        let tunnel = within.rfind(|sa| sa.mode() == Mode::Tunnel);
        tunnel.map_or(inner_mtu, |tunnel| dp.path_mtu(cx, dev, tunnel.end(), inner_mtu))
    })
}
