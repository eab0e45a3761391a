//! Node without a datapath, for tests: records every change that netlink makes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::{Domain, DropReason, IfAddr, Instant, PortId, TableId};
use config::Config;
use config::features::FeatureSet;
use config::model::{LinkConfig, LinkKind};
use ctl::state::{LinkState, LinkStats, RingState};
use driver::DriverKind;
use netlink::Error;
use netlink::rtnl::{Backend, Delta, LinkDetail, LinkNow, Model, NeighbourNow, Route, Rtnl, Vrf};
use qdisc::{Options, Stats};
use switch::Bridge;
use wire::MacAddr;

/// Datapath that accepts and records every change.
#[derive(Debug, Default)]
pub(crate) struct RecordingBackend {
    /// Current routes.
    pub(crate) routes: Vec<(TableId, Route)>,
    /// Current addresses.
    pub(crate) addresses: Vec<(PortId, IfAddr)>,
    /// Number of rules of each family that look up VRF tables.
    pub(crate) l3mdev: [usize; 2],
    neighbours: BTreeMap<(PortId, IpAddr), NeighbourNow>,
    /// Requested features of the link that was opened last.
    pub(crate) wanted: Option<FeatureSet>,
    /// Host interface index of devices opened later, if it differs from the link's number.
    pub(crate) host_index: Option<u32>,
    /// Receive ring of the link, if it has one.
    pub(crate) ring: Option<RingState>,
    /// VRFs by their devices, and the domains of their members.
    vrfs: BTreeMap<PortId, Vrf>,
    domains: BTreeMap<PortId, Domain>,
    /// Link-layer address that was set on `eth0`.
    mac: Option<[u8; 6]>,
    /// Queueing disciplines, and the counters reported for each.
    pub(crate) qdiscs: BTreeMap<PortId, Options>,
    pub(crate) stats: Stats,
    /// Bridges, by their devices.
    pub(crate) bridges: BTreeMap<PortId, Bridge>,
    /// Time by the node's clock.
    pub(crate) now: Instant,
}

const MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];

fn eth0() -> LinkNow {
    LinkNow {
        id: PortId(2),
        host_index: Some(2),
        running: true,
        mtu: 1500,
        mac: Some(MAC),
        stats: LinkStats::default(),
        carrier: [1, 0],
        queues: None,
        promiscuity: 0,
        allmulti: 0,
        bridging: None,
    }
}

impl Backend for RecordingBackend {
    fn now(&self) -> Instant {
        self.now
    }

    fn links(&mut self) -> Result<Vec<LinkNow>, Error> {
        let queues = self.ring.as_ref().map(|ring| ring.queues);
        Ok(vec![LinkNow { mac: self.mac.or(Some(MAC)), queues, ..eth0() }])
    }

    fn apply(&mut self, deltas: &mut dyn Iterator<Item = Delta>) {
        let Self { routes, addresses, vrfs, domains, l3mdev, .. } = self;
        let remove = |routes: &mut Vec<(TableId, Route)>, table: TableId, route: Route| {
            let at = routes.iter().position(|there| *there == (table, route.clone()));
            routes.remove(at.unwrap_or_else(|| panic!("{route:?} is not in table {table}")))
        };
        for delta in deltas {
            match delta {
                Delta::RemoveRoute { table, route, .. } => drop(remove(routes, table, route)),
                Delta::ReplaceRoute(it) => {
                    remove(routes, it.table, it.old);
                    routes.push((it.table, it.new));
                }
                Delta::AddRoute { table, route, .. } => routes.push((table, route)),
                Delta::AddAddress(link, address) => addresses.push((link, address.addr)),
                Delta::RemoveAddress(link, address) => {
                    let at = addresses.iter().position(|own| *own == (link, address.addr));
                    addresses.remove(at.unwrap_or_else(|| panic!("{address:?} is not on link {}", link.0)));
                }
                Delta::Vrf(device, Some(vrf)) => drop(vrfs.insert(device, vrf)),
                Delta::Vrf(device, None) => drop(vrfs.remove(&device).expect("a VRF")),
                Delta::Domain(link, Domain::DEFAULT) => drop(domains.remove(&link).expect("a domain")),
                Delta::Domain(link, domain) => drop(domains.insert(link, domain)),
                Delta::Rules { v4, rules } => {
                    l3mdev[usize::from(!v4)] = rules.iter().filter(|rule| rule.l3mdev).count();
                }
                Delta::ChangeAddress(..) => {}
            }
        }
    }

