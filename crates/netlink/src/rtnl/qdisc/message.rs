//! Serialisation of queueing disciplines (Linux `tc_fill_qdisc`).

use ::qdisc::Stats;
use base::IfIndex;

use super::options::{self, Scope};
use crate::message::Writer;
use crate::rtnl::entry::LinkQdisc;
use crate::rtnl::nums::*;

/// Writes the discipline of the link with interface index `index`. `users` is the discipline's reference count.
pub(super) fn write(w: &mut Writer, index: IfIndex, qdisc: &LinkQdisc, users: u32, stats: &Stats) {
    put_header(w, index, qdisc.handle, users);
    w.put_str(TCA_KIND, qdisc.kind());
    if let Some(options) = &qdisc.options {
        options::write(w, options, Scope::Shown);
    }
    w.put_u8(TCA_HW_OFFLOAD, 0);
    put_stats(w, stats);
}

/// Writes the request that restores a link's discipline.
pub(in super::super) fn write_request(w: &mut Writer, index: IfIndex, qdisc: &LinkQdisc) {
    put_header(w, index, qdisc.handle, 0);
    w.put_str(TCA_KIND, qdisc.kind());
    if let Some(options) = &qdisc.options {
        options::write(w, options, Scope::Request);
    }
}

/// Writes the `struct tcmsg` of a link's root discipline.
fn put_header(w: &mut Writer, index: IfIndex, handle: u32, info: u32) {
    w.fixed(&[AF_UNSPEC, 0, 0, 0]);
    [index.0, handle, TC_H_ROOT, info].iter().for_each(|word| w.fixed(&word.to_ne_bytes()));
}

/// Writes `struct gnet_stats_basic` and `gnet_stats_queue`, and before them the legacy `struct tc_stats`.
fn put_stats(w: &mut Writer, stats: &Stats) {
    let Stats { bytes, packets, drops, overlimits, qlen, backlog } = *stats;
    // Packets are dequeued only for a link with room, so that none is requeued.
    let requeues = 0;
    // Counters of 32 bits wrap around.
    let low = |count: u64| count as u32;
    let words = |w: &mut Writer, kind, head: Option<u64>, words: &[u32]| {
        let head = head.iter().flat_map(|head| head.to_ne_bytes());
        let all: Vec<u8> = head.chain(words.iter().flat_map(|word| word.to_ne_bytes())).collect();
        w.put(kind, &all);
    };
    w.nest(TCA_STATS2, |w| {
        words(w, TCA_STATS_BASIC, Some(bytes), &[low(packets), 0]);
        if packets > u32::MAX.into() {
            w.put_u64(TCA_STATS_PKT64, packets);
        }
        words(w, TCA_STATS_QUEUE, None, &[qlen, low(backlog), low(drops), requeues, low(overlimits)]);
    });
    let (bps, pps) = (0, 0);
    let all = [low(packets), low(drops), low(overlimits), bps, pps, qlen, low(backlog), 0];
    words(w, TCA_STATS, Some(bytes), &all);
}
