//! `IFLA_BR_*`: settings of a bridge (Linux `br_changelink`, `br_fill_info`).

use std::time::Duration;

use ::switch::{Bridge, BridgeError, FlushFilter, GroupMask, Vid};
use base::PortId;

use crate::attr::{Attr, AttrPolicy, Kind, Strictness, policy};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::rtnl::backend::Backend;
use crate::rtnl::header::word;
use crate::rtnl::model::Model;
use crate::rtnl::node::Rtnl;
use crate::rtnl::nums::*;
use crate::rtnl::state::BridgeNow;
use config::model::BridgeConfig;

/// Ticks per second in netlink's times (`USER_HZ`).
const HZ: u32 = 100;

const POLICY: AttrPolicy<IFLA_BR_MAX> = policy(&[
    (IFLA_BR_FORWARD_DELAY, Kind::Int(4)),
    (IFLA_BR_HELLO_TIME, Kind::Int(4)),
    (IFLA_BR_MAX_AGE, Kind::Int(4)),
    (IFLA_BR_AGEING_TIME, Kind::Int(4)),
    (IFLA_BR_STP_STATE, Kind::Int(4)),
    (IFLA_BR_PRIORITY, Kind::Int(2)),
    (IFLA_BR_VLAN_FILTERING, Kind::Int(1)),
    (IFLA_BR_VLAN_PROTOCOL, Kind::Int(2)),
    (IFLA_BR_GROUP_FWD_MASK, Kind::Int(2)),
    (IFLA_BR_MCAST_ROUTER, Kind::Int(1)),
    (IFLA_BR_MCAST_SNOOPING, Kind::Int(1)),
    (IFLA_BR_MCAST_QUERIER, Kind::Int(1)),
    (IFLA_BR_NF_CALL_IPTABLES, Kind::Int(1)),
    (IFLA_BR_NF_CALL_IP6TABLES, Kind::Int(1)),
    (IFLA_BR_NF_CALL_ARPTABLES, Kind::Int(1)),
    (IFLA_BR_VLAN_DEFAULT_PVID, Kind::Int(2)),
    (IFLA_BR_VLAN_STATS_ENABLED, Kind::Int(1)),
    (IFLA_BR_MCAST_STATS_ENABLED, Kind::Int(1)),
    (IFLA_BR_VLAN_STATS_PER_PORT, Kind::Int(1)),
    (IFLA_BR_FDB_MAX_LEARNED, Kind::Int(4)),
]);

/// `BR_BOOLOPT_NO_LL_LEARN`.
const NO_LINK_LOCAL_LEARNING: u32 = 1;

/// `ETH_P_8021Q` in network byte order, as a number in host byte order.
const VLAN_8021Q: u16 = 0x8100_u16.to_be();

/// Fixed values of settings that have no effect without the spanning tree protocol, or are unsupported.
const FIXED: [(u16, u64, &str); 12] = [
    (IFLA_BR_HELLO_TIME, 200, STP),
    (IFLA_BR_MAX_AGE, 2000, STP),
    (IFLA_BR_STP_STATE, 0, STP),
    (IFLA_BR_PRIORITY, 32768, STP),
    (IFLA_BR_VLAN_PROTOCOL, VLAN_8021Q as u64, "fatpath's bridges filter by 802.1Q tags"),
    (IFLA_BR_MCAST_ROUTER, 1, MCAST),
    (IFLA_BR_MCAST_QUERIER, 0, MCAST),
    (IFLA_BR_NF_CALL_IPTABLES, 0, FILTER),
    (IFLA_BR_NF_CALL_IP6TABLES, 0, FILTER),
    (IFLA_BR_NF_CALL_ARPTABLES, 0, FILTER),
    (IFLA_BR_MCAST_STATS_ENABLED, 0, STATS),
    (IFLA_BR_VLAN_STATS_PER_PORT, 0, STATS),
];
const STP: &str = "fatpath's bridges do not speak the spanning tree protocol";
const MCAST: &str = "fatpath's bridges flood groups, and do not snoop on IGMP and MLD";
const FILTER: &str = "fatpath's bridges call no packet filter";
const STATS: &str = "fatpath's bridges have no counters of groups, and count VLANs at all ports together";

fn number(attr: &Attr<'_>) -> u64 {
    match attr.data.len() {
        1 => attr.u8().into(),
        2 => attr.u16().into(),
        _ => attr.u32().into(),
    }
}

