//! `RTM_*QDISC`: queueing disciplines (Linux `net/sched/sch_api.c`), each the root of its link. Requests for classes
//! and filters get the errors of a Linux node with classless disciplines only.

mod message;
mod options;

use ::qdisc::{Kind as QdiscKind, Options, Stats};
use base::PortId;

use super::backend::Backend;
use super::entry::{Link, LinkQdisc};
use super::header::{behind, fixed, word};
use super::model::Model;
use super::node::Rtnl;
use super::nums::*;
use crate::attr::{Attr, AttrPolicy, Attrs, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::flag;
use crate::session::{Dump, Reply, Request, write_each};
use message::write;

pub(super) use message::write_request;

/// Length of `struct tcmsg`.
const LEN: usize = 20;

const POLICY: AttrPolicy<TCA_MAX> = policy(&[
    (TCA_KIND, Kind::Str(u16::MAX)),
    (TCA_OPTIONS, Kind::Any),
    (TCA_RATE, Kind::Max(8)),
    (TCA_STAB, Kind::Nested),
    (TCA_DUMP_INVISIBLE, Kind::Flag),
    (TCA_CHAIN, Kind::Int(4)),
    (TCA_INGRESS_BLOCK, Kind::Int(4)),
    (TCA_EGRESS_BLOCK, Kind::Int(4)),
]);

/// Request for the discipline of one link.
struct QdiscRequest<'a> {
    id: u32,
    /// Current state of the link.
    link: &'a Link,
    handle: u32,
    parent: u32,
    attrs: Attrs<'a, TCA_MAX>,
}

impl<'a> QdiscRequest<'a> {
    fn read(model: &'a Model, request: &Request<'a>) -> Result<Self, Error> {
        let (header, rest) = fixed::<LEN>(request)?;
        let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
        let [index, handle, parent] = [4, 8, 12].map(|at| word(&header[at..]));
        let id = Some(index).filter(|&index| index != 0).map(|index| model.id_of(index));
        let (id, link) = id.and_then(|id| Some((id, model.link(id)?))).ok_or(Error::new(errno::ENODEV))?;
        Ok(Self { id, link, handle, parent, attrs })
    }

    /// The link's explicit discipline, if its handle is `handle`.
    fn lookup(&self, handle: u32) -> Option<LinkQdisc> {
        self.link.qdisc.filter(|qdisc| qdisc.handle == handle)
    }

    /// Whether the request names another kind than `kind`.
    fn names_other(&self, kind: &str) -> bool {
        self.attrs.get(TCA_KIND).is_some_and(|attr| attr.text() != Some(kind))
    }

    /// Discipline that a request shows or removes; `noqueue` or `noop`, with handle 0, for a link without an explicit
    /// one.
    fn existing(&self) -> Result<LinkQdisc, Error> {
        let none = |text| Err(Error::text(errno::ENOENT, text));
        let found = match self.parent {
            0 => match self.lookup(self.handle) {
                Some(found) => found,
                None => return none("Failed to find qdisc with specified handle"),
            },
            TC_H_ROOT => self.link.qdisc.unwrap_or(LinkQdisc::NOQUEUE),
            parent if parent & TC_H_MAJ_MASK == TC_H_INGRESS & TC_H_MAJ_MASK => {
                return none("Cannot find specified qdisc on specified device");
            }
            parent => match self.lookup(parent & TC_H_MAJ_MASK) {
                Some(parent) => return Err(no_child(&parent)),
                None => return none("Failed to find qdisc with specified classid"),
            },
        };
        if self.parent != 0 && self.handle != 0 && self.handle != found.handle {
            return Err(Error::text(errno::EINVAL, "Invalid handle"));
        }
        let kind = if self.link.shown_qdisc().is_some() { found.kind() } else { "noop" };
        match self.names_other(kind) {
            true => Err(Error::text(errno::EINVAL, "Invalid qdisc name: must match existing qdisc")),
            false => Ok(found),
        }
    }

