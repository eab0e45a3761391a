//! Routes with an ILA encapsulation: the destination is translated where a packet leaves by such a route, or has come by it (Linux
//! `ila_lwt.c`).
//!
//! Policies, MTU checks and hooks apply to a sent packet with its original destination. The packet is translated after them, before
//! fragmentation, or after the ciphers if ESP protects it. A received packet is translated once its route is known.

use base::DropReason;
use fib::IlaHop;
use ila::{CsumMode, HookType, RouteEncap};

use crate::next::{Cast, Hop};
use crate::{Cx, Datapath, IpPacket, Next, ila_hook};

/// Translates a parsed packet that is sent by `hop`, if the hop has a translation, and returns the hop without it. A receiver does
/// not adjust the checksum of fragments, so `adj-transport` is not applied to a packet that is fragmented next.
///
/// # Errors
/// As [`translate`].
#[inline]
pub(crate) fn translate_sent(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    hop: Hop,
    is_fragmented: bool,
) -> Result<Hop, DropReason> {
    let Some(mut encap) = hop.encap else { return Ok(hop) };
    if is_fragmented && encap.csum_mode == CsumMode::AdjTransport {
        encap.csum_mode = CsumMode::NoAction;
    }
    translate(dp, cx, ip, encap)?;
    Ok(Hop { encap: None, ..hop })
}

/// As [`translate_sent`], of a packet whose headers have changed since they were parsed.
///
/// # Errors
/// As [`IpPacket::parse`] and [`translate`].
#[cold]
pub(crate) fn translate_unparsed(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    hop: Hop,
) -> Result<Hop, DropReason> {
    ip.parse(cx)?;
    translate_sent(dp, cx, ip, hop, false)
}

/// Next stage of a received packet whose route has an encapsulation. A route for sent packets translates a forwarded packet at
/// output.
pub(crate) fn received(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, encap: RouteEncap, to: IlaHop) -> Next {
    let is_translated_here = encap.hook_type == HookType::Input;
    if is_translated_here && let Err(reason) = translate(dp, cx, ip, encap) {
        return Next::Drop(reason);
    }
    match to {
        IlaHop::Local => Next::Local(Cast::Unicast),
        IlaHop::Forward { dev, next_hop } => {
            Next::Forward(Hop { encap: Some(encap).filter(|_| !is_translated_here), ..Hop::new(dev, next_hop) })
        }
    }
}

/// Translates a parsed packet. Its route has been decided about, so it cannot become one to a group.
///
/// # Errors
/// As [`ila_hook::apply`].
fn translate(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, encap: RouteEncap) -> Result<(), DropReason> {
    ila_hook::apply(dp, cx, ip, encap.rewrite(), encap.direction())?;
    if ip.info.dst.is_multicast() { Err(DropReason::IpDestinationInvalid) } else { Ok(()) }
}