/// Settings of a bridge after a request; `now` has its current settings.
pub(in super::super) fn requested(data: Option<&Attr<'_>>, now: &BridgeConfig) -> Result<BridgeConfig, Error> {
    let mut requested = now.clone();
    let Some(data) = data else { return Ok(requested) };
    let attrs = data.parse(&POLICY, Strictness::Liberal)?;
    for (kind, value, text) in FIXED {
        if let Some(attr) = attrs.get(kind).filter(|attr| number(attr) != value) {
            return Err(Error::unsupported(text).at(attr.offset));
        }
    }
    for attr in data.iter() {
        let unsupported = |text| Err(Error::unsupported(text).at(attr.offset));
        match attr.kind {
            // Without the spanning tree protocol any time is valid (`br_set_forward_delay`).
            IFLA_BR_FORWARD_DELAY => requested.forward_delay = ticks(attr.u32()),
            IFLA_BR_AGEING_TIME => requested.ageing_time = ticks(attr.u32()),
            IFLA_BR_VLAN_STATS_ENABLED => match attr.u8() {
                enabled @ 0..=1 => requested.vlan_stats = enabled == 1,
                _ => return Err(Error::new(errno::EINVAL).at(attr.offset)),
            },
            IFLA_BR_VLAN_FILTERING => requested.vlan_filtering = attr.u8() != 0,
            IFLA_BR_GROUP_FWD_MASK => {
                requested.group_mask = GroupMask::for_bridge(attr.u16()).map_err(|_| Error::new(errno::EINVAL))?;
            }
            IFLA_BR_VLAN_DEFAULT_PVID => {
                let pvid = attr.u16();
                if pvid > Vid::LAST.get() {
                    return Err(Error::new(errno::EINVAL).at(attr.offset));
                }
                requested.default_pvid = Vid::new(pvid);
            }
            IFLA_BR_MULTI_BOOLOPT => {
                let words: Vec<u32> = attr.data.chunks_exact(4).map(word).collect();
                let &[values, mask] = words.as_slice() else { return Err(Error::new(errno::EINVAL).at(attr.offset)) };
                if values & mask & !NO_LINK_LOCAL_LEARNING != 0 {
                    return unsupported(MCAST);
                }
                if mask & NO_LINK_LOCAL_LEARNING != 0 {
                    requested.link_local_learning = values & NO_LINK_LOCAL_LEARNING == 0;
                }
            }
            IFLA_BR_FDB_MAX_LEARNED if attr.u32() == 0 => {}
            IFLA_BR_FDB_MAX_LEARNED => {
                return unsupported("fatpath limits addresses by port; use `fdb-limit` in the configuration file");
            }
            // With 1 groups are flooded as with 0 (`warn_of_snooping`): programs such as ifupdown2 set it with each bridge.
            IFLA_BR_FDB_FLUSH | IFLA_BR_MCAST_SNOOPING => {}
            kind if FIXED.iter().any(|(fixed, ..)| *fixed == kind) => {}
            // `IFLA_BR_MCAST_*`.
            24..=35 | 43 | 44 => return unsupported(MCAST),
            _ => return unsupported("fatpath's bridges have no such setting"),
        }
    }
    Ok(requested)
}

/// Logs once that the request for the bridge `name` sets `mcast_snooping`, which stays 0.
pub(in super::super) fn warn_of_snooping(model: &mut Model, name: &str, data: &Attr<'_>) {
    let is_set = data.iter().any(|attr| attr.kind == IFLA_BR_MCAST_SNOOPING && attr.u8() != 0);
    if is_set && !std::mem::replace(&mut model.has_warned_of_snooping, true) {
        tracing::warn!("{name}: mcast_snooping 1 has no effect: {MCAST}");
    }
}

fn ticks(count: u32) -> Duration {
    Duration::from_millis(u64::from(count) * 1000 / u64::from(HZ))
}

fn to_ticks(time: Duration) -> u32 {
    u32::try_from(time.as_millis() * u128::from(HZ) / 1000).unwrap_or(u32::MAX)
}

/// Changes an existing bridge.
pub(in super::super) fn change<B: Backend>(rtnl: &mut Rtnl<B>, bridge: PortId, data: &Attr<'_>) -> Result<(), Error> {
    let now = rtnl.backend.with_bridge(bridge, |bridge, _| BridgeConfig::of(bridge))?;
    let requested = requested(Some(data), &now)?;
    if requested.default_pvid != now.default_pvid && requested.vlan_filtering {
        return Err(Error::from(BridgeError::Filtering));
    }
    let flushes = data.iter().any(|attr| attr.kind == IFLA_BR_FDB_FLUSH);
    let config = requested.clone();
    let apply = move |bridge: &mut Bridge, _| {
        config.apply(bridge)?;
        if flushes {
            // A flush without a port in its filter does not fail.
            let _ = bridge.flush_fdb(&FlushFilter::default());
        }
        Ok(())
    };
    rtnl.backend.with_bridge(bridge, apply)?.map_err(|error: BridgeError| Error::from(error))?;
    if let Some(link) = rtnl.model.link_mut(bridge.0) {
        link.config.kind = config::model::LinkKind::Bridge(requested);
        let name = link.config.name.clone();
        warn_of_snooping(&mut rtnl.model, &name, data);
    }
    Ok(())
}

