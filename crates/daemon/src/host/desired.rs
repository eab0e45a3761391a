//! Desired content of the host side's namespace, derived from the node's model.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use base::{IfAddr, PortId, Prefix, TableId};
use config::model::{HostConfig, HostMtu, LinkKind};
use link::HostDevice;
use netlink::rtnl::nums::*;
use netlink::rtnl::{LOOPBACK, Link, Model, Route, Rule, RuleThen};
use wire::eth::MacAddr;

use super::content::{About, Content, Device, MirroredAction, MirroredAddress, MirroredRoute, MirroredRule};

/// Limit of mirrored routes. Above it, one default route of each family replaces all routes of a table.
pub(super) const MAX_ROUTES: usize = 10_000;

/// Metric of a connected IPv6 route (`IP6_RT_PRIO_ADDRCONF`).
const METRIC_CONNECTED: u32 = 256;

/// Metric of an added default route, which the node does not have.
const DEFAULT_METRIC: u32 = u32::MAX;

/// Lowest metric of a VRF's routes to its links' devices.
const BEHIND: u32 = 1 << 31;

/// As [`BEHIND`], of the routes to the devices of the further paths of a route.
const BY_OTHER_PATH: u32 = 1 << 30;

/// A link's device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Made {
    pub(super) id: PortId,
    pub(super) device: HostDevice,
    /// Whether the link carries IP only, whatever the type of its device.
    pub(super) ip_only: bool,
}

/// The desired devices of a node, in the order of its links. `all_ethernet`: links without a link-layer address get
/// Ethernet devices too, with an address from [`own_mac`].
pub(super) fn devices(model: &Model, config: HostConfig, all_ethernet: bool) -> Vec<Made> {
    let each = model.links_after(LOOPBACK).map(|(id, link)| {
        let mac = link.mac.map(MacAddr).filter(|_| link.config.kind.is_ethernet());
        let mtu = match config.mtu {
            HostMtu::Largest => None,
            HostMtu::Link => Some(u16::try_from(link.mtu).unwrap_or(u16::MAX)),
        };
        let ip_only = mac.is_none();
        let mac = mac.or_else(|| all_ethernet.then(|| own_mac(id)));
        let device = HostDevice { name: link.config.name.clone(), index: model.ifindex(id).0, mac, mtu };
        Made { id: PortId(id), device, ip_only }
    });
    each.collect()
}

/// Link-layer address of the device of a link without one: locally administered, and the same in each gateway, as it
/// never leaves the host.
const fn own_mac(id: u32) -> MacAddr {
    let [a, b, c, d] = id.to_be_bytes();
    MacAddr([0x02, 0xfb, a, b, c, d])
}

