//! What the `ipsec` crate tells of, as netlink tells it.

use std::sync::Arc;

use control::netlink::Groups;
use control::netlink::xfrm::layout::{Addr, LifetimeCfg, PolicyInfo, SaInfo, family_of};
use control::netlink::xfrm::nums::{group, proto};
use control::netlink::xfrm::{Acquire, Event, Policy, sa_id};
use ipsec::{SaExpired, Template};

use super::{Sadb, convert, seconds, view};
use crate::run::news::{Bell, News};
use crate::run::worker::Worker;

/// The groups that are told what happens by itself.
pub(crate) fn told() -> Groups {
    let mut groups = Groups::default();
    [group::ACQUIRE, group::EXPIRE, group::AEVENTS, group::MAPPING].iter().for_each(|&group| groups.set(group, true));
    groups
}

impl Sadb {
    /// Has events told by ringing `bell`, as far as somebody hears them.
    pub(crate) fn set_bell(worker: &mut Worker, heard: Groups, bell: Arc<Bell>) {
        worker.sadb.bell = heard.intersects(told()).then_some(bell);
        worker.sadb.asked = heard.has(group::ACQUIRE);
        worker.sadb.numbers_heard = heard.has(group::AEVENTS);
        Self::keep_what_is_told_of(worker);
    }

    /// Whether somebody hears what happens.
    pub(crate) const fn is_heard(&self) -> bool {
        self.bell.is_some()
    }

    /// Whether somebody hears which SAs are missing.
    pub(crate) const fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether somebody hears how far SAs' numbers are.
    pub(crate) const fn are_numbers_heard(&self) -> bool {
        self.numbers_heard
    }

    /// Tells what has happened. `lost` counts what there was no room for before.
    pub(crate) fn ring(&mut self, lost: u64) {
        let more = std::mem::replace(&mut self.lost, lost) != lost;
        if self.events.is_empty() && !more {
            return;
        }
        match &self.bell {
            Some(bell) => bell.ring_xfrm(self.events.drain(..).map(News::Xfrm), more),
            None => self.events.clear(),
        }
    }

    /// Notes what has happened. What was said of what has ended is forgotten with that.
    pub(crate) fn note(worker: &mut Worker, event: &ipsec::Event) {
        let event = match event {
            ipsec::Event::Acquire(it) => acquire(worker, it),
            ipsec::Event::SaExpired(it) => expire(worker, it),
            ipsec::Event::PolicyExpired(it) => {
                let Some(policy) = expired_policy(worker, it) else { return };
                Event::PolicyExpire { policy, hard: it.hard }
            }
            ipsec::Event::Mapping(it) => {
                Event::Mapping { id: sa_id(it.dst, it.spi.0), reqid: it.reqid, old: it.old, new: it.new }
            }
            ipsec::Event::Numbers(it) => {
                let Some(sa) = Self::view(worker, it.sa) else { return };
                Event::Numbers { sa: Box::new(sa), by_time: it.by_time }
            }
        };
        worker.sadb.events.push(event);
    }
}

fn acquire(worker: &Worker, it: &ipsec::Acquire) -> Event {
    let spd = worker.path.ipsec.spd();
    let shown = spd.iter().find(|policy| policy.index == it.policy).and_then(|policy| {
        let place = worker.sadb.keys.get(&policy.config.key())?;
        Some(worker.sadb.policies.get(place)?.view(worker, policy))
    });
    let policy = shown.unwrap_or_else(|| Policy {
        info: PolicyInfo { index: it.policy, dir: 1, lft: LifetimeCfg::INFINITE, ..PolicyInfo::default() },
        ..Policy::default()
    });
    Event::Acquire(Acquire {
        seq: it.seq,
        daddr: it.dst.into(),
        spi: it.template.spi.map_or(0, |spi| spi.0),
        saddr: it.src.into(),
        sel: convert::nl_selector(&it.selector, worker.ifindex(it.selector.dev).0),
        // Linux tells of the one template that lacks its SA, and the policy's own come with it.
        policy: Policy { mark: convert::nl_mark(it.mark), if_id: it.if_id, ..with_template(policy, &it.template) },
    })
}

/// A policy of which nothing is known has at least the template that asks.
fn with_template(mut policy: Policy, template: &Template) -> Policy {
    if policy.templates.is_empty() {
        let addr = |addr: Option<std::net::IpAddr>| addr.map(Addr::from).unwrap_or_default();
        let family = template.dst.or(template.src).map_or(policy.info.sel.family, family_of);
        policy.templates.push(control::netlink::xfrm::layout::Tmpl {
            daddr: addr(template.dst),
            saddr: addr(template.src),
            spi: template.spi.map_or(0, |spi| spi.0),
            proto: proto::ESP,
            family,
            reqid: template.reqid,
            mode: convert::nl_mode(template.mode),
            algos: [u32::MAX; 3],
            ..Default::default()
        });
    }
    policy
}

fn expire(worker: &mut Worker, it: &SaExpired) -> Event {
    let name = (it.dst, it.spi, it.mark);
    let record = worker.sadb.place_of(&name).and_then(|place| worker.sadb.sas.get(&place));
    let said = record.map(|record| (record.said.info, record.added));
    let bare = SaInfo {
        sel: convert::nl_selector(&ipsec::Selector::new(base::Prefix::host(it.src), base::Prefix::host(it.dst)), 0),
        daddr: it.dst.into(),
        spi: it.spi.0,
        proto: proto::ESP,
        saddr: it.src.into(),
        lft: LifetimeCfg::INFINITE,
        reqid: it.reqid,
        family: family_of(it.dst),
        mode: convert::nl_mode(it.mode),
        ..SaInfo::default()
    };
    let (mut info, add_time) = said.unwrap_or((bare, 0));
    (info.curlft, info.stats) = view::counted(&it.stats, add_time, seconds(worker, it.first_used));
    if it.hard {
        worker.sadb.forget(&name);
    }
    let (mark, dir) = (convert::nl_mark(it.mark), convert::nl_sa_dir(it.dir));
    Event::Expire { info, mark, if_id: it.if_id, dir, hard: it.hard }
}

fn expired_policy(worker: &mut Worker, it: &ipsec::PolicyExpired) -> Option<Policy> {
    let place = worker.sadb.keys.get(&it.key).copied()?;
    let mut policy = worker.sadb.policies.get(&place)?.said.clone();
    policy.info.index = it.index;
    if it.hard {
        worker.sadb.keys.remove(&it.key);
        worker.sadb.policies.remove(&place);
    }
    Some(policy)
}