    /// Discipline that a request changes; `None` if the request creates one (Linux `__tc_modify_qdisc`).
    fn to_change(&self, flags: u16) -> Result<Option<LinkQdisc>, Error> {
        let has = |all: u16| flags & all == all;
        let create = || match has(flag::CREATE) {
            true => Ok(None),
            false => Err(Error::text(errno::ENOENT, "Qdisc not found. To create specify NLM_F_CREATE flag")),
        };
        let found = match self.parent {
            0 if self.handle == 0 => return Err(Error::text(errno::EINVAL, "Handle cannot be zero")),
            0 => self.lookup(self.handle).ok_or(Error::text(errno::ENOENT, "Specified qdisc not found"))?,
            parent => {
                let there = match parent {
                    TC_H_ROOT => self.link.qdisc,
                    TC_H_INGRESS => None,
                    parent => match self.lookup(parent & TC_H_MAJ_MASK) {
                        Some(parent) => return Err(no_child(&parent)),
                        None => return Err(Error::text(errno::ENOENT, "Failed to find specified qdisc")),
                    },
                };
                match there {
                    Some(there) if self.handle == there.handle => there,
                    _ if self.handle != 0 => {
                        if there.is_some() && !has(flag::REPLACE) {
                            return Err(Error::text(errno::EEXIST, "NLM_F_REPLACE needed to override"));
                        }
                        if self.handle & !TC_H_MAJ_MASK != 0 {
                            return Err(Error::text(errno::EINVAL, "Invalid minor handle"));
                        }
                        if self.lookup(self.handle).is_some() {
                            let text = "Cannot move an existing qdisc to a different parent";
                            return Err(Error::text(errno::EINVAL, text));
                        }
                        return create();
                    }
                    None => return create(),
                    Some(there) if self.names_other(there.kind()) => {
                        // `add`, `replace` and `change` with another kind and without a handle create a discipline.
                        let is_add = has(flag::CREATE | flag::EXCL) || has(flag::CREATE | flag::REPLACE);
                        if is_add || flags & (flag::CREATE | flag::EXCL | flag::REPLACE) == 0 {
                            return Ok(None);
                        }
                        there
                    }
                    Some(there) => there,
                }
            }
        };
        if has(flag::EXCL) {
            return Err(Error::text(errno::EEXIST, "Exclusivity flag on, cannot modify"));
        }
        if self.names_other(found.kind()) {
            return Err(Error::text(errno::EINVAL, "Invalid qdisc name: must match existing qdisc"));
        }
        Ok(Some(found))
    }

    /// Refuses attributes that fatpath does not support.
    fn refuse_unsupported(&self) -> Result<(), Error> {
        const UNSUPPORTED: [(u16, &str); 4] = [
            (TCA_INGRESS_BLOCK, "Ingress block sharing is not supported"),
            (TCA_EGRESS_BLOCK, "Egress block sharing is not supported"),
            (TCA_STAB, "fatpath has no size tables of queueing disciplines"),
            (TCA_RATE, "fatpath has no rate estimators"),
        ];
        let named = UNSUPPORTED.iter().find_map(|&(kind, text)| Some((self.attrs.get(kind)?, text)));
        named.map_or(Ok(()), |(attr, text)| Err(Error::unsupported(text).at(attr.offset)))
    }

    /// Kind and options of the discipline to create; `None` for `noqueue`.
    fn to_create(&self) -> Result<Option<Options>, Error> {
        let name = self.attrs.get(TCA_KIND).and_then(Attr::text);
        let kind = QdiscKind::ALL.into_iter().find(|kind| name == Some(kind.name()));
        if kind.is_none() && name != Some("noqueue") {
            return Err(Error::text(errno::ENOENT, "Specified qdisc kind is unknown"));
        }
        if self.parent == TC_H_INGRESS {
            return Err(Error::unsupported("fatpath has no queueing disciplines at ingress"));
        }
        if self.link.is_virtual() && !self.link.is_vrf() {
            return Err(Error::unsupported("fatpath has no queueing discipline on lo"));
        }
        self.refuse_unsupported()?;
        kind.map(|kind| options::read(kind, self.attrs.get(TCA_OPTIONS), self.link)).transpose()
    }
}

