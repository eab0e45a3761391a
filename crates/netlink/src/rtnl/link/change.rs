//! Changes of an existing link: validation of the request, then its application.

use std::net::IpAddr;

use base::{IfIndex, PortId};
use wire::MacAddr;

use super::super::entry::Link;
use super::attributes::{LinkInfo, info_of};
use super::message::{FAT_SIZES, broadcast, kind_word, mtus};
use crate::attr::{Attr, Attrs};
use crate::error::{Error, errno};
use crate::rtnl::backend::Backend;
use crate::rtnl::entry::Master;
use crate::rtnl::header::{LINK_LEN, word};
use crate::rtnl::model::Model;
use crate::rtnl::node::Rtnl;
use crate::rtnl::nums::*;
use crate::rtnl::{bridge, enslave};
use crate::session::Reply;
use config::model::LinkKind;

/// Changes an existing link, as Linux's `do_setlink`. The whole request is validated before anything changes.
pub(super) fn change<B: Backend>(
    rtnl: &mut Rtnl<B>,
    index: u32,
    header: &[u8; LINK_LEN],
    attrs: &Attrs<'_, IFLA_MAX>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    if attrs.get(IFLA_ADDRESS).is_some() {
        // The host may have recreated the device with another address.
        rtnl.links_now()?;
    }
    let now = rtnl.model.link(index).ok_or(Error::new(errno::ENODEV))?;
    let requested = LinkRequest::of(&rtnl.model, (index, now), header, attrs)?;
    let before = now.master;
    // The datapath does not have virtual links: no packet passes through them.
    let is_virtual = now.is_virtual();
    if let Some(mac) = requested.mac {
        if !is_virtual {
            rtnl.backend.set_mac(PortId(index), mac)?;
        }
        if let Some(link) = rtnl.model.link_mut(index) {
            (link.mac, link.mac_set) = (Some(mac), true);
        }
    }
    if let Some(mtu) = requested.mtu {
        let of_device = u16::try_from(mtu).ok().filter(|_| !is_virtual);
        if let Some(mtu) = of_device {
            rtnl.backend.set_mtu(PortId(index), mtu)?;
        }
        if let Some(link) = rtnl.model.link_mut(index) {
            (link.mtu, link.config.mtu) = (mtu, of_device);
        }
        rtnl.model.record_vrf(index);
    }
    if let Some(link) = rtnl.model.link_mut(index) {
        note(link, attrs);
    }
    if before != requested.master {
        // A link leaves its old master before it joins the new one.
        if before.is_some() {
            rtnl.enslave(index, None, reply)?;
        }
        if requested.master.is_some() {
            rtnl.enslave(index, requested.master, reply)?;
        }
    }
    let info = attrs.get(IFLA_LINKINFO).map_or(Ok(LinkInfo::default()), info_of)?;
    if let Some(settings) = &info.data {
        bridge::change(rtnl, PortId(index), settings)?;
    }
    if let Some(settings) = &info.member_data {
        let master = requested.master.filter(|master| master.table.is_none()).ok_or(Error::new(errno::EOPNOTSUPP))?;
        bridge::change_port(rtnl, PortId(master.index), PortId(index), settings, false)?;
    }
    if let Some(up) = requested.up {
        if !is_virtual {
            rtnl.backend.set_up(PortId(index), up)?;
        }
        rtnl.model.set_up(index, up);
    }
    Ok(())
}

/// Requested changes of an existing link; `None` for an unchanged property.
struct LinkRequest {
    mac: Option<[u8; 6]>,
    mtu: Option<u32>,
    up: Option<bool>,
    /// The new VRF or bridge, which may be the current one.
    master: Option<Master>,
}

impl LinkRequest {
    /// Validates a request for the link `now`, whose number is `index`.
    fn of(
        model: &Model,
        (index, now): (u32, &Link),
        header: &[u8; LINK_LEN],
        attrs: &Attrs<'_, IFLA_MAX>,
    ) -> Result<Self, Error> {
        refuse_unsupported(attrs, Some(now), |attr| is_so(now, model.lower_of(index), attr))?;
        let mtu = match attrs.get(IFLA_MTU) {
            Some(mtu) if mtu.u32() == now.mtu => None,
            Some(mtu) if now.is_loopback() => {
                return Err(Error::unsupported("fatpath's lo has a fixed MTU").at(mtu.offset));
            }
            _ => requested_mtu(attrs, &now.config.kind)?,
        };
        let mac = match attrs.get(IFLA_ADDRESS) {
            Some(mac) if now.is_loopback() => {
                return Err(Error::unsupported("fatpath's lo has a fixed link-layer address").at(mac.offset));
            }
            Some(mac) => requested_mac(mac, now.mac)?,
            None => None,
        };
        refuse_flags(header, now.flags(false))?;
        refuse_other_kind(attrs, now)?;
        refuse_other_name(attrs, now)?;
        let master = match attrs.get(IFLA_MASTER).map(|master| model.id_of(master.u32())) {
            None => now.master,
            Some(0) => None,
            // `do_set_master` does not check an unchanged master further.
            Some(master) if now.master.is_some_and(|before| before.index == master) => now.master,
            Some(master) => Some(enslave::check(model, Some(index), &now.config.kind, master)?),
        };
        Ok(Self { mac, mtu, up: requested_up(header).filter(|&up| up != now.up), master })
    }
}

