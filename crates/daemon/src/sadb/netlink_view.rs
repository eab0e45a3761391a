//! SAs and policies as netlink shows them: the request, and the present state.

use base::Instant;
use ipsec::{Larval, SaStats};
use netlink::xfrm::layout::{LifetimeCfg, LifetimeCur};
use netlink::xfrm::{NewSa, Policy, Replay, Sa};

use super::convert;
use crate::node::Node;
use crate::records::{PolicyRecord, SaRecord, wall_clock};

/// An instant, in seconds since the Unix epoch; 0 for never.
pub(super) fn seconds(node: &Node, at: Option<Instant>) -> u64 {
    at.map_or(0, |at| wall_clock().saturating_sub(node.now().since(at).as_secs()))
}

/// An SA as it is now.
pub(super) fn sa(node: &Node, sa: &ipsec::Sa) -> Option<Sa> {
    Some(sa.request::<SaRecord>()?.view(node, sa))
}

/// A policy as it is now.
pub(super) fn policy(node: &Node, policy: &ipsec::spd::Policy) -> Option<Policy> {
    Some(policy.config.request.as_ref()?.get::<PolicyRecord>()?.view(node, policy))
}

/// Counters of an SA: its use, and the packets that it has refused.
pub(super) fn counted(stats: &SaStats, add_time: u64, use_time: u64) -> (LifetimeCur, [u32; 3]) {
    let refused = [stats.replay_window, stats.replay, stats.failed].map(|count| count as u32);
    (LifetimeCur { bytes: stats.bytes, packets: stats.packets, add_time, use_time }, refused)
}

pub(super) fn larval_view(node: &Node, larval: &Larval) -> Sa {
    let lasts = u64::from(node.config.xfrm.acq_expires);
    let mut info = convert::larval(larval, |dev| node.ifindex(dev).0, lasts);
    info.curlft.add_time = seconds(node, Some(larval.added));
    Sa {
        info,
        algorithm: None,
        encap: None,
        coaddr: None,
        last_used: 0,
        mark: convert::nl_mark(larval.mark),
        set_mark: Default::default(),
        extra_flags: 0,
        replay: Replay::Legacy([0; 3]),
        tfcpad: 0,
        if_id: larval.if_id,
        dir: convert::nl_sa_dir(larval.dir),
        mapping_threshold: 0,
        nat_keepalive: 0,
        replay_thresh: 0,
        etimer_thresh: 0,
    }
}

impl SaRecord {
    fn view(&self, node: &Node, sa: &ipsec::Sa) -> Sa {
        let said = &self.said;
        let (stats, limits) = (sa.stats(), sa.aevent_limits());
        let mut info = said.info;
        (info.curlft, info.stats) = counted(&stats, self.added, seconds(node, sa.first_used()));
        info.seq = said.info.seq;
        if let Some(selector) = sa.selector() {
            info.sel.ifindex = node.selector_ifindex(selector.dev, said.info.sel.ifindex);
        }
        Sa {
            info,
            algorithm: Some(said.algorithm.clone()),
            encap: said.encap,
            coaddr: said.coaddr,
            last_used: seconds(node, stats.last_used),
            mark: said.mark,
            set_mark: said.set_mark,
            extra_flags: said.extra_flags,
            replay: match &said.replay {
                // The replay state of the request is unchanged.
                Some(said) if stats.packets == 0 && convert::begins_at(Some(said), sa.flags()).0 == sa.oseq() => {
                    said.clone()
                }
                as_made => convert::replay(as_made.as_ref(), sa.replay(), sa.oseq()),
            },
            tfcpad: said.tfcpad,
            if_id: said.if_id,
            dir: said.dir,
            mapping_threshold: said.mapping_threshold,
            nat_keepalive: said.nat_keepalive,
            replay_thresh: limits.packets,
            etimer_thresh: (limits.time.as_millis() / convert::TENTH.as_millis()) as u32,
        }
    }

    /// The record of a valid SA that `new` updates: few fields change (Linux `xfrm_state_update`).
    pub(super) fn adjusted(&self, new: &NewSa) -> Self {
        let mut adjusted = self.clone();
        let said = &mut adjusted.said;
        said.info.lft = LifetimeCfg { ..new.info.lft };
        said.coaddr = new.coaddr.or(said.coaddr);
        if let Some(encap) = new.encap {
            said.encap = Some(encap);
        }
        if new.set_mark != Default::default() {
            said.set_mark = new.set_mark;
        }
        if new.if_id != 0 {
            said.if_id = new.if_id;
        }
        adjusted
    }
}

impl PolicyRecord {
    fn view(&self, node: &Node, policy: &ipsec::spd::Policy) -> Policy {
        let mut shown = self.said.clone();
        shown.info.index = policy.index;
        let said = self.said.info.sel.ifindex;
        shown.info.sel.ifindex = node.selector_ifindex(policy.config.selector.dev, said);
        shown.info.curlft =
            LifetimeCur { add_time: self.added, use_time: seconds(node, policy.used()), ..LifetimeCur::default() };
        shown
    }
}