/// Refusal: disciplines have no children.
fn no_child(parent: &LinkQdisc) -> Error {
    match parent.options {
        // Linux's tbf has a child, by default a `bfifo`.
        Some(Options::Tbf(_)) => Error::unsupported("fatpath's tbf has no other discipline inside"),
        _ => Error::unsupported("Parent qdisc is not classful"),
    }
}

/// Reference count of a discipline: one for the link and one for each queue. The default `noqueue` is a separate
/// discipline per queue.
fn users(link: &Link) -> u32 {
    1 + if link.qdisc.is_some() { link.queues() } else { 1 }
}

/// Carries out an `RTM_NEWQDISC`, and notifies listeners.
pub(super) fn set<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let requested = QdiscRequest::read(&rtnl.model, request)?;
    let id = requested.id;
    if let Some(found) = requested.to_change(request.message.header.flags)? {
        let changed = match (requested.attrs.get(TCA_OPTIONS), found.options) {
            (None, _) => None,
            (Some(_), None) => {
                let text = "Change operation not supported by specified qdisc";
                return Err(Error::text(errno::EINVAL, text));
            }
            (attr, Some(now)) => Some(options::read(now.kind(), attr, requested.link)?),
        };
        requested.refuse_unsupported()?;
        if let Some(options) = changed {
            rtnl.backend.change_qdisc(PortId(id), options)?;
            rtnl.model.set_qdisc(id, Some(LinkQdisc { options: changed, ..found }));
        }
        return notify(rtnl, id, 0, reply);
    }
    let options = requested.to_create()?;
    let handle = requested.handle;
    let old = old(rtnl, id, reply)?;
    rtnl.backend.set_qdisc(PortId(id), options)?;
    let handle = if handle == 0 { rtnl.model.new_handle(id) } else { handle };
    rtnl.model.set_qdisc(id, Some(LinkQdisc { handle, options }));
    notify_deleted(rtnl, id, old, reply);
    notify(rtnl, id, flag::REPLACE, reply)
}

/// Carries out an `RTM_DELQDISC`, and notifies listeners.
pub(super) fn remove<B: Backend>(
    rtnl: &mut Rtnl<B>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    let requested = QdiscRequest::read(&rtnl.model, request)?;
    let found = requested.existing()?;
    if requested.parent == 0 {
        return Err(Error::text(errno::EINVAL, "Classid cannot be zero"));
    }
    if found.handle == 0 {
        return Err(Error::text(errno::ENOENT, "Cannot delete qdisc with handle of zero"));
    }
    let id = requested.id;
    let old = old(rtnl, id, reply)?;
    rtnl.backend.set_qdisc(PortId(id), None)?;
    rtnl.model.set_qdisc(id, None);
    notify_deleted(rtnl, id, old, reply);
    Ok(())
}

/// Carries out an `RTM_GETQDISC` for one link.
pub(super) fn get<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let requested = QdiscRequest::read(&rtnl.model, request)?;
    let found = requested.existing()?;
    let id = requested.id;
    let stats = stats_of(&rtnl.backend.qdisc_stats()?, id);
    // `noop` is not shown.
    if let Some(link) = rtnl.model.link(id).filter(|link| link.shown_qdisc().is_some()) {
        reply.send(RTM_NEWQDISC, 0, |w| write(w, link.ifindex(id), &found, users(link), &stats));
    }
    Ok(())
}

/// Dump of queueing disciplines.
pub(super) fn dump<B: Backend>() -> Dump<Rtnl<B>> {
    let (mut last, mut stats) = (None, None);
    Box::new(move |rtnl: &mut Rtnl<B>, part| {
        // All parts of a dump use one snapshot of the counters.
        let stats = match &stats {
            Some(stats) => stats,
            None => stats.insert(rtnl.backend.qdisc_stats()?),
        };
        let links = rtnl.model.by_ifindex(last.unwrap_or_default()).into_iter();
        let links = links.filter_map(|(index, id, link)| Some((index, (id, link, link.shown_qdisc()?))));
        Ok(write_each(part, &mut last, links, |part, index, (id, link, qdisc)| {
            part.message(RTM_NEWQDISC, |w| write(w, index, &qdisc, users(link), &stats_of(stats, id)))
        }))
    })
}