/// Refuses a change of the link's kind, or of settings that are fixed at its creation.
fn refuse_other_kind(attrs: &Attrs<'_, IFLA_MAX>, now: &Link) -> Result<(), Error> {
    let Some(info) = attrs.get(IFLA_LINKINFO) else { return Ok(()) };
    let LinkInfo { kind, data: settings, member_data } = info_of(info)?;
    // Linux has no text for this. Settings of a port come with the kind `bridge_slave`.
    if member_data.is_none() && kind.as_deref().is_some_and(|kind| kind != kind_word(now)) {
        return Err(Error::new(errno::EOPNOTSUPP));
    }
    match settings {
        None => Ok(()),
        Some(_) if now.is_bridge() => Ok(()),
        // Linux has no text for this error either: a VRF keeps its table.
        Some(_) if now.is_vrf() => Err(Error::new(errno::EOPNOTSUPP)),
        Some(_) => Err(Error::unsupported("fatpath's links of this kind have fixed settings").at(info.offset)),
    }
}

/// Refuses a change of the link's name.
fn refuse_other_name(attrs: &Attrs<'_, IFLA_MAX>, now: &Link) -> Result<(), Error> {
    let name = attrs.get(IFLA_IFNAME).filter(|name| name.text().is_some_and(|name| name != now.config.name));
    name.map_or(Ok(()), |name| Err(Error::unsupported("fatpath's links cannot be renamed").at(name.offset)))
}

/// Stores the properties that the datapath does not use.
fn note(link: &mut Link, attrs: &Attrs<'_, IFLA_MAX>) {
    if let Some(group) = attrs.get(IFLA_GROUP) {
        link.group = group.u32();
    }
    if let Some(alias) = attrs.get(IFLA_IFALIAS) {
        link.alias = alias.text().filter(|alias| !alias.is_empty()).map(str::to_owned);
    }
    if let Some(len) = attrs.get(IFLA_TXQLEN) {
        link.txqlen = len.u32();
    }
}

/// Attributes that Linux can change and fatpath cannot, with their error texts.
const UNSUPPORTED: [(u16, &str); 16] = [
    (IFLA_NET_NS_PID, "fatpath's links cannot move to another network namespace"),
    (IFLA_NET_NS_FD, "fatpath's links cannot move to another network namespace"),
    (IFLA_BROADCAST, "fatpath's links have fixed broadcast addresses"),
    (IFLA_CARRIER, "fatpath's links have a carrier that cannot be set"),
    (IFLA_LINK, "fatpath has no links over other links but VLAN devices"),
    (IFLA_LINKMODE, "fatpath's links have no link mode that can be set"),
    (IFLA_PROMISCUITY, "fatpath's links have no promiscuity that can be set"),
    (IFLA_OPERSTATE, "fatpath's links have an operational state that cannot be set"),
    (IFLA_VFINFO_LIST, "fatpath's links have no virtual functions"),
    (IFLA_PROTO_DOWN, "fatpath's links have no protodown"),
    (IFLA_GSO_MAX_SEGS, FAT),
    (IFLA_GSO_MAX_SIZE, FAT),
    (IFLA_GRO_MAX_SIZE, FAT),
    (IFLA_GSO_IPV4_MAX_SIZE, FAT),
    (IFLA_GRO_IPV4_MAX_SIZE, FAT),
    (IFLA_XDP, "fatpath's links support no XDP programs"),
];
const FAT: &str = "fatpath's links have fixed GSO and GRO sizes";

