//! String sets and the counters of a link: `ethtool -S`.
//!
//! The names of a link's counters depend on its kind alone, so names and values from two successive commands match. The
//! values are those of `fatpath show links` and `fatpath show drops`.

use base::DropReason;
use nlsock::ethtool::{STRING_LEN, command};

use super::target::{Answer, Target, put_text, unsupported};
use crate::error::Error;
use crate::rtnl::backend::Backend;
use crate::rtnl::header::word;
use config::features::NAMES;
use ctl::state::{LinkStats, RingState};

/// `ETH_SS_STATS`, `ETH_SS_PRIV_FLAGS`, `ETH_SS_FEATURES`.
const STATS: u32 = 1;
const PRIV_FLAGS: u32 = 2;
const FEATURES: u32 = 4;

/// Counters that every link has.
fn of_link(stats: &LinkStats) -> [(&'static str, u64); 11] {
    let LinkStats { rx_packets, rx_bytes, rx_wire_packets, rx_calls, rx_dropped, .. } = *stats;
    let LinkStats { tx_packets, tx_bytes, tx_wire_packets, tx_calls, tx_dropped, tx_errors, .. } = *stats;
    [
        ("rx_packets", rx_packets),
        ("rx_bytes", rx_bytes),
        ("rx_wire_packets", rx_wire_packets),
        ("rx_calls", rx_calls),
        ("rx_dropped", rx_dropped),
        ("tx_packets", tx_packets),
        ("tx_bytes", tx_bytes),
        ("tx_wire_packets", tx_wire_packets),
        ("tx_calls", tx_calls),
        ("tx_dropped", tx_dropped),
        ("tx_errors", tx_errors),
    ]
}

/// Counters of a link with a receive ring, summed over all queues.
fn of_ring(ring: &RingState) -> [(&'static str, u64); 8] {
    [
        ("ring_held", ring.held),
        ("rx_no_buffer", ring.rx_no_buffer),
        ("ring_rx_dropped", ring.rx_dropped),
        ("ring_rx_invalid_descs", ring.rx_invalid_descs),
        ("ring_rx_full", ring.rx_ring_full),
        ("ring_rx_fill_empty_descs", ring.rx_fill_ring_empty_descs),
        ("ring_tx_invalid_descs", ring.tx_invalid_descs),
        ("ring_tx_empty_descs", ring.tx_ring_empty_descs),
    ]
}

/// All counters of a link, with their names.
fn all<B: Backend>(target: &mut Target<'_, B>) -> Result<Vec<(String, u64)>, Error> {
    if target.is_virtual() {
        return Ok(Vec::new());
    }
    let detail = target.detail()?;
    let ring = detail.state.ring.as_ref().map(of_ring);
    let counts = of_link(&detail.state.stats).into_iter().chain(detail.fat).chain(ring.into_iter().flatten());
    let dropped = DropReason::ALL.iter().map(|&reason| {
        let of_reason = detail.drops.iter().filter(|(other, _)| *other == reason);
        (format!("drop_{}", reason.name()), of_reason.map(|(_, count)| count).sum())
    });
    Ok(counts.map(|(name, count)| (name.to_owned(), count)).chain(dropped).collect())
}

/// Number of counters.
pub(super) fn count<B: Backend>(target: &mut Target<'_, B>) -> Result<usize, Error> {
    Ok(all(target)?.len())
}

/// Names of a string set; `None` if the link does not have the set.
fn set<B: Backend>(target: &mut Target<'_, B>, set: u32) -> Result<Option<Vec<String>>, Error> {
    Ok(match set {
        STATS => {
            Some(all(target)?.into_iter().map(|(name, _)| name).collect()).filter(|names: &Vec<_>| !names.is_empty())
        }
        FEATURES => Some(NAMES.map(str::to_owned).into()),
        // The set is empty, without an error.
        PRIV_FLAGS if !target.is_virtual() => Some(Vec::new()),
        _ => None,
    })
}

/// `struct ethtool_sset_info`: the number of names in each requested set that the link has.
pub(super) fn set_info<B: Backend>(target: &mut Target<'_, B>, block: &[u8]) -> Result<Answer, Error> {
    let requested = u64::from(word(&block[8..])) | u64::from(word(&block[12..])) << 32;
    let (mut has, mut counts) = (0_u64, Vec::new());
    for number in (0..u64::BITS).filter(|number| requested >> number & 1 == 1) {
        if let Some(names) = set(target, number)? {
            has |= 1 << number;
            counts.push(names.len() as u32);
        }
    }
    let head = [command::GSSET_INFO, 0, has as u32, (has >> 32) as u32];
    Ok(Answer::words(head.into_iter().chain(counts)))
}

/// `struct ethtool_gstrings`.
pub(super) fn names<B: Backend>(target: &mut Target<'_, B>, block: &[u8]) -> Result<Answer, Error> {
    let (number, room) = (word(&block[4..]), word(&block[8..]));
    let names = set(target, number)?.ok_or_else(unsupported)?;
    let names = if fits(names.len(), room) { names } else { Vec::new() };
    let mut answer = Answer::words([command::GSTRINGS, number, names.len() as u32]);
    names.iter().for_each(|name| put_text(&mut answer.block, name, STRING_LEN));
    Ok(answer)
}

/// `struct ethtool_stats`.
pub(super) fn values<B: Backend>(target: &mut Target<'_, B>, block: &[u8]) -> Result<Answer, Error> {
    let all = all(target)?;
    if all.is_empty() {
        return Err(unsupported());
    }
    let all = if fits(all.len(), word(&block[4..])) { all } else { Vec::new() };
    let mut answer = Answer::words([command::GSTATS, all.len() as u32]);
    answer.block.extend(all.iter().flat_map(|(_, count)| count.to_ne_bytes()));
    Ok(answer)
}

/// Whether `count` entries fit a block with space for `room` entries by the program's own count. A different count is
/// stale, and the program gets no entries (Linux since 6.19); 0 means that the program allocated enough.
const fn fits(count: usize, room: u32) -> bool {
    room == 0 || room as usize == count
}
