//! ESP output: the SAs of a policy, jobs for the ciphers, and encrypted packets (Linux `xfrm_output`).

use ipsec::device::OffloadDecision;

use base::{DropReason, Mib, SaId};
use ipsec::{Bundle, Train};
use packet::Packet;
use wire::Version;
use xfrm::Mode;

use super::sa_path::{Path, SaStack, path_through, seal};
use super::{esp_device, mtu};
use crate::hand_over::hand_over;
use crate::ip_packet::wire_len;
use crate::mib::MibPair;
use crate::next::{Hop, PendingTx};
use crate::node::shard::Stage;
use crate::tx::tcp::fit_tcp;
use crate::tx::transmit::transmit_packet;
use crate::{Cx, Datapath, IpPacket, Next, hop_limit, trace};

/// Protects a packet by the SAs of `bundle`, the innermost first, and sends the result to the end of the outermost tunnel, in the
/// domain of the link that the packet would have left by (Linux `xfrm_dst_lookup`).
pub(super) fn output(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, bundle: &Bundle, hop: Hop) -> Next {
    let routed_by = hop.dev;
    let path = match path_through(dp, cx, bundle, ip.info.dst, hop) {
        Ok(path) => path,
        Err(DropReason::LinkDown) => return Next::Drop(DropReason::LinkDown),
        Err(reason) => {
            dp.counters.count(Mib::XfrmOutBundleGenError);
            return Next::Drop(reason);
        }
    };
    let Path { hop, outer_mtu, inner_mtu } = path;
    let mut inner_mtu = mtu::limit_to_fragments(ip, inner_mtu);
    if ip.pkt.meta.origin.is_local() {
        // The path beyond the tunnel may be narrower (Linux `xfrm_bundle_ok`, `route_mtu_cached`).
        inner_mtu = dp.path_mtu(cx, routed_by, ip.info.dst, inner_mtu);
    }
    // Transport mode protects whole datagrams alone (RFC 4303 §3.1.1): a datagram that is too long is fragmented afterwards.
    let whole = bundle.iter().find_map(|&id| dp.ipsec.sa(id)).is_some_and(|sa| sa.mode() == Mode::Transport);
    let mut fits = match fit_tcp(dp, cx, ip, hop.dev, inner_mtu) {
        Ok(is_cut) => is_cut || wire_len(&ip.pkt, &ip.info) <= inner_mtu,
        Err(reason) => return Next::Drop(reason),
    };
    //= RFC 4301 §8.2.1 inner-mtu: a packet that exceeds the path MTU after encapsulation and may not be fragmented is
    //=   answered with the inner MTU of the SA
    if !fits && !mtu::may_fragment(dp, ip) {
        if let Some(next) = mtu::refuse_too_big(dp, cx, ip, inner_mtu, hop.dev) {
            return next;
        }
        fits = true;
    }
    if let Err(reason) = hop_limit::count_hop(dp, cx, ip, hop) {
        return Next::Drop(reason);
    }
    let mut pieces = std::mem::take(&mut dp.scratch.pieces);
    if fits || whole {
        pieces.push(ip.pkt.take());
    } else {
        // Before ESP, so that the peer has nothing to reassemble (RFC 4301 §7).
        mtu::fragment(dp, cx, ip.pkt.take(), inner_mtu, hop.dev, &mut pieces);
    }
    protect(dp, cx, &mut pieces, bundle, 0, PendingTx { hop, mtu: outer_mtu });
    dp.scratch.pieces = pieces;
    Next::Done
}

/// Protects a packet that another shard has sealed by the first SAs of `bundle`, and that the next one's owner continues.
pub(crate) fn continue_handed_over(
    dp: &mut Datapath,
    cx: Cx<'_>,
    pkt: Packet,
    bundle: &Bundle,
    sealed: usize,
    pending: PendingTx,
) {
    let mut pieces = std::mem::take(&mut dp.scratch.pieces);
    pieces.push(pkt);
    protect(dp, cx, &mut pieces, bundle, sealed, pending);
    dp.scratch.pieces = pieces;
}

