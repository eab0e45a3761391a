//! `IFLA_BRPORT_*`: settings of a port (Linux `br_setport`, `br_port_fill_attrs`).

use ::switch::{Bridge, BridgeError, FlushFilter, GroupMask, PortConfig, PortState, TrunkPriority};
use base::{IfIndex, PortId};

use super::settings::bridge_id;
use super::vlan;
use crate::attr::Attr;
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::rtnl::backend::Backend;
use crate::rtnl::header::put_header_of;
use crate::rtnl::node::Rtnl;
use crate::rtnl::nums::*;
use crate::rtnl::state::PortNow;
use crate::saved::Saved;

/// Default priority of a port, unused without a spanning tree.
const PRIORITY: u16 = 32;

/// Unsupported settings, with their error texts.
const UNSUPPORTED: [(u16, &str); 13] = [
    (IFLA_BRPORT_GUARD, STP),
    (IFLA_BRPORT_PROTECT, STP),
    (IFLA_BRPORT_FAST_LEAVE, MCAST),
    (IFLA_BRPORT_MCAST_TO_UCAST, MCAST),
    (IFLA_BRPORT_PROXYARP, NEIGHBOURS),
    (IFLA_BRPORT_PROXYARP_WIFI, NEIGHBOURS),
    (IFLA_BRPORT_VLAN_TUNNEL, "fatpath's bridges have no tunnels by VLAN"),
    (IFLA_BRPORT_NEIGH_SUPPRESS, NEIGHBOURS),
    (IFLA_BRPORT_NEIGH_VLAN_SUPPRESS, NEIGHBOURS),
    (IFLA_BRPORT_MRP_RING_OPEN, STP),
    (IFLA_BRPORT_MRP_IN_OPEN, STP),
    (IFLA_BRPORT_MAB, "fatpath's locked ports learn no addresses"),
    (IFLA_BRPORT_BACKUP_PORT, "fatpath's ports have no backup ports; trunks fail over"),
];
const STP: &str = "fatpath's bridges do not speak the spanning tree protocol";
const MCAST: &str = "fatpath's bridges flood groups, and do not snoop on IGMP and MLD";
const NEIGHBOURS: &str = "fatpath's bridges answer no ARP for others";

/// Changes a port by `IFLA_PROTINFO` (`bridge link set`), or by the slave data of `ip link set … type bridge_slave`.
pub(in super::super) fn change<B: Backend>(
    rtnl: &mut Rtnl<B>,
    bridge: PortId,
    port: PortId,
    settings: &Attr<'_>,
    may_be_state: bool,
) -> Result<(), Error> {
    let now = rtnl.backend.with_bridge(bridge, move |bridge, _| bridge.port(port).map(|port| *port.config()))?;
    let now = now.ok_or(Error::new(errno::EINVAL))?;
    let is_up = rtnl.model.link(port.0).is_some_and(|link| link.up);
    let mut config = now;
    let mut flushes = false;
    if may_be_state && !settings.nested && settings.data.len() == 1 {
        // Form of old programs: the state alone (Linux `br_setlink`).
        config.state = state_of(settings, is_up)?;
    } else {
        for attr in settings.iter() {
            flushes |= attr.kind == IFLA_BRPORT_FLUSH;
            set(&mut config, &attr, is_up)?;
        }
    }
    let apply = move |bridge: &mut Bridge, _| {
        bridge.configure(port, config)?;
        if flushes {
            let filter = FlushFilter { port: Some(Some(port)), ..FlushFilter::default() };
            // The port exists.
            let _ = bridge.flush_fdb(&filter);
        }
        Ok(())
    };
    rtnl.backend.with_bridge(bridge, apply)?.map_err(|error: BridgeError| Error::from(error))?;
    rtnl.model.touch();
    Ok(())
}

fn state_of(attr: &Attr<'_>, is_up: bool) -> Result<PortState, Error> {
    let state = attr.data.first().and_then(|&number| PortState::from_number(number));
    let state = state.ok_or(Error::new(errno::EINVAL).at(attr.offset))?;
    if !is_up && state != PortState::Disabled {
        return Err(Error::new(errno::ENETDOWN));
    }
    // Without a spanning tree a port does not stay blocked (Linux `br_port_state_selection`).
    Ok(if state == PortState::Blocking { PortState::Forwarding } else { state })
}

