//! `RTM_*LINK`.

use super::super::attr::{Attr, Attrs, Kind, Policy, Strictness, parse, policy};
use super::super::message::Writer;
use super::model::{LOOPBACK, Link};
use super::*;
use crate::model::LinkKind;

/// Length of `struct ifinfomsg`.
const LEN: usize = 16;

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
]);

/// What a request for links names.
#[derive(Clone, Debug, Default)]
struct Filter {
    ext_mask: u32,
    master: Option<u32>,
    kind: Option<String>,
}

pub(super) fn dump<H: Host>(request: &Request<'_>) -> Result<Dump<Rtnl<H>>, Error> {
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
        let wanted = |link: Option<&Link>| {
            filter.master.is_none()
                && filter.kind.as_deref().is_none_or(|kind| link.is_some_and(|l| kind_word(l) == kind))
        };
        if last.is_none() {
            if wanted(None) && !part.message(RTM_NEWLINK, write_loopback) {
                return Ok(Progress::More);
            }
            last = Some(LOOPBACK);
        }
        let links: Vec<_> = model.links_after(last.unwrap_or_default()).collect();
        Ok(write_each(part, &mut last, links.into_iter(), |part, index, link| {
            !wanted(Some(link))
                || part.message(RTM_NEWLINK, |w| write(w, index, link, find(now, index), filter.ext_mask, 0))
        }))
    }))
}

/// The kind that `IFLA_LINKINFO` names.
fn kind_of<const N: usize>(attrs: &Attrs<'_, N>) -> Result<Option<String>, Error> {
    const INFO: Policy<6> = policy(&[(IFLA_INFO_KIND, Kind::Str(64)), (IFLA_INFO_DATA, Kind::Nested)]);
    let Some(info) = attrs.get(IFLA_LINKINFO) else { return Ok(None) };
    let info = info.parse(&INFO, Strictness::Liberal)?;
    Ok(info.get(IFLA_INFO_KIND).and_then(Attr::text).map(str::to_owned))
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
    if index == LOOPBACK {
        reply.send(RTM_NEWLINK, 0, write_loopback);
        return Ok(());
    }
    let link = rtnl.model.link(index).ok_or(none)?;
    let now = rtnl.host.links()?;
    reply.send(RTM_NEWLINK, 0, |w| write(w, index, link, find(&now, index), ext_mask, 0));
    Ok(())
}

/// The word of a kind as `ip link … type` takes it.
pub(super) const fn kind_word(link: &Link) -> &'static str {
    match link.config.kind {
        LinkKind::Tun { .. } | LinkKind::Tap { .. } => "tun",
        LinkKind::Udp { .. } => "udp",
        LinkKind::Packet { .. } => "packet",
        LinkKind::Xdp { .. } => "xdp",
    }
}

/// `struct ifinfomsg`.
fn put_header(w: &mut Writer, arphrd: u16, index: u32, flags: u32, change: u32) {
    let [low, high] = arphrd.to_ne_bytes();
    w.fixed(&[AF_UNSPEC, 0, low, high]);
    for word in [index, flags, change] {
        w.fixed(&word.to_ne_bytes());
    }
}

/// What Linux says of a link of which it knows nothing more: `IFLA_*` of the 6.18 kernel, in its order.
struct Plain {
    mtu: u32,
    min_mtu: u32,
    max_mtu: u32,
    txqlen: u32,
    group: u32,
    queues: u32,
    operstate: u8,
    carrier: bool,
}

impl Plain {
    fn put(&self, w: &mut Writer) {
        const ALLMULTI: u16 = 61;
        w.put_u32(IFLA_TXQLEN, self.txqlen);
        w.put_u8(IFLA_OPERSTATE, self.operstate);
        w.put_u8(IFLA_LINKMODE, 0);
        w.put_u32(IFLA_MTU, self.mtu);
        w.put_u32(IFLA_MIN_MTU, self.min_mtu);
        w.put_u32(IFLA_MAX_MTU, self.max_mtu);
        for (kind, value) in [(IFLA_GROUP, self.group), (IFLA_PROMISCUITY, 0), (ALLMULTI, 0)] {
            w.put_u32(kind, value);
        }
        w.put_u32(IFLA_NUM_TX_QUEUES, self.queues);
        // The sizes of segmentation offloads, as every device has them that does not say otherwise.
        const GSO: [(u16, u32); 7] =
            [(40, 65535), (41, 65536), (58, 65536), (63, 65536), (64, 65536), (59, 65536), (60, 65535)];
        GSO.into_iter().for_each(|(kind, value)| w.put_u32(kind, value));
        w.put_u32(IFLA_NUM_RX_QUEUES, self.queues);
        w.put_u8(IFLA_CARRIER, self.carrier.into());
    }
}

