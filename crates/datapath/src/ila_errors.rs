//! Addresses inside ICMPv6 errors: a packet that a route has translated is quoted with its ILA destination, of which its sender knows
//! nothing. Before anything reads such an error, the quotation gets the SIR destination back, so that sockets, path MTUs and policies
//! find what the error is about. Linux does not do so.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use base::{Domain, DropReason};
use fib::{Decision, Fib, RouteKind};
use ila::{HookType, Locator, RouteEncap};
use packet::Csum;
use wire::{Protocol, checksum, icmpv6, ipv6};

use crate::{Cx, Datapath, IpPacket};

/// Offset of the destination in an IPv6 header (RFC 8200 §3).
const DST_AT: usize = 24;

/// Offset of the checksum in an ICMPv6 message (RFC 4443 §2.1).
const CHECK_AT: usize = 2;

/// Bits of a locator: a route to a shorter prefix is one to several.
const LOCATOR_BITS: u8 = 64;

/// Treatment of ICMPv6 errors about translated packets.
#[derive(Debug)]
pub(crate) struct IlaErrors {
    is_on: bool,
    restored: u64,
    translations: Translations,
}

/// Translations that routes make of what is sent, by the locator that they give; of one state of the routes.
#[derive(Debug, Default)]
struct Translations {
    generation: Option<u64>,
    by_locator: HashMap<Locator, Vec<(RouteEncap, Locator)>>,
}

impl Default for IlaErrors {
    fn default() -> Self {
        Self { is_on: true, restored: 0, translations: Translations::default() }
    }
}

/// Gives the packet that an ICMPv6 error for this node quotes the destination back that it had before a route translated it.
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
    dp.ila_errors.translations.refresh(&dp.fib);
    if dp.ila_errors.translations.by_locator.is_empty() {
        return Ok(());
    }
    let icmp = ip.info.header_len;
    let quoted = icmp + icmpv6::Header::LEN;
    if ip.info.total_len < quoted + ipv6::Header::LEN || !ip.pkt.may_pull(cx.mem, quoted + ipv6::Header::LEN)? {
        return Ok(());
    }
    let Ok(header) = ipv6::Header::ref_from(&ip.pkt.head()[quoted..]) else { return Ok(()) };
    let domain = dp.fib.domain(ip.pkt.meta.origin.device());
    let (src, translated) = (header.src(), header.dst());
    if !dp.fib.is_local(domain, IpAddr::V6(src)) {
        return Ok(());
    }
    let Some(original) = dp.ila_errors.translations.original(&dp.fib, domain, translated) else { return Ok(()) };
    let is_partial = matches!(ip.pkt.meta.csum, Csum::Partial { .. });
    let head = ip.pkt.writable_head(cx.mem)?;
    head[quoted + DST_AT..quoted + ipv6::Header::LEN].copy_from_slice(&original.octets());
    if !is_partial {
        // The sum of the whole packet stays: the checksum makes up for the address.
        let diff = checksum::sub(checksum::sum(&original.octets()), checksum::sum(&translated.octets()));
        let check: &mut [u8] = &mut head[icmp + CHECK_AT..icmp + CHECK_AT + 2];
        let new = checksum::replace_by_diff(u16::from_be_bytes([check[0], check[1]]), diff);
        check.copy_from_slice(&new.to_be_bytes());
    }
    dp.ila_errors.restored += 1;
    Ok(())
}

impl Translations {
    /// Takes over the routes as they are.
    fn refresh(&mut self, fib: &Fib) {
        if self.generation == Some(fib.generation()) {
            return;
        }
        self.generation = Some(fib.generation());
        self.by_locator.clear();
        for (_, route) in fib.routes() {
            let (RouteKind::Ila { encap, .. }, IpAddr::V6(addr)) = (route.kind, route.prefix.addr()) else { continue };
            if encap.hook_type == HookType::Output && route.prefix.len() >= LOCATOR_BITS {
                let originals = self.by_locator.entry(encap.locator).or_default();
                let original = (encap, Locator::of(addr));
                if !originals.contains(&original) {
                    originals.push(original);
                }
            }
        }
    }

    /// The destination that the routes of a domain translate to `translated`.
    fn original(&self, fib: &Fib, domain: Domain, translated: Ipv6Addr) -> Option<Ipv6Addr> {
        let translates = |original: Ipv6Addr, by: &RouteEncap| matches!(fib.decide(domain, IpAddr::V6(original), None), Decision::Ila { encap, .. } if encap == *by);
        self.by_locator.get(&Locator::of(translated))?.iter().find_map(|(encap, sir_prefix)| {
            encap.original(translated, *sir_prefix).filter(|&original| translates(original, encap))
        })
    }
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