/// Writes the settings that restore a bridge.
pub(in super::super) fn put_config(w: &mut Writer, config: &BridgeConfig) {
    w.put_u32(IFLA_BR_AGEING_TIME, to_ticks(config.ageing_time));
    w.put_u32(IFLA_BR_FORWARD_DELAY, to_ticks(config.forward_delay));
    w.put_u8(IFLA_BR_VLAN_FILTERING, config.vlan_filtering.into());
    w.put_u16(IFLA_BR_GROUP_FWD_MASK, config.group_mask.bits());
    w.put_u16(IFLA_BR_VLAN_DEFAULT_PVID, config.default_pvid.map_or(0, Vid::get));
    w.put_u8(IFLA_BR_VLAN_STATS_ENABLED, config.vlan_stats.into());
    put_options(w, config);
}

/// `struct br_boolopt_multi`.
fn put_options(w: &mut Writer, config: &BridgeConfig) {
    let values = if config.link_local_learning { 0 } else { NO_LINK_LOCAL_LEARNING };
    let words = [values, NO_LINK_LOCAL_LEARNING].map(u32::to_ne_bytes);
    w.put(IFLA_BR_MULTI_BOOLOPT, words.as_flattened());
}

/// `struct ifla_bridge_id` of a bridge with the default priority.
pub(super) fn bridge_id(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [0x80, 0, a, b, c, d, e, f]
}

/// Writes the settings of a bridge, in Linux's order.
pub(in super::super) fn put(w: &mut Writer, now: &BridgeNow) {
    let config = &now.config;
    for timer in [IFLA_BR_HELLO_TIMER, IFLA_BR_TCN_TIMER, IFLA_BR_TOPOLOGY_CHANGE_TIMER, IFLA_BR_GC_TIMER] {
        w.put_u64(timer, 0);
    }
    w.put_u32(IFLA_BR_FORWARD_DELAY, to_ticks(config.forward_delay));
    w.put_u32(IFLA_BR_HELLO_TIME, 200);
    w.put_u32(IFLA_BR_MAX_AGE, 2000);
    w.put_u32(IFLA_BR_AGEING_TIME, to_ticks(config.ageing_time));
    w.put_u32(IFLA_BR_STP_STATE, 0);
    w.put_u16(IFLA_BR_PRIORITY, 32768);
    w.put_u8(IFLA_BR_VLAN_FILTERING, config.vlan_filtering.into());
    w.put_u16(IFLA_BR_GROUP_FWD_MASK, config.group_mask.bits());
    let id = bridge_id(now.mac);
    w.put(IFLA_BR_BRIDGE_ID, &id);
    w.put(IFLA_BR_ROOT_ID, &id);
    w.put_u16(IFLA_BR_ROOT_PORT, 0);
    w.put_u32(IFLA_BR_ROOT_PATH_COST, 0);
    w.put_u8(IFLA_BR_TOPOLOGY_CHANGE, 0);
    w.put_u8(IFLA_BR_TOPOLOGY_CHANGE_DETECTED, 0);
    w.put(IFLA_BR_GROUP_ADDR, &[0x01, 0x80, 0xc2, 0, 0, 0]);
    put_options(w, config);
    w.put_u32(IFLA_BR_FDB_N_LEARNED, now.learnt);
    w.put_u32(IFLA_BR_FDB_MAX_LEARNED, 0);
    w.put_u16(IFLA_BR_VLAN_PROTOCOL, VLAN_8021Q);
    w.put_u16(IFLA_BR_VLAN_DEFAULT_PVID, config.default_pvid.map_or(0, Vid::get));
    w.put_u8(IFLA_BR_VLAN_STATS_ENABLED, config.vlan_stats.into());
    w.put_u8(IFLA_BR_VLAN_STATS_PER_PORT, 0);
    w.put_u8(IFLA_BR_MCAST_ROUTER, 1);
    for kind in [
        IFLA_BR_MCAST_SNOOPING,
        IFLA_BR_MCAST_QUERIER,
        IFLA_BR_MCAST_STATS_ENABLED,
        IFLA_BR_NF_CALL_IPTABLES,
        IFLA_BR_NF_CALL_IP6TABLES,
        IFLA_BR_NF_CALL_ARPTABLES,
    ] {
        w.put_u8(kind, 0);
    }
}
