//! Preferred and valid lifetimes of addresses (`struct ifa_cacheinfo`; Linux `check_lifetime`, `addrconf_verify_rtnl`;
//! RFC 4862 §5.5.4).

use std::time::Duration;

use base::Instant;

/// Infinite lifetime in seconds (`INFINITY_LIFE_TIME`).
const FOREVER: u32 = u32::MAX;

/// Ends of both lifetimes by the node's clock; `None` for an infinite one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lifetime {
    preferred: Option<Instant>,
    valid: Option<Instant>,
}

impl Lifetime {
    /// Lifetimes in seconds from `now`. `None`: the valid lifetime is 0, or shorter than the preferred one.
    pub(super) fn of_seconds(now: Instant, preferred: u32, valid: u32) -> Option<Self> {
        let end = |seconds| (seconds != FOREVER).then(|| now + Duration::from_secs(u64::from(seconds)));
        (valid != 0 && preferred <= valid).then(|| Self { preferred: end(preferred), valid: end(valid) })
    }

    /// Whether the valid lifetime is infinite.
    pub const fn is_permanent(&self) -> bool {
        self.valid.is_none()
    }

    /// Whether the valid lifetime has ended.
    pub(super) fn has_ended(&self, now: Instant) -> bool {
        self.valid.is_some_and(|end| end <= now)
    }

    /// Whether the preferred lifetime has ended.
    pub(super) fn is_deprecated(&self, now: Instant) -> bool {
        self.preferred.is_some_and(|end| end <= now)
    }

    /// Next end of a lifetime. The preferred lifetime of a deprecated address has ended already and is ignored.
    pub(super) fn next(&self, is_deprecated: bool) -> Option<Instant> {
        let preferred = self.preferred.filter(|_| !is_deprecated);
        preferred.into_iter().chain(self.valid).min()
    }

    /// Seconds left, preferred and valid, rounded up.
    pub(super) fn seconds_left(&self, now: Instant) -> [u32; 2] {
        let left = |end: Option<Instant>| match end {
            None => FOREVER,
            Some(end) => u32::try_from(end.since(now).as_nanos().div_ceil(1_000_000_000)).unwrap_or(FOREVER - 1),
        };
        [left(self.preferred), left(self.valid)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn address_is_preferred_then_deprecated_then_removed() {
        let it = Lifetime::of_seconds(at(10), 5, 20).expect("5 is less than 20");
        assert_eq!(it.seconds_left(at(11)), [4, 19]);
        assert_eq!((it.next(false), it.next(true)), (Some(at(15)), Some(at(30))));
        let state = |now| (it.is_deprecated(now), it.has_ended(now));
        assert_eq!(
            [at(14), at(15), at(29), at(30)].map(state),
            [(false, false), (true, false), (true, false), (true, true)]
        );
        assert_eq!(it.seconds_left(at(40)), [0, 0]);
    }

    #[test]
    fn forever_is_no_end_and_zero_is_no_lifetime() {
        let it = Lifetime::of_seconds(at(1), FOREVER, FOREVER).expect("it is the usual one");
        assert_eq!((it, it.next(false), it.seconds_left(at(9))), (Lifetime::default(), None, [FOREVER; 2]));
        assert_eq!(Lifetime::of_seconds(at(1), 0, 0), None);
        assert_eq!(Lifetime::of_seconds(at(1), 6, 5), None);
        assert_eq!(Lifetime::of_seconds(at(1), FOREVER, 5), None);
        assert!(Lifetime::of_seconds(at(1), 0, FOREVER).is_some_and(|it| it.is_permanent() && it.is_deprecated(at(1))));
    }
}
