//! Options of each kind, and their validation.

use std::fmt;
use std::time::Duration;

use crate::rate::{Pace, RateSpec};

/// Kind of a discipline.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// First in, first out, with a limit in packets.
    Pfifo,
    /// First in, first out, with a limit in bytes.
    Bfifo,
    /// Token bucket filter.
    Tbf,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Pfifo, Self::Bfifo, Self::Tbf];

    /// Name of the kind in `tc`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pfifo => "pfifo",
            Self::Bfifo => "bfifo",
            Self::Tbf => "tbf",
        }
    }
}

/// Options of a discipline, by kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Options {
    /// `pfifo limit PACKETS`.
    Pfifo {
        /// Limit of queued packets; with 0 every packet is dropped.
        limit: u32,
    },
    /// `bfifo limit BYTES`.
    Bfifo {
        /// Limit of queued bytes; with 0 every packet is dropped.
        limit: u32,
    },
    /// `tbf rate RATE burst BYTES limit BYTES …`.
    Tbf(Tbf),
}

impl Options {
    /// Kind of the discipline.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Pfifo { .. } => Kind::Pfifo,
            Self::Bfifo { .. } => Kind::Bfifo,
            Self::Tbf(_) => Kind::Tbf,
        }
    }

    /// Default options of a kind on a link with a queue of `tx_queue_len` packets and frames of at most `frame_len`
    /// bytes with the header; `None` for `tbf`, which has no defaults.
    pub const fn default_of(kind: Kind, tx_queue_len: u32, frame_len: u32) -> Option<Self> {
        match kind {
            Kind::Pfifo => Some(Self::Pfifo { limit: tx_queue_len }),
            Kind::Bfifo => Some(Self::Bfifo { limit: tx_queue_len.saturating_mul(frame_len) }),
            Kind::Tbf => None,
        }
    }
}

/// Depth of a bucket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Depth {
    /// Time in which the bucket fills (`buffer` and `mtu` of `tc_tbf_qopt`).
    Time(Duration),
    /// Length of the longest packet (`TCA_TBF_BURST`, `TCA_TBF_PBURST`).
    Bytes(u32),
}

/// Options of a token bucket filter (Linux `tc_tbf_qopt`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tbf {
    /// Limit of queued bytes.
    pub limit: u32,
    /// Long-term rate.
    pub rate: RateSpec,
    /// Depth of the bucket of `rate`.
    pub burst: Depth,
    /// Second bucket, which limits the rate within a burst.
    pub peak: Option<Peak>,
}

/// Peak rate of a token bucket filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peak {
    /// Rate within a burst; above the long-term rate.
    pub rate: RateSpec,
    /// Depth of the bucket of this rate.
    pub mtu: Depth,
}

/// Reasons to refuse options. Linux returns `EINVAL` for each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OptionsError {
    /// The options are of another kind than the discipline.
    KindMismatch,
    /// The rate is missing.
    NoRate,
    /// The peak rate does not exceed the rate.
    PeakRate {
        /// Peak rate, in bytes per second.
        peak: u64,
        /// Rate, in bytes per second.
        rate: u64,
    },
    /// No packet fits into the buckets.
    NoBurst,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Linux's own texts: the first in `tc_modify_qdisc`, the third in `tbf_change`; Linux has none for the
            // others.
            Self::KindMismatch => f.write_str("Invalid qdisc name: must match existing qdisc"),
            Self::NoRate => f.write_str("tbf: rate is 0"),
            Self::PeakRate { peak, rate } => write!(f, "peakrate {peak} is lower than or equals to rate {rate} !"),
            Self::NoBurst => f.write_str("tbf: burst is too small for any packet"),
        }
    }
}

impl std::error::Error for OptionsError {}

/// Validated rate and depth of one bucket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BucketSpec {
    pub(crate) pace: Pace,
    /// Tokens of a full bucket, in nanoseconds.
    pub(crate) depth: i64,
    /// Length of the longest packet that fits the bucket, in bytes.
    pub(crate) max_len: u32,
}

impl BucketSpec {
    fn new(rate: RateSpec, depth: Depth) -> Result<Self, OptionsError> {
        if rate.rate == 0 {
            return Err(OptionsError::NoRate);
        }
        let pace = Pace::new(rate);
        let (nanos, max_len) = match depth {
            // Linux computes the longest packet from at most 2³² ns.
            Depth::Time(time) => (time.as_nanos(), pace.bytes(time.min(Duration::from_nanos(u64::from(u32::MAX))))),
            Depth::Bytes(len) => (u128::from(pace.nanos(len)), len),
        };
        Ok(Self { pace, depth: i64::try_from(nanos).unwrap_or(i64::MAX), max_len })
    }
}

impl Tbf {
    /// The buckets, and the maximum length of a queued packet.
    pub(crate) fn buckets(&self) -> Result<(BucketSpec, Option<BucketSpec>, u32), OptionsError> {
        let rate = BucketSpec::new(self.rate, self.burst)?;
        let peak = match self.peak {
            Some(Peak { rate: peak, .. }) if peak.rate <= self.rate.rate => {
                return Err(OptionsError::PeakRate { peak: peak.rate, rate: self.rate.rate });
            }
            Some(Peak { rate, mtu }) => Some(BucketSpec::new(rate, mtu)?),
            None => None,
        };
        let max_len = peak.map_or(rate.max_len, |peak| peak.max_len.min(rate.max_len));
        if max_len == 0 {
            return Err(OptionsError::NoBurst);
        }
        Ok((rate, peak, max_len))
    }

