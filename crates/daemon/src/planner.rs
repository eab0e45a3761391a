//! Planner: turns a configuration into a plan. All steps that can fail run or are tried here, before the worker gets
//! the plan.

use std::collections::{BTreeMap, HashMap};
use std::mem::discriminant;
use std::sync::Arc;

use base::{IfIndex, PortId, ShardCount};
use client::CliError;
use config::Change;
use config::model::{Config, IlaConfig, LinkConfig, LinkKind};
use config::settings::Settings;
use datapath::IkeAt;
use driver::{DriverKind, Resource};
use fib::Fib;
use ila::{Mapping, Mappings};
use link::Link;
use netlink::rtnl::nums::RTPROT_STATIC;
use netlink::rtnl::{self, Delta, LOOPBACK, Model, Vrf};

use super::bridges;
use super::command::Handle;
use super::crypto::crypto;
use super::device::DeviceSettings;
use super::netlink::Protocols;
use super::open::{Open, open};
use super::plan::Plan;
use super::processors;
use super::random::random;
use super::snapshot;
use super::sums::sum;
use super::translate::fib as to_fib;
use super::xfrm::Steps;

/// State of the last configuration that the worker applied.
#[derive(Clone, Debug)]
pub(crate) struct Planner {
    config: Arc<Config>,
    /// The number of each link of `config`. A number is not reused before all others, as in Linux.
    ids: Vec<PortId>,
    /// Interface index of each link that is an interface of the host.
    host_indexes: Vec<Option<u32>>,
    last_id: u32,
    /// Whether netlink clients have changed the routes of `config`.
    routes_changed: bool,
    open: Open,
}

impl Default for Planner {
    fn default() -> Self {
        Self::new(open)
    }
}

impl Planner {
    /// An empty planner; `open` opens its links.
    pub(crate) fn new(open: Open) -> Self {
        let (ids, host_indexes) = (Vec::new(), Vec::new());
        Self { config: Arc::default(), ids, host_indexes, last_id: LOOPBACK, routes_changed: false, open }
    }

    /// The last configuration that the worker applied.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// TUN and TAP devices of the host, with their settings in the file.
    pub(crate) fn devices(&self) -> Vec<DeviceSettings> {
        let links = self.config.links.iter().zip(&self.host_indexes).filter(|(link, _)| link.kind.is_tun());
        let device = |(link, index): (&LinkConfig, &Option<u32>)| {
            Some(DeviceSettings { name: link.name.clone(), index: (*index)?, config: link.device.clone() })
        };
        links.filter_map(device).collect()
    }

    /// Takes over the present numbers of devices, of which some may have been made again.
    pub(crate) fn renumber(&mut self, devices: &[(PortId, u32, bool)]) {
        for (id, index, _) in devices {
            if let Some(at) = self.ids.iter().position(|own| own == id) {
                self.host_indexes[at] = Some(*index);
            }
        }
    }