/// Refuses a request for a class (Linux `tc_ctl_tclass`).
pub(super) fn refuse_class(model: &Model, request: &Request<'_>) -> Result<(), Error> {
    let requested = QdiscRequest::read(model, request)?;
    let majors = [requested.handle, requested.parent].map(|handle| handle & TC_H_MAJ_MASK);
    let given = requested.link.qdisc.map_or(0, |qdisc| qdisc.handle);
    let handle = match majors {
        [handle, _] if requested.parent == TC_H_ROOT => handle,
        [handle, parent] if handle != 0 && parent != 0 && handle != parent => return Err(Error::new(errno::EINVAL)),
        [0, parent] => parent,
        [handle, _] => handle,
    };
    let handle = if handle == 0 { given } else { handle };
    Err(match requested.lookup(handle).map(|qdisc| qdisc.options) {
        None => Error::new(errno::ENOENT),
        Some(Some(Options::Tbf(_))) => Error::new(errno::EOPNOTSUPP),
        Some(_) => Error::new(errno::EINVAL),
    })
}

/// Refuses a request for a filter or a chain of filters (Linux `__tcf_qdisc_find`).
pub(super) fn refuse_filter(model: &Model, request: &Request<'_>) -> Result<(), Error> {
    let requested = QdiscRequest::read(model, request)?;
    let found = match requested.parent {
        0 => Some(requested.link.qdisc.unwrap_or(LinkQdisc::NOQUEUE)),
        parent => requested.lookup(parent & TC_H_MAJ_MASK),
    };
    Err(match found.map(|qdisc| qdisc.options) {
        None => Error::text(errno::EINVAL, "Parent Qdisc doesn't exists"),
        Some(Some(Options::Tbf(_))) => Error::unsupported("Class doesn't support blocks"),
        Some(_) => Error::text(errno::EINVAL, "Qdisc not classful"),
    })
}

fn stats_of(all: &[(PortId, Stats)], id: u32) -> Stats {
    all.iter().find(|(link, _)| link.0 == id).map_or(Stats::default(), |(_, stats)| *stats)
}

/// The current discipline with its counters, before its removal; `None` without a listener.
fn old<B: Backend>(rtnl: &mut Rtnl<B>, id: u32, reply: &Reply<'_>) -> Result<Option<(LinkQdisc, Stats)>, Error> {
    let shown = rtnl.model.link(id).and_then(Link::shown_qdisc).filter(|_| reply.has_listeners(RTNLGRP_TC));
    shown.map(|qdisc| Ok((qdisc, stats_of(&rtnl.backend.qdisc_stats()?, id)))).transpose()
}

/// Notifies listeners of a removed discipline.
fn notify_deleted<B: Backend>(rtnl: &Rtnl<B>, id: u32, old: Option<(LinkQdisc, Stats)>, reply: &mut Reply<'_>) {
    // The link's reference remains.
    const USERS: u32 = 1;
    let index = rtnl.model.ifindex(id);
    if let Some((qdisc, stats)) = old {
        reply.notify(RTNLGRP_TC, RTM_DELQDISC, 0, |w| write(w, index, &qdisc, USERS, &stats));
    }
}

/// Notifies listeners of a link's new discipline.
fn notify<B: Backend>(rtnl: &mut Rtnl<B>, id: u32, flags: u16, reply: &mut Reply<'_>) -> Result<(), Error> {
    if !reply.has_listeners(RTNLGRP_TC) {
        return Ok(());
    }
    let stats = stats_of(&rtnl.backend.qdisc_stats()?, id);
    let found = rtnl.model.link(id).and_then(|link| Some((link, link.qdisc?)));
    if let Some((link, qdisc)) = found {
        reply.notify(RTNLGRP_TC, RTM_NEWQDISC, flags, |w| write(w, link.ifindex(id), &qdisc, users(link), &stats));
    }
    Ok(())
}
