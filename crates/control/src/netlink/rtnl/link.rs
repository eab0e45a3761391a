//! `RTM_*LINK`.

mod create;
mod message;

use super::super::attr::{Attr, Attrs, Kind, Policy, Strictness, parse, policy};
use super::entry::Link;
use super::model::LOOPBACK;
use super::*;
use crate::features::FeatureSet;
use crate::model::LinkKind;
use create::create;
use message::{FAT_SIZES, broadcast, mtus, write_v6};

pub(super) use create::{MAX_WISH, write_enslaving, write_request};
pub(super) use message::write;

/// Length of `struct ifinfomsg`.
pub(super) const LEN: usize = 16;

/// Longest name, with its zero byte (`IFNAMSIZ`).
pub(super) const IFNAMSIZ: u16 = 16;

pub(super) const POLICY: Policy<IFLA_MAX> = policy(&[
    (IFLA_IFNAME, Kind::Str(IFNAMSIZ - 1)),
    (IFLA_ALT_IFNAME, Kind::Str(127)),
    (IFLA_ADDRESS, Kind::Max(32)),
    (IFLA_BROADCAST, Kind::Max(32)),
    (IFLA_MTU, Kind::Int(4)),
    (IFLA_LINK, Kind::Int(4)),
    (IFLA_MASTER, Kind::Int(4)),
    (IFLA_CARRIER, Kind::Int(1)),
    (IFLA_TXQLEN, Kind::Int(4)),
    (IFLA_OPERSTATE, Kind::Int(1)),
    (IFLA_LINKMODE, Kind::Int(1)),
    (IFLA_LINKINFO, Kind::Nested),
    (IFLA_NET_NS_PID, Kind::Int(4)),
    (IFLA_NET_NS_FD, Kind::Int(4)),
    (IFLA_IFALIAS, Kind::Max(255)),
    (IFLA_GROUP, Kind::Int(4)),
    (IFLA_EXT_MASK, Kind::Int(4)),
    (IFLA_NUM_TX_QUEUES, Kind::Int(4)),
    (IFLA_NUM_RX_QUEUES, Kind::Int(4)),
    (IFLA_AF_SPEC, Kind::Nested),
    (IFLA_VFINFO_LIST, Kind::Nested),
    (IFLA_PROTO_DOWN, Kind::Int(1)),
    (IFLA_GSO_MAX_SEGS, Kind::Int(4)),
    (IFLA_GSO_MAX_SIZE, Kind::Int(4)),
    (IFLA_XDP, Kind::Nested),
    (IFLA_GRO_MAX_SIZE, Kind::Int(4)),
    (IFLA_GSO_IPV4_MAX_SIZE, Kind::Int(4)),
    (IFLA_GRO_IPV4_MAX_SIZE, Kind::Int(4)),
]);

/// What a request for links names.
#[derive(Clone, Debug, Default)]
struct Filter {
    ext_mask: u32,
    master: Option<u32>,
    kind: Option<String>,
}