/// Protects packets by the SAs of `bundle` behind the first `sealed`, and sends the results, or hands the packets to the owner of an
/// SA on the way.
fn protect(
    dp: &mut Datapath,
    cx: Cx<'_>,
    pieces: &mut Vec<Packet>,
    bundle: &Bundle,
    sealed: usize,
    pending: PendingTx,
) {
    let PendingTx { hop, mtu: outer_mtu } = pending;
    let stack = SaStack { sas: bundle, dev: hop.dev, mtu: outer_mtu };
    let (Some(&outermost), Some(port)) = (bundle.last(), dp.ports.get(hop.dev)) else {
        pieces.drain(..).for_each(|pkt| dp.ports.drop(pkt.meta.origin.get(), DropReason::LinkDown).end());
        return;
    };
    let features = port.config.features;
    let next = (sealed..bundle.len()).find_map(|at| Some((at, dp.ipsec.owner_elsewhere(bundle[at])?)));
    let until = next.map_or(bundle.len() - 1, |(at, _)| at);
    seal(dp, cx, stack, sealed..until, pieces);
    if let Some((sealed, owner)) = next {
        for pkt in pieces.drain(..) {
            let stage = Stage::Protect { sas: bundle.clone(), sealed, pending };
            hand_over(dp, cx, IpPacket::unparsed(pkt), owner, stage);
        }
        return;
    }
    let sa = dp.ipsec.sa(outermost);
    let is_offloaded = sa.is_some_and(|sa| sa.offload().is_some());
    let train = match sa.is_some_and(|sa| sa.encap().is_some()) {
        // Segments are translated one by one.
        _ if hop.encap.is_some() => Train::None,
        true if features.uso => Train::Udp,
        _ if features.frames => Train::Frames,
        _ => Train::None,
    };
    for piece in pieces.drain(..) {
        let origin = piece.meta.origin.get();
        let number = piece.meta.trace;
        let submitted = if is_offloaded {
            submit_offloaded(dp, cx, outermost, piece, train, pending)
        } else {
            submit(dp, cx, outermost, piece, train, pending)
        };
        if let Err(reason) = submitted {
            trace::not_sealed(dp, number, origin, reason, outermost);
            dp.ports.count_drops(origin, reason, 1).end();
        }
    }
    send_sealed(dp, cx);
}

/// Leaves the encryption of a packet to the device of its last SA if that device can do it, and encrypts in software otherwise
/// (Linux `xfrm_output`).
#[cold]
fn submit_offloaded(
    dp: &mut Datapath,
    cx: Cx<'_>,
    sa: SaId,
    mut pkt: Packet,
    train: Train,
    pending: PendingTx,
) -> Result<(), DropReason> {
    match esp_device::offload_decision(dp, cx, sa, &mut pkt, pending.hop.dev, pending.mtu)? {
        OffloadDecision::Software => submit(dp, cx, sa, pkt, train, pending),
        OffloadDecision::Cipher => submit(dp, cx, sa, pkt, Train::Inline, pending),
        // The header to be translated does not exist yet: the device makes it.
        OffloadDecision::Device if pending.hop.encap.is_some() => Err(DropReason::EspDevice),
        OffloadDecision::Device => {
            transmit_packet(dp, cx, pkt, pending.hop);
            Ok(())
        }
        OffloadDecision::Refused(reason) => Err(reason),
    }
}

/// Encrypts a packet at once and sends it, or submits it to the ciphers and records its next hop.
fn submit(
    dp: &mut Datapath,
    cx: Cx<'_>,
    sa: SaId,
    mut pkt: Packet,
    train: Train,
    pending: PendingTx,
) -> Result<(), DropReason> {
    trace::encrypt(dp, cx, &mut pkt, sa);
    if dp.ipsec.seals_at_once() {
        let mut sealed = std::mem::take(&mut dp.scratch.sealed_out);
        let Datapath { ipsec, counters, .. } = dp;
        let result = ipsec.seal(cx.mem, cx.now, sa, pkt, train, pending.mtu, &mut sealed, counters);
        send_all(dp, cx, &mut sealed, pending);
        dp.scratch.sealed_out = sealed;
        return result;
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
        let pending = dp.pending_tx.pop_front().expect("one for each packet that was submitted");
        send_all(dp, cx, &mut sealed, pending);
    }
    dp.scratch.sealed_out = sealed;
}

/// Transmits the encrypted packets of one job.
fn send_all(dp: &mut Datapath, cx: Cx<'_>, sealed: &mut Vec<Packet>, PendingTx { hop, mtu }: PendingTx) {
    for pkt in sealed.drain(..) {
        let version = Version::of(pkt.head()).unwrap_or(Version::V6);
        dp.count_all(hop.dev, MibPair::OUT_REQUESTS.of(version), pkt.meta.cut.packets());
        mtu::run_fitted(dp, cx, pkt, mtu, hop);
    }
}
