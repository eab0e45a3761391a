//! Bridges and their ports (`net/bridge/br_netlink.c`): `ip link … type bridge`, `ip link … type bridge_slave`,
//! `bridge link` and `bridge vlan`.

mod fdb;
mod port;
mod settings;
mod vlan;

use base::PortId;

use super::backend::Backend;
use super::entry::{Link, Master};
use super::header::{LINK_LEN, LINK_POLICY, arphrd, behind, fixed, operstate, put_header_of, strictness, word};
use super::node::Rtnl;
use super::nums::*;
use super::state::{Bridging, LinkNow, find};
use crate::attr::{Attr, Attrs, Strictness, parse};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::session::{Dump, Reply, Request, write_each};
use config::model::LinkKind;

pub(super) use fdb::{
    add as add_fdb, dump as dump_fdb, get as get_fdb, remove as remove_fdb, write as write_fdb_entry,
    write_request as write_fdb,
};
pub(super) use port::{change as change_port, put as put_port, write_requests as write_port};
pub(super) use settings::{change, put as put_bridge, put_config, requested, warn_of_snooping};
pub(super) use vlan::dump as dump_vlans;

/// Checks that a link of kind `kind` can be a port of a bridge (Linux `br_add_if`).
pub(super) fn check_port(kind: &LinkKind) -> Result<(), Error> {
    match kind {
        LinkKind::Bridge(_) => Err(Error::text(errno::ELOOP, "Can not enslave a bridge to a bridge")),
        kind if kind.is_ethernet() => Ok(()),
        _ => Err(Error::new(errno::EINVAL)),
    }
}

/// Carries out an `RTM_SETLINK` or `RTM_DELLINK` of family `AF_BRIDGE` (Linux `rtnl_bridge_setlink`, `br_setlink`,
/// `br_dellink`).
pub(super) fn set_port<B: Backend>(
    rtnl: &mut Rtnl<B>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    let (header, rest) = fixed::<LINK_LEN>(request)?;
    let index = rtnl.model.id_of(word(&header[4..]));
    if rtnl.model.link(index).is_none() {
        return Err(Error::text(errno::ENODEV, "unknown ifindex"));
    }
    let attrs = parse(rest, behind(LINK_LEN), &LINK_POLICY, Strictness::Liberal)?;
    let spec = || attrs.get(IFLA_AF_SPEC).into_iter().flat_map(Attr::iter);
    let flags = spec().find(|attr| attr.kind == IFLA_BRIDGE_FLAGS).map_or(0, |attr| attr.u16());
    let place = rtnl.model.bridge_of(index)?;
    let to_master = flags == 0 || flags & BRIDGE_FLAGS_MASTER != 0;
    let (bridge, port) = match place {
        Some((bridge, Some(port))) if to_master && flags & BRIDGE_FLAGS_SELF == 0 => (bridge, Some(port)),
        Some((bridge, None)) if !to_master => (bridge, None),
        _ => return Err(Error::new(errno::EOPNOTSUPP)),
    };
    if spec().any(|attr| attr.kind == IFLA_BRIDGE_MODE) {
        return Err(Error::unsupported("fatpath's bridges have no hardware switching modes"));
    }
    let adds = request.kind() == RTM_SETLINK;
    let vlans = vlan::requested(spec().filter(|attr| attr.kind == IFLA_BRIDGE_VLAN_INFO))?;
    match (attrs.get(IFLA_PROTINFO), port) {
        (Some(settings), Some(port)) if adds => port::change(rtnl, bridge, port, settings, true)?,
        (Some(settings), _) if adds => return Err(Error::new(errno::EINVAL).at(settings.offset)),
        _ => {}
    }
    vlan::change(rtnl, bridge, port, vlans, adds)?;
    rtnl.model.touch();
    rtnl.announce_port(index, reply)
}

