//! Events of the `ipsec` crate in netlink's terms.

use ipsec::SaExpired;
use netlink::xfrm::convert;
use netlink::xfrm::layout::{LifetimeCfg, PolicyInfo, SaInfo, family_of};
use netlink::xfrm::nums::proto;
use netlink::xfrm::{Acquire, Event, Policy, sa_id};
use xfrm::{Request, Template};

use super::netlink_view;
use crate::node::Node;
use crate::records::{PolicyRecord, SaRecord};

/// Records an event for netlink's clients.
pub(crate) fn record(node: &mut Node, event: &ipsec::Event) {
    let event = match event {
        ipsec::Event::Acquire(it) => acquire(node, it),
        ipsec::Event::SaExpired(it) => expire(node, it),
        ipsec::Event::PolicyExpired(it) => {
            let Some(policy) = expired_policy(it) else { return };
            Event::PolicyExpire { policy, hard: it.hard }
        }
        ipsec::Event::Mapping(it) => {
            Event::Mapping { id: sa_id(it.dst, it.spi.0), reqid: it.reqid, old: it.old, new: it.new }
        }
        ipsec::Event::Numbers(it) => {
            let Some(sa) = node.datapath.ipsec.sa(it.sa).and_then(|sa| netlink_view::sa(node, sa)) else { return };
            Event::Numbers { sa: Box::new(sa), by_time: it.by_time }
        }
    };
    node.xfrm_events.events.push(event);
}

fn acquire(node: &Node, it: &ipsec::Acquire) -> Event {
    let spd = node.datapath.ipsec.spd();
    let shown =
        spd.iter().find(|policy| policy.index == it.policy).and_then(|policy| netlink_view::policy(node, policy));
    let policy = shown.unwrap_or_else(|| Policy {
        info: PolicyInfo { index: it.policy, dir: 1, lft: LifetimeCfg::INFINITE, ..PolicyInfo::default() },
        ..Policy::default()
    });
    Event::Acquire(Acquire {
        seq: it.seq,
        daddr: it.dst.into(),
        spi: it.template.spi.map_or(0, |spi| spi.0),
        saddr: it.src.into(),
        sel: convert::wire_selector(&it.selector, it.selector.dev.map_or(0, |dev| node.ifindex(dev).0)),
        // Linux reports the one template that lacks its SA, together with the policy's own templates.
        policy: Policy { mark: it.mark, if_id: it.if_id, ..with_template(policy, &it.template) },
        cpu: it.cpu,
    })
}

/// Adds the acquiring template to a policy without a record.
fn with_template(mut policy: Policy, template: &Template) -> Policy {
    if policy.templates.is_empty() {
        policy.templates.push(convert::wire_template(template, policy.info.sel.family));
    }
    policy
}

fn expire(node: &Node, it: &SaExpired) -> Event {
    let record = it.request.as_ref().and_then(Request::get::<SaRecord>);
    let request = record.map(|record| (record.request.info, record.added));
    let bare = SaInfo {
        sel: convert::wire_selector(&xfrm::Selector::new(base::Prefix::host(it.src), base::Prefix::host(it.dst)), 0),
        daddr: it.dst.into(),
        spi: it.spi.0,
        proto: proto::ESP,
        saddr: it.src.into(),
        lft: LifetimeCfg::INFINITE,
        reqid: it.reqid,
        family: family_of(it.dst),
        mode: convert::mode_number(it.mode),
        ..SaInfo::default()
    };
    let (mut info, add_time) = request.unwrap_or((bare, 0));
    (info.curlft, info.stats) = netlink_view::counted(&it.stats, add_time, netlink_view::seconds(node, it.first_used));
    let (mark, dir) = (it.mark, convert::sa_dir_number(it.dir));
    Event::Expire { info, mark, if_id: it.if_id, dir, cpu: it.cpu, hard: it.hard }
}

fn expired_policy(it: &ipsec::PolicyExpired) -> Option<Policy> {
    let mut policy = it.request.as_ref()?.get::<PolicyRecord>()?.request.clone();
    policy.info.index = it.index;
    Some(policy)
}
