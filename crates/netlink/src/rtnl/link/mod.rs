//! `RTM_*LINK`.

mod attributes;
mod change;
mod create;
mod message;

use base::PortId;

use super::backend::Backend;
use super::entry::Link;
use super::header::{LINK_LEN, LINK_POLICY, behind, fixed, strictness, word};
use super::model::LOOPBACK;
use super::node::Rtnl;
use super::nums::*;
use super::state::find;
use crate::attr::{Attr, Strictness, parse};
use crate::error::{Error, errno};
use crate::message::{Writer, flag};
use crate::session::{Dump, Reply, Request, write_each};
use attributes::kind_of;
use change::change;
use create::create;
use message::{kind_word, write_v6};

pub(super) use create::{write_enslaving, write_request};
pub(super) use message::{counters, write};

/// Filter of a request for links.
#[derive(Clone, Debug, Default)]
struct Filter {
    ext_mask: u32,
    master: Option<u32>,
    kind: Option<String>,
}

pub(super) fn dump<B: Backend>(request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<B>>, Error> {
    let (header, rest) = match fixed::<LINK_LEN>(request) {
        Ok(found) => found,
        // Old programs send a shorter header (`rtnl_dump_ifinfo`).
        Err(_) if !request.strict => (&[0; LINK_LEN], &[] as &[u8]),
        Err(_) => return Err(Error::text(errno::EINVAL, "Invalid header for link dump")),
    };
    if request.strict {
        if header[1..4] != [0; 3] || header[8..] != [0; 8] {
            return Err(Error::text(errno::EINVAL, "Invalid values in header for link dump request"));
        }
        if word(&header[4..]) != 0 {
            return Err(Error::text(errno::EINVAL, "Filter by device index not supported for link dumps"));
        }
    }
    let attrs = parse(rest, behind(LINK_LEN), &LINK_POLICY, strictness(request))?;
    let mut filter = Filter::default();
    for attr in attrs.iter() {
        match attr.kind {
            IFLA_EXT_MASK => filter.ext_mask = attr.u32(),
            IFLA_MASTER => filter.master = Some(attr.u32()),
            IFLA_LINKINFO => filter.kind = kind_of(&attrs)?,
            _ if request.strict => {
                return Err(Error::text(errno::EINVAL, "Unsupported attribute in link dump request"));
            }
            _ => {}
        }
    }
    let (mut last, mut now, mut generation) = (None, None, None);
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        // All parts of a dump use one snapshot of the counters.
        let now = match &now {
            Some(now) => now,
            None => now.insert(rtnl.links_now()?),
        };
        let model = &rtnl.model;
        part.interrupted(*generation.get_or_insert(model.generation()) != model.generation());
        // 0 selects any master, all ones none (Linux `link_master_filtered`).
        let matches = |link: &Link| {
            let master = link.master.map(|master| master.ifindex().0);
            filter.master.is_none_or(|index| index == 0 || master == Some(index).filter(|&it| it != u32::MAX))
                && filter.kind.as_deref().is_none_or(|kind| !link.is_loopback() && kind_word(link) == kind)
        };
        let links = model.by_ifindex(last.unwrap_or_default()).into_iter();
        let links = links.map(|(index, id, link)| (index, (id, link)));
        Ok(write_each(part, &mut last, links, |part, _, (id, link)| {
            let now = find(now, id);
            let write = |w: &mut Writer| match family {
                AF_INET6 => write_v6(w, id, link, now),
                _ => write(w, id, link, model.lower_of(id), now, filter.ext_mask, 0),
            };
            !matches(link) || part.message(RTM_NEWLINK, write)
        }))
    }))
}

pub(super) fn get<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let (header, rest) = fixed::<LINK_LEN>(request)?;
    let strict = strictness(request);
    if request.strict && (header[1..4] != [0; 3] || header[8..] != [0; 8]) {
        return Err(Error::text(errno::EINVAL, "Invalid values in header for get link request"));
    }
    let attrs = parse(rest, behind(LINK_LEN), &LINK_POLICY, strict)?;
    let ext_mask = attrs.get(IFLA_EXT_MASK).map_or(0, Attr::u32);
    let name = attrs.get(IFLA_IFNAME).or_else(|| attrs.get(IFLA_ALT_IFNAME)).and_then(Attr::text);
    // Interface indexes may have changed since the last request.
    let now = rtnl.links_now()?;
    let index = match (word(&header[4..]), name) {
        (0, None) => return Err(Error::new(errno::EINVAL)),
        (0, Some(name)) => rtnl.model.index_of(name),
        (index, _) => Some(rtnl.model.id_of(index)),
    };
    let none = Error::new(errno::ENODEV);
    let index = index.ok_or_else(|| none.clone())?;
    let link = rtnl.model.link(index).ok_or(none)?;
    let lower = rtnl.model.lower_of(index);
    reply.send(RTM_NEWLINK, 0, |w| write(w, index, link, lower, find(&now, index), ext_mask, 0));
    Ok(())
}