/// Dumps bridges and their ports, as messages of family `AF_BRIDGE` (Linux `rtnl_bridge_getlink`).
pub(super) fn dump_ports<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>) -> Result<Dump<Rtnl<B>>, Error> {
    let attrs = match fixed::<LINK_LEN>(request) {
        Ok((header, rest)) => {
            if request.strict && (header[1..4] != [0; 3] || header[4..] != [0; 12]) {
                return Err(Error::text(errno::EINVAL, "Invalid values in header for bridge link dump request"));
            }
            Some(parse(rest, behind(LINK_LEN), &LINK_POLICY, strictness(request))?)
        }
        Err(_) if !request.strict => None,
        Err(_) => return Err(Error::text(errno::EINVAL, "Invalid header for link dump")),
    };
    let mask = attrs.as_ref().and_then(|attrs: &Attrs<'_, IFLA_MAX>| attrs.get(IFLA_EXT_MASK)).map_or(0, Attr::u32);
    let with_vlans = mask & (RTEXT_FILTER_BRVLAN | RTEXT_FILTER_BRVLAN_COMPRESSED) != 0;
    let now = rtnl.links_now()?;
    let mut last = None;
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        let links = rtnl.model.by_ifindex(last.unwrap_or_default()).into_iter();
        let links = links.map(|(ifindex, id, link)| (ifindex, (id, link)));
        Ok(write_each(part, &mut last, links, |part, _, (id, link)| {
            let now = find(&now, id);
            let requested = match now.and_then(|now| now.bridging.as_ref()) {
                Some(Bridging::Port(_)) => true,
                // A bridge itself has only VLANs to show here.
                Some(Bridging::Bridge(_)) => with_vlans,
                None => false,
            };
            !requested || part.message(RTM_NEWLINK, |w| write(w, id, link, now, mask))
        }))
    }))
}

/// Writes a link as a message of family `AF_BRIDGE` (Linux `br_fill_ifinfo`).
fn write(w: &mut Writer, id: u32, link: &Link, now: Option<&LinkNow>, mask: u32) {
    let (running, operstate) = operstate(link, now);
    let index = link.ifindex(id);
    put_header_of(w, AF_BRIDGE, arphrd(link), index, link.flags(running), 0);
    w.put_str(IFLA_IFNAME, &link.config.name);
    w.put_u32(IFLA_MASTER, link.master.map_or(index, Master::ifindex).0);
    w.put_u32(IFLA_MTU, link.mtu);
    w.put_u8(IFLA_OPERSTATE, operstate);
    if let Some(mac) = link.mac {
        w.put(IFLA_ADDRESS, &mac);
    }
    let vlans = match now.and_then(|now| now.bridging.as_ref()) {
        Some(Bridging::Port(port)) => {
            w.nest(IFLA_PROTINFO | NLA_F_NESTED, |w| put_port(w, port));
            &port.vlans
        }
        Some(Bridging::Bridge(bridge)) => &bridge.vlans,
        None => return,
    };
    let is_short = mask & RTEXT_FILTER_BRVLAN_COMPRESSED != 0;
    if is_short || mask & RTEXT_FILTER_BRVLAN != 0 {
        w.nest(IFLA_AF_SPEC, |w| vlan::put(w, vlans, is_short));
    }
}

impl<B: Backend> Rtnl<B> {
    /// Makes a link a port of a bridge, or of none, and notifies the members of the group of links.
    pub(super) fn set_bridge(
        &mut self,
        index: u32,
        bridge: Option<Master>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Error> {
        self.backend.set_bridge(PortId(index), bridge.map(|bridge| PortId(bridge.index)))?;
        if bridge.is_none() {
            self.announce_gone_port(index, reply);
        }
        self.model.set_bridge(index, bridge);
        self.announce_link(index, reply)?;
        if bridge.is_some() {
            self.announce_port(index, reply)?;
        }
        Ok(())
    }

    /// Notifies the members of the group of links of the state of a port or a bridge (Linux `br_ifinfo_notify`).
    fn announce_port(&mut self, index: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
        if reply.has_listeners(RTNLGRP_LINK) {
            let now = self.links_now()?;
            let link = self.model.link(index).ok_or(Error::new(errno::ENODEV))?;
            let mask = RTEXT_FILTER_BRVLAN_COMPRESSED;
            reply.notify(RTNLGRP_LINK, RTM_NEWLINK, 0, |w| write(w, index, link, find(&now, index), mask));
        }
        Ok(())
    }

    /// Notifies the members of the group of links that a link is no port any more.
    fn announce_gone_port(&self, index: u32, reply: &mut Reply<'_>) {
        if let Some(link) = self.model.link(index) {
            reply.notify(RTNLGRP_LINK, RTM_DELLINK, 0, |w| write(w, index, link, None, 0));
        }
    }
}
