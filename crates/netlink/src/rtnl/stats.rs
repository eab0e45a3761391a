//! `RTM_GETSTATS`: counters of links and of bridges' VLANs, for `bridge -s vlan` (Linux `rtnl_stats_dump`,
//! `br_fill_linkxstats`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ::switch::{Bridge, Vid, VlanStats, Vlans};
use base::{IfIndex, PortId};

use super::backend::Backend;
use super::header::{fixed, strictness, word};
use super::link;
use super::node::Rtnl;
use super::nums::*;
use super::state::{Bridging, find};
use crate::attr::Strictness;
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::session::{Dump, Request, write_each};
use ctl::state::LinkStats;

/// Length of `struct if_stats_msg`.
const LEN: usize = 12;

/// Maximum number of VLANs in one message. A link with more has several messages.
const VLANS: usize = 256;

/// Message of a dump.
struct Counters {
    index: IfIndex,
    link: Option<LinkStats>,
    /// Attribute for the VLANs of a bridge or of a port, with each VLAN as `struct bridge_vlan_xstats`.
    vlans: Option<(u16, Vec<[u8; 40]>)>,
}

/// Dumps the counters of all links, of the kinds in the request's mask.
pub(super) fn dump<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>) -> Result<Dump<Rtnl<B>>, Error> {
    let text = |text| Err(Error::text(errno::EINVAL, text));
    let Ok((header, _)) = fixed::<LEN>(request) else { return text("Invalid header for stats dump") };
    let mask = word(&header[8..]);
    if strictness(request) == Strictness::Strict {
        if header[1..8].iter().any(|&byte| byte != 0) {
            return text("Invalid values in header for stats dump request");
        }
        if mask >= filter(IFLA_STATS_MAX + 1) {
            return text("Invalid stats filter mask");
        }
    }
    if mask == 0 {
        return text("Filter mask must be set for stats dump");
    }
    let now = rtnl.links_now()?;
    let mut counted: BTreeMap<PortId, Vec<VlanStats>> = BTreeMap::new();
    let mut all = Vec::new();
    let links: Vec<_> = rtnl
        .model
        .by_ifindex(IfIndex::default())
        .into_iter()
        .map(|(index, id, link)| (index, id, link.master))
        .collect();
    for (index, id, master) in links {
        let now = find(&now, id);
        let kind = match now.and_then(|now| now.bridging.as_ref()) {
            Some(Bridging::Bridge(own)) => Some((IFLA_STATS_LINK_XSTATS, PortId(id), &own.vlans)),
            Some(Bridging::Port(port)) => {
                master.map(|master| (IFLA_STATS_LINK_XSTATS_SLAVE, PortId(master.index), &port.vlans))
            }
            None => None,
        };
        let mut messages = Vec::new();
        if let Some((attr, bridge, vlans)) = kind.filter(|(attr, ..)| mask & filter(*attr) != 0) {
            let counted = match counted.entry(bridge) {
                Entry::Occupied(counted) => counted.into_mut(),
                Entry::Vacant(free) => free.insert(rtnl.backend.with_bridge(bridge, |bridge, _| stats_of(bridge))?),
            };
            let is_own = attr == IFLA_STATS_LINK_XSTATS;
            let each: Vec<_> = vlans.members().iter().map(|vid| xstats(vid, vlans, is_own, counted)).collect();
            messages.extend(each.chunks(VLANS).map(|part| Some((attr, part.to_vec()))));
        }
        if messages.is_empty() {
            messages.push(None);
        }
        let stats = now.map(|now| now.stats).filter(|_| mask & filter(IFLA_STATS_LINK_64) != 0);
        all.extend(messages.into_iter().map(|vlans| Counters { index, link: stats, vlans }));
    }
    let mut last = None;
    Ok(Box::new(move |_: &mut Rtnl<B>, part| {
        let left = all.iter().enumerate().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, counters| part.message(RTM_NEWSTATS, |w| write(w, counters))))
    }))
}

/// Bit of an attribute in the request's mask (`IFLA_STATS_FILTER_BIT`).
const fn filter(attr: u16) -> u32 {
    1 << (attr - 1)
}

/// Counters of all VLANs of a bridge, indexed by VLAN number.
fn stats_of(bridge: &Bridge) -> Vec<VlanStats> {
    if !bridge.vlan_stats_enabled() {
        return Vec::new();
    }
    std::iter::once(VlanStats::default())
        .chain(Vid::range(Vid::FIRST, Vid::LAST).map(|vid| bridge.vlan_stats(vid)))
        .collect()
}

/// `struct bridge_vlan_xstats`.
fn xstats(vid: Vid, vlans: &Vlans, is_own: bool, counted: &[VlanStats]) -> [u8; 40] {
    let stats = counted.get(usize::from(vid.get())).copied().unwrap_or_default();
    let flag = |is_set, flag: u16| if is_set { flag } else { 0 };
    let flags = flag(vlans.pvid() == Some(vid), BRIDGE_VLAN_INFO_PVID)
        | flag(vlans.untagged().contains(vid), BRIDGE_VLAN_INFO_UNTAGGED)
        | flag(is_own, BRIDGE_VLAN_INFO_MASTER | BRIDGE_VLAN_INFO_BRENTRY);
    let mut bytes = [0; 40];
    let counters = [stats.rx_bytes, stats.rx_packets, stats.tx_bytes, stats.tx_packets];
    bytes[..32].copy_from_slice(counters.map(u64::to_ne_bytes).as_flattened());
    bytes[32..34].copy_from_slice(&vid.get().to_ne_bytes());
    bytes[34..36].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

fn write(w: &mut Writer, counters: &Counters) {
    const LINK_XSTATS_TYPE_BRIDGE: u16 = 1;
    const BRIDGE_XSTATS_VLAN: u16 = 1;
    let Counters { index, link, vlans } = counters;
    let of_link = if link.is_some() { filter(IFLA_STATS_LINK_64) } else { 0 };
    let of_vlans = vlans.as_ref().map_or(0, |(attr, _)| filter(*attr));
    w.fixed(&[AF_UNSPEC, 0, 0, 0]);
    w.fixed(&index.0.to_ne_bytes());
    w.fixed(&(of_link | of_vlans).to_ne_bytes());
    if let Some(stats) = link {
        w.put(IFLA_STATS_LINK_64, link::counters(stats).map(u64::to_ne_bytes).as_flattened());
    }
    if let Some((attr, vlans)) = vlans {
        w.nest(*attr, |w| {
            w.nest(LINK_XSTATS_TYPE_BRIDGE, |w| vlans.iter().for_each(|vlan| w.put(BRIDGE_XSTATS_VLAN, vlan)));
        });
    }
}