/// Carries out an `RTM_NEWLINK` or `RTM_SETLINK`, and notifies listeners.
pub(super) fn set<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let (header, rest) = fixed::<LINK_LEN>(request)?;
    let attrs = parse(rest, behind(LINK_LEN), &LINK_POLICY, Strictness::Liberal)?;
    let name = attrs.get(IFLA_IFNAME).and_then(Attr::text).filter(|name| !name.is_empty());
    let index = match (word(&header[4..]), name) {
        (0, Some(name)) => rtnl.model.index_of(name),
        (0, None) => None,
        (index, _) => Some(rtnl.model.id_of(index)).filter(|&id| rtnl.model.link(id).is_some()),
    };
    let flags = request.message.header.flags;
    let made = match index {
        Some(_) if flags & flag::EXCL != 0 => return Err(Error::new(errno::EEXIST)),
        Some(_) if flags & flag::REPLACE != 0 => return Err(Error::new(errno::EOPNOTSUPP)),
        Some(index) => {
            change(rtnl, index, header, &attrs, reply)?;
            index
        }
        None if request.kind() == RTM_SETLINK || flags & flag::CREATE == 0 => {
            let of = attrs.get(IFLA_GROUP).filter(|_| request.kind() == RTM_NEWLINK && word(&header[4..]) == 0);
            let of = of.filter(|_| name.is_none()).ok_or(Error::new(errno::ENODEV))?.u32();
            for index in rtnl.model.of_group(of) {
                change(rtnl, index, header, &attrs, reply)?;
                rtnl.announce_link(index, reply)?;
            }
            return Ok(());
        }
        None => create(rtnl, header, &attrs, reply)?,
    };
    rtnl.announce_link(made, reply)
}

/// Carries out an `RTM_DELLINK`, and notifies listeners.
pub(super) fn remove<B: Backend>(
    rtnl: &mut Rtnl<B>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    let (header, rest) = fixed::<LINK_LEN>(request)?;
    let attrs = parse(rest, behind(LINK_LEN), &LINK_POLICY, Strictness::Liberal)?;
    let name = attrs.get(IFLA_IFNAME).and_then(Attr::text);
    let indices = match (word(&header[4..]), name, attrs.get(IFLA_GROUP)) {
        (0, Some(name), _) => rtnl.model.index_of(name).into_iter().collect(),
        (0, None, Some(group)) => match group.u32() {
            0 => return Err(Error::new(errno::EPERM)),
            group => rtnl.model.of_group(group),
        },
        (0, None, None) => return Err(Error::new(errno::EINVAL)),
        (index, ..) => vec![rtnl.model.id_of(index)],
    };
    if indices.is_empty() {
        return Err(Error::new(errno::ENODEV));
    }
    let is_group = indices.len() > 1;
    for index in indices {
        if index == LOOPBACK {
            return Err(Error::new(errno::EOPNOTSUPP));
        }
        match remove_one(rtnl, index, reply) {
            // A member of the group may have been removed with its lower link.
            Err(Error { errno: errno::ENODEV, .. }) if is_group => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Removes a link, after its VLAN devices (Linux `vlan_device_event`).
fn remove_one<B: Backend>(rtnl: &mut Rtnl<B>, index: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
    let link = rtnl.model.link(index).ok_or(Error::new(errno::ENODEV))?;
    let is_virtual = link.is_virtual();
    for above in rtnl.model.vlans_of(&link.config.name) {
        remove_one(rtnl, above, reply)?;
    }
    rtnl.release(index, reply)?;
    set_down(rtnl, index, reply)?;
    if !is_virtual {
        rtnl.backend.close(PortId(index))?;
    }
    rtnl.model.clear_link(index);
    rtnl.publish(reply);
    let lower = rtnl.model.lower_of(index);
    let link = rtnl.model.remove_link(index).ok_or(Error::new(errno::ENODEV))?;
    reply.notify(RTNLGRP_LINK, RTM_DELLINK, 0, |w| write(w, index, &link, lower, None, 0, u32::MAX));
    Ok(())
}

/// Sets a link down before it is deleted, and notifies listeners (Linux `unregister_netdevice_many_notify`,
/// `dev_close_many`).
fn set_down<B: Backend>(rtnl: &mut Rtnl<B>, index: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
    let Some(link) = rtnl.model.link(index).filter(|link| link.up) else { return Ok(()) };
    if !link.is_virtual() {
        rtnl.backend.set_up(PortId(index), false)?;
    }
    rtnl.model.set_up(index, false);
    rtnl.announce_link(index, reply)?;
    rtnl.publish(reply);
    Ok(())
}
