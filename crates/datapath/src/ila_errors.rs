//! Addresses inside ICMPv6 errors: an error about a packet that a route has translated quotes the ILA destination, which the packet's
//! sender never used. The SIR destination is restored in the quotation before the error is handled, so that sockets, path MTUs and
//! policies match the quoted packet. Linux does not change the quotation.

use std::net::{IpAddr, Ipv6Addr};

use base::{Domain, DropReason};
use packet::Csum;
use wire::{Protocol, checksum, icmpv6, ipv6};

use crate::{Cx, Datapath, IpPacket};

/// Offset of the destination in an IPv6 header (RFC 8200 §3).
const DST_AT: usize = 24;

/// Offset of the checksum in an ICMPv6 message (RFC 4443 §2.1).
const CHECK_AT: usize = 2;

/// Restores the SIR destination of the packet quoted by an ICMPv6 error for this node, if a route translated it.
///
/// # Errors
/// [`DropReason::NoMemory`].
#[inline]
pub(crate) fn restore(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    let is_error = ip.info.protocol == Protocol::ICMPV6 && matches!(ip.flow.sport, 1..=4);
    if is_error && dp.ila_errors.is_on { restore_quoted(dp, cx, ip) } else { Ok(()) }
}

#[cold]
fn restore_quoted(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    let icmp = ip.info.header_len;
    let quoted = icmp + icmpv6::Icmpv6Header::LEN;
    if !dp.fib.has_encaps()
        || ip.info.total_len < quoted + ipv6::Ipv6Header::LEN
        || !ip.pkt.may_pull(cx.mem, quoted + ipv6::Ipv6Header::LEN)?
    {
        return Ok(());
    }
    let Ok(header) = ipv6::Ipv6Header::ref_from(&ip.pkt.head()[quoted..]) else { return Ok(()) };
    let domain = dp.fib.domain(ip.pkt.meta.origin.device());
    let (src, translated) = (header.src(), header.dst());
    if !dp.fib.is_local(domain, IpAddr::V6(src)) || !host::icmp::check_ok(&ip.pkt, &ip.info) {
        return Ok(());
    }
    let Some(original) = original(dp, cx, domain, translated) else { return Ok(()) };
    let is_partial = matches!(ip.pkt.meta.csum, Csum::Partial { .. });
    let head = ip.pkt.writable_head(cx.mem)?;
    head[quoted + DST_AT..quoted + ipv6::Ipv6Header::LEN].copy_from_slice(&original.octets());
    if !is_partial {
        // The message's checksum field is adjusted, so the sum over the whole message stays the same.
        let diff = checksum::sub(checksum::sum(&original.octets()), checksum::sum(&translated.octets()));
        let check: &mut [u8] = &mut head[icmp + CHECK_AT..icmp + CHECK_AT + 2];
        let new = checksum::replace_by_diff(u16::from_be_bytes([check[0], check[1]]), diff);
        check.copy_from_slice(&new.to_be_bytes());
    }
    dp.ila_errors.restored += 1;
    Ok(())
}

/// Restores the original destination of a parsed packet that is dropped after its translation, for the ICMP error that quotes it.
///
/// # Errors
/// [`DropReason::NoMemory`].
#[cold]
pub(crate) fn undo(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    let IpAddr::V6(translated) = ip.info.dst else { return Ok(()) };
    if !dp.fib.has_encaps() || !dp.ila_errors.is_on {
        return Ok(());
    }
    let domain = dp.fib.domain(ip.pkt.meta.origin.device());
    let Some(original) = original(dp, cx, domain, translated) else { return Ok(()) };
    ipv6::Ipv6Header::mut_from(ip.pkt.writable_head(cx.mem)?)?.set_dst(original);
    ip.set_dst(IpAddr::V6(original));
    Ok(())
}

/// Original destination that a route of the domain translates to `translated`.
fn original(dp: &mut Datapath, cx: Cx<'_>, domain: Domain, translated: Ipv6Addr) -> Option<Ipv6Addr> {
    let Datapath { ila_errors, fib, .. } = dp;
    ila_errors.translations.refresh(fib, cx.now);
    ila_errors.translations.original(fib, domain, translated)
}

impl Datapath {
    /// ICMPv6 errors whose quoted destination was translated back.
    pub fn ila_errors_restored(&self) -> u64 {
        self.ila_errors.restored
    }

    /// Sets whether destinations that ICMPv6 errors quote are translated back.
    pub fn restore_ila_errors(&mut self, is_on: bool) {
        self.ila_errors.is_on = is_on;
    }
}