    /// Maximum length of a queued packet, in bytes with the link's header. Linux warns if a link's longest frame
    /// exceeds this length.
    ///
    /// # Errors
    /// [`OptionsError`], as on creation of a discipline with these options.
    pub fn max_len(&self) -> Result<u32, OptionsError> {
        Ok(self.buckets()?.2)
    }

    /// Fill time of each bucket in nanoseconds: of the rate, and of the peak rate.
    ///
    /// # Errors
    /// [`OptionsError`], as on creation of a discipline with these options.
    pub fn fill_times(&self) -> Result<(u64, Option<u64>), OptionsError> {
        let (rate, peak, _) = self.buckets()?;
        Ok((rate.depth.unsigned_abs(), peak.map(|peak| peak.depth.unsigned_abs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::LinkLayer;

    const MEGABYTE: RateSpec = RateSpec { rate: 1_000_000, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };

    fn tbf(burst: Depth) -> Tbf {
        Tbf { limit: 3000, rate: MEGABYTE, burst, peak: None }
    }

    fn peak(rate: u64, mtu: Depth) -> Option<Peak> {
        Some(Peak { rate: RateSpec { rate, ..MEGABYTE }, mtu })
    }

    #[test]
    fn longest_packet_is_that_of_the_shallower_bucket() {
        let cases = [
            (tbf(Depth::Bytes(1600)), 1600),
            (tbf(Depth::Time(Duration::from_micros(1600))), 1600),
            (Tbf { peak: peak(2_000_000, Depth::Bytes(1500)), ..tbf(Depth::Bytes(9000)) }, 1500),
            (Tbf { peak: peak(2_000_000, Depth::Time(Duration::from_micros(700))), ..tbf(Depth::Bytes(9000)) }, 1400),
            (Tbf { peak: peak(2_000_000, Depth::Bytes(9000)), ..tbf(Depth::Bytes(1600)) }, 1600),
            (tbf(Depth::Time(Duration::MAX)), 4_294_967),
        ];
        for (options, want) in cases {
            assert_eq!(options.max_len(), Ok(want), "{options:?}");
        }
    }

    #[test]
    fn options_without_effect_are_refused() {
        let no_rate = RateSpec { rate: 0, ..MEGABYTE };
        let cases = [
            (Tbf { rate: no_rate, ..tbf(Depth::Time(Duration::from_secs(1))) }, OptionsError::NoRate),
            (Tbf { rate: no_rate, ..tbf(Depth::Bytes(1600)) }, OptionsError::NoRate),
            (tbf(Depth::Bytes(0)), OptionsError::NoBurst),
            (tbf(Depth::Time(Duration::from_nanos(999))), OptionsError::NoBurst),
            (
                Tbf { rate: RateSpec { overhead: 1600, ..MEGABYTE }, ..tbf(Depth::Time(Duration::from_micros(1600))) },
                OptionsError::NoBurst,
            ),
            (Tbf { peak: peak(2_000_000, Depth::Bytes(0)), ..tbf(Depth::Bytes(1600)) }, OptionsError::NoBurst),
            (
                Tbf { peak: peak(1_000_000, Depth::Bytes(1500)), ..tbf(Depth::Bytes(1600)) },
                OptionsError::PeakRate { peak: 1_000_000, rate: 1_000_000 },
            ),
            (
                Tbf { peak: peak(0, Depth::Bytes(1500)), ..tbf(Depth::Bytes(1600)) },
                OptionsError::PeakRate { peak: 0, rate: 1_000_000 },
            ),
        ];
        for (options, want) in cases {
            assert_eq!(options.max_len(), Err(want), "{options:?}");
        }
    }

    #[test]
    fn depths_in_bytes_become_fill_times() {
        let options = Tbf { peak: peak(2_000_000, Depth::Bytes(1500)), ..tbf(Depth::Bytes(1600)) };
        assert_eq!(options.fill_times(), Ok((1_600_000, Some(750_000))));
        // As shown by Linux 6.18: `burst 11341b` for `rate 10mbit burst 10k overhead 4 linklayer atm`.
        let rate = RateSpec { rate: 1_250_000, overhead: 4, mpu: 64, link_layer: LinkLayer::ATM };
        let atm = Tbf { rate, ..tbf(Depth::Bytes(10_240)) };
        assert_eq!(atm.fill_times(), Ok((11_342 * 800, None)));
        assert_eq!(tbf(Depth::Time(Duration::MAX)).fill_times(), Ok((i64::MAX.unsigned_abs(), None)));
    }

    #[test]
    fn fifo_default_limit_is_the_links_txqueuelen() {
        assert_eq!(Options::default_of(Kind::Pfifo, 1000, 1514), Some(Options::Pfifo { limit: 1000 }));
        assert_eq!(Options::default_of(Kind::Bfifo, 1000, 1514), Some(Options::Bfifo { limit: 1_514_000 }));
        assert_eq!(Options::default_of(Kind::Bfifo, u32::MAX, 1514), Some(Options::Bfifo { limit: u32::MAX }));
        assert_eq!(Options::default_of(Kind::Tbf, 1000, 1514), None);
    }

    #[test]
    fn errors_read_as_linux_writes_them() {
        let cases = [
            (OptionsError::KindMismatch, "Invalid qdisc name: must match existing qdisc"),
            (OptionsError::PeakRate { peak: 5, rate: 6 }, "peakrate 5 is lower than or equals to rate 6 !"),
        ];
        for (error, want) in cases {
            assert_eq!(error.to_string(), want);
        }
    }
}
