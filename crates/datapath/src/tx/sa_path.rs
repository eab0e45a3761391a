//! Paths of packets through SAs: the hop and the MTUs around each SA, and encryption by the inner ones.

use std::net::IpAddr;
use std::ops::Range;

use base::{DropReason, PortId, RouteFlow, SaId};
use ipsec::Train;
use packet::Packet;
use wire::{Protocol, ipv6};
use xfrm::Mode;

use crate::next::Hop;
use crate::{Cx, Datapath};

/// The SAs that packets go through, the innermost first, and the path beyond them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaStack<'a> {
    pub(crate) sas: &'a [SaId],
    /// First link of the path.
    pub(crate) dev: PortId,
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
        let encap = tunnel.encap_to();
        let flow = RouteFlow {
            src: Some(tunnel.src()),
            protocol: encap.map_or(Protocol::ESP, |_| Protocol::UDP).0,
            sport: encap.map_or(0, |encap| encap.sport),
            dport: encap.map_or(0, |encap| encap.dport),
            ..RouteFlow::to(dp.fib.domain(hop.dev), end)
        };
        hop = Hop::of(dp.decide_flow(&flow))?;
    }
    let link_mtu = dp.mtu_of(hop.dev).ok_or(DropReason::LinkDown)?;
    let outer_mtu = dp.path_mtu(cx, hop.dev, end, link_mtu);
    let inner_mtu = inner_mtu_behind(dp, cx, SaStack { sas: bundle, dev: hop.dev, mtu: outer_mtu }, 0);
    let inner_mtu = if dst.is_ipv4() { inner_mtu } else { inner_mtu.max(ipv6::MIN_MTU) };
    Ok(Path { hop, outer_mtu, inner_mtu })
}

/// Runs packets through some of these SAs at once.
pub(crate) fn seal(dp: &mut Datapath, cx: Cx<'_>, stack: SaStack<'_>, which: Range<usize>, packets: &mut Vec<Packet>) {
    let mut sealed = std::mem::take(&mut dp.scratch.sealed);
    for at in which {
        let sa = stack.sas[at];
        let mtu = inner_mtu_behind(dp, cx, stack, at + 1);
        for pkt in packets.drain(..) {
            let origin = pkt.meta.origin.get();
            let Datapath { ipsec, counters, .. } = &mut *dp;
            let result = ipsec.seal(cx.mem, cx.now, sa, pkt, Train::None, mtu, &mut sealed, counters);
            if let Err(reason) = result {
                dp.ports.drop(origin, reason).end();
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
