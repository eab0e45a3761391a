//! Path MTUs, learnt from ICMP as exceptions to the routes (RFC 1191, RFC 8201; Linux `fib_nh_exception`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use base::{Domain, Instant};

/// Lifetime of a learnt path MTU, after which the path may have grown (Linux's `ip_rt_mtu_expires`,
/// `ip6_rt_mtu_expires`).
pub const PATH_MTU_EXPIRES: Duration = Duration::from_secs(600);

/// Minimum of a learnt IPv4 path MTU (Linux's `ip_rt_min_pmtu`).
pub const MIN_PATH_MTU_V4: usize = 552;

/// Minimum MTU of an IPv6 path (RFC 8200 §5).
pub const MIN_PATH_MTU_V6: usize = 1280;

/// Limit of destinations. At the limit, the entry that expires first is evicted.
pub const MAX_PATH_MTUS: usize = 1024;

/// Path MTUs by domain and destination.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathMtus {
    known: BTreeMap<(Domain, IpAddr), PathMtu>,
}

/// Learnt MTU of the path to a destination.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PathMtu {
    /// Bytes of an IP packet.
    pub mtu: usize,
    /// Time of expiry.
    pub expires: Instant,
}

impl PathMtus {
    /// The learnt path MTU to `dst`, if it has not expired.
    pub(crate) fn get(&self, now: Instant, domain: Domain, dst: IpAddr) -> Option<usize> {
        // Most nodes have no learnt path MTUs.
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&(domain, dst)).filter(|known| known.expires > now).map(|known| known.mtu)
    }

    /// Records `reported` as the MTU of the path in a domain to a destination; `link_mtu` is the MTU of its first link.
    /// Returns whether the path MTU was lowered or confirmed (Linux `__ip_rt_update_pmtu`, `rt6_do_update_pmtu`).
    pub(crate) fn lower(&mut self, now: Instant, to: (Domain, IpAddr), reported: usize, link_mtu: usize) -> bool {
        let (domain, dst) = to;
        let least = if dst.is_ipv4() { MIN_PATH_MTU_V4 } else { MIN_PATH_MTU_V6 };
        let mtu = reported.max(least);
        let known = self.get(now, domain, dst);
        if mtu >= link_mtu || known.is_some_and(|known| known < mtu) {
            return false;
        }
        if self.known.len() >= MAX_PATH_MTUS && !self.known.contains_key(&to) {
            self.make_room(now);
        }
        self.known.insert(to, PathMtu { mtu, expires: now + PATH_MTU_EXPIRES });
        true
    }

    /// Removes expired entries; without any, the entry that expires next.
    fn make_room(&mut self, now: Instant) {
        self.known.retain(|_, known| known.expires > now);
        if self.known.len() >= MAX_PATH_MTUS
            && let Some((&first, _)) = self.known.iter().min_by_key(|(_, known)| known.expires)
        {
            self.known.remove(&first);
        }
    }

    /// Removes the entries of IPv4 destinations.
    pub(crate) fn clear_v4(&mut self) {
        self.known.retain(|(_, dst), _| dst.is_ipv6());
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// Entries behind `after`, by domain and destination; all if there is none.
    pub(crate) fn after(
        &self,
        now: Instant,
        after: Option<(Domain, IpAddr)>,
    ) -> impl Iterator<Item = ((Domain, IpAddr), PathMtu)> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let known = self.known.range((from, Bound::Unbounded));
        known.filter(move |(_, known)| known.expires > now).map(|(&to, &known)| (to, known))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const START: Instant = Instant::from_nanos(5);
    const HERE: Domain = Domain::DEFAULT;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_path_only_becomes_narrower_until_it_is_forgotten() {
        let (mut mtus, dst) = (PathMtus::default(), addr("192.0.2.2"));
        // (seconds, reported MTU, whether it is lowered or confirmed, path MTU afterwards)
        let steps = [
            (0, 1500, false, None), // no less than the link itself
            (0, 1400, true, Some(1400)),
            (1, 1401, false, Some(1400)),
            (2, 1280, true, Some(1280)),
            (3, 1280, true, Some(1280)), // repeated: the expiry moves
            (602, 1400, false, Some(1280)),
            (603, 1400, true, Some(1400)),
            (1203, 9000, false, None),
        ];
        for (seconds, reported, news, known) in steps {
            let now = START + Duration::from_secs(seconds);
            assert_eq!(mtus.lower(now, (HERE, dst), reported, 1500), news, "{reported} after {seconds} s");
            assert_eq!(mtus.get(now, HERE, dst), known, "{reported} after {seconds} s");
        }
        assert_eq!(mtus.get(START, HERE, addr("192.0.2.3")), None);
    }

    #[test]
    fn one_family_is_forgotten_alone() {
        let mut mtus = PathMtus::default();
        let [v4, v6] = ["192.0.2.2", "2001:db8::2"].map(addr);
        assert!(mtus.lower(START, (HERE, v4), 1400, 1500) && mtus.lower(START, (HERE, v6), 1400, 1500));
        mtus.clear_v4();
        assert_eq!((mtus.get(START, HERE, v4), mtus.get(START, HERE, v6)), (None, Some(1400)));
    }

    #[test]
    fn path_mtu_below_the_minimum_is_raised() {
        for (dst, reported, want) in [("192.0.2.2", 551, 552), ("192.0.2.2", 0, 552), ("2001:db8::2", 1279, 1280)] {
            let mut mtus = PathMtus::default();
            assert!(mtus.lower(START, (HERE, addr(dst)), reported, 1500));
            assert_eq!(mtus.get(START, HERE, addr(dst)), Some(want), "{dst} {reported}");
        }
        let mut mtus = PathMtus::default();
        assert!(!mtus.lower(START, (HERE, addr("192.0.2.2")), 68, 500), "a link that is narrower still");
        assert!(!mtus.lower(START, (HERE, addr("2001:db8::2")), 1280, 1280));
    }

    #[test]
    fn full_table_evicts_the_entry_that_expires_first() {
        let mut mtus = PathMtus::default();
        let dst = |n: usize| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n as u32));
        for n in 0..=MAX_PATH_MTUS {
            assert!(mtus.lower(START + Duration::from_nanos(n as u64), (HERE, dst(n)), 1400, 1500));
        }
        let now = START + Duration::from_nanos(2000);
        assert_eq!((mtus.get(now, HERE, dst(0)), mtus.get(now, HERE, dst(1))), (None, Some(1400)));
        assert_eq!(mtus.after(now, None).count(), MAX_PATH_MTUS);
        let late = now + PATH_MTU_EXPIRES;
        assert!(mtus.lower(late, (HERE, dst(9999)), 1400, 1500));
        assert_eq!(mtus.known.len(), 1, "what has expired goes first");
    }
}