/// Desired content of a namespace with these devices, and whether default routes replace the node's routes.
pub(super) fn content(model: &Model, config: HostConfig, made: &[Made]) -> (Content, bool) {
    let view = View { model, config, made };
    let mut content = Content::default();
    content.devices.insert(LOOPBACK, loopback());
    let lo = model.link(LOOPBACK).map(|lo| (LOOPBACK, LOOPBACK, lo));
    let links = made.iter().filter_map(|made| Some((made.id.0, made.device.index, model.link(made.id.0)?)));
    let is_ip_only = |id| made.iter().any(|made| made.id.0 == id && made.ip_only);
    for (id, index, link) in lo.into_iter().chain(links) {
        if let Some(device) = view.device(id) {
            let mac = device.mac.map(|mac| link.mac.filter(|_| !is_ip_only(id)).unwrap_or(mac.0));
            let (name, mtu) = (device.name.clone(), device.mtu() as u32);
            content.devices.insert(index, Device { name, mac, mtu, up: link.up, has_arp: false });
        }
        // The kernel adds the first addresses of the namespace's `lo`.
        let own = link.addresses.iter().filter(|address| id != LOOPBACK || !address.addr.addr().is_loopback());
        content.addresses.extend(own.map(|address| MirroredAddress {
            index,
            addr: address.addr,
            peer: address.peer.filter(|peer| *peer != address.addr.addr()),
            broadcast: address.broadcast,
            label: address.addr.addr().is_ipv4().then(|| address.label.clone().unwrap_or(link.config.name.clone())),
            scope: if address.addr.addr().is_ipv4() { address.scope } else { 0 },
        }));
        if let Some(mac) = view.device(id).and_then(|device| device.mac).filter(|_| link.up && !is_ip_only(id)) {
            let (address, route) = link_local(index, mac);
            if !content.addresses.iter().any(|other| other.index == index && other.addr == address.addr) {
                content.addresses.insert(address);
            }
            content.routes.insert(route);
        }
        if let Some(table) = view.table_of(id, link) {
            let rule = |v4| MirroredRule::of_vrf(v4, link.config.name.clone(), table);
            content.rules.extend([true, false].map(rule));
        }
    }
    let has_vrfs = !content.rules.is_empty();
    for v4 in [true, false] {
        let own = model.rules(v4).iter().filter_map(|rule| mirrored_rule(v4, rule));
        // The rules of VRFs have one for the addresses behind them.
        let is_local = |rule: &MirroredRule| matches!(rule.then, MirroredAction::Table { table: RT_TABLE_LOCAL, .. });
        content.rules.extend(own.filter(|rule| !has_vrfs || !is_local(rule)));
        content.rules.extend(has_vrfs.then(|| MirroredRule::local_of_vrfs(v4)));
    }
    for (addr, table) in view.vrf_addresses() {
        content.rules.insert(MirroredRule::hides(addr));
        content.rules.extend(table.map(|table| MirroredRule::from_vrf(addr, table)));
    }
    let routes = || model.routes().flat_map(|(table, route)| view.routes(table, route));
    let is_limited = routes().nth(MAX_ROUTES).is_some();
    content.routes.extend(if is_limited { defaults(routes()) } else { routes().collect() });
    (content, is_limited)
}

/// Mirrored form of a rule. Links have devices of their names; those of VRFs have rules of their own.
fn mirrored_rule(v4: bool, rule: &Rule) -> Option<MirroredRule> {
    let then = match rule.then() {
        RuleThen::AskVrf => return None,
        RuleThen::Ask(table) => MirroredAction::Table { table: table.0, suppress: rule.suppressed_len() },
        RuleThen::GoTo(priority) => MirroredAction::GoTo(priority),
        RuleThen::Nop => MirroredAction::Nop,
        RuleThen::Blackhole => MirroredAction::Blackhole,
        RuleThen::Unreachable => MirroredAction::Unreachable,
        RuleThen::Prohibit => MirroredAction::Prohibit,
    };
    let ports = |ports: &Option<RangeInclusive<u16>>| ports.as_ref().map(|ports| (*ports.start(), *ports.end()));
    let prefix = |of: Option<Prefix>| of.map(|of| (of.addr(), of.len()));
    let selector = rule.selector();
    let about = About {
        to: prefix(selector.to),
        from: prefix(selector.from),
        iif: rule.iif.as_ref().map(|iif| iif.name.clone()),
        oif: None,
        tos: selector.tos,
        protocol: selector.protocol,
        sport: ports(&selector.sport),
        dport: ports(&selector.dport),
        inverted: selector.inverted,
    };
    // Whether a packet is in a VRF is known by the rules of VRFs alone.
    (!selector.l3mdev).then_some(MirroredRule { v4, priority: rule.priority, about, then })
}

/// The namespace's own `lo`, which is up also if the node's `lo` is down.
fn loopback() -> Device {
    Device { name: "lo".to_owned(), mac: None, mtu: 65_536, up: true, has_arp: false }
}

/// The link-local address that the node has on each Ethernet link, and the route to its subnet.
fn link_local(index: u32, mac: MacAddr) -> (MirroredAddress, MirroredRoute) {
    let own = IpAddr::V6(mac.link_local());
    let addr = IfAddr::new(own, 64).unwrap_or(IfAddr::host(own));
    let (peer, broadcast, label, src) = (None, None, None, None);
    let (table, kind, metric) = (TableId::MAIN.0, RTN_UNICAST, METRIC_CONNECTED);
    let route = MirroredRoute { table, prefix: addr.prefix(), kind, metric, index, src, is_mtu_locked: false };
    (MirroredAddress { index, addr, peer, broadcast, label, scope: 0 }, route)
}