/// `lo`, which is down and carries nothing: what a node sends to itself needs no link.
fn write_loopback(w: &mut Writer) {
    put_header(w, ARPHRD_LOOPBACK, LOOPBACK, IFF_LOOPBACK, 0);
    w.put_str(IFLA_IFNAME, "lo");
    let (mtu, min_mtu, max_mtu, txqlen, group, queues) = (65536, 0, 0, 1000, 0, 1);
    Plain { mtu, min_mtu, max_mtu, txqlen, group, queues, operstate: 2, carrier: true }.put(w);
    w.put(IFLA_ADDRESS, &[0; 6]);
    w.put(IFLA_BROADCAST, &[0; 6]);
    put_stats(w, &LinkStats::default());
    w.put_str(IFLA_QDISC, "noop");
}

/// A link, as Linux's `rtnl_fill_ifinfo` writes it.
pub(super) fn write(w: &mut Writer, index: u32, link: &Link, now: Option<&LinkNow>, ext_mask: u32, change: u32) {
    let running = link.up && now.is_some_and(|now| now.running);
    let arphrd = if link.mac.is_some() { ARPHRD_ETHER } else { ARPHRD_NONE };
    put_header(w, arphrd, index, link.flags(running), change);
    w.put_str(IFLA_IFNAME, &link.config.name);
    let queues = match link.config.kind {
        LinkKind::Tun { queues } | LinkKind::Tap { queues } => queues.into(),
        LinkKind::Udp { .. } | LinkKind::Packet { .. } | LinkKind::Xdp { .. } => 1,
    };
    // `RFC 2863`'s states, as `linux/if.h` numbers them.
    let operstate = if running { 6 } else { 2 };
    let (mtu, group, txqlen) = (link.mtu, link.group, link.txqlen);
    Plain { mtu, min_mtu: MIN_MTU, max_mtu: MAX_MTU, txqlen, group, queues, operstate, carrier: running }.put(w);
    if let Some(alias) = &link.alias {
        w.put_str(IFLA_IFALIAS, alias);
    }
    if let Some(mac) = link.mac {
        w.put(IFLA_ADDRESS, &mac);
        w.put(IFLA_BROADCAST, &[0xff; 6]);
    }
    if ext_mask & RTEXT_FILTER_SKIP_STATS == 0 {
        put_stats(w, now.map_or(&LinkStats::default(), |now| &now.stats));
    }
    w.nest(IFLA_LINKINFO, |w| put_info(w, link));
    w.put_str(IFLA_QDISC, if link.up { "noqueue" } else { "noop" });
    w.nest(IFLA_AF_SPEC, |w| {
        const ADDR_GEN_MODE: u16 = 8;
        const NONE: u8 = 1;
        w.nest(AF_INET6.into(), |w| w.put_u8(ADDR_GEN_MODE, NONE));
    });
}

/// The smallest MTU that IPv4 allows.
pub(super) const MIN_MTU: u32 = 68;
/// The largest that a link can be given.
pub(super) const MAX_MTU: u32 = 65535;

fn put_info(w: &mut Writer, link: &Link) {
    w.put_str(IFLA_INFO_KIND, kind_word(link));
    let of_tun = |w: &mut Writer, kind: u8| {
        // `IFLA_TUN_TYPE`, `_PI`, `_VNET_HDR`, `_PERSIST`, `_MULTI_QUEUE`.
        for (attr, value) in [(3, kind), (4, 0), (5, link.config.offloads.into()), (6, 0), (7, 0)] {
            w.put_u8(attr, value);
        }
    };
    match link.config.kind {
        LinkKind::Tun { .. } => w.nest(IFLA_INFO_DATA, |w| of_tun(w, 1)),
        LinkKind::Tap { .. } => w.nest(IFLA_INFO_DATA, |w| of_tun(w, 2)),
        LinkKind::Udp { .. } | LinkKind::Packet { .. } | LinkKind::Xdp { .. } => {}
    }
}

/// `struct rtnl_link_stats64` and `rtnl_link_stats`.
fn put_stats(w: &mut Writer, stats: &LinkStats) {
    const COUNTERS: usize = 25;
    let LinkStats { rx_wire_packets, rx_bytes, rx_dropped, tx_wire_packets, tx_bytes, tx_dropped, .. } = *stats;
    let mut counters = [0_u64; COUNTERS];
    counters[..4].copy_from_slice(&[rx_wire_packets, tx_wire_packets, rx_bytes, tx_bytes]);
    (counters[6], counters[7]) = (rx_dropped, tx_dropped);
    let wide: Vec<u8> = counters.iter().flat_map(|value| value.to_ne_bytes()).collect();
    w.put(IFLA_STATS64, &wide);
    let narrow: Vec<u8> = counters[..COUNTERS - 1].iter().flat_map(|&value| (value as u32).to_ne_bytes()).collect();
    w.put(IFLA_STATS, &narrow);
}
