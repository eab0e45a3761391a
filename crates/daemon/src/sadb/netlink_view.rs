//! SAs and policies in netlink's form: the request, with the present state.

use base::{Instant, PortId, Prefix};
use ipsec::replay::ReplayWindow;
use ipsec::{Larval, SaStats};
use netlink::xfrm::convert;
use netlink::xfrm::layout::{LifetimeCfg, LifetimeCur, ReplayEsn, SaInfo, UserOffload, family_of};
use netlink::xfrm::nums::proto;
use netlink::xfrm::{NewSa, Policy, Replay, Sa};

use xfrm::{Offload, OffloadMode, SaDir, Selector};

use crate::node::Node;
use crate::records::{PolicyRecord, SaRecord, wall_clock};

/// An instant, in seconds since the Unix epoch; 0 for never.
pub(super) fn seconds(node: &Node, at: Option<Instant>) -> u64 {
    at.map_or(0, |at| wall_clock().saturating_sub(node.now().since(at).as_secs()))
}

/// An SA in its present state.
pub(super) fn sa(node: &Node, sa: &ipsec::Sa) -> Option<Sa> {
    Some(sa.request::<SaRecord>()?.view(node, sa))
}

/// A policy in its present state.
pub(super) fn policy(node: &Node, policy: &ipsec::spd::Policy) -> Option<Policy> {
    Some(policy.config.request.as_ref()?.get::<PolicyRecord>()?.view(node, policy))
}

/// Counters of an SA: its use, and the packets that it refused.
pub(super) fn counted(stats: &SaStats, add_time: u64, use_time: u64) -> (LifetimeCur, [u32; 3]) {
    let refused = [stats.replay_window, stats.replay, stats.failed].map(|count| count as u32);
    (LifetimeCur { bytes: stats.bytes, packets: stats.packets, add_time, use_time }, refused)
}

pub(super) fn larval_view(node: &Node, larval: &Larval) -> Sa {
    let lasts = u64::from(node.config.xfrm.acq_expires);
    let mut info = larval_info(larval, |dev| node.ifindex(dev).0, lasts);
    info.curlft.add_time = seconds(node, Some(larval.added));
    Sa {
        info,
        algorithm: None,
        encap: None,
        coaddr: None,
        last_used: 0,
        mark: larval.mark,
        set_mark: Default::default(),
        extra_flags: 0,
        replay: Replay::Legacy([0; 3]),
        offload: None,
        tfcpad: 0,
        if_id: larval.if_id,
        dir: convert::sa_dir_number(larval.dir),
        mapping_threshold: 0,
        nat_keepalive: 0,
        replay_thresh: 0,
        etimer_thresh: 0,
        cpu: larval.cpu,
    }
}

/// Offload of an SA (Linux `copy_user_offload`).
fn user_offload(node: &Node, offload: Offload) -> UserOffload {
    let direction = if offload.dir == SaDir::In { UserOffload::INBOUND } else { 0 };
    let mode = if offload.mode == OffloadMode::Packet { UserOffload::PACKET } else { 0 };
    UserOffload { ifindex: node.ifindex(offload.dev).0, flags: direction | mode }
}

impl SaRecord {
    fn view(&self, node: &Node, sa: &ipsec::Sa) -> Sa {
        let request = &self.request;
        let (stats, limits) = (sa.stats(), sa.aevent_limits());
        let mut info = request.info;
        (info.curlft, info.stats) = counted(&stats, self.added, seconds(node, sa.first_used()));
        info.seq = request.info.seq;
        if let Some(selector) = sa.selector() {
            info.sel.ifindex = node.selector_ifindex(selector.dev, request.info.sel.ifindex);
        }
        Sa {
            info,
            algorithm: Some(request.algorithm.clone()),
            encap: request.encap,
            coaddr: request.coaddr,
            last_used: seconds(node, stats.last_used),
            mark: request.mark,
            set_mark: request.set_mark,
            extra_flags: request.extra_flags,
            replay: match &request.replay {
                // The replay state of the request is still the present one.
                Some(replay) if stats.packets == 0 && convert::begins_at(Some(replay), sa.flags()).0 == sa.oseq() => {
                    replay.clone()
                }
                as_made => replay(as_made.as_ref(), sa.replay(), sa.oseq()),
            },
            offload: sa.offload().map(|offload| user_offload(node, offload)),
            tfcpad: request.tfcpad,
            if_id: request.if_id,
            dir: request.dir,
            mapping_threshold: request.mapping_threshold,
            nat_keepalive: request.nat_keepalive,
            replay_thresh: limits.packets,
            etimer_thresh: (limits.time.as_millis() / 100) as u32,
            cpu: request.cpu,
        }
    }

