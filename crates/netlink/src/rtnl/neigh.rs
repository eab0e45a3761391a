//! `RTM_*NEIGH`: link-layer addresses of neighbours (`net/core/neighbour.c`).

use std::net::IpAddr;

use base::{IfIndex, PortId};

use super::backend::{Backend, NeighbourNow};
use super::header::{behind, fixed, strictness, word};
use super::model::Model;
use super::node::Rtnl;
use super::nums::*;
use crate::attr::{Attr, AttrPolicy, Attrs, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::{Writer, flag};
use crate::session::{Dump, Reply, Request, write_each};

/// Length of `struct ndmsg`.
pub(super) const LEN: usize = 12;
/// Flag of a proxy entry, which is not supported.
const NTF_PROXY: u8 = 0x08;

const POLICY: AttrPolicy<NDA_MAX> = policy(&[
    (NDA_DST, Kind::Any),
    (NDA_LLADDR, Kind::Any),
    (NDA_CACHEINFO, Kind::Any),
    (NDA_PROBES, Kind::Int(4)),
    (NDA_IFINDEX, Kind::Int(4)),
    (NDA_MASTER, Kind::Int(4)),
    (NDA_PROTOCOL, Kind::Int(1)),
    (NDA_FLAGS_EXT, Kind::Int(4)),
]);

/// Neighbour in a request.
struct Named<'a> {
    link: PortId,
    addr: IpAddr,
    state: u16,
    flags: u8,
    attrs: Attrs<'a, NDA_MAX>,
}

impl<'a> Named<'a> {
    fn of<B: Backend>(rtnl: &Rtnl<B>, request: &Request<'a>) -> Result<Self, Error> {
        let (header, rest) = fixed::<LEN>(request)?;
        let index = rtnl.model.id_of(word(&header[4..]));
        let [state @ .., flags, _] = [header[8], header[9], header[10], header[11]];
        let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
        let dst = attrs.get(NDA_DST).ok_or(Error::text(errno::EINVAL, "Network address not specified"))?;
        if index != 0 && rtnl.model.link(index).is_none() {
            return Err(Error::new(errno::ENODEV));
        }
        let addr = dst.ip(header[0] == AF_INET).ok_or(Error::text(errno::EINVAL, "Invalid network address"))?;
        if flags & NTF_PROXY != 0 {
            return Err(Error::unsupported("fatpath has no proxy ARP and no proxy neighbour discovery"));
        }
        if index == 0 {
            return Err(Error::text(errno::EINVAL, "Device not specified"));
        }
        Ok(Self { link: PortId(index), addr, state: u16::from_ne_bytes(state), flags, attrs })
    }
}

/// Carries out an `RTM_NEWNEIGH` (Linux `neigh_add`).
pub(super) fn set<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let named = Named::of(rtnl, request)?;
    let lladdr = named.attrs.get(NDA_LLADDR);
    let link = rtnl.model.link(named.link.0).ok_or(Error::new(errno::ENODEV))?;
    if lladdr.is_some_and(|lladdr| lladdr.data.len() < link.mac.map_or(0, |mac| mac.len())) {
        return Err(Error::text(errno::EINVAL, "Invalid link address"));
    }
    if link.mac.is_none() || link.is_virtual() {
        return Err(Error::unsupported("fatpath's links without link-layer addresses have no neighbours"));
    }
    if named.flags != 0 || named.attrs.get(NDA_FLAGS_EXT).is_some_and(|flags| flags.u32() != 0) {
        return Err(Error::unsupported("fatpath's neighbours have no flags"));
    }
    let there = rtnl.backend.neighbour(named.link, named.addr)?;
    let flags = request.message.header.flags;
    match there {
        None if flags & flag::CREATE == 0 => return Err(Error::new(errno::ENOENT)),
        Some(_) if flags & flag::EXCL != 0 => return Err(Error::new(errno::EEXIST)),
        _ => {}
    }
    let mac: Option<[u8; 6]> = lladdr.and_then(|lladdr| lladdr.data.first_chunk().copied());
    let keep = there.filter(|_| flags & flag::REPLACE == 0).and_then(|there| there.mac);
    let known = NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;
    let mac = keep.or(mac).or(there.and_then(|there| there.mac));
    if named.state & known != 0 && mac.is_none() {
        return Err(Error::text(errno::EINVAL, "No link layer address given"));
    }
    let state = match named.state {
        NUD_NOARP => return Err(Error::unsupported("fatpath's neighbours on such a link cannot be noarp")),
        state @ (NUD_PERMANENT | NUD_REACHABLE | NUD_STALE) => state,
        NUD_DELAY | NUD_PROBE => NUD_STALE,
        // No link-layer address, and no resolution in progress.
        _ => return Err(Error::unsupported("fatpath resolves neighbours only when a packet needs them")),
    };
    let protocol = match named.attrs.get(NDA_PROTOCOL).map_or(0, Attr::u8) {
        0 => there.map_or(0, |there| there.protocol),
        protocol => protocol,
    };
    let neighbour = NeighbourNow { link: named.link, addr: named.addr, mac, state, protocol };
    rtnl.backend.set_neighbour(&neighbour)?;
    let index = rtnl.model.ifindex(named.link.0);
    reply.notify(RTNLGRP_NEIGH, RTM_NEWNEIGH, 0, |w| write(w, index, &neighbour));
    Ok(())
}