    /// The plan that leads to `new`, and the planner for the resulting node. New links are opened.
    ///
    /// # Errors
    /// The change is impossible: exit code 2 if the configuration is wrong, 1 if a link cannot be opened. Nothing has
    /// changed then.
    pub(crate) fn plan(&self, new: Config) -> Result<(Self, Plan), CliError> {
        let change = Change::between(&self.config, &new);
        let mut last_id = self.last_id;
        let mut ids = vec![None; new.links.len()];
        let mut host_indexes = vec![None; new.links.len()];
        for kept in &change.links.kept {
            ids[kept.new] = Some(self.ids[kept.old]);
            host_indexes[kept.new] = self.host_indexes[kept.old];
        }
        for &at in &change.links.added {
            let is_taken = |number| self.ids.iter().chain(ids.iter().flatten()).any(|id| id.0 == number);
            let why = || CliError::failed("all numbers of links are taken".to_owned());
            last_id = rtnl::next_index(last_id, is_taken).ok_or_else(why)?;
            ids[at] = Some(PortId(last_id));
        }
        let ids: Vec<PortId> = ids.into_iter().map(|id| id.expect("a link is kept or added")).collect();
        let mut plan = Plan {
            ipsec: Steps::between(&self.config, &new, &change, || {
                random().map_err(|err| CliError::system("getrandom", &err))
            })?,
            removed: real(&self.config, &change.links.removed).map(|at| self.ids[at]).collect(),
            ..Plan::default()
        };
        if !change.links.is_empty() || change.routes || self.routes_changed {
            plan.fib = Some(fib(&Model::default().read(&new, &ids, &[], last_id))?);
            plan.vrfs = vrfs(&new, &ids);
            plan.bridges = Some(bridges::plans(&new, &ids));
        }
        if change.worker {
            let key = if new.worker.count == ShardCount::ONE { "worker.cpu" } else { "worker.cpus" };
            new.worker.cpus.iter().try_for_each(|&cpu| processors::check(key, cpu))?;
            plan.worker = Some(new.worker.clone());
        }
        if change.crypto {
            plan.crypto = Some(crypto(&new.crypto)?);
        }
        let names_links = |config: &Config| config.ila.iter().any(|mapping| mapping.dev.is_some());
        if change.ila || !change.links.is_empty() && names_links(&new) {
            plan.ila = Some((mappings(&new, &ids)?, new.ila_adj_transport, new.ila_icmp_errors));
        }
        if change.settings {
            plan.settings = Some(Settings::of(&new));
        }
        // A VRF's device may have a queueing discipline, too.
        for kept in change.links.kept.iter().filter(|kept| kept.changed) {
            let requested = new.links[kept.new].qdisc;
            if self.config.links[kept.old].qdisc != requested {
                plan.qdiscs.push((ids[kept.new], requested));
            }
        }
        let added = change.links.added.iter().map(|&at| (ids[at], new.links[at].qdisc));
        plan.qdiscs.extend(added.filter(|(_, requested)| requested.is_some()));
        let is_real = |at: usize| !matches!(new.links[at].kind, LinkKind::Vrf { .. });
        for kept in change.links.kept.iter().filter(|kept| kept.changed && is_real(kept.new)) {
            let (old, new) = (&self.config.links[kept.old], &new.links[kept.new]);
            if old.mtu != new.mtu {
                plan.mtus.push((ids[kept.new], new.mtu));
            }
            plan.ports.push((ids[kept.new], new.features));
        }
        for at in real(&new, &change.links.added) {
            let config = &new.links[at];
            let leaving = change.links.removed.iter().map(|&at| &self.config.links[at]);
            refuse_one_that_leaves(config, leaving)?;
            let queues = (self.open)(config, None, new.worker.count)?;
            if let Some(link) = queues.first() {
                refuse_number(&new, &host_indexes, &**link)?;
                host_indexes[at] = link.host_index();
            }
            plan.opened.push((ids[at], queues, config.clone()));
            plan.ports.push((ids[at], config.features));
        }
        let ike = |(link, &id): (&LinkConfig, &PortId)| match link.kind.resource().filter(|_| link.ike)? {
            Resource::UdpSocket(bind) => Some((id, IkeAt::Port(bind))),
            Resource::Interface(_) => Some((id, IkeAt::Node)),
            Resource::Device | Resource::VhostSocket(_) => None,
        };
        plan.ike = new.links.iter().zip(&ids).filter_map(ike).collect();
        plan.defrag = new.links.iter().zip(&ids).filter(|(link, _)| link.defrag).map(|(_, &id)| id).collect();
        plan.clamp_mss = new.links.iter().zip(&ids).filter(|(link, _)| link.clamp_mss).map(|(_, &id)| id).collect();
        let config = Arc::new(new);
        plan.config = Arc::clone(&config);
        Ok((Self { config, ids, host_indexes, last_id, routes_changed: false, open: self.open }, plan))
    }

    /// Takes over netlink clients' changes of links and routes.
    pub(crate) fn follow(&mut self, model: &Model) {
        if !model.has_changed() {
            return;
        }
        let links = model.links_after(LOOPBACK).map(|(id, link)| (PortId(id), model.config_of(link)));
        self.host_indexes = model.links_after(LOOPBACK).map(|(_, link)| link.host_index).collect();
        let config = Arc::make_mut(&mut self.config);
        (self.ids, config.links) = links.unzip();
        (self.last_id, self.routes_changed) = (model.last_index(), true);
    }

