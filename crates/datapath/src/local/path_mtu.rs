//! The MTU of paths, which routers beyond the first link tell (RFC 1191, RFC 8201, RFC 4301 §8.2.1; Linux `esp4_err`,
//! `esp6_err`).
//!
//! A forged message slows a node down, so a message counts only if it quotes ESP that this node has sent, by an SPI that an
//! attacker has to guess, or TCP of a socket of the host side. What is learnt narrows the tunnels to that destination and this
//! node's own packets to it. Redirects are not followed: a router chooses its own routes (RFC 1812 §5.2.7.2).

use std::net::IpAddr;

use base::{Domain, DropReason, LinkId};
use wire::{FlowKey, Protocol, Quote, Version, icmp, icmpv6};

use crate::forward::Hop;
use crate::{Cx, Datapath, IpPacket};

/// Bytes of a quoted packet that are looked at: IP headers with what is usual behind them, UDP's and the SPI.
const QUOTE_LEN: usize = 256;

/// The MTU that an ICMP or ICMPv6 message tells, if it is one about that.
pub(super) fn told(ip: &IpPacket) -> Option<usize> {
    let message = ip.info.payload(ip.pkt.head());
    match ip.info.version() {
        Version::V4 => match icmp::Header::ref_from(message).ok()?.message()? {
            icmp::Message::FragNeeded { mtu } => Some(usize::from(mtu)),
            _ => None,
        },
        Version::V6 => match icmpv6::Header::ref_from(message).ok()?.message()? {
            icmpv6::Message::PacketTooBig { mtu } => usize::try_from(mtu).ok(),
            _ => None,
        },
    }
}

/// Takes a message that the packet it quotes was too big for a link with that MTU.
///
/// # Errors
/// [`DropReason::IcmpQuote`] if it quotes nothing that this node's ESP has sent, [`DropReason::IcmpIgnored`] if it is no news.
pub(super) fn learn(dp: &mut Datapath, cx: Cx<'_>, ip: &IpPacket, mtu: usize) -> Result<(), DropReason> {
    let mut bytes = [0; QUOTE_LEN];
    let at = ip.info.header_len + icmp::Header::LEN;
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
        return Err(DropReason::IcmpQuote);
    };
    let link_mtu = Hop::of(dp.decide(domain, dst)).ok().and_then(|hop| dp.mtu_of(hop.dev)).unwrap_or(0);
    if dp.fib.lower_path_mtu(cx.now, domain, dst, mtu, link_mtu) {
        dp.path_mtus_learnt += 1;
        tracing::debug!(%dst, mtu = dp.fib.path_mtu(cx.now, domain, dst), "path MTU");
        Ok(())
    } else {
        Err(DropReason::IcmpIgnored)
    }
}

/// Tells whether a quoted packet is TCP of a socket of the host side, whose segments the node cuts to the path: an attacker has to guess
/// both ports.
fn is_of_socket(dp: &Datapath, cx: Cx<'_>, domain: Domain, quote: &Quote<'_>) -> bool {
    let (Protocol::TCP, [a, b, c, d, ..]) = (quote.protocol, quote.payload) else { return false };
    let [sport, dport] = [[*a, *b], [*c, *d]].map(u16::from_be_bytes);
    let sent = FlowKey { src: quote.src, dst: quote.dst, protocol: Protocol::TCP, sport, dport };
    dp.established.has_sent(cx.now, domain, &sent)
}

impl Datapath {
    /// MTU of the path to `dst` in bytes; its first link is `dev`, of MTU `link_mtu`.
    #[inline]
    pub(crate) fn path_mtu(&self, cx: Cx<'_>, dev: LinkId, dst: IpAddr, link_mtu: usize) -> usize {
        self.fib.path_mtu(cx.now, self.fib.domain(dev), dst).map_or(link_mtu, |mtu| mtu.min(link_mtu))
    }
}