/// Refuses attributes in `UNSUPPORTED`, unless the link already has the requested value (`is_so`), and settings by family
/// of `link`, `None` for a new link.
pub(super) fn refuse_unsupported<const N: usize>(
    attrs: &Attrs<'_, N>,
    link: Option<&Link>,
    is_so: impl Fn(&Attr<'_>) -> bool,
) -> Result<(), Error> {
    let named = UNSUPPORTED.iter().filter_map(|&(kind, text)| Some((attrs.get(kind)?, text)));
    if let Some((attr, text)) = named.into_iter().find(|(attr, _)| !is_so(attr)) {
        return Err(Error::unsupported(text).at(attr.offset));
    }
    for family in attrs.get(IFLA_AF_SPEC).into_iter().flat_map(Attr::iter) {
        for attr in family.iter() {
            let text = match (family.kind == u16::from(AF_INET6), attr.kind) {
                (true, IFLA_INET6_ADDR_GEN_MODE) if attr.u8() == IN6_ADDR_GEN_MODE_NONE => continue,
                (true, IFLA_INET6_ADDR_GEN_MODE)
                    if attr.u8() == IN6_ADDR_GEN_MODE_EUI64 && link.is_none_or(has_eui64_or_no_link_local) =>
                {
                    continue;
                }
                (true, IFLA_INET6_ADDR_GEN_MODE) => "fatpath's links make no addresses of their own",
                (true, IFLA_INET6_TOKEN) => "fatpath learns no addresses from routers",
                _ => "fatpath has no such setting of a link",
            };
            return Err(Error::unsupported(text).at(attr.offset));
        }
    }
    Ok(())
}

/// Whether the link-local addresses of a link are as in mode `eui64`: the link has the address that is made from its
/// link-layer address, or has no link-local address, as before Linux sets the link up.
fn has_eui64_or_no_link_local(link: &Link) -> bool {
    let eui64 = link.mac.map(|mac| IpAddr::V6(MacAddr(mac).link_local()));
    let mut near = link.addresses.iter().map(|address| address.addr.addr()).filter(is_link_local_v6).peekable();
    near.peek().is_none() || near.any(|addr| Some(addr) == eui64)
}

fn is_link_local_v6(addr: &IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

/// Flags of a request (Linux `rtnl_dev_combine_flags`), and the mask of changed flags, without volatile ones.
fn requested_flags(header: &[u8; LINK_LEN]) -> (u32, u32) {
    let (flags, change) = (word(&header[8..]), word(&header[12..]));
    let all = if change == 0 && flags != 0 { u32::MAX } else { change };
    (flags, all & !IFF_VOLATILE)
}

/// Whether a request sets a link up, or down.
pub(super) fn requested_up(header: &[u8; LINK_LEN]) -> Option<bool> {
    let (flags, change) = requested_flags(header);
    (change & IFF_UP != 0).then_some(flags & IFF_UP != 0)
}

/// Refuses changes of flags other than `IFF_UP`.
fn refuse_flags(header: &[u8; LINK_LEN], now: u32) -> Result<(), Error> {
    let (flags, change) = requested_flags(header);
    match (flags ^ now) & change & !IFF_UP {
        0 => Ok(()),
        _ => Err(Error::unsupported("fatpath's links have no flags that can be changed but up")),
    }
}

/// Requested MTU for a link of kind `kind`.
pub(super) fn requested_mtu<const N: usize>(attrs: &Attrs<'_, N>, kind: &LinkKind) -> Result<Option<u32>, Error> {
    let Some(mtu) = attrs.get(IFLA_MTU) else { return Ok(None) };
    let (min, max) = mtus(kind);
    match mtu.u32() {
        mtu if mtu < min => Err(Error::text(errno::EINVAL, "mtu less than device minimum")),
        mtu if mtu > max => Err(Error::text(errno::EINVAL, "mtu greater than device maximum")),
        mtu => Ok(Some(mtu)),
    }
}

/// Requested link-layer address, for a link whose current address is `now` (Linux `dev_set_mac_address`).
pub(super) fn requested_mac(attr: &Attr<'_>, now: Option<[u8; 6]>) -> Result<Option<[u8; 6]>, Error> {
    let Some(now) = now else { return Err(Error::new(errno::EOPNOTSUPP)) };
    match attr.data.first_chunk() {
        None => Err(Error::new(errno::EINVAL)),
        Some(mac) if *mac == now => Ok(None),
        Some(mac) if mac[0] & 1 == 1 || *mac == [0; 6] => Err(Error::new(errno::EADDRNOTAVAIL)),
        Some(mac) => Ok(Some(*mac)),
    }
}

/// Whether the link already has the value of the attribute.
fn is_so(link: &Link, lower: Option<IfIndex>, attr: &Attr<'_>) -> bool {
    match attr.kind {
        IFLA_LINK => lower.is_some_and(|lower| lower.0 == attr.u32()),
        IFLA_BROADCAST => attr.data == broadcast(link),
        // The attribute contains a file descriptor; -1 detaches a program.
        IFLA_XDP => attr.iter().all(|of| of.kind != IFLA_XDP_FD || of.u32() == u32::MAX),
        kind => FAT_SIZES.iter().any(|&(size, value)| size == kind && attr.u32() == value),
    }
}