    /// Publishes the node's new state to netlink clients: the links as they are now, and the ILA mappings, if the plan had any.
    ///
    /// # Errors
    /// The worker does not reply.
    pub(crate) fn publish(
        &self,
        worker: &Handle,
        protocols: &mut Protocols,
        mappings: Option<Mappings>,
    ) -> Result<(), String> {
        let now = worker.gather(|node| snapshot::links(node)).map_err(|gone| gone.to_string())?;
        let now = sum(now).unwrap_or_default();
        protocols.rtnl.model.read(&self.config, &self.ids, &now, self.last_id);
        if let Some(mappings) = mappings {
            protocols.generic().ila.follow(mappings);
        }
        Ok(())
    }
}

/// Refuses a plan in which a new link needs a resource of a link to be removed. Links are opened before the old ones
/// close, so that nothing is lost if an open fails; therefore a resource cannot pass from an old link to a new one.
fn refuse_one_that_leaves<'a>(
    link: &LinkConfig,
    mut leaving: impl Iterator<Item = &'a LinkConfig>,
) -> Result<(), CliError> {
    match leaving.find(|old| only_once(old).is_some() && only_once(old) == only_once(link)) {
        None => Ok(()),
        Some(old) => Err(CliError::failed(format!(
            "link {}: link {} is open with {}, and only its MTU, addresses and queueing discipline can change while it is. \
             Restart the gateway, or take the link out first.",
            link.name,
            old.name,
            differing_keys(old, link)
        ))),
    }
}

/// Keys of a file in which two links differ: ``another `kind` ``, ``other `offloads` and `queues` ``.
fn differing_keys(old: &LinkConfig, new: &LinkConfig) -> String {
    let (Some(old_driver), Some(new_driver)) = (old.kind.driver(), new.kind.driver()) else {
        return "another `kind`".to_owned();
    };
    if discriminant(old_driver) != discriminant(new_driver) {
        return "another `kind`".to_owned();
    }
    let offloads = Some("offloads").filter(|_| old.offloads != new.offloads);
    let keys: Vec<_> = offloads.into_iter().chain(old_driver.differing_keys(new_driver)).collect();
    match keys.split_last() {
        None => "another name".to_owned(),
        Some((last, [])) => format!("other `{last}`"),
        Some((last, before)) => format!("other `{}` and `{last}`", before.join("`, `")),
    }
}

/// Refuses a link that is an interface of the host with the same index as another link of `config`. `host_indexes`
/// holds the indexes of open links.
fn refuse_number(config: &Config, host_indexes: &[Option<u32>], link: &dyn Link) -> Result<(), CliError> {
    let Some(number) = link.host_index() else { return Ok(()) };
    let open = config.links.iter().zip(host_indexes);
    let open = open.filter_map(|(other, index)| Some((other.name.as_str(), IfIndex((*index)?))));
    let others = open.chain([("lo", IfIndex(LOOPBACK))]);
    let why = rtnl::refusal(number, others);
    why.map_or(Ok(()), |why| Err(CliError::failed(format!("link {}: {why}.", link.name()))))
}

/// Resource that at most one link can have, with the name of the link's own device.
fn only_once(link: &LinkConfig) -> Option<(Resource<'_>, Option<&str>)> {
    // An interface can have several packet sockets.
    let is_shared = matches!(link.kind, LinkKind::Driver(DriverKind::Packet { .. }));
    let name = link.kind.is_tun().then_some(link.name.as_str());
    link.kind.resource().filter(|_| !is_shared).map(|resource| (resource, name))
}

/// Positions of links with a device.
fn real<'a>(config: &'a Config, places: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    places.iter().copied().filter(|&at| !matches!(config.links[at].kind, LinkKind::Vrf { .. }))
}