fn set(config: &mut PortConfig, attr: &Attr<'_>, is_up: bool) -> Result<(), Error> {
    let is_zero = attr.data.iter().all(|&byte| byte == 0);
    let is_on = || match attr.data {
        [byte] => Ok(*byte != 0),
        _ => Err(Error::new(errno::ERANGE).at(attr.offset)),
    };
    let unsupported = |text| Err(Error::unsupported(text).at(attr.offset));
    match attr.kind {
        IFLA_BRPORT_STATE => config.state = state_of(attr, is_up)?,
        IFLA_BRPORT_MODE => config.hairpin = is_on()?,
        IFLA_BRPORT_LEARNING => config.learning = is_on()?,
        IFLA_BRPORT_UNICAST_FLOOD => config.unicast_flood = is_on()?,
        IFLA_BRPORT_MCAST_FLOOD => config.multicast_flood = is_on()?,
        IFLA_BRPORT_BCAST_FLOOD => config.broadcast_flood = is_on()?,
        IFLA_BRPORT_ISOLATED => config.isolated = is_on()?,
        IFLA_BRPORT_LOCKED => config.locked = is_on()?,
        IFLA_BRPORT_GROUP_FWD_MASK => {
            config.group_mask =
                GroupMask::for_port(attr.u16()).map_err(|_| Error::new(errno::EINVAL).at(attr.offset))?;
        }
        IFLA_BRPORT_PRIORITY if attr.u16() == PRIORITY => {}
        IFLA_BRPORT_PRIORITY | IFLA_BRPORT_COST => return unsupported(STP),
        IFLA_BRPORT_FLUSH => {}
        IFLA_FATPATH_TRUNK => config.trunk = attr.data.first().and_then(|&priority| TrunkPriority::new(priority)),
        IFLA_FATPATH_FDB_LIMIT => config.fdb_limit = attr.u32(),
        IFLA_FATPATH_PAYLOAD_TAGS => config.payload_tags = is_on()?,
        kind => match UNSUPPORTED.iter().find(|(no, _)| *no == kind) {
            Some(_) if is_zero => {}
            Some((_, text)) => return unsupported(text),
            None => return unsupported("fatpath's ports of bridges have no such setting"),
        },
    }
    Ok(())
}

/// Writes the settings of a port, in Linux's order.
pub(in super::super) fn put(w: &mut Writer, now: &PortNow) {
    let config = &now.config;
    w.put_u8(IFLA_BRPORT_STATE, config.state.number());
    w.put_u16(IFLA_BRPORT_PRIORITY, PRIORITY);
    w.put_u32(IFLA_BRPORT_COST, now.cost);
    let flags = [
        (IFLA_BRPORT_MODE, config.hairpin),
        (IFLA_BRPORT_GUARD, false),
        (IFLA_BRPORT_PROTECT, false),
        (IFLA_BRPORT_FAST_LEAVE, false),
        (IFLA_BRPORT_MCAST_TO_UCAST, false),
        (IFLA_BRPORT_LEARNING, config.learning),
        (IFLA_BRPORT_UNICAST_FLOOD, config.unicast_flood),
        (IFLA_BRPORT_MCAST_FLOOD, config.multicast_flood),
        (IFLA_BRPORT_BCAST_FLOOD, config.broadcast_flood),
        (IFLA_BRPORT_PROXYARP, false),
        (IFLA_BRPORT_PROXYARP_WIFI, false),
    ];
    flags.into_iter().for_each(|(kind, is_on)| w.put_u8(kind, is_on.into()));
    let id = bridge_id(now.bridge_mac);
    w.put(IFLA_BRPORT_ROOT_ID, &id);
    w.put(IFLA_BRPORT_BRIDGE_ID, &id);
    let port_id = 0x8000 | now.number;
    w.put_u16(IFLA_BRPORT_DESIGNATED_PORT, port_id);
    w.put_u16(IFLA_BRPORT_DESIGNATED_COST, 0);
    w.put_u16(IFLA_BRPORT_ID, port_id);
    w.put_u16(IFLA_BRPORT_NO, now.number);
    w.put_u8(IFLA_BRPORT_TOPOLOGY_CHANGE_ACK, 0);
    w.put_u8(IFLA_BRPORT_CONFIG_PENDING, 0);
    w.put_u8(IFLA_BRPORT_VLAN_TUNNEL, 0);
    w.put_u16(IFLA_BRPORT_GROUP_FWD_MASK, config.group_mask.bits());
    let flags = [
        (IFLA_BRPORT_NEIGH_SUPPRESS, false),
        (IFLA_BRPORT_MRP_RING_OPEN, false),
        (IFLA_BRPORT_MRP_IN_OPEN, false),
        (IFLA_BRPORT_ISOLATED, config.isolated),
        (IFLA_BRPORT_LOCKED, config.locked),
        (IFLA_BRPORT_MAB, false),
        (IFLA_BRPORT_NEIGH_VLAN_SUPPRESS, false),
    ];
    flags.into_iter().for_each(|(kind, is_on)| w.put_u8(kind, is_on.into()));
    for timer in [IFLA_BRPORT_MESSAGE_AGE_TIMER, IFLA_BRPORT_FORWARD_DELAY_TIMER, IFLA_BRPORT_HOLD_TIMER] {
        w.put_u64(timer, 0);
    }
    w.put_u8(IFLA_BRPORT_MULTICAST_ROUTER, 1);
}

