//! Policy checks of packets in clear (Linux `xfrm_policy_check`).

use base::{DropReason, Mib, PortId};
use wire::Protocol;
use xfrm::{Dir, Flowi};

use crate::icmp_quote::answer_to_quoted;
use crate::{Cx, Datapath, IpPacket, trace};

/// Checks the policies, if there are any, for a packet in clear: an output packet by `link`, or an input packet from it.
#[inline]
pub(crate) fn check(dp: &mut Datapath, cx: Cx<'_>, dir: Dir, ip: &IpPacket, link: PortId) -> Result<(), DropReason> {
    if dp.ipsec.is_idle() && ip.pkt.meta.sec_path.is_empty() {
        return Ok(());
    }
    let flow = flowi(dp, dir, ip, link);
    trace::policy(dp, cx, &ip.pkt, dir, &flow);
    let quoted = || answer_to_quoted(ip);
    let sec_path = &ip.pkt.meta.sec_path;
    dp.ipsec.check(cx.now, dir, &flow, sec_path, quoted, &mut dp.counters)?;
    if ip.pkt.meta.sec_path.is_empty() && is_doubtful(dp, dir, ip, link) {
        dp.counters.count(Mib::XfrmInTmplMismatch);
        return Err(DropReason::PolicyMismatch);
    }
    Ok(())
}

/// Flow of a packet for a policy lookup in direction `dir`; `link` is the output or input link.
#[inline]
fn flowi(dp: &Datapath, dir: Dir, ip: &IpPacket, link: PortId) -> Flowi {
    let loopback = (dir == Dir::In).then_some(PortId::LOOPBACK);
    ip.flowi(link, dp.fib.domain(link).vrf_device().or(loopback))
}

/// Tells whether a packet is a later fragment that may belong to a flow which a policy protects or blocks: its ports are
/// unknown. Such a fragment is dropped in clear (RFC 4301 §7); Linux passes it.
#[inline]
pub(crate) fn is_doubtful(dp: &Datapath, dir: Dir, ip: &IpPacket, link: PortId) -> bool {
    //= RFC 4301 §7 later-fragments: a later fragment, whose ports are unknown, does not pass in clear
    //=   if a policy for some ports might protect it
    !ip.info.has_transport() && dp.ipsec.spd().may_stop_fragment(dir, &flowi(dp, dir, ip, link))
}

/// Tells whether a sent packet is from, or a received packet is to, a port that bypasses policies: IKE's, and those of sockets
/// with a bypass policy of their own (`IP_XFRM_POLICY`). Otherwise a policy between the two gateways would hold the packets that
/// set up its SA.
pub(crate) fn is_exempt(dp: &Datapath, ip: &IpPacket) -> bool {
    let local_port = if ip.pkt.meta.origin.is_local() { ip.flow.sport } else { ip.flow.dport };
    ip.info.protocol == Protocol::UDP
        && ip.info.fragment.is_none()
        && (matches!(local_port, 500 | 4500) || dp.bypass_ports.contains(&local_port))
}
