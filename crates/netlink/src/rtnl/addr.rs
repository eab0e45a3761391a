//! `RTM_*ADDR`.

use std::net::{IpAddr, Ipv4Addr};

use base::{IfAddr, IfIndex, Instant};

use super::backend::Backend;
use super::entry::{Address, Link};
use super::header::{behind, fixed, strictness, word};
use super::lifetime::Lifetime;
use super::model::Model;
use super::node::Rtnl;
use super::nums::*;
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::{Writer, flag};
use crate::session::{Dump, Request, write_each};

/// Length of `struct ifaddrmsg`.
pub(super) const LEN: usize = 8;
/// Types of address attributes, up to `IFA_MAX`.
const IFA_MAX: usize = 12;

pub(super) const POLICY: AttrPolicy<IFA_MAX> = policy(&[
    (IFA_ADDRESS, Kind::Min(4)),
    (IFA_LOCAL, Kind::Min(4)),
    (IFA_LABEL, Kind::Str(15)),
    (IFA_BROADCAST, Kind::Int(4)),
    (IFA_ANYCAST, Kind::Any),
    (IFA_CACHEINFO, Kind::Min(16)),
    (IFA_FLAGS, Kind::Int(4)),
    (IFA_RT_PRIORITY, Kind::Int(4)),
    (IFA_PROTO, Kind::Int(1)),
]);

pub(super) fn dump<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<B>>, Error> {
    let mut dev = 0;
    if request.strict {
        let (header, rest) =
            fixed::<LEN>(request).map_err(|_| Error::text(errno::EINVAL, "Invalid header for address dump request"))?;
        if header[1..4] != [0; 3] {
            return Err(Error::text(errno::EINVAL, "Invalid values in header for address dump request"));
        }
        dev = rtnl.model.id_of(word(&header[4..]));
        if parse(rest, behind(LEN), &POLICY, strictness(request))?.iter().next().is_some() {
            return Err(Error::text(errno::EINVAL, "Unsupported attribute in dump request"));
        }
        if dev != 0 && rtnl.model.link(dev).is_none() {
            return Err(Error::new(errno::ENODEV));
        }
    }
    let flags = if dev == 0 { 0 } else { flag::DUMP_FILTERED };
    let v4 = family != AF_INET6;
    let v6 = family != AF_INET;
    // The dump is a snapshot: positions in lists change between parts.
    let mut links = rtnl.model.by_ifindex(IfIndex(0));
    links.retain(|(_, id, _)| dev == 0 || dev == *id);
    let of_family = |v4: bool| {
        let each =
            links.iter().flat_map(|(index, _, link)| link.addresses.iter().map(move |address| (index, link, address)));
        each.filter(move |(_, _, address)| address.addr.addr().is_ipv4() == v4)
    };
    let chosen = [(true, v4), (false, v6)].into_iter().filter(|(_, requested)| *requested);
    let all = chosen.flat_map(|(v4, _)| of_family(v4));
    let all: Vec<_> = all.map(|(index, link, address)| (*index, link.config.name.clone(), address.clone())).collect();
    let (mut last, generation, now) = (None, rtnl.model.generation(), rtnl.model.now);
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        part.interrupted(generation != rtnl.model.generation());
        if dev != 0 {
            part.filtered();
        }
        let left = all.iter().enumerate().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, (index, name, address)| {
            part.message_with(RTM_NEWADDR, flags, |w| write(w, *index, name, address, now))
        }))
    }))
}

/// Address of a request.
struct AddressRequest {
    index: u32,
    own: IpAddr,
    len: u8,
    peer: Option<IpAddr>,
    broadcast: Option<Ipv4Addr>,
    label: Option<String>,
    scope: u8,
    flags: u32,
    metric: u32,
    protocol: u8,
    lifetime: Lifetime,
}

fn invalid(text: &'static str) -> Error {
    Error::text(errno::EINVAL, text)
}