/// The VRFs, by the indexes of their devices, which are up.
fn vrfs(config: &Config, ids: &[PortId]) -> BTreeMap<PortId, Vrf> {
    let each = config.links.iter().zip(ids).filter_map(|(link, id)| match link.kind {
        LinkKind::Vrf { table } => Some((*id, Vrf::of_file(&link.name, table))),
        _ => None,
    });
    each.collect()
}

/// The FIB that the changes of a configuration's model build.
///
/// # Errors
/// A route of the configuration has prefix and metric of another route.
fn fib(deltas: &[Delta]) -> Result<Fib, CliError> {
    let mut fib = Fib::default();
    for delta in deltas {
        match delta {
            Delta::AddRoute { table, route, .. } if route.protocol == RTPROT_STATIC => {
                let added = to_fib::added(&mut fib, route).map_or(Ok(()), |route| fib.add(*table, route));
                added.map_err(|err| CliError::bad_config(format!("{err}; use another metric.")))?;
            }
            delta => to_fib::apply(&mut fib, delta),
        }
    }
    Ok(fib)
}

/// The ILA mappings.
fn mappings(config: &Config, ids: &[PortId]) -> Result<Mappings, CliError> {
    let ids: HashMap<&str, PortId> =
        config.links.iter().map(|link| link.name.as_str()).zip(ids.iter().copied()).collect();
    let mut mappings = Mappings::default();
    mappings.reserve(config.ila.len());
    for IlaConfig { locator_match, identifier, locator, dev, csum_mode, ident_type } in &config.ila {
        let refused = |why: &str| CliError::bad_config(format!("ILA mapping {locator_match}: {why}."));
        let link = match dev {
            Some(dev) => Some(*ids.get(dev.as_str()).ok_or_else(|| refused(&format!("no link is named {dev}")))?),
            None => None,
        };
        let (locator_match, identifier, locator) = (*locator_match, *identifier, *locator);
        let (csum_mode, ident_type) = (*csum_mode, *ident_type);
        let mapping = Mapping { locator_match, identifier, locator, link, csum_mode, ident_type };
        mappings.add(mapping).map_err(|exists| refused(&exists.to_string()))?;
    }
    Ok(mappings)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use base::{Domain, TableId};
    use config::features::FeatureSet;
    use config::model::{DeviceConfig, RouteAction, RouteConfig};
    use driver::XdpMode;
    use fib::Decision;

    use super::*;

    /// The planner and plan of a node with configuration `config`.
    fn running(config: Config) -> (Planner, Plan) {
        Planner::default().plan(config).unwrap()
    }

    fn udp(name: &str, port: u16) -> LinkConfig {
        LinkConfig {
            name: name.to_owned(),
            kind: LinkKind::Driver(DriverKind::Udp { bind: ([127, 0, 0, 1], port).into() }),
            mtu: None,
            addresses: Vec::new(),
            device: DeviceConfig::default(),
            ike: false,
            clamp_mss: false,
            defrag: false,
            offloads: false,
            esp_gro: false,
            esp_offload: None,
            features: FeatureSet::initial(false, false),
            master: None,
            port: None,
            qdisc: None,
        }
    }

    /// A configuration with `links` and `routes`. Port 0 stands for any free port.
    fn config(links: &[LinkConfig], routes: &str) -> Config {
        let mut config = Config::from_toml(routes, "test.toml").unwrap();
        config.links = links.to_vec();
        config
    }

    fn free_port() -> u16 {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn clamp_and_defrag_links_are_set_at_each_reload() {
        let (node, plan) = running(config(&[udp("a", 0), udp("b", 0)], ""));
        assert_eq!((plan.clamp_mss, plan.defrag), (vec![], vec![]));
        let changed = [LinkConfig { clamp_mss: true, ..udp("a", 0) }, LinkConfig { defrag: true, ..udp("b", 0) }];
        let (_, plan) = node.plan(config(&changed, "")).unwrap();
        assert!(plan.opened.is_empty() && plan.removed.is_empty(), "both stay open");
        assert_eq!((plan.clamp_mss, plan.defrag), (vec![PortId(2)], vec![PortId(3)]));
    }

    #[test]
    fn changed_queueing_disciplines_are_set() {
        let with = |limit| LinkConfig { qdisc: Some(qdisc::Options::Pfifo { limit }), ..udp("a", 0) };
        let (node, plan) = running(config(&[with(1), udp("b", 0)], ""));
        assert_eq!(plan.qdiscs, [(PortId(2), with(1).qdisc)]);
        let (node, plan) = node.plan(config(&[with(1), udp("b", 0)], "")).unwrap();
        assert_eq!(plan.qdiscs, []);
        let (node, plan) = node.plan(config(&[with(2), udp("b", 0)], "")).unwrap();
        assert!(plan.opened.is_empty() && plan.removed.is_empty(), "both stay open");
        assert_eq!(plan.qdiscs, [(PortId(2), with(2).qdisc)]);
        let (_, plan) = node.plan(config(&[udp("a", 0), udp("b", 0)], "")).unwrap();
        assert_eq!(plan.qdiscs, [(PortId(2), None)]);
    }

    #[test]
    fn worker_goes_to_its_cpu_and_back_when_the_file_says_so() {
        let bound = |text: &str| Config::from_toml(text, "test.toml").unwrap();
        let (node, plan) = running(bound(""));
        assert_eq!(plan.worker, None);
        let (node, plan) = node.plan(bound("[worker]\ncpu = 0\n")).unwrap();
        assert_eq!(plan.worker.map(|worker| worker.cpus), Some(vec![0]));
        let refused = node.plan(bound("[worker]\ncpu = 8191\n")).unwrap_err();
        assert_eq!(refused.to_string(), "Error: worker.cpu: this process may not run on CPU 8191");
        let (_, plan) = node.plan(bound("")).unwrap();
        assert_eq!(plan.worker.map(|worker| worker.cpus), Some(vec![]));
    }

    #[test]
    fn a_node_starts_with_everything() {
        let mut new = config(&[udp("wan", 0)], "[[route]]\nto = \"10.0.0.0/8\"\ntype = \"blackhole\"\n");
        let action = RouteAction::Unicast { via: None, dev: "wan".to_owned() };
        let to = "10.1.0.0/16".parse().unwrap();
        new.routes.push(RouteConfig { to, action, metric: 0, table: TableId::MAIN, src: None, encap: None });
        let (node, plan) = running(new.clone());
        assert_eq!((node.config(), &*plan.config), (&new, &new));
        assert_eq!((plan.opened.len(), plan.opened[0].0, plan.opened[0].1[0].name()), (1, PortId(2), "wan"));
        assert_eq!(plan.ports, [(PortId(2), FeatureSet::initial(false, false))]);
        let fib = plan.fib.unwrap();
        let cases = [
            ("127.0.0.1", Decision::Local { dev: PortId(2) }),
            ("10.1.2.3", Decision::Forward { dev: PortId(2), next_hop: "10.1.2.3".parse().unwrap() }),
            ("10.2.0.1", Decision::Drop(base::DropReason::RouteBlackhole)),
        ];
        for (dst, want) in cases {
            assert_eq!(fib.decide(Domain::DEFAULT, dst.parse().unwrap(), None), want, "{dst}");
        }
    }

    /// Routes and addresses of a node whose link 3 has `addresses`, in a VRF with table 10 if `is_in_vrf`.
    fn made_by(addresses: &[&str], is_in_vrf: bool) -> (Vec<String>, Vec<String>) {
        let (vrf, master) = match is_in_vrf {
            true => ("[[link]]\nname = \"red\"\nkind = \"vrf\"\ntable = 10\n", "master = \"red\"\n"),
            false => ("[[link]]\nname = \"spare\"\nkind = \"tun\"\n", ""),
        };
        let text = format!("{vrf}[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = {addresses:?}\n{master}");
        let config = Config::from_toml(&text, "test.toml").unwrap();
        let ids = [PortId(2), PortId(3)];
        let fib = fib(&Model::default().read(&config, &ids, &[], 3)).unwrap();
        let shown = |(table, route): (TableId, &fib::Route)| {
            let fib::Route { prefix, kind, metric } = *route;
            format!("{} {prefix} dev {} table {table} metric {metric}", kind.word(), kind.dev().map_or(0, |dev| dev.0))
        };
        (fib.routes().map(shown).collect(), fib.addresses(PortId(3)).map(|addr| addr.to_string()).collect())
    }

    #[test]
    fn addresses_of_a_file_make_linuxs_routes() {
        // Routes without ` dev 3`, in the order of the tables; a VRF's are all in its table.
        let cases: &[(&[&str], &[&str], &[&str])] = &[
            (&["10.0.0.1/24"], &["local 10.0.0.1/32", "broadcast 10.0.0.255/32"], &["unicast 10.0.0.0/24"]),
            // A secondary address has no routes to the subnet of its own.
            (
                &["10.0.0.1/24", "10.0.0.2/24"],
                &["local 10.0.0.1/32", "local 10.0.0.2/32", "broadcast 10.0.0.255/32"],
                &["unicast 10.0.0.0/24"],
            ),
            // Two subnets with one broadcast address: two routes with different sources, so that one stays if the other
            // goes with its address.
            (
                &["10.0.0.1/24", "10.0.0.129/25"],
                &["local 10.0.0.1/32", "local 10.0.0.129/32", "broadcast 10.0.0.255/32", "broadcast 10.0.0.255/32"],
                &["unicast 10.0.0.0/24", "unicast 10.0.0.128/25"],
            ),
            (&["192.0.2.1/31"], &["local 192.0.2.1/32"], &["unicast 192.0.2.0/31"]),
            (&["192.0.2.1/32"], &["local 192.0.2.1/32"], &[]),
            // Subnets of 0.0.0.0/8 have no routes (`ipv4_is_zeronet`).
            (&["10.0.0.1/0"], &["local 10.0.0.1/32"], &[]),
            (&["0.1.2.3/24"], &["local 0.1.2.3/32"], &[]),
            (
                &["2001:db8::1/64"],
                &["anycast 2001:db8::/128", "local 2001:db8::1/128"],
                &["unicast 2001:db8::/64 metric 256"],
            ),
            (&["2001:db8::/64"], &["local 2001:db8::/128"], &["unicast 2001:db8::/64 metric 256"]),
            (&["2001:db8::1/127"], &["local 2001:db8::1/128"], &["unicast 2001:db8::/127 metric 256"]),
            // `addrconf_prefix_route` adds a route to a single address, too.
            (&["2001:db8::1/128"], &["local 2001:db8::1/128"], &["unicast 2001:db8::1/128 metric 256"]),
            (&["2001:db8::1/0"], &["local 2001:db8::1/128"], &["unicast ::/0 metric 256"]),
            (&["::1/128"], &["local ::1/128"], &["unicast ::1/128 metric 256"]),
        ];
        for &(addresses, locals, on_link) in cases {
            for is_in_vrf in [false, true] {
                let row = |table: &str, routes: &[&str]| -> Vec<String> {
                    let each = routes.iter().map(|route| {
                        let (prefix, metric) = route.split_once(" metric ").unwrap_or((route, "0"));
                        format!("{prefix} dev 3 table {table} metric {metric}")
                    });
                    each.collect()
                };
                let [local, main] = if is_in_vrf { ["10"; 2] } else { ["local", "main"] };
                let mut want = [row(local, locals), row(main, on_link)].concat();
                let (mut routes, sources) = made_by(addresses, is_in_vrf);
                want.sort_unstable();
                routes.sort_unstable();
                assert_eq!(routes, want, "{addresses:?}, in a VRF: {is_in_vrf}");
                assert_eq!(sources, addresses);
            }
        }
    }

    #[test]
    fn route_of_a_file_that_exists_is_refused() {
        let tun = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.0.0.1/24\"]\n";
        let read = |to: &str, metric: u32| {
            let route = format!("[[route]]\nto = \"{to}\"\ntype = \"blackhole\"\nmetric = {metric}\n");
            let config = Config::from_toml(&format!("{tun}{route}"), "test.toml").unwrap();
            fib(&Model::default().read(&config, &[PortId(2)], &[], 2)).map(|_| ()).map_err(|err| err.message)
        };
        let exists = "Route to 10.0.0.0/24 metric 0 exists in table main; use another metric.";
        assert_eq!(read("10.0.0.0/24", 0), Err(exists.to_owned()));
        assert_eq!(read("10.0.0.0/24", 1), Ok(()));
    }

    #[test]
    fn a_vrf_has_no_device_and_the_routes_of_its_links() {
        let red = LinkConfig { kind: LinkKind::Vrf { table: 10 }, ..udp("red", 0) };
        let links = [LinkConfig { master: Some("red".to_owned()), ..udp("wan", 0) }, red.clone()];
        let (node, plan) = running(config(&links, ""));
        assert_eq!((plan.opened.len(), plan.ports.len()), (1, 1));
        assert_eq!(plan.vrfs, BTreeMap::from([(PortId(3), Vrf::of_file("red", 10))]));
        let decide = |fib: &Fib, domain| fib.decide(domain, "127.0.0.1".parse().unwrap(), None);
        let (fib, none) = (plan.fib.unwrap(), Decision::Drop(base::DropReason::NoRoute));
        assert_eq!(
            [Domain::vrf(PortId(3)), Domain::DEFAULT].map(|domain| decide(&fib, domain)),
            [Decision::Local { dev: PortId(2) }, none]
        );
        // The discipline is removed, and the link stays.
        let (_, plan) = node.plan(config(&[udp("wan", 0)], "")).unwrap();
        assert!(plan.removed.is_empty() && plan.opened.is_empty() && plan.vrfs.is_empty());
        assert_eq!(decide(&plan.fib.unwrap(), Domain::DEFAULT), Decision::Local { dev: PortId(2) });
        // A VRF with a different table is a different link.
        let links = [links[0].clone(), LinkConfig { kind: LinkKind::Vrf { table: 20 }, ..red }];
        let (_, plan) = node.plan(config(&links, "")).unwrap();
        assert_eq!((plan.removed.len(), plan.vrfs.keys().collect::<Vec<_>>()), (0, vec![&PortId(4)]));
        assert_eq!(decide(&plan.fib.unwrap(), Domain::vrf(PortId(4))), Decision::Local { dev: PortId(2) });
    }

    #[test]
    fn mappings_follow_their_links_and_are_replaced_as_a_whole() {
        let text = |n: u8, dev: &str| format!("[[ila]]\nloc_match = \"1:2:3:{n}\"\nloc = \"5:6:7:8\"\n{dev}");
        let with = |links: &[LinkConfig], n: u8, dev: Option<&str>| {
            let mut config = config(links, &text(n, ""));
            config.ila[0].dev = dev.map(str::to_owned);
            config
        };
        let links_of = |plan: &Plan| {
            let (mappings, ..) = plan.ila.as_ref()?;
            Some(mappings.snapshot().iter().map(|it| (it.locator_match.0 as u16, it.link)).collect::<Vec<_>>())
        };
        let (a, b) = (udp("a", 0), udp("b", 0));
        let (node, plan) = running(with(&[a.clone(), b.clone()], 1, Some("b")));
        assert_eq!(links_of(&plan), Some(vec![(1, Some(PortId(3)))]));
        let (node, plan) = node.plan(with(&[a.clone(), b.clone()], 1, Some("b"))).unwrap();
        assert_eq!(links_of(&plan), None, "nothing has changed");
        // A link is removed: mappings that name links are rebuilt.
        let (node, plan) = node.plan(with(std::slice::from_ref(&b), 1, Some("b"))).unwrap();
        assert_eq!(links_of(&plan), Some(vec![(1, Some(PortId(3)))]));
        let (node, plan) = node.plan(with(std::slice::from_ref(&b), 2, None)).unwrap();
        assert_eq!(links_of(&plan), Some(vec![(2, None)]));
        let (node, plan) = node.plan(with(&[a, b.clone()], 2, None)).unwrap();
        assert_eq!(links_of(&plan), None, "no mapping names a link");
        let (node, plan) =
            node.plan(Config { ila_adj_transport: ila::AdjTransport::Rfc1624, ..config(&[b], "") }).unwrap();
        assert_eq!(
            plan.ila.as_ref().map(|(mappings, sign, _)| (mappings.len(), *sign)),
            Some((0, ila::AdjTransport::Rfc1624))
        );
        assert!(node.config().ila.is_empty());
    }

    #[test]
    fn unchanged_link_keeps_its_id_and_is_not_reopened() {
        let (node, _) = running(config(&[udp("a", 0), udp("b", 0)], ""));
        let (node, plan) = node.plan(config(&[udp("b", 0)], "")).unwrap();
        assert_eq!((plan.removed, plan.opened.len(), plan.ports.len()), (vec![PortId(2)], 0, 0));
        let (node, plan) = node.plan(config(&[udp("b", 0)], "")).unwrap();
        assert!(plan.removed.is_empty() && plan.opened.is_empty() && plan.fib.is_none());
        let smaller = LinkConfig { mtu: Some(1400), ..udp("b", 0) };
        let (_, plan) = node.plan(config(&[udp("c", free_port()), smaller], "")).unwrap();
        assert_eq!((&plan.mtus, plan.opened[0].0), (&vec![(PortId(3), Some(1400))], PortId(4)));
        assert_eq!(plan.ports.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [PortId(3), PortId(4)]);
    }

    #[test]
    fn numbers_begin_anew_and_that_of_a_leaving_link_is_taken() {
        let (mut node, _) = running(config(&[udp("a", 0), udp("b", 0)], ""));
        node.last_id = 65535;
        let (node, plan) = node.plan(config(&[udp("b", 0), udp("c", free_port())], "")).unwrap();
        assert_eq!((plan.removed, node.ids), (vec![PortId(2)], vec![PortId(3), PortId(4)]));
    }

    #[test]
    fn unopenable_link_is_named_and_leaves_nothing_open() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let free = free_port();
        let links = [udp("first", free), udp("second", taken.local_addr().unwrap().port())];
        let err = Planner::default().plan(config(&links, "")).unwrap_err();
        assert_eq!(err.exit_code, 1);
        assert!(err.message.starts_with("second: bind: Address already in use"), "{err}");
        UdpSocket::bind(("127.0.0.1", free)).unwrap();
    }

    #[test]
    fn a_link_that_is_open_cannot_become_another_on_the_same_port() {
        let port = free_port();
        let (node, plan) = running(config(&[udp("wan", port)], ""));
        let err = node.plan(config(&[LinkConfig { offloads: true, ..udp("wan", port) }], "")).unwrap_err();
        assert!(err.message.starts_with("link wan: link wan is open with other `offloads`, and only"), "{err}");
        assert_eq!(plan.opened.len(), 1);
    }

    #[test]
    fn refused_change_of_a_link_names_the_keys() {
        let link = |kind, offloads| LinkConfig { kind: LinkKind::Driver(kind), offloads, ..udp("a", 0) };
        let guest = |queues, ring| DriverKind::VirtioUser { socket: "/run/a".to_owned(), queues, ring };
        let xdp = |ring, mode| DriverKind::Xdp { interface: "eth0".to_owned(), ring, mode };
        let (tun, tap) = (DriverKind::Tun { queues: 1 }, DriverKind::Tap { queues: 1 });
        for (old, new, want) in [
            (link(tun.clone(), true), link(tap, true), "another `kind`"),
            (link(tun.clone(), true), link(DriverKind::Tun { queues: 2 }, true), "other `queues`"),
            (link(tun.clone(), true), link(tun.clone(), false), "other `offloads`"),
            (link(tun.clone(), true), link(tun, true), "another name"),
            (link(guest(1, 256), true), link(guest(2, 512), false), "other `offloads`, `queues` and `ring`"),
            (link(xdp(64, XdpMode::Native), true), link(xdp(64, XdpMode::Generic), true), "other `mode`"),
            (link(xdp(64, XdpMode::Native), true), link(xdp(128, XdpMode::Native), true), "other `ring`"),
        ] {
            assert_eq!(differing_keys(&old, &new), want, "{old:?}, {new:?}");
        }
    }
}