/// A default route of each family for each table that has routes to a device: the table's own one, else one to the
/// device of the first route.
fn defaults(routes: impl Iterator<Item = MirroredRoute>) -> BTreeSet<MirroredRoute> {
    let mut defaults: BTreeMap<(u32, bool), MirroredRoute> = BTreeMap::new();
    for route in routes.filter(|route| route.index != 0) {
        let v4 = route.prefix.is_ipv4();
        let prefix = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
        let default = MirroredRoute { prefix, metric: DEFAULT_METRIC, src: None, ..route };
        let of_table = defaults.entry((route.table, v4)).or_insert(default);
        if route.prefix == prefix && of_table.metric >= route.metric {
            *of_table = route;
        }
    }
    defaults.into_values().collect()
}

/// A node's model with the devices that it has.
pub(super) struct View<'a> {
    pub(super) model: &'a Model,
    pub(super) config: HostConfig,
    pub(super) made: &'a [Made],
}

impl View<'_> {
    fn device(&self, id: u32) -> Option<&HostDevice> {
        self.made.iter().find(|made| made.id.0 == id).map(|made| &made.device)
    }

    /// Mirrored form of a route, without its gateway: the node chooses the next hop. A route of a VRF's table is
    /// mirrored twice: to the VRF's device, for sockets bound to it, and with a larger metric to the link's device, for
    /// sockets bound to that. `None`: the namespace does not need the route.
    pub(super) fn routes(&self, table: TableId, route: &Route) -> impl Iterator<Item = MirroredRoute> + use<> {
        let mut all = self.routes_by(table, route);
        // Sockets that are bound to a link find the route by that link's path.
        let paths = route.paths.iter().flat_map(|paths| paths.iter());
        for path in paths.filter(|path| !path.dead && path.dev != route.dev) {
            let by_path = Route { dev: path.dev, via: path.via, paths: None, ..route.clone() };
            let others = self.routes_by(table, &by_path).into_iter();
            all.extend(
                others.filter_map(|it| Some(MirroredRoute { metric: it.metric.checked_add(BY_OTHER_PATH)?, ..it })),
            );
        }
        all.sort_unstable();
        all.dedup_by_key(|it| (it.table, it.metric, it.index));
        all.into_iter()
    }

    fn routes_by(&self, table: TableId, route: &Route) -> Vec<MirroredRoute> {
        let first = self.route(table, route);
        let by_link = first.filter(|first| first.table != TableId::MAIN.0 && first.index != 0).and_then(|first| {
            let index = self.device(route.dev)?.index;
            let metric = first.metric.checked_add(BEHIND)?;
            Some(MirroredRoute { index, metric, ..first }).filter(|_| index != first.index)
        });
        [first, by_link].into_iter().flatten().collect()
    }

    fn route(&self, table: TableId, route: &Route) -> Option<MirroredRoute> {
        let is_error = route.is_error();
        if !is_error && route.kind != RTN_UNICAST {
            return None;
        }
        let vrf = || self.made.iter().find(|made| self.vrf_table(made.id.0) == Some(table.0));
        let v4 = route.prefix.is_ipv4();
        let is_ruled = table == TableId::MAIN
            || table.0 != RT_TABLE_LOCAL && self.model.rules(v4).iter().any(|rule| rule.then() == RuleThen::Ask(table));
        let vrf = match vrf() {
            None if is_ruled => None,
            vrf => Some(vrf?),
        };
        let (mut index, mut src) = (0, None);
        if !is_error {
            let link = self.model.link(route.dev).filter(|link| link.up)?;
            let own = self.device(route.dev)?;
            index = vrf.map_or(own.index, |vrf| vrf.device.index);
            src = route.src.or_else(|| source(link, route.via, v4, vrf.is_some()));
        }
        if vrf.is_some_and(|vrf| self.model.link(vrf.id.0).is_none_or(|device| !device.up)) {
            return None;
        }
        let is_mtu_locked = v4 && !is_error && self.config.mtu == HostMtu::Largest;
        let Route { prefix, kind, metric, .. } = *route;
        Some(MirroredRoute { table: table.0, prefix, kind, metric, index, src, is_mtu_locked })
    }

    /// Addresses that only links in VRFs have: each with the table of the VRF, if only one VRF has it.
    fn vrf_addresses(&self) -> BTreeMap<IpAddr, Option<u32>> {
        let (mut of_vrfs, mut others) = (BTreeMap::new(), BTreeSet::new());
        let links = self.made.iter().filter_map(|made| Some((made.id.0, self.model.link(made.id.0)?)));
        for (id, link) in self.model.link(LOOPBACK).map(|lo| (LOOPBACK, lo)).into_iter().chain(links) {
            let table = self.table_of(id, link);
            for addr in link.addresses.iter().map(|address| address.addr.addr()) {
                match table {
                    None => drop(others.insert(addr)),
                    Some(table) => {
                        let of_one = of_vrfs.entry(addr).or_insert(Some(table));
                        *of_one = of_one.filter(|&one| one == table);
                    }
                }
            }
        }
        of_vrfs.retain(|addr, _| !others.contains(addr));
        of_vrfs
    }

    /// Table of the VRF that a link is the device of, or a member of.
    fn table_of(&self, id: u32, link: &Link) -> Option<u32> {
        self.vrf_table(id).or(link.master.and_then(|master| master.table))
    }

    fn vrf_table(&self, id: u32) -> Option<u32> {
        match self.model.link(id)?.config.kind {
            LinkKind::Vrf { table } => Some(table),
            _ => None,
        }
    }
}