    fn open(&mut self, id: PortId, config: &LinkConfig, index: Option<u32>) -> Result<LinkNow, Error> {
        let mtu = config.mtu.map_or(1500, u32::from);
        if let LinkKind::Bridge(settings) = &config.kind {
            let mut bridge = Bridge::new(MacAddr(MAC)).expect("a station");
            settings.apply(&mut bridge).expect("settings of a bridge");
            self.bridges.insert(id, bridge);
        }
        let host_index = match config.kind {
            LinkKind::Driver(DriverKind::Udp { .. }) | LinkKind::Bridge(_) => None,
            // A device gets the requested interface index, or the link's number.
            LinkKind::Driver(DriverKind::Tun { .. } | DriverKind::Tap { .. }) => Some(index.unwrap_or(id.0)),
            _ => Some(self.host_index.unwrap_or(id.0)),
        };
        Ok(LinkNow { id, host_index, running: false, mtu, ..eth0() })
    }

    fn close(&mut self, id: PortId) -> Result<(), Error> {
        self.qdiscs.remove(&id);
        self.bridges.remove(&id);
        Ok(())
    }

    fn set_mtu(&mut self, _: PortId, _: u16) -> Result<(), Error> {
        Ok(())
    }

    fn set_mac(&mut self, id: PortId, mac: [u8; 6]) -> Result<(), Error> {
        if id == eth0().id {
            self.mac = Some(mac);
        }
        Ok(())
    }

    fn set_qdisc(&mut self, id: PortId, options: Option<Options>) -> Result<(), Error> {
        match options {
            Some(options) => drop(self.qdiscs.insert(id, options)),
            None => drop(self.qdiscs.remove(&id)),
        }
        Ok(())
    }

    fn change_qdisc(&mut self, id: PortId, options: Options) -> Result<(), Error> {
        let before = self.qdiscs.insert(id, options).expect("a discipline that is changed");
        assert_eq!(before.kind(), options.kind());
        Ok(())
    }

    fn qdisc_stats(&mut self) -> Result<Vec<(PortId, Stats)>, Error> {
        Ok(self.qdiscs.keys().map(|id| (*id, self.stats)).collect())
    }

    fn set_bridge(&mut self, link: PortId, bridge: Option<PortId>) -> Result<(), Error> {
        for bridge in self.bridges.values_mut() {
            // A link is a port of at most one bridge.
            let _ = bridge.remove_port(link);
        }
        let Some(bridge) = bridge.and_then(|bridge| self.bridges.get_mut(&bridge)) else { return Ok(()) };
        bridge.add_port(link, MacAddr(MAC), 1500).expect("a port");
        Ok(())
    }

