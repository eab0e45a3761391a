//! Translations by routes with an ILA encapsulation, indexed by the translated address.
//!
//! Packets from any sender cause look-ups, so the work for each is bounded: routes are read once a second at most, and at most
//! [`MAX_CANDIDATES`] of the routes that may have produced an address are tried.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::{Domain, Instant, Prefix};
use fib::{Decision, Fib, RouteKind};
use ila::{HookType, Locator, RouteEncap};

/// Bits of a locator: a route to a shorter prefix is one to several.
const LOCATOR_BITS: u8 = 64;

/// Routes that are tried for one error.
const MAX_CANDIDATES: usize = 64;

/// Least time between two readings of the routes.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Treatment of ICMPv6 errors about translated packets.
#[derive(Debug)]
pub(crate) struct IlaErrors {
    pub(crate) is_on: bool,
    pub(crate) restored: u64,
    pub(crate) translations: Translations,
}

/// Index of the translations by routes, for one generation of the routes. It may be stale, so a result is checked.
#[derive(Debug, Default)]
pub(crate) struct Translations {
    /// Generation of the routes, and the time at which they were read.
    read: Option<(u64, Instant)>,
    /// Destinations of host routes, by the translated address.
    hosts: HashMap<Ipv6Addr, Vec<Ipv6Addr>>,
    /// Prefixes of other routes, by the locator that they translate to.
    prefixes: HashMap<Locator, Vec<(RouteEncap, Prefix)>>,
}

impl Default for IlaErrors {
    fn default() -> Self {
        Self { is_on: true, restored: 0, translations: Translations::default() }
    }
}

impl Translations {
    /// Rebuilds the index from the routes, unless that was done within [`READ_EVERY`].
    pub(crate) fn refresh(&mut self, fib: &Fib, now: Instant) {
        let is_read = |(generation, at)| generation == fib.generation() || now < at + READ_EVERY;
        if self.read.is_some_and(is_read) {
            return;
        }
        self.read = Some((fib.generation(), now));
        self.hosts.clear();
        self.prefixes.clear();
        for (_, route) in fib.routes() {
            let (RouteKind::Ila { encap, .. }, IpAddr::V6(addr)) = (route.kind, route.prefix.addr()) else { continue };
            if encap.hook_type != HookType::Output {
                continue;
            }
            if route.prefix.is_host() {
                self.hosts.entry(encap.address(addr)).or_default().push(addr);
            } else if route.prefix.len() >= LOCATOR_BITS {
                self.prefixes.entry(encap.locator).or_default().push((encap, route.prefix));
            }
        }
    }

    /// Original destination that the routes of a domain translate to `translated`, if it is unique.
    pub(crate) fn original(&self, fib: &Fib, domain: Domain, translated: Ipv6Addr) -> Option<Ipv6Addr> {
        let is_translated = |original: &Ipv6Addr| match fib.decide(domain, IpAddr::V6(*original), None) {
            Decision::Ila { encap, .. } => encap.address(*original) == translated,
            _ => false,
        };
        let hosts = self.hosts.get(&translated).into_iter().flatten().copied();
        if let Some(host) = hosts.take(MAX_CANDIDATES).find(is_translated) {
            return Some(host);
        }
        let prefixes = self.prefixes.get(&Locator::of(translated)).into_iter().flatten();
        let mut originals = prefixes.take(MAX_CANDIDATES).filter_map(|(encap, prefix)| {
            let IpAddr::V6(addr) = prefix.addr() else { return None };
            let original = encap.original(translated, Locator::of(addr))?;
            let is_one_of_two = encap.csum_mode.is_neutral() && is_ambiguous(original);
            (prefix.contains(IpAddr::V6(original)) && !is_one_of_two).then_some(original)
        });
        originals.find(is_translated)
    }
}

/// Tells whether a neutral mode may have made the same of another address: 0 and ffff are one number to a checksum.
fn is_ambiguous(original: Ipv6Addr) -> bool {
    original.segments()[7] == 0xffff
}