    /// The record of a valid SA that `new` updates: few fields change (Linux `xfrm_state_update`).
    pub(super) fn adjusted(&self, new: &NewSa) -> Self {
        let mut adjusted = self.clone();
        let request = &mut adjusted.request;
        request.info.lft = LifetimeCfg { ..new.info.lft };
        request.coaddr = new.coaddr.or(request.coaddr);
        if let Some(encap) = new.encap {
            request.encap = Some(encap);
        }
        if new.set_mark != Default::default() {
            request.set_mark = new.set_mark;
        }
        if new.if_id != 0 {
            request.if_id = new.if_id;
        }
        adjusted
    }
}

impl PolicyRecord {
    fn view(&self, node: &Node, policy: &ipsec::spd::Policy) -> Policy {
        let mut shown = self.request.clone();
        shown.info.index = policy.index;
        let ifindex = self.request.info.sel.ifindex;
        shown.info.sel.ifindex = node.selector_ifindex(policy.config.selector.dev, ifindex);
        shown.info.curlft =
            LifetimeCur { add_time: self.added, use_time: seconds(node, policy.used()), ..LifetimeCur::default() };
        shown
    }
}

/// Sequence numbers of an SA, in the form of the request that created it.
fn replay(as_made: Option<&Replay>, window: &ReplayWindow, oseq: u64) -> Replay {
    let Some(Replay::Esn(made)) = as_made else {
        let bitmap = window.seen().map(|seq| window.top() - seq).filter(|&age| age < 32);
        return Replay::Legacy([oseq as u32, window.top() as u32, bitmap.fold(0, |all, age| all | 1 << age)]);
    };
    let mut bmp = vec![0_u32; made.bmp.len()];
    let size = u64::from(window.size());
    for at in window.seen().filter(|&seq| seq > 0 && size > 0).map(|seq| ((seq - 1) % size) as usize) {
        if let Some(word) = bmp.get_mut(at / 32) {
            *word |= 1 << (at % 32);
        }
    }
    Replay::Esn(ReplayEsn {
        oseq: oseq as u32,
        oseq_hi: (oseq >> 32) as u32,
        seq: window.top() as u32,
        seq_hi: (window.top() >> 32) as u32,
        replay_window: made.replay_window,
        bmp,
    })
}

/// Fixed part of a larval SA, with `ifindex` for the index of its selector's link (Linux `xfrm_find_acq`).
fn larval_info(larval: &Larval, ifindex: impl Fn(PortId) -> u32, lasts: u64) -> SaInfo {
    let between = || Selector::new(Prefix::host(larval.src), Prefix::host(larval.dst));
    let selector = larval.selector.unwrap_or_else(between);
    let sel = convert::wire_selector(&selector, selector.dev.map_or(0, ifindex));
    SaInfo {
        sel,
        daddr: larval.dst.into(),
        spi: larval.spi.0,
        proto: proto::ESP,
        saddr: larval.src.into(),
        lft: LifetimeCfg { hard_add_expires_seconds: lasts, ..LifetimeCfg::INFINITE },
        seq: if larval.selector.is_some() { larval.seq } else { 0 },
        reqid: larval.reqid,
        family: family_of(larval.dst),
        mode: convert::mode_number(larval.mode),
        ..SaInfo::default()
    }
}