pub(super) fn dump<H: Host>(request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<H>>, Error> {
    let (header, rest) = match fixed::<LEN>(request) {
        Ok(found) => found,
        // Old programs send less (`rtnl_dump_ifinfo`).
        Err(_) if !request.strict => (&[0; LEN], &[] as &[u8]),
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
    let attrs = parse(rest, behind(LEN), &POLICY, strictness(request))?;
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
    Ok(Box::new(move |rtnl: &mut Rtnl<H>, part| {
        // All parts of a dump show the same moment's counters.
        let now = match &now {
            Some(now) => now,
            None => now.insert(rtnl.host.links()?),
        };
        let model = &rtnl.model;
        part.interrupted(*generation.get_or_insert(model.generation()) != model.generation());
        // 0 is any, and all ones is none (Linux `link_master_filtered`).
        let wanted = |link: &Link| {
            let master = link.master.map(|master| master.index);
            filter.master.is_none_or(|wanted| wanted == 0 || master == Some(wanted).filter(|&it| it != u32::MAX))
                && filter.kind.as_deref().is_none_or(|kind| !link.is_loopback() && kind_word(link) == kind)
        };
        let links: Vec<_> = model.links_after(last.unwrap_or_default()).collect();
        Ok(write_each(part, &mut last, links.into_iter(), |part, index, link| {
            let now = find(now, index);
            let write = |w: &mut Writer| match family {
                AF_INET6 => write_v6(w, index, link, now),
                _ => write(w, index, link, now, filter.ext_mask, 0),
            };
            !wanted(link) || part.message(RTM_NEWLINK, write)
        }))
    }))
}

/// The kind that `IFLA_LINKINFO` names.
fn kind_of<const N: usize>(attrs: &Attrs<'_, N>) -> Result<Option<String>, Error> {
    attrs.get(IFLA_LINKINFO).map_or(Ok(None), |info| Ok(info_of(info)?.0))
}

/// The features that are wanted of a link that was saved.
fn features_of<const N: usize>(attrs: &Attrs<'_, N>) -> Result<Option<FeatureSet>, Error> {
    const INFO: Policy<6> = policy(&[(IFLA_INFO_DATA, Kind::Nested)]);
    let Some(info) = attrs.get(IFLA_LINKINFO) else { return Ok(None) };
    let info = info.parse(&INFO, Strictness::Liberal)?;
    let mut settings = info.get(IFLA_INFO_DATA).into_iter().flat_map(Attr::iter);
    let features = settings.find(|setting| setting.kind == IFLA_FATPATH_FEATURES);
    Ok(features.map(|features| FeatureSet(features.u64()) & FeatureSet::SWITCHED))
}

/// The kind that an `IFLA_LINKINFO` names, and what else it says of that.
fn info_of<'a>(info: &Attr<'a>) -> Result<(Option<String>, Option<Attr<'a>>), Error> {
    const INFO: Policy<6> = policy(&[(IFLA_INFO_KIND, Kind::Str(64)), (IFLA_INFO_DATA, Kind::Nested)]);
    let info = info.parse(&INFO, Strictness::Liberal)?;
    let kind = info.get(IFLA_INFO_KIND).and_then(Attr::text).map(str::to_owned);
    Ok((kind, info.get(IFLA_INFO_DATA).copied()))
}

pub(super) fn find(now: &[LinkNow], index: u32) -> Option<&LinkNow> {
    now.iter().find(|now| now.id.0 == index)
}

pub(super) fn get<H: Host>(rtnl: &mut Rtnl<H>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let (header, rest) = fixed::<LEN>(request)?;
    let strict = strictness(request);
    if request.strict && (header[1..4] != [0; 3] || header[8..] != [0; 8]) {
        return Err(Error::text(errno::EINVAL, "Invalid values in header for get link request"));
    }
    let attrs = parse(rest, behind(LEN), &POLICY, strict)?;
    let ext_mask = attrs.get(IFLA_EXT_MASK).map_or(0, Attr::u32);
    let name = attrs.get(IFLA_IFNAME).or_else(|| attrs.get(IFLA_ALT_IFNAME)).and_then(Attr::text);
    let index = match (word(&header[4..]), name) {
        (0, None) => return Err(Error::new(errno::EINVAL)),
        (0, Some(name)) => rtnl.model.index_of(name),
        (index, _) => Some(index),
    };
    let none = Error::new(errno::ENODEV);
    let index = index.ok_or_else(|| none.clone())?;
    let link = rtnl.model.link(index).ok_or(none)?;
    let now = rtnl.host.links()?;
    reply.send(RTM_NEWLINK, 0, |w| write(w, index, link, find(&now, index), ext_mask, 0));
    Ok(())
}

/// Carries out an `RTM_NEWLINK` or `RTM_SETLINK`, and tells of it.
pub(super) fn set<H: Host>(rtnl: &mut Rtnl<H>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let (header, rest) = fixed::<LEN>(request)?;
    let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
    let name = attrs.get(IFLA_IFNAME).and_then(Attr::text).filter(|name| !name.is_empty());
    let index = match (word(&header[4..]), name) {
        (0, Some(name)) => rtnl.model.index_of(name),
        (0, None) => None,
        (index, _) => Some(index).filter(|&index| rtnl.model.link(index).is_some()),
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

/// What fatpath does not have of what a link may be told.
const UNSUPPORTED: [(u16, &str); 16] = [
    (IFLA_NET_NS_PID, "fatpath's instances do not give each other links"),
    (IFLA_NET_NS_FD, "fatpath's instances do not give each other links"),
    (IFLA_BROADCAST, "fatpath's links keep their broadcast addresses"),
    (IFLA_CARRIER, "fatpath's links know their carrier themselves"),
    (IFLA_LINK, "fatpath has no links over others"),
    (IFLA_LINKMODE, "fatpath's links have no other mode"),
    (IFLA_PROMISCUITY, "fatpath's links have no such mode"),
    (IFLA_OPERSTATE, "fatpath's links know their state themselves"),
    (IFLA_VFINFO_LIST, "fatpath's links have no virtual functions"),
    (IFLA_PROTO_DOWN, "fatpath's links are not held down"),
    (IFLA_GSO_MAX_SEGS, FAT),
    (IFLA_GSO_MAX_SIZE, FAT),
    (IFLA_GRO_MAX_SIZE, FAT),
    (IFLA_GSO_IPV4_MAX_SIZE, FAT),
    (IFLA_GRO_IPV4_MAX_SIZE, FAT),
    (IFLA_XDP, "fatpath's links take no programs"),
];
const FAT: &str = "fatpath's links keep the sizes of their fat packets";

/// Refuses what fatpath does not have, unless it `is_so` already.
fn refuse_unsupported<const N: usize>(attrs: &Attrs<'_, N>, is_so: impl Fn(&Attr<'_>) -> bool) -> Result<(), Error> {
    let named = UNSUPPORTED.iter().filter_map(|&(kind, text)| Some((attrs.get(kind)?, text)));
    if let Some((attr, text)) = named.into_iter().find(|(attr, _)| !is_so(attr)) {
        return Err(Error::unsupported(text).at(attr.offset));
    }
    for family in attrs.get(IFLA_AF_SPEC).into_iter().flat_map(Attr::iter) {
        for attr in family.iter() {
            let text = match (family.kind == u16::from(AF_INET6), attr.kind) {
                (true, IFLA_INET6_ADDR_GEN_MODE) if attr.u8() == IN6_ADDR_GEN_MODE_NONE => continue,
                (true, IFLA_INET6_ADDR_GEN_MODE) => "fatpath's links make no addresses of their own",
                (true, IFLA_INET6_TOKEN) => "fatpath learns no addresses from routers",
                _ => "fatpath has no such setting of a link",
            };
            return Err(Error::unsupported(text).at(attr.offset));
        }
    }
    Ok(())
}

/// What the flags of a request are to be (Linux `rtnl_dev_combine_flags`), and which of them somebody can set.
fn wanted_flags(header: &[u8; LEN]) -> (u32, u32) {
    let (flags, change) = (word(&header[8..]), word(&header[12..]));
    let all = if change == 0 && flags != 0 { u32::MAX } else { change };
    (flags, all & !IFF_VOLATILE)
}

/// Whether a request sets a link up, or down.
fn wanted_up(header: &[u8; LEN]) -> Option<bool> {
    let (flags, change) = wanted_flags(header);
    (change & IFF_UP != 0).then_some(flags & IFF_UP != 0)
}

/// Refuses flags other than up and down that are to change.
fn refuse_flags(header: &[u8; LEN], now: u32) -> Result<(), Error> {
    let (flags, change) = wanted_flags(header);
    match (flags ^ now) & change & !IFF_UP {
        0 => Ok(()),
        _ => Err(Error::unsupported("fatpath's links are set up and down, and keep their other flags")),
    }
}

/// The MTU that a request wants for a link of that kind.
fn wanted_mtu<const N: usize>(attrs: &Attrs<'_, N>, kind: &LinkKind) -> Result<Option<u32>, Error> {
    let Some(mtu) = attrs.get(IFLA_MTU) else { return Ok(None) };
    let (min, max) = mtus(kind);
    match mtu.u32() {
        mtu if mtu < min => Err(Error::text(errno::EINVAL, "mtu less than device minimum")),
        mtu if mtu > max => Err(Error::text(errno::EINVAL, "mtu greater than device maximum")),
        mtu => Ok(Some(mtu)),
    }
}

/// The link-layer address that a request wants for a link that has one, or has none (Linux `dev_set_mac_address`).
fn wanted_mac(attr: &Attr<'_>, now: Option<[u8; 6]>) -> Result<Option<[u8; 6]>, Error> {
    let Some(now) = now else { return Err(Error::new(errno::EOPNOTSUPP)) };
    match attr.data.first_chunk() {
        None => Err(Error::new(errno::EINVAL)),
        Some(mac) if *mac == now => Ok(None),
        Some(mac) if mac[0] & 1 == 1 || *mac == [0; 6] => Err(Error::new(errno::EADDRNOTAVAIL)),
        Some(mac) => Ok(Some(*mac)),
    }
}

/// Whether a link is what this says of it.
fn is_so(link: &Link, attr: &Attr<'_>) -> bool {
    match attr.kind {
        IFLA_BROADCAST => attr.data == broadcast(link),
        // `struct rtnl_link` has a descriptor here: -1 takes a program away.
        IFLA_XDP => attr.iter().all(|of| of.kind != IFLA_XDP_FD || of.u32() == u32::MAX),
        kind => FAT_SIZES.iter().any(|&(size, value)| size == kind && attr.u32() == value),
    }
}

/// Linux's `do_setlink`. All is judged before anything changes.
fn change<H: Host>(
    rtnl: &mut Rtnl<H>,
    index: u32,
    header: &[u8; LEN],
    attrs: &Attrs<'_, IFLA_MAX>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    let now = rtnl.model.link(index).ok_or(Error::new(errno::ENODEV))?;
    let wanted = Wanted::of(&rtnl.model, (index, now), header, attrs)?;
    let before = now.master;
    // No packet passes by it, so the packets' side has none to change.
    let is_virtual = now.is_virtual();
    if let Some(mac) = wanted.mac {
        if !is_virtual {
            rtnl.host.set_mac(LinkId(index), mac)?;
        }
        if let Some(link) = rtnl.model.link_mut(index) {
            (link.mac, link.mac_set) = (Some(mac), true);
        }
    }
    if let Some(mtu) = wanted.mtu {
        let of_device = u16::try_from(mtu).ok().filter(|_| !is_virtual);
        if let Some(mtu) = of_device {
            rtnl.host.set_mtu(LinkId(index), mtu)?;
        }
        if let Some(link) = rtnl.model.link_mut(index) {
            (link.mtu, link.config.mtu) = (mtu, of_device);
        }
        rtnl.model.tell_vrf(index);
    }
    if let Some(link) = rtnl.model.link_mut(index) {
        note(link, attrs);
    }
    if before != wanted.master {
        // Out of the one, and then into the other.
        if before.is_some() {
            rtnl.enslave(index, None, reply)?;
        }
        if wanted.master.is_some() {
            rtnl.enslave(index, wanted.master, reply)?;
        }
    }
    if let Some(up) = wanted.up {
        if !is_virtual {
            rtnl.host.set_up(LinkId(index), up)?;
        }
        rtnl.model.set_up(index, up);
    }
    Ok(())
}

/// What a request wants of a link that is there; `None` where that stays as it is.
struct Wanted {
    mac: Option<[u8; 6]>,
    mtu: Option<u32>,
    up: Option<bool>,
    /// The VRF that it is to belong to, also if it does already.
    master: Option<Master>,
}

impl Wanted {
    /// Judges a request for link `now` of number `index`.
    fn of(
        model: &Model,
        (index, now): (u32, &Link),
        header: &[u8; LEN],
        attrs: &Attrs<'_, IFLA_MAX>,
    ) -> Result<Self, Error> {
        refuse_unsupported(attrs, |attr| is_so(now, attr))?;
        let mtu = match attrs.get(IFLA_MTU) {
            Some(mtu) if mtu.u32() == now.mtu => None,
            Some(mtu) if now.is_loopback() => {
                return Err(Error::unsupported("fatpath's lo keeps its MTU: no packet passes by it").at(mtu.offset));
            }
            _ => wanted_mtu(attrs, &now.config.kind)?,
        };
        let mac = match attrs.get(IFLA_ADDRESS) {
            Some(mac) if now.is_loopback() => {
                return Err(Error::unsupported("fatpath's lo keeps its address: no packet passes by it").at(mac.offset));
            }
            Some(mac) => wanted_mac(mac, now.mac)?,
            None => None,
        };
        refuse_flags(header, now.flags(false))?;
        refuse_other_kind(attrs, now)?;
        refuse_other_name(attrs, now)?;
        let master = match attrs.get(IFLA_MASTER).map(Attr::u32) {
            None => now.master,
            Some(0) => None,
            // `do_set_master` asks no more of one that is there.
            Some(master) if now.master.is_some_and(|before| before.index == master) => now.master,
            Some(master) => Some(vrf::check(model, Some(index), &now.config.kind, master)?),
        };
        Ok(Self { mac, mtu, up: wanted_up(header).filter(|&up| up != now.up), master })
    }
}

/// Refuses another kind than a link has, and other settings than it was made with.
fn refuse_other_kind(attrs: &Attrs<'_, IFLA_MAX>, now: &Link) -> Result<(), Error> {
    let Some(info) = attrs.get(IFLA_LINKINFO) else { return Ok(()) };
    let (kind, settings) = info_of(info)?;
    // Linux has no text for this.
    if kind.as_deref().is_some_and(|kind| kind != kind_word(now)) {
        return Err(Error::new(errno::EOPNOTSUPP));
    }
    match settings {
        None => Ok(()),
        // Nor for this: a VRF keeps its table.
        Some(_) if now.is_vrf() => Err(Error::new(errno::EOPNOTSUPP)),
        Some(_) => Err(Error::unsupported("fatpath's links stay as they were made").at(info.offset)),
    }
}

/// Refuses another name than a link has.
fn refuse_other_name(attrs: &Attrs<'_, IFLA_MAX>, now: &Link) -> Result<(), Error> {
    let name = attrs.get(IFLA_IFNAME).filter(|name| name.text().is_some_and(|name| name != now.config.name));
    name.map_or(Ok(()), |name| Err(Error::unsupported("fatpath's links keep their names").at(name.offset)))
}

/// Notes what packets do not depend on.
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

/// Carries out an `RTM_DELLINK`, and tells of it.
pub(super) fn remove<H: Host>(rtnl: &mut Rtnl<H>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let (header, rest) = fixed::<LEN>(request)?;
    let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
    let name = attrs.get(IFLA_IFNAME).and_then(Attr::text);
    let indices = match (word(&header[4..]), name, attrs.get(IFLA_GROUP)) {
        (0, Some(name), _) => rtnl.model.index_of(name).into_iter().collect(),
        (0, None, Some(group)) => match group.u32() {
            0 => return Err(Error::new(errno::EPERM)),
            group => rtnl.model.of_group(group),
        },
        (0, None, None) => return Err(Error::new(errno::EINVAL)),
        (index, ..) => vec![index],
    };
    if indices.is_empty() {
        return Err(Error::new(errno::ENODEV));
    }
    for index in indices {
        if index == LOOPBACK {
            return Err(Error::new(errno::EOPNOTSUPP));
        }
        if rtnl.model.link(index).ok_or(Error::new(errno::ENODEV))?.is_vrf() {
            rtnl.release(index, reply)?;
        } else {
            rtnl.host.close(LinkId(index))?;
        }
        let link = rtnl.model.remove_link(index).ok_or(Error::new(errno::ENODEV))?;
        reply.notify(RTNLGRP_LINK, RTM_DELLINK, 0, |w| write(w, index, &link, None, 0, u32::MAX));
    }
    Ok(())
}

/// The word of a kind as `ip link … type` takes it.
pub(super) const fn kind_word(link: &Link) -> &'static str {
    match link.config.kind {
        LinkKind::Tun { .. } | LinkKind::Tap { .. } => "tun",
        LinkKind::Loopback => "loopback",
        LinkKind::Vrf { .. } => "vrf",
        LinkKind::Udp { .. } => "udp",
        LinkKind::Packet { .. } => "packet",
        LinkKind::Xdp { .. } => "xdp",
    }
}