/// The node's source address for packets sent by a link: with IPv4 an address in the subnet of the next hop. The
/// namespace's kernel has no next hops, and would use the first address. `is_apart`: the route leads to another device
/// than the link's, and that device has no address.
fn source(link: &Link, via: Option<IpAddr>, v4: bool, is_apart: bool) -> Option<IpAddr> {
    let of_family = || link.addresses.iter().map(|address| address.addr).filter(|addr| addr.addr().is_ipv4() == v4);
    let near = via.filter(|_| v4).and_then(|via| of_family().find(|addr| addr.prefix().contains(via)));
    let is_global = |addr: &IpAddr| !matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let first = || of_family().map(IfAddr::addr).find(is_global);
    near.map(IfAddr::addr).or_else(|| if is_apart { first() } else { None })
}

#[cfg(test)]
mod tests {
    use config::Config;
    use ctl::state::LinkStats;
    use netlink::rtnl::LinkNow;

    use super::*;

    const LINKS: &str = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"10.1.0.1/24\", \"10.2.0.1/24\", \"fd00::1/64\"]\n\
                         [[link]]\nname = \"eth1\"\nkind = \"packet\"\ninterface = \"eth1\"\naddresses = [\"10.3.0.1/24\"]\nmaster = \"red\"\n\
                         [[link]]\nname = \"red\"\nkind = \"vrf\"\ntable = 300\n\
                         [[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"192.0.2.1:4500\"\n";

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    /// A node whose links have the numbers 2, 3 and so on; links on host interfaces have numbers larger by 10 on the
    /// host.
    fn model(more: &str) -> Model {
        let config = Config::from_toml(&format!("{LINKS}{more}"), "test.toml").unwrap();
        let ids: Vec<PortId> = (2..).take(config.links.len()).map(PortId).collect();
        let now: Vec<LinkNow> = config
            .links
            .iter()
            .zip(&ids)
            .map(|(link, &id)| {
                let is_host = link.kind.interface().is_some();
                let (host_index, mac) = (is_host.then_some(id.0 + 10), is_host.then_some(MAC));
                LinkNow {
                    id,
                    host_index,
                    running: true,
                    mtu: 1500,
                    mac,
                    stats: LinkStats::default(),
                    carrier: [1, 0],
                    queues: None,
                    promiscuity: 0,
                    allmulti: 0,
                    bridging: None,
                }
            })
            .collect();
        let mut model = Model::default();
        model.read(&config, &ids, &now, 5);
        model
    }

    fn routes_of(content: &Content) -> Vec<String> {
        let text = |route: &MirroredRoute| {
            let src = route.src.map(|src| format!(" src {src}")).unwrap_or_default();
            format!("{} table {} dev {}{src}", route.prefix, route.table, route.index)
        };
        content.routes.iter().map(text).collect()
    }

