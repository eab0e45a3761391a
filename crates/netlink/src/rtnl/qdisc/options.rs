//! `TCA_OPTIONS`: the options of each kind of queueing discipline (Linux `sch_fifo.c`, `sch_tbf.c`).

use std::time::Duration;

use ::qdisc::{Depth, Kind as QdiscKind, LinkLayer, Options, OptionsError, Peak, RateSpec, Tbf};

use super::super::entry::Link;
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, policy};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::rtnl::header::word;
use crate::rtnl::nums::*;

/// Length of an Ethernet header, which counts towards a frame's length (Linux `psched_mtu`).
const ETH_HLEN: u32 = 14;

/// Length of `struct tc_tbf_qopt`, which begins with two `struct tc_ratespec`.
const TBF_QOPT_LEN: u16 = 36;
const RATESPEC_LEN: usize = 12;

/// Nanoseconds of a tick, the unit of times in `struct tc_tbf_qopt`, as a shift (Linux `PSCHED_SHIFT`).
const TICK_SHIFT: u32 = 6;

const TBF_POLICY: AttrPolicy<9> = policy(&[
    (TCA_TBF_PARMS, Kind::Min(TBF_QOPT_LEN)),
    (TCA_TBF_RATE64, Kind::Int(8)),
    (TCA_TBF_PRATE64, Kind::Int(8)),
    (TCA_TBF_BURST, Kind::Int(4)),
    (TCA_TBF_PBURST, Kind::Int(4)),
]);

/// Parses the options of a discipline of kind `kind`; without options, returns the kind's defaults for the link.
///
/// # Errors
/// The options are truncated or inconsistent.
pub(super) fn read(kind: QdiscKind, attr: Option<&Attr<'_>>, link: &Link) -> Result<Options, Error> {
    let Some(attr) = attr else {
        let frame_len = link.mtu.saturating_add(if link.mac.is_some() { ETH_HLEN } else { 0 });
        let missing = || Error::text(errno::EINVAL, "tbf: options are missing").missing(TCA_OPTIONS);
        return Options::default_of(kind, link.txqlen, frame_len).ok_or_else(missing);
    };
    let limit = || {
        let limit = attr.data.first_chunk().map(|limit| u32::from_ne_bytes(*limit));
        limit.ok_or_else(|| attr.refused("options are shorter than struct tc_fifo_qopt"))
    };
    match kind {
        QdiscKind::Pfifo => Ok(Options::Pfifo { limit: limit()? }),
        QdiscKind::Bfifo => Ok(Options::Bfifo { limit: limit()? }),
        QdiscKind::Tbf => {
            let tbf = read_tbf(attr)?;
            tbf.max_len().map_err(|error| refused(&error).at(attr.offset))?;
            Ok(Options::Tbf(tbf))
        }
    }
}

/// Converts invalid options to an error. Linux has no text for these errors.
pub(super) fn refused(error: &OptionsError) -> Error {
    Error::owned_text(errno::EINVAL, error.to_string())
}

/// Parses the options of a tbf, as Linux's `tbf_change`.
fn read_tbf(attr: &Attr<'_>) -> Result<Tbf, Error> {
    let attrs = attr.parse(&TBF_POLICY, Strictness::Liberal)?;
    let missing = || Error::text(errno::EINVAL, "tbf: rate and limit are missing").missing(TCA_TBF_PARMS);
    let parms = attrs.get(TCA_TBF_PARMS).ok_or_else(missing)?.data;
    let (rate, rest) = parms.split_at(RATESPEC_LEN);
    let (peak, rest) = rest.split_at(RATESPEC_LEN);
    let [limit, buffer, mtu] = [0, 4, 8].map(|at| word(&rest[at..]));
    let depth = |bytes, ticks: u32| match attrs.get(bytes) {
        Some(bytes) => Depth::Bytes(bytes.u32()),
        None => Depth::Time(Duration::from_nanos(u64::from(ticks) << TICK_SHIFT)),
    };
    let rate64 = |kind| attrs.get(kind).map_or(0, Attr::u64);
    let peak = (word(&peak[8..]) != 0)
        .then(|| Peak { rate: read_rate(peak, rate64(TCA_TBF_PRATE64)), mtu: depth(TCA_TBF_PBURST, mtu) });
    Ok(Tbf { limit, rate: read_rate(rate, rate64(TCA_TBF_RATE64)), burst: depth(TCA_TBF_BURST, buffer), peak })
}

/// Parses a `struct tc_ratespec`; a 64-bit rate from another attribute takes precedence (Linux
/// `psched_ratecfg_precompute`).
fn read_rate(spec: &[u8], rate64: u64) -> RateSpec {
    let half = |at: usize| u16::from_ne_bytes([spec[at], spec[at + 1]]);
    RateSpec {
        rate: u64::from(word(&spec[8..])).max(rate64),
        overhead: half(2),
        mpu: half(6),
        link_layer: LinkLayer::new(spec[1]),
    }
}

/// Attributes to write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Scope {
    /// Attributes of replies.
    Shown,
    /// Attributes of requests as well, so that the message restores the same options.
    Request,
}

/// Writes `TCA_OPTIONS`.
pub(super) fn write(w: &mut Writer, options: &Options, scope: Scope) {
    match options {
        Options::Pfifo { limit } | Options::Bfifo { limit } => w.put_u32(TCA_OPTIONS, *limit),
        Options::Tbf(tbf) => w.nest(TCA_OPTIONS, |w| write_tbf(w, tbf, scope)),
    }
}

/// Writes the options of a tbf, as Linux's `tbf_dump`.
fn write_tbf(w: &mut Writer, tbf: &Tbf, scope: Scope) {
    let (rate_fills, peak_fills) = tbf.fill_times().unwrap_or_default();
    let ticks = |nanos: u64| u32::try_from(nanos >> TICK_SHIFT).unwrap_or(u32::MAX);
    let peak_rate = tbf.peak.map(|peak| peak.rate);
    let mut parms = Vec::with_capacity(TBF_QOPT_LEN.into());
    for rate in [Some(tbf.rate), peak_rate] {
        parms.extend(rate.map_or([0; RATESPEC_LEN], |rate| rate_spec(&rate)));
    }
    for number in [tbf.limit, ticks(rate_fills), peak_fills.map_or(0, ticks)] {
        parms.extend(number.to_ne_bytes());
    }
    w.put(TCA_TBF_PARMS, &parms);
    for (kind, rate) in [(TCA_TBF_RATE64, Some(tbf.rate)), (TCA_TBF_PRATE64, peak_rate)] {
        if let Some(rate) = rate.map(|rate| rate.rate).filter(|rate| *rate > u32::MAX.into()) {
            w.put_u64(kind, rate);
        }
    }
    if scope == Scope::Request {
        for (kind, depth) in [(TCA_TBF_BURST, Some(tbf.burst)), (TCA_TBF_PBURST, tbf.peak.map(|peak| peak.mtu))] {
            if let Some(Depth::Bytes(bytes)) = depth {
                w.put_u32(kind, bytes);
            }
        }
    }
}

fn rate_spec(spec: &RateSpec) -> [u8; RATESPEC_LEN] {
    let [o0, o1] = spec.overhead.to_ne_bytes();
    let [m0, m1] = spec.mpu.to_ne_bytes();
    let [r0, r1, r2, r3] = u32::try_from(spec.rate).unwrap_or(u32::MAX).to_ne_bytes();
    [0, spec.link_layer.number(), o0, o1, 0, 0, m0, m1, r0, r1, r2, r3]
}