    fn with_bridge<T: Send + 'static>(
        &mut self,
        bridge: PortId,
        call: impl FnOnce(&mut Bridge, Instant) -> T + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let now = self.now;
        Ok(call(self.bridges.get_mut(&bridge).expect("a bridge"), now))
    }

    fn set_up(&mut self, _: PortId, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn detail(&mut self, id: PortId) -> Result<LinkDetail, Error> {
        let wanted = self.wanted.unwrap_or(FeatureSet::SWITCHED);
        let can = FeatureSet::SWITCHED & !FeatureSet::IP_CSUM & !FeatureSet::IPV6_CSUM & !FeatureSet::TSO6;
        let state = LinkState {
            index: id.0,
            name: "eth0".to_owned(),
            kind: "packet".to_owned(),
            on: Some("eth0".to_owned()),
            vrf: None,
            port: None,
            guest: None,
            table: None,
            mtu: 1500,
            up: true,
            why_down: None,
            lladdr: None,
            addresses: Vec::new(),
            offloads: Vec::new(),
            ring: self.ring.clone(),
            qdisc: None,
            stats: LinkStats { rx_packets: 7, tx_dropped: 9, ..LinkStats::default() },
            peer_errors: Vec::new(),
            ip6: Vec::new(),
        };
        let on = (can & wanted).coherent() | FeatureSet::RX_CSUM;
        let drops = vec![(DropReason::NoRoute, 3), (DropReason::NoRoute, 4)];
        let fat = ["a", "b", "c", "d", "e", "f", "g"].map(|name| (name, 0));
        Ok(LinkDetail { state, drops, fat, can, on })
    }

    fn settings(&mut self, interface: &str) -> Result<Vec<u8>, Error> {
        assert_eq!(interface, "eth0");
        Ok((0..96).map(|at| if at == 15 { 4 } else { at }).collect())
    }

    fn set_features(&mut self, _: PortId, wanted: FeatureSet) -> Result<(), Error> {
        self.wanted = Some(wanted);
        Ok(())
    }

    fn neighbours(&mut self) -> Result<Vec<NeighbourNow>, Error> {
        Ok(self.neighbours.values().copied().collect())
    }

    fn neighbour(&mut self, link: PortId, addr: IpAddr) -> Result<Option<NeighbourNow>, Error> {
        Ok(self.neighbours.get(&(link, addr)).copied())
    }

    fn set_neighbour(&mut self, neighbour: &NeighbourNow) -> Result<(), Error> {
        let key = (neighbour.link, neighbour.addr);
        if neighbour.state == 0 {
            self.neighbours.remove(&key);
        } else {
            self.neighbours.insert(key, *neighbour);
        }
        Ok(())
    }
}

/// Node with one Ethernet link, eth0, with the number 2.
pub(crate) fn node() -> Rtnl<RecordingBackend> {
    let toml = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n";
    let config = Config::from_toml(toml, "test.toml").unwrap();
    let mut model = Model::default();
    model.read(&config, &[PortId(2)], &[eth0()], 2);
    let routes = model.routes().map(|(table, route)| (table, route.clone())).collect();
    Rtnl { model, backend: RecordingBackend { routes, ..RecordingBackend::default() } }
}

/// Checks that the datapath has the routes and addresses that netlink clients see.
///
/// # Panics
/// If they differ.
#[allow(dead_code, reason = "some tests do not call it")]
pub(crate) fn check(node: &Rtnl<RecordingBackend>) {
    let key = |(table, route): &(TableId, Route)| (*table, route.prefix, route.metric, format!("{route:?}"));
    let mut seen: Vec<_> = node.model.routes().map(|(table, route)| (table, route.clone())).collect();
    let mut recorded = node.backend.routes.clone();
    seen.sort_by_cached_key(key);
    recorded.sort_by_cached_key(key);
    assert_eq!(seen, recorded);
    let of_links = node.model.links_after(0);
    let mut seen: Vec<_> = of_links
        .flat_map(|(index, link)| link.addresses.iter().map(move |address| (PortId(index), address.addr)))
        .collect();
    let mut recorded = node.backend.addresses.clone();
    seen.sort_unstable();
    recorded.sort_unstable();
    assert_eq!(seen, recorded);
    let links = || node.model.links_after(0).map(|(index, link)| (PortId(index), link));
    let masters = links().filter_map(|(id, link)| Some((id, Domain::vrf(PortId(link.master?.index)))));
    assert_eq!(masters.collect::<BTreeMap<_, _>>(), node.backend.domains);
    let qdiscs = links().filter_map(|(id, link)| Some((id, link.qdisc?.options?)));
    assert_eq!(qdiscs.collect::<BTreeMap<_, _>>(), node.backend.qdiscs);
    let vrfs = links().filter_map(|(id, link)| match link.config.kind {
        LinkKind::Vrf { table } => Some((id, TableId(table), link.up)),
        _ => None,
    });
    let recorded = node.backend.vrfs.iter().map(|(id, vrf)| (*id, vrf.table, vrf.up));
    assert_eq!(vrfs.collect::<Vec<_>>(), recorded.collect::<Vec<_>>());
}