impl AddressRequest {
    /// Parses a request, as Linux's `rtm_to_ifaddr` and `inet6_rtm_newaddr`.
    fn of(model: &Model, request: &Request<'_>) -> Result<Self, Error> {
        let (header, rest) = fixed::<LEN>(request)?;
        let [family, len, flags, scope, index @ ..] = *header;
        let (v4, index) = (family == AF_INET, model.id_of(u32::from_ne_bytes(index)));
        let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
        let ip =
            |kind| attrs.get(kind).map(|attr| attr.ip(v4).ok_or_else(|| Error::new(errno::EINVAL).at(attr.offset)));
        let (local, address) = (ip(IFA_LOCAL).transpose()?, ip(IFA_ADDRESS).transpose()?);
        if v4 && len > 32 {
            return Err(invalid("ipv4: Invalid prefix length"));
        }
        let own = match (v4, local, address) {
            (true, Some(local), _) | (false, Some(local), _) => local,
            (true, None, _) if request.kind() == RTM_NEWADDR => {
                return Err(invalid("ipv4: Local address is not supplied"));
            }
            (_, None, Some(address)) => address,
            (true, None, None) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            (false, None, None) => return Err(invalid("ipv6: address not specified")),
        };
        if !v4 && len > 128 {
            return Err(invalid("ipv6: Invalid prefix length"));
        }
        if model.link(index).is_none() {
            let text = if v4 { "ipv4: Device not found" } else { "ipv6: Unable to find the interface" };
            return Err(Error::text(errno::ENODEV, text));
        }
        let mut lifetime = Lifetime::default();
        if let Some(times) = attrs.get(IFA_CACHEINFO) {
            // `struct ifa_cacheinfo`: preferred lifetime, valid lifetime.
            let [preferred, valid] = [0, 4].map(|at| word(&times.data[at..]));
            let text = if v4 { "ipv4: Invalid address lifetime" } else { "ipv6: address lifetime invalid" };
            lifetime = Lifetime::of_seconds(model.now, preferred, valid).ok_or(invalid(text))?;
        }
        Ok(Self {
            index,
            own,
            len,
            peer: address.filter(|peer| *peer != own && !(v4 && peer.is_unspecified())),
            broadcast: attrs.get(IFA_BROADCAST).map(|attr| Ipv4Addr::from_bits(attr.be32())),
            label: attrs.get(IFA_LABEL).and_then(Attr::text).map(str::to_owned),
            scope,
            flags: attrs.get(IFA_FLAGS).map_or(flags.into(), Attr::u32),
            metric: attrs.get(IFA_RT_PRIORITY).map_or(0, Attr::u32),
            protocol: attrs.get(IFA_PROTO).map_or(0, Attr::u8),
            lifetime,
        })
    }

    /// Flags that the address's lifetime determines (Linux `set_ifa_lifetime`).
    fn lifetime_flags(&self, now: Instant) -> u32 {
        let permanent = if self.lifetime.is_permanent() { IFA_F_PERMANENT } else { 0 };
        permanent | if self.lifetime.is_deprecated(now) { IFA_F_DEPRECATED } else { 0 }
    }
}

/// Carries out an `RTM_NEWADDR`.
pub(super) fn add(model: &mut Model, request: &Request<'_>) -> Result<(), Error> {
    let requested = AddressRequest::of(model, request)?;
    let v4 = requested.own.is_ipv4();
    // The device of a VRF is the loopback device of its members.
    let is_virtual = model.link(requested.index).is_some_and(Link::is_virtual);
    match requested.own {
        IpAddr::V6(own) if own.is_multicast() => {
            return Err(invalid("ipv6: Cannot assign multicast address without \"IFA_F_MCAUTOJOIN\" flag"));
        }
        IpAddr::V6(own) if own.is_loopback() && !is_virtual => {
            return Err(Error::text(errno::EADDRNOTAVAIL, "ipv6: Cannot assign loopback address on this device"));
        }
        IpAddr::V6(own) if own.is_unspecified() => {
            return Err(Error::text(errno::EADDRNOTAVAIL, "ipv6: Invalid address"));
        }
        own if own.is_unspecified() || own.is_multicast() || own == IpAddr::V4(Ipv4Addr::BROADCAST) => {
            return Err(Error::unsupported("fatpath has no such address on a link"));
        }
        _ => {}
    }
    let addr = IfAddr::new(requested.own, requested.len).map_err(|_| Error::new(errno::EINVAL))?;
    let computed = model.new_address(requested.index, addr);
    let name = model.link(requested.index).map(|link| link.config.name.clone());
    // No temporary addresses are created, as with `use_tempaddr` 0.
    let only_v6 = IFA_F_HOMEADDRESS | IFA_F_MANAGETEMPADDR;
    let keep = IFA_F_NOPREFIXROUTE | IFA_F_NODAD | if v4 { 0 } else { only_v6 };
    if !v4 && requested.flags & IFA_F_MANAGETEMPADDR != 0 && requested.len != 64 {
        return Err(invalid("ipv6: address with \"mngtmpaddr\" flag must have a prefix length of 64"));
    }
    let lifetime_flags = requested.lifetime_flags(model.now);
    let mut address = Address {
        peer: requested.peer,
        broadcast: requested.broadcast,
        label: requested.label.filter(|label| Some(label) != name.as_ref()),
        // For IPv6 the scope is determined by the address.
        scope: if v4 { requested.scope } else { computed.scope },
        flags: lifetime_flags | requested.flags & keep,
        metric: requested.metric,
        protocol: requested.protocol,
        lifetime: requested.lifetime,
        ..computed
    };
    let Some(link) = model.link(requested.index) else { return Err(Error::new(errno::ENODEV)) };
    let same = |other: &Address| {
        other.addr.addr() == requested.own
            && (!v4 || (other.prefix_len() == address.prefix_len() && other.subnet() == address.subnet()))
    };
    if let Some(at) = link.addresses.iter().position(same) {
        let flags = request.message.header.flags;
        if flags & flag::EXCL != 0 || flags & flag::REPLACE == 0 {
            let text = if v4 { "ipv4: Address already assigned" } else { "ipv6: address already assigned" };
            return Err(Error::text(errno::EEXIST, text));
        }
        let there = link.addresses[at].clone();
        let (protocol, lifetime) = (address.protocol, requested.lifetime);
        let of_lifetime = IFA_F_PERMANENT | IFA_F_DEPRECATED;
        let changed = if v4 {
            // The metric is set even if the request has none (`inet_rtm_newaddr`).
            let flags = there.flags & !of_lifetime | lifetime_flags;
            Address { flags, metric: requested.metric, protocol, lifetime, ..there }
        } else {
            let flags = there.flags & !(keep | of_lifetime) | requested.flags & keep | lifetime_flags;
            let metric = if requested.metric == 0 { there.metric } else { requested.metric };
            Address { flags, metric, protocol, lifetime, peer: address.peer.or(there.peer), ..there }
        };
        model.change_address(requested.index, at, changed);
        return Ok(());
    }
    if let Some(first) = link.addresses.iter().find(|other| other.in_subnet_of(&address)) {
        if first.scope != address.scope {
            return Err(invalid("ipv4: Invalid scope value"));
        }
        address.flags |= IFA_F_SECONDARY;
    }
    if link.addresses.len() >= MAX_ADDRESSES {
        return Err(Error::owned_text(
            errno::ENOMEM,
            format!("fatpath has at most {MAX_ADDRESSES} addresses on a link"),
        ));
    }
    model.add_address(requested.index, address);
    Ok(())
}