    #[test]
    fn devices_have_the_links_names_and_numbers() {
        let made = devices(&model(""), HostConfig::default(), false);
        let seen: Vec<_> = made
            .iter()
            .map(|made| (made.id.0, made.device.name.as_str(), made.device.mac.is_some(), made.device.mtu()))
            .collect();
        let want = [
            (2, "eth0", true, 65_521),
            (3, "eth1", true, 65_521),
            (4, "red", false, 65_535),
            (5, "wan", false, 65_535),
        ];
        assert_eq!(seen, want);
        assert_eq!(made[0].device.index, 12);
        let config = HostConfig { mtu: HostMtu::Link, ..HostConfig::default() };
        assert_eq!(devices(&model(""), config, false)[0].device.mtu(), 1500);
    }

    #[test]
    fn content_has_sources_as_the_node_chooses_them() {
        let model = model(
            "[[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.2.0.7\"\n[[route]]\nto = \"10.8.0.0/16\"\ntype = \"unreachable\"\n",
        );
        let made = devices(&model, HostConfig::default(), false);
        let (content, is_limited) = content(&model, HostConfig::default(), &made);
        assert!(!is_limited);
        let red = made[2].device.index;
        let want = [
            "10.1.0.0/24 table 254 dev 12 src 10.1.0.1".to_owned(),
            "10.2.0.0/24 table 254 dev 12 src 10.2.0.1".to_owned(),
            "10.8.0.0/16 table 254 dev 0".to_owned(),
            "10.9.0.0/16 table 254 dev 12 src 10.2.0.1".to_owned(),
            "fd00::/64 table 254 dev 12".to_owned(),
            "fe80::/64 table 254 dev 12".to_owned(),
            "fe80::/64 table 254 dev 13".to_owned(),
            format!("10.3.0.0/24 table 300 dev {red} src 10.3.0.1"),
            "10.3.0.0/24 table 300 dev 13 src 10.3.0.1".to_owned(),
        ];
        assert_eq!(routes_of(&content), want);
        assert!(content.routes.iter().all(|route| route.is_mtu_locked == (route.prefix.is_ipv4() && route.index != 0)));
        let rules: Vec<String> = content.rules.iter().map(ToString::to_string).collect();
        let of_vrfs = ["1000 oif eth1 lookup 300", "1000 oif red lookup 300"];
        let of_addresses = ["1001 from 10.3.0.1/32 iif lo lookup 300", "1002 to 10.3.0.1/32 iif lo unreachable"];
        let behind = ["1003 lookup 255", "32766 lookup 254"];
        let want = [&of_vrfs[..], &behind, &of_vrfs, &of_addresses, &behind, &["32767 lookup 253"]].concat();
        assert_eq!(rules, want);
        let own: Vec<_> = content.addresses.iter().map(|address| (address.index, address.addr.to_string())).collect();
        assert!(own.contains(&(12, "fe80::ff:fe00:9/64".to_owned())), "{own:?}");
        assert!(!own.iter().any(|(index, _)| *index == LOOPBACK), "{own:?}");
    }

    #[test]
    fn content_of_a_missing_device_is_left_out() {
        let model = model("");
        let made = &devices(&model, HostConfig::default(), false)[3..];
        let (content, _) = content(&model, HostConfig::default(), made);
        assert_eq!(routes_of(&content), Vec::<String>::new());
        assert_eq!((content.addresses.len(), content.devices.len()), (1, 2));
    }

    #[test]
    fn content_above_the_limit_has_default_routes() {
        let route = |n: usize| format!("[[route]]\nto = \"11.{}.{}.0/24\"\nvia = \"10.1.0.7\"\n", n / 256, n % 256);
        let model = model(&(0..MAX_ROUTES).map(route).collect::<String>());
        let made = devices(&model, HostConfig::default(), false);
        let (content, is_limited) = content(&model, HostConfig::default(), &made);
        assert!(is_limited);
        let of_main =
            routes_of(&content).into_iter().filter(|route| route.contains(" table 254 ") && !route.starts_with("fe80"));
        assert_eq!(of_main.collect::<Vec<_>>(), ["0.0.0.0/0 table 254 dev 12", "::/0 table 254 dev 12"]);
    }
}
