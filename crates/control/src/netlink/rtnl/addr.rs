//! `RTM_*ADDR`.

use std::net::IpAddr;

use super::super::attr::{Kind, Policy, parse, policy};
use super::super::message::Writer;
use super::model::Address;
use super::*;

/// Length of `struct ifaddrmsg`.
const LEN: usize = 8;
/// Types of address attributes, up to `IFA_MAX`.
const IFA_MAX: usize = 12;

pub(super) const POLICY: Policy<IFA_MAX> = policy(&[
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

pub(super) fn dump<H: Host>(rtnl: &mut Rtnl<H>, request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<H>>, Error> {
    let mut dev = 0;
    if request.strict {
        let (header, rest) =
            fixed::<LEN>(request).map_err(|_| Error::text(errno::EINVAL, "Invalid header for address dump request"))?;
        if header[1..4] != [0; 3] {
            return Err(Error::text(errno::EINVAL, "Invalid values in header for address dump request"));
        }
        dev = word(&header[4..]);
        if parse(rest, behind(LEN), &POLICY, strictness(request))?.iter().next().is_some() {
            return Err(Error::text(errno::EINVAL, "Unsupported attribute in dump request"));
        }
        if dev != 0 && dev != LOOPBACK && rtnl.model.link(dev).is_none() {
            return Err(Error::new(errno::ENODEV));
        }
    }
    let filtered = if dev == 0 { 0 } else { flag::DUMP_FILTERED };
    let v4 = family != AF_INET6;
    let v6 = family != AF_INET;
    // Positions in lists that change would say little, so the dump is of one moment.
    let links: Vec<_> = rtnl.model.links_after(0).filter(|(index, _)| dev == 0 || dev == *index).collect();
    let of_family = |v4: bool| {
        let each =
            links.iter().flat_map(|(index, link)| link.addresses.iter().map(move |address| (index, link, address)));
        each.filter(move |(_, _, address)| address.addr.addr().is_ipv4() == v4)
    };
    let chosen = [(true, v4), (false, v6)].into_iter().filter(|(_, wanted)| *wanted);
    let all = chosen.flat_map(|(v4, _)| of_family(v4));
    let all: Vec<_> = all.map(|(index, link, address)| (*index, link.config.name.clone(), address.clone())).collect();
    let (mut last, generation) = (None, rtnl.model.generation());
    Ok(Box::new(move |rtnl: &mut Rtnl<H>, part| {
        part.interrupted(generation != rtnl.model.generation());
        let left = all.iter().enumerate().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, (index, name, address)| {
            part.message_with(RTM_NEWADDR, filtered, |w| write(w, *index, name, address))
        }))
    }))
}

/// An address, as Linux's `inet_fill_ifaddr` and `inet6_fill_ifaddr` write it.
pub(super) fn write(w: &mut Writer, index: u32, name: &str, address: &Address) {
    let own = address.addr.addr();
    let family = if own.is_ipv4() { AF_INET } else { AF_INET6 };
    w.fixed(&[family, address.len, address.flags as u8, address.scope]);
    w.fixed(&index.to_ne_bytes());
    let forever = |w: &mut Writer| {
        // Lifetimes without end, and no time stamps.
        let info = [u32::MAX, u32::MAX, 0, 0].map(u32::to_ne_bytes);
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
            forever(w);
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
            forever(w);
            w.put_u32(IFA_FLAGS, address.flags);
            if address.protocol != 0 {
                w.put_u8(IFA_PROTO, address.protocol);
            }
        }
    }
}