/// Limit of a link's addresses.
const MAX_ADDRESSES: usize = 4096;

/// Carries out an `RTM_DELADDR`.
pub(super) fn remove(model: &mut Model, request: &Request<'_>) -> Result<(), Error> {
    let (header, rest) = fixed::<LEN>(request)?;
    let [family, len, _, _, index @ ..] = *header;
    let (v4, index) = (family == AF_INET, model.id_of(u32::from_ne_bytes(index)));
    let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
    let ip = |kind| attrs.get(kind).and_then(|attr| attr.ip(v4));
    let (local, peer) = (ip(IFA_LOCAL), ip(IFA_ADDRESS));
    let label = attrs.get(IFA_LABEL).and_then(Attr::text);
    if !v4 && local.or(peer).is_none() {
        return Err(invalid("ipv6: address not specified"));
    }
    let text = if v4 { "ipv4: Device not found" } else { "ipv6: Unable to find the interface" };
    let link = model.link(index).ok_or(Error::text(errno::ENODEV, text))?;
    let at = link.addresses.iter().position(|address| {
        let own = address.addr.addr();
        if own.is_ipv4() != v4 {
            return false;
        }
        if !v4 {
            return Some(own) == local.or(peer) && address.prefix_len() == len;
        }
        local.is_none_or(|local| local == own)
            && label.is_none_or(|label| label == address.label.as_deref().unwrap_or(&link.config.name))
            && peer.is_none_or(|peer| len == address.prefix_len() && address.subnet().contains(peer))
    });
    let (errno, text) = if v4 {
        (errno::EADDRNOTAVAIL, "ipv4: Address not found")
    } else {
        (errno::EADDRNOTAVAIL, "ipv6: address not found")
    };
    model.remove_address(index, at.ok_or(Error::text(errno, text))?);
    Ok(())
}

/// Writes an address, as Linux's `inet_fill_ifaddr` and `inet6_fill_ifaddr`, with the lifetimes left at `now`.
pub(super) fn write(w: &mut Writer, index: IfIndex, name: &str, address: &Address, now: Instant) {
    let own = address.addr.addr();
    let family = if own.is_ipv4() { AF_INET } else { AF_INET6 };
    w.fixed(&[family, address.prefix_len(), address.flags as u8, address.scope]);
    w.fixed(&index.0.to_ne_bytes());
    let times = |w: &mut Writer| {
        // Times of creation and change are not stored.
        let [preferred, valid] = address.lifetime.seconds_left(now);
        let info = [preferred, valid, 0, 0].map(u32::to_ne_bytes);
        w.put(IFA_CACHEINFO, info.as_flattened());
    };
    match own {
        IpAddr::V4(_) => {
            w.put_ip(IFA_ADDRESS, address.peer.unwrap_or(own));
            w.put_ip(IFA_LOCAL, own);
            if let Some(broadcast) = address.broadcast {
                w.put_ip(IFA_BROADCAST, broadcast.into());
            }
            w.put_str(IFA_LABEL, address.label.as_deref().unwrap_or(name));
            if address.protocol != 0 {
                w.put_u8(IFA_PROTO, address.protocol);
            }
            w.put_u32(IFA_FLAGS, address.flags);
            if address.metric != 0 {
                w.put_u32(IFA_RT_PRIORITY, address.metric);
            }
            times(w);
        }
        IpAddr::V6(_) => {
            match address.peer {
                Some(peer) => {
                    w.put_ip(IFA_LOCAL, own);
                    w.put_ip(IFA_ADDRESS, peer);
                }
                None => w.put_ip(IFA_ADDRESS, own),
            }
            if address.metric != 0 {
                w.put_u32(IFA_RT_PRIORITY, address.metric);
            }
            times(w);
            w.put_u32(IFA_FLAGS, address.flags);
            if address.protocol != 0 {
                w.put_u8(IFA_PROTO, address.protocol);
            }
        }
    }
}