/// Carries out an `RTM_DELNEIGH` (Linux `neigh_delete`).
pub(super) fn remove<B: Backend>(
    rtnl: &mut Rtnl<B>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    let named = Named::of(rtnl, request)?;
    let there = rtnl.backend.neighbour(named.link, named.addr)?.ok_or(Error::new(errno::ENOENT))?;
    rtnl.backend.set_neighbour(&NeighbourNow { state: 0, ..there })?;
    let gone = NeighbourNow { state: NUD_FAILED, mac: None, ..there };
    let index = rtnl.model.ifindex(named.link.0);
    if there.mac.is_some() {
        reply.notify(RTNLGRP_NEIGH, RTM_NEWNEIGH, 0, |w| write(w, index, &gone));
    }
    reply.notify(RTNLGRP_NEIGH, RTM_DELNEIGH, 0, |w| write(w, index, &gone));
    Ok(())
}

/// Carries out an `RTM_GETNEIGH` for one neighbour.
pub(super) fn get<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let named = Named::of(rtnl, request)?;
    let there = rtnl.backend.neighbour(named.link, named.addr)?;
    let there = there.ok_or(Error::text(errno::ENOENT, "Neighbour entry not found"))?;
    reply.send(RTM_NEWNEIGH, 0, |w| write(w, rtnl.model.ifindex(there.link.0), &there));
    Ok(())
}

pub(super) fn dump<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<B>>, Error> {
    let (mut dev, mut master) = (None, None);
    let mut proxies = false;
    // Old programs send only a `struct rtgenmsg`.
    match fixed::<LEN>(request) {
        Ok((header, rest)) => {
            if request.strict && (header[1..8] != [0; 7] || header[8..10] != [0; 2] || header[11] != 0) {
                return Err(Error::text(errno::EINVAL, "Invalid values in header for neighbor dump request"));
            }
            if request.strict && header[10] & !NTF_PROXY != 0 {
                return Err(Error::text(errno::EINVAL, "Invalid flags in header for neighbor dump request"));
            }
            proxies = header[10] & NTF_PROXY != 0;
            let attrs = parse(rest, behind(LEN), &POLICY, strictness(request))?;
            if request.strict && attrs.iter().any(|attr| !matches!(attr.kind, NDA_IFINDEX | NDA_MASTER)) {
                return Err(Error::text(errno::EINVAL, "Unsupported attribute in neighbor dump request"));
            }
            let named = |kind| attrs.get(kind).map(Attr::u32).filter(|&number| number != 0);
            dev = named(NDA_IFINDEX).map(|dev| rtnl.model.id_of(dev));
            master = named(NDA_MASTER);
        }
        Err(_) if !request.strict => {}
        Err(_) => return Err(Error::text(errno::EINVAL, "Invalid header for neighbor dump request")),
    }
    let flags = if dev.or(master).is_some() { flag::DUMP_FILTERED } else { 0 };
    let matches = |neighbour: &NeighbourNow| {
        !proxies
            && dev.is_none_or(|dev| dev == neighbour.link.0)
            && master.is_none_or(|master| is_of_master(&rtnl.model, neighbour.link, master))
            && (family == AF_UNSPEC || (family == AF_INET) == neighbour.addr.is_ipv4())
    };
    // All parts of a dump use one snapshot, which is small.
    let all = rtnl.backend.neighbours()?;
    let mut all: Vec<_> = all.into_iter().filter(matches).collect();
    all.sort_unstable_by_key(|neighbour| (neighbour.addr.is_ipv6(), neighbour.addr, neighbour.link));
    let mut last = None;
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        let left = all.iter().enumerate().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, neighbour| {
            part.message_with(RTM_NEWNEIGH, flags, |w| write(w, rtnl.model.ifindex(neighbour.link.0), neighbour))
        }))
    }))
}

/// Whether a link's master has the interface index `index`; all ones selects links without master (Linux
/// `neigh_master_filtered`).
fn is_of_master(model: &Model, link: PortId, index: u32) -> bool {
    let master = model.link(link.0).and_then(|link| link.master).map(|master| master.ifindex().0);
    if index == u32::MAX { master.is_none() } else { master == Some(index) }
}

/// Writes a neighbour on the link with interface index `index`, as Linux's `neigh_fill_info`.
pub(super) fn write(w: &mut Writer, index: IfIndex, neighbour: &NeighbourNow) {
    let family = if neighbour.addr.is_ipv4() { AF_INET } else { AF_INET6 };
    w.fixed(&[family, 0, 0, 0]);
    w.fixed(&index.0.to_ne_bytes());
    let [low, high] = neighbour.state.to_ne_bytes();
    w.fixed(&[low, high, 0, RTN_UNICAST]);
    w.put_ip(NDA_DST, neighbour.addr);
    if let Some(mac) = neighbour.mac {
        w.put(NDA_LLADDR, &mac);
    }
    w.put_u32(NDA_PROBES, 0);
    // `struct nda_cacheinfo`: times of confirmation, use and change are not stored.
    w.put(NDA_CACHEINFO, &[0; 16]);
    if neighbour.protocol != 0 {
        w.put_u8(NDA_PROTOCOL, neighbour.protocol);
    }
}
