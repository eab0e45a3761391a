//! Path MTU discovery from ICMP messages of routers (RFC 1191, RFC 8201, RFC 4301 §8.2.1; Linux `esp4_err`, `esp6_err`).
//!
//! Forged messages could degrade a path, so a message counts only if it quotes ESP that this node has sent, with an SPI that an
//! attacker has to guess, or TCP or UDP of a socket of the host side. A learnt MTU applies to the tunnels to that destination and
//! to this node's own packets there. Redirects are ignored: a router chooses its own routes (RFC 1812 §5.2.7.2).

use base::{Domain, DropReason, RouteFlow};
use fib::Decision;
use wire::{FlowKey, Protocol, Quote, Version, icmp, icmpv6};

use crate::host_side::up;
use crate::icmp_quote::answer_to_quoted;
use crate::next::Hop;
use crate::node::shard::Update;
use crate::{Cx, Datapath, IpPacket, Next};

/// Bytes of a quoted packet that are parsed: IP headers with common extension headers, UDP's header and the SPI.
const QUOTE_LEN: usize = 256;

/// MTU in an ICMP *fragmentation needed* or ICMPv6 *packet too big* message; `None` for other messages.
pub(super) fn reported_mtu(ip: &IpPacket) -> Option<usize> {
    let message = ip.info.payload(ip.pkt.head());
    match ip.info.version() {
        Version::V4 => match icmp::IcmpHeader::ref_from(message).ok()?.message()? {
            icmp::IcmpMessage::FragNeeded { mtu } => Some(usize::from(mtu)),
            _ => None,
        },
        Version::V6 => match icmpv6::Icmpv6Header::ref_from(message).ok()?.message()? {
            icmpv6::Icmpv6Message::PacketTooBig { mtu } => usize::try_from(mtu).ok(),
            _ => None,
        },
    }
}

/// Handles a message that the quoted packet was too big for a link with that MTU. Returns the reason to drop a message without effect,
/// unless it is delivered: [`DropReason::IcmpQuote`] if the quoted packet is none that this node has sent, [`DropReason::IcmpIgnored`]
/// if the MTU is not lower than the known one.
pub(super) fn learn(dp: &mut Datapath, cx: Cx<'_>, ip: &IpPacket, mtu: usize) -> Option<DropReason> {
    let mut bytes = [0; QUOTE_LEN];
    let at = ip.info.header_len + icmp::IcmpHeader::LEN;
    let quoted = &mut bytes[..ip.info.total_len.saturating_sub(at).min(QUOTE_LEN)];
    let domain = dp.fib.domain(ip.pkt.meta.origin.device());
    let quote = if ip.pkt.read_at(at, quoted) { Quote::parse(quoted).ok() } else { None };
    let is_ours = |quote: &Quote<'_>| {
        Version::of_addr(quote.dst) == ip.info.version()
            && dp.fib.is_local(domain, quote.src)
            && (dp.ipsec.may_have_sent(quote) || is_of_socket(dp, cx, domain, quote))
    };
    //= RFC 4301 §8.2.1 icmp-names-an-sa
    let Some(dst) = quote.filter(is_ours).map(|quote| quote.dst) else {
        return Some(DropReason::IcmpQuote);
    };
    let link_mtu = match dp.fib.decide_paths(&RouteFlow::to(domain, dst), None) {
        // The quoted packet has taken one of them.
        Decision::Paths(paths) => dp.fib.next_hops(paths).iter().filter_map(|hop| dp.mtu_of(hop.dev)).max(),
        other => Hop::of(other).ok().and_then(|hop| dp.mtu_of(hop.dev)),
    };
    let link_mtu = link_mtu.unwrap_or(0);
    if dp.fib.lower_path_mtu(cx.now, domain, dst, mtu, link_mtu) {
        dp.path_mtus_learnt += 1;
        dp.shard.tell(Update::PathMtu { domain, dst, mtu });
        tracing::debug!(%dst, mtu = dp.fib.path_mtu(cx.now, domain, dst), "path MTU");
        None
    } else {
        Some(DropReason::IcmpIgnored)
    }
}

/// Handles a message that a link has made for this node, about the MTU of a link of the host. It is no packet of the network, so the
/// checks of addresses, hooks and policies do not apply to it.
#[cold]
pub(crate) fn report(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Next {
    if let Err(reason) = ip.parse(cx) {
        return Next::Drop(reason);
    }
    let ignored = reported_mtu(ip).map_or(Some(DropReason::IcmpIgnored), |mtu| learn(dp, cx, ip, mtu));
    match answer_to_quoted(ip) {
        // The quoted packet may be a socket's.
        Some(answer) if dp.ports.has_host_side() => {
            let link = ip.pkt.meta.origin.device();
            up::deliver_error(dp, cx, answer.reversed(), link, ip.pkt.take());
            Next::Done
        }
        _ => ignored.map_or(Next::Done, Next::Drop),
    }
}

/// Tells whether a quoted packet is TCP or UDP that a socket of the host side has sent lately, which the node fits to the path MTU:
/// an attacker has to guess both ports.
fn is_of_socket(dp: &Datapath, cx: Cx<'_>, domain: Domain, quote: &Quote<'_>) -> bool {
    let (protocol @ (Protocol::TCP | Protocol::UDP), [a, b, c, d, ..]) = (quote.protocol, quote.payload) else {
        return false;
    };
    let [sport, dport] = [[*a, *b], [*c, *d]].map(u16::from_be_bytes);
    let sent = FlowKey { src: quote.src, dst: quote.dst, protocol, sport, dport };
    dp.established.has_sent(cx.now, domain, &sent)
}
