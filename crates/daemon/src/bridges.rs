//! Bridges of the node: configuration and state.

use base::PortId;
use config::bridge::{BridgeConfig, BridgePort};
use config::model::{Config, LinkKind};
use ctl::state::BridgePortState;
use netlink::rtnl::{BridgeNow, Bridging, PortNow};
use switch::{BridgeError, Port, PortState, Vid, VidSet};

use super::node::Node;
use super::rows::FdbRow;

/// Bridge of a configuration file.
#[derive(Clone, Debug)]
pub(crate) struct BridgePlan {
    /// Link of the bridge's device.
    id: PortId,
    config: BridgeConfig,
    own: BridgePort,
    ports: Vec<(PortId, BridgePort)>,
}

/// The bridges of a file.
pub(crate) fn plans(config: &Config, ids: &[PortId]) -> Vec<BridgePlan> {
    let links = || config.links.iter().zip(ids);
    let port = |port: &Option<Box<BridgePort>>| port.as_deref().cloned().unwrap_or_default();
    let bridges = links().filter_map(|(bridge, &id)| {
        let LinkKind::Bridge(config) = &bridge.kind else { return None };
        let ports = links().filter(|(link, _)| link.master.as_ref() == Some(&bridge.name));
        let ports = ports.map(|(link, &id)| (id, port(&link.port))).collect();
        Some(BridgePlan { id, config: config.clone(), own: port(&bridge.port), ports })
    });
    bridges.collect()
}

impl Node {
    /// Applies the bridges of a file. A port that stays keeps its learnt addresses.
    pub(crate) fn become_bridges(&mut self, plans: &[BridgePlan]) -> Result<(), String> {
        let now = self.now();
        let requested = |link: PortId| plans.iter().find(|plan| plan.ports.iter().any(|(port, _)| *port == link));
        let links: Vec<PortId> = self.datapath.ports.iter().map(|(id, _)| id).collect();
        let mut leave: Vec<(PortId, Option<PortId>)> = Vec::new();
        let mut join: Vec<(PortId, Option<PortId>)> = Vec::new();
        for link in links {
            let before = self.datapath.bridge_of(link);
            let after = requested(link).map(|plan| plan.id);
            if before.is_some() && before != after {
                leave.push((link, None));
            }
            if after.is_some() && before != after {
                join.push((link, after));
            }
        }
        // Ports leave before others join: a bridge may have been below a port that it will be above.
        for (link, bridge) in leave.into_iter().chain(join) {
            let name = self.name_of(link).unwrap_or_default();
            let outcome = self.datapath.set_bridge(now, &self.mem, link, bridge);
            outcome.map_err(|error| format!("link {name}: {error}"))?;
        }
        for BridgePlan { id, config, own, ports } in plans {
            let Some(bridge) = self.datapath.bridge_mut(*id) else { continue };
            let mut become_it = || {
                config.apply(bridge)?;
                own.apply(bridge, None)?;
                ports.iter().try_for_each(|(link, port)| port.apply(bridge, Some(*link)))
            };
            let outcome: Result<(), BridgeError> = become_it();
            outcome.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Role of a link in bridging, as bridge or port, for netlink's clients.
pub(crate) fn bridging(node: &Node, id: PortId) -> Option<Bridging> {
    if let Some(bridge) = node.datapath.bridge(id) {
        let learnt = bridge.ports().map(|port| bridge.learnt(port.link())).sum();
        let (config, mac, vlans) = (BridgeConfig::of(bridge), bridge.mac().0, bridge.vlans().clone());
        return Some(Bridging::Bridge(Box::new(BridgeNow { config, mac, vlans, learnt })));
    }
    let bridge = node.datapath.bridge(node.datapath.bridge_of(id)?)?;
    let port = bridge.port(id)?;
    let (number, config, vlans) = (port.number(), *port.config(), port.vlans().clone());
    // Linux assumes 10 Mb/s for TAP devices; other drivers report their speed.
    let is_tap = node.slots.get(id.0 as usize)?.as_ref()?.config.kind.is_tun();
    let cost = if is_tap { 100 } else { 2 };
    Some(Bridging::Port(Box::new(PortNow { number, cost, bridge_mac: bridge.mac().0, config, vlans })))
}

/// Bridge port state for `fatpath show links`.
pub(crate) fn port_state(node: &Node, id: PortId) -> Option<BridgePortState> {
    let own = node.datapath.bridge_of(id)?;
    let bridge = node.datapath.bridge(own)?;
    let port = bridge.port(id)?;
    let vlans = port.vlans();
    let is_tagged = |vid: &Vid| !vlans.untagged().contains(*vid);
    let stats = port.stats();
    Some(BridgePortState {
        bridge: node.name_of(own)?,
        state: state_word(port).to_owned(),
        pvid: vlans.pvid().map(Vid::get),
        tagged: ranges(&vlans.members().iter().filter(is_tagged).collect()),
        untagged: ranges(vlans.untagged()),
        trunk: port.config().trunk.map(switch::TrunkPriority::get),
        learnt: bridge.learnt(id),
        fdb_full: port.learn_stats().full,
        moved: port.learn_stats().moved,
        pinned: port.learn_stats().pinned,
        rx_dropped: stats.rx_dropped + stats.rx_errors,
        tx_dropped: stats.tx_dropped,
        tx_errors: stats.tx_errors,
    })
}

fn state_word(port: &Port) -> &'static str {
    match port.config().state {
        PortState::Disabled => "disabled",
        PortState::Listening => "listening",
        PortState::Learning => "learning",
        PortState::Forwarding => "forwarding",
        PortState::Blocking => "blocking",
    }
}

fn ranges(vlans: &VidSet) -> Vec<String> {
    let each = vlans.ranges().into_iter().map(|range| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    each.collect()
}

/// Appends entries of the bridge whose device is `own`, from the entry `skip` on in the order of its table.
pub(crate) fn fdb_rows(node: &mut Node, own: PortId, skip: usize, count: usize, out: &mut Vec<FdbRow>) {
    let (before, now) = (out.len(), node.now());
    let Some(bridge) = node.datapath.bridge_mut(own) else { return };
    out.extend(bridge.fdb_entries(now).skip(skip).take(count).map(|entry| FdbRow::new(own, entry)));
    out.iter_mut().skip(before).for_each(|row| row.set_names(node));
}