/// Requests that restore a port, or a bridge's device (`now` is `None`): settings, and VLANs in place of the default
/// ones.
pub(in super::super) fn write_requests(
    index: IfIndex,
    name: &str,
    now: Option<&PortNow>,
    vlans: &::switch::Vlans,
    all: &mut Vec<Saved>,
) {
    let header = |w: &mut Writer| put_header_of(w, AF_BRIDGE, 0, index, 0, 0);
    let flags = |w: &mut Writer| {
        if now.is_none() {
            w.put_u16(IFLA_BRIDGE_FLAGS, BRIDGE_FLAGS_SELF);
        }
    };
    let label = format!("VLANs of {name}");
    all.push(Saved::new("VLAN list", label.clone(), RTM_DELLINK, 0, |w| {
        header(w);
        w.nest(IFLA_AF_SPEC, |w| {
            flags(w);
            vlan::put_all(w);
        });
    }));
    all.push(Saved::new("VLAN list", label, RTM_SETLINK, 0, |w| {
        header(w);
        w.nest(IFLA_AF_SPEC, |w| {
            flags(w);
            vlan::put(w, vlans, true);
        });
    }));
    let Some(PortNow { config, .. }) = now else { return };
    all.push(Saved::new("port setting", format!("settings of port {name}"), RTM_SETLINK, 0, |w| {
        header(w);
        w.nest(IFLA_PROTINFO | NLA_F_NESTED, |w| put_saved(w, config));
    }));
}

/// Writes the settings of a port that a saved state has, with those that only a file can set.
fn put_saved(w: &mut Writer, config: &PortConfig) {
    let flags = [
        (IFLA_BRPORT_MODE, config.hairpin),
        (IFLA_BRPORT_LEARNING, config.learning),
        (IFLA_BRPORT_UNICAST_FLOOD, config.unicast_flood),
        (IFLA_BRPORT_MCAST_FLOOD, config.multicast_flood),
        (IFLA_BRPORT_BCAST_FLOOD, config.broadcast_flood),
        (IFLA_BRPORT_ISOLATED, config.isolated),
        (IFLA_BRPORT_LOCKED, config.locked),
    ];
    flags.into_iter().for_each(|(kind, is_on)| w.put_u8(kind, is_on.into()));
    w.put_u16(IFLA_BRPORT_GROUP_FWD_MASK, config.group_mask.bits());
    w.put_u32(IFLA_FATPATH_FDB_LIMIT, config.fdb_limit);
    w.put_u8(IFLA_FATPATH_PAYLOAD_TAGS, config.payload_tags.into());
    if let Some(priority) = config.trunk {
        w.put_u8(IFLA_FATPATH_TRUNK, priority.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_settings_of_a_port_come_back() {
        let flags = |on: bool| PortConfig {
            state: PortState::Forwarding,
            learning: on,
            unicast_flood: on,
            multicast_flood: on,
            broadcast_flood: on,
            isolated: on,
            hairpin: on,
            locked: on,
            payload_tags: on,
            group_mask: GroupMask::for_port(if on { 0x4000 } else { 0 }).unwrap(),
            fdb_limit: if on { 7 } else { 1024 },
            trunk: TrunkPriority::new(3).filter(|_| on),
        };
        for on in [true, false] {
            let mut w = Writer::with_capacity(256);
            put_saved(&mut w, &flags(on));
            let settings = Attr { kind: IFLA_PROTINFO, nested: true, data: w.as_bytes(), offset: 0 };
            let mut config = PortConfig { trunk: None, ..flags(!on) };
            settings.iter().for_each(|attr| set(&mut config, &attr, true).unwrap());
            assert_eq!(config, flags(on));
        }
    }
}
