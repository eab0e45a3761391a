//! Links and their addresses, and the connected routes that an address creates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::qdisc::Options;
use base::{IfAddr, IfIndex, Instant, PortId, Prefix};
use driver::DriverKind;

use super::lifetime::Lifetime;
use super::nums::*;
use super::table::Route;
use config::features::FeatureSet;
use config::model::{DeviceConfig, LinkConfig, LinkKind};

/// Default metric of an IPv6 route from a client (`IP6_RT_PRIO_USER`).
pub(super) const METRIC_V6_USER: u32 = 1024;
/// Metric of a connected IPv6 route (`IP6_RT_PRIO_ADDRCONF`).
pub(super) const METRIC_V6_CONNECTED: u32 = 256;

/// An address of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    /// The address, with its subnet.
    pub addr: IfAddr,
    /// Peer address of a point-to-point link.
    pub peer: Option<IpAddr>,
    /// Broadcast address, if explicitly set.
    pub broadcast: Option<Ipv4Addr>,
    /// Label, unless it is the name of the link.
    pub label: Option<String>,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `IFA_F_*`.
    pub flags: u32,
    /// Metric of the connected route; 0 for the family's default.
    pub metric: u32,
    /// `IFAPROT_*`.
    pub protocol: u8,
    /// Lifetimes.
    pub lifetime: Lifetime,
}

/// Queueing discipline of a link, explicitly set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkQdisc {
    /// Number of the discipline, as `tc` writes it before the colon, in the upper 16 bits.
    pub handle: u32,
    /// Kind and options; `None` for `noqueue`.
    pub options: Option<Options>,
}

impl LinkQdisc {
    /// Discipline of a link without an explicit one.
    pub(super) const NOQUEUE: Self = Self { handle: 0, options: None };

    /// Name of the kind.
    pub(super) fn kind(&self) -> &'static str {
        self.options.map_or("noqueue", |options| options.kind().name())
    }
}

/// A link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    /// Configuration that the link was created with; the field `addresses` supersedes its addresses.
    pub config: LinkConfig,
    /// Interface index on the host; `None` if the link is no interface of the host.
    pub host_index: Option<u32>,
    /// Layer-3 MTU.
    pub mtu: u32,
    /// Link-layer address; `None` if the link has none.
    pub mac: Option<[u8; 6]>,
    /// Whether a client set the link-layer address.
    pub mac_set: bool,
    /// Whether the link is up.
    pub up: bool,
    /// Whether the link has ever been up.
    pub was_up: bool,
    /// Addresses, in the order of a dump.
    pub addresses: Vec<Address>,
    /// `ip link set … group`.
    pub group: u32,
    /// `ip link set … alias`.
    pub alias: Option<String>,
    /// `ip link set … txqueuelen`.
    pub txqlen: u32,
    /// VRF or bridge of the link.
    pub master: Option<Master>,
    /// Queueing discipline, if explicitly set.
    pub qdisc: Option<LinkQdisc>,
}

/// VRF or bridge of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Master {
    /// Number of the VRF's or bridge's device.
    pub index: u32,
    /// Table of a VRF; `None` for a bridge.
    pub table: Option<u32>,
}

impl Master {
    /// Interface index of the device. The device is no interface of the host.
    pub(super) const fn ifindex(self) -> IfIndex {
        IfIndex::own(PortId(self.index))
    }
}

/// Addresses of `lo` when it is set up, one of each family (Linux `inetdev_event`, `init_loopback`).
pub(super) fn loopback_addresses() -> [Address; 2] {
    let own = |addr: IpAddr, len, protocol| Address {
        addr: IfAddr::new(addr, len).unwrap_or(IfAddr::host(addr)),
        peer: None,
        broadcast: None,
        label: None,
        scope: RT_SCOPE_HOST,
        flags: IFA_F_PERMANENT,
        metric: 0,
        protocol,
        lifetime: Lifetime::default(),
    };
    [own(Ipv4Addr::LOCALHOST.into(), 8, 0), own(Ipv6Addr::LOCALHOST.into(), 128, IFAPROT_KERNEL_LO)]
}

impl Address {
    /// Prefix length of the subnet.
    pub fn prefix_len(&self) -> u8 {
        self.addr.prefix().len()
    }

    /// Subnet of the address, or of an IPv4 peer address.
    pub(super) fn subnet(&self) -> Prefix {
        let addr = self.peer.filter(IpAddr::is_ipv4).unwrap_or(self.addr.addr());
        Prefix::containing(addr, self.prefix_len()).unwrap_or(Prefix::host(addr))
    }

    /// Next end of the preferred or the valid lifetime.
    pub(super) fn next_change(&self) -> Option<Instant> {
        self.lifetime.next(self.flags & IFA_F_DEPRECATED != 0)
    }

    /// Whether the IPv4 address is secondary: another address of its subnet precedes it.
    pub(super) const fn is_secondary(&self) -> bool {
        self.flags & IFA_F_SECONDARY != 0
    }

    pub(super) fn is_primary_v4(&self) -> bool {
        self.addr.addr().is_ipv4() && !self.is_secondary()
    }

    pub(super) fn in_subnet_of(&self, other: &Self) -> bool {
        self.addr.addr().is_ipv4() && self.subnet() == other.subnet()
    }

    /// Routes that the address creates on `link`, with their tables.
    pub(super) fn routes(&self, index: u32, link: &Link) -> Vec<(u32, Route)> {
        let own = self.addr.addr();
        let v4 = own.is_ipv4();
        let first = link.addresses.iter().find(|other| other.is_primary_v4() && other.in_subnet_of(self));
        let src = v4.then_some(if self.is_secondary() { first.map_or(own, |first| first.addr.addr()) } else { own });
        let scope = if v4 { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE };
        let local = Route {
            prefix: Prefix::host(own),
            kind: RTN_LOCAL,
            metric: 0,
            scope,
            protocol: RTPROT_KERNEL,
            dev: index,
            via: None,
            src,
            onlink: false,
            encap: None,
            paths: None,
        };
        let [locals, on_links] = [RT_TABLE_LOCAL, RT_TABLE_MAIN].map(|usual| link.l3_table().unwrap_or(usual));
        let subnet = self.subnet();
        let connected = self.flags & IFA_F_NOPREFIXROUTE == 0;
        if !v4 {
            let connected = connected && self.protocol != IFAPROT_KERNEL_LO;
            let metric = if self.metric == 0 { METRIC_V6_CONNECTED } else { self.metric };
            let prefix = Route { prefix: subnet, kind: RTN_UNICAST, metric, ..local.clone() };
            let to_peer = self.peer.map(|peer| (on_links, Route { prefix: Prefix::host(peer), ..prefix.clone() }));
            let prefix = connected.then_some((on_links, prefix));
            let anycast = |addr| (locals, Route { prefix: Prefix::host(addr), kind: RTN_ANYCAST, ..local.clone() });
            let anycast = self.addr.subnet_router_anycast().map(anycast);
            return [(locals, local.clone())].into_iter().chain(anycast).chain(prefix).chain(to_peer).collect();
        }
        let on_link = Route { scope: RT_SCOPE_LINK, ..local.clone() };
        let broadcast = |addr: Ipv4Addr| {
            (locals, Route { prefix: Prefix::host(addr.into()), kind: RTN_BROADCAST, ..on_link.clone() })
        };
        let mut routes = vec![(locals, local)];
        routes.extend(self.broadcast.filter(|addr| *addr != Ipv4Addr::BROADCAST).map(broadcast));
        if let IpAddr::V4(start) = subnet.addr()
            && start.octets()[0] != 0
            && !self.is_secondary()
            && (subnet.addr() != own || !subnet.is_host())
        {
            if connected {
                // All addresses of a subnet on `lo` are local.
                let (table, like, kind) = match link.config.kind {
                    LinkKind::Loopback => (locals, &routes[0].1, RTN_LOCAL),
                    _ => (on_links, &on_link, RTN_UNICAST),
                };
                routes.push((table, Route { prefix: subnet, kind, metric: self.metric, ..like.clone() }));
            }
            if subnet.len() < 31 {
                let last = broadcast(Ipv4Addr::from_bits(start.to_bits() | u32::MAX >> subnet.len()));
                routes.extend((!routes.contains(&last)).then_some(last));
            }
        }
        routes
    }
}

impl Link {
    /// `lo` in its initial state.
    pub(super) fn loopback() -> Self {
        let (name, kind, addresses) = ("lo".to_owned(), LinkKind::Loopback, Vec::new());
        let (mtu, none, ike, clamp_mss, defrag, offloads, master) = (None, Vec::new(), false, false, false, true, None);
        let esp_gro = true;
        let features = FeatureSet::initial(offloads, esp_gro);
        let config = LinkConfig {
            name,
            kind,
            mtu,
            addresses: none,
            device: DeviceConfig::default(),
            ike,
            clamp_mss,
            defrag,
            offloads,
            esp_gro,
            esp_offload: None,
            features,
            master,
            port: None,
            qdisc: None,
        };
        let (mtu, mac, mac_set, txqlen, master) = (65536, Some([0; 6]), false, 1000, None);
        let (host_index, up, was_up, group, alias) = (None, false, false, 0, None);
        Self { config, host_index, mtu, mac, mac_set, up, was_up, addresses, group, alias, txqlen, master, qdisc: None }
    }

    /// Whether the link equals `lo` in its initial state, apart from addresses.
    pub(super) fn is_as_it_was(&self) -> bool {
        let Self { group, alias, txqlen, up, .. } = self;
        let new = Self::loopback();
        (*up, *group, alias, *txqlen) == (new.up, new.group, &new.alias, new.txqlen)
    }

    /// Interface index of the link `id`.
    pub(super) fn ifindex(&self, id: u32) -> IfIndex {
        self.host_index.map_or(IfIndex::own(PortId(id)), IfIndex)
    }

    /// Whether the link is `lo`.
    pub(super) fn is_loopback(&self) -> bool {
        self.config.kind == LinkKind::Loopback
    }

    /// Queueing discipline for `tc`; `None` for a link that was never up (`noop`).
    pub(super) fn shown_qdisc(&self) -> Option<LinkQdisc> {
        self.qdisc.or(self.was_up.then_some(LinkQdisc::NOQUEUE))
    }

    /// Number of transmit queues of the configuration; 1 if the interface has them.
    pub(super) fn queues(&self) -> u32 {
        self.config.kind.driver().and_then(DriverKind::queues).map_or(1, u32::from)
    }

    /// Whether the link is the device of a VRF.
    pub(super) fn is_vrf(&self) -> bool {
        matches!(self.config.kind, LinkKind::Vrf { .. })
    }

    /// Whether the link is the device of a bridge.
    pub(super) fn is_bridge(&self) -> bool {
        matches!(self.config.kind, LinkKind::Bridge(_))
    }

    /// Name of a VLAN device's lower link, and the VLAN.
    pub(super) fn vlan(&self) -> Option<(&str, u16)> {
        match &self.config.kind {
            LinkKind::Vlan { link, id } => Some((link, *id)),
            _ => None,
        }
    }

    /// Whether the link never carries packets: `lo` and the devices of VRFs.
    pub(super) fn is_virtual(&self) -> bool {
        self.is_loopback() || self.is_vrf()
    }

    /// Table of the VRF whose device or member the link is (Linux `l3mdev_fib_table`).
    pub(super) fn l3_table(&self) -> Option<u32> {
        match self.config.kind {
            LinkKind::Vrf { table } => Some(table),
            _ => self.master.and_then(|master| master.table),
        }
    }

    /// Configuration that would create the link again, without its master.
    pub(super) fn to_config(&self) -> LinkConfig {
        let bound = self.config.bound_address();
        let addresses = self.addresses.iter().map(|address| address.addr).filter(|addr| Some(*addr) != bound);
        LinkConfig { addresses: addresses.collect(), ..self.config.clone() }
    }

    /// `IFF_*` flags of the link.
    pub fn flags(&self, running: bool) -> u32 {
        let kind = match &self.config.kind {
            LinkKind::Loopback => IFF_LOOPBACK,
            LinkKind::Vrf { .. } => IFF_NOARP | IFF_MASTER,
            kind if kind.is_ethernet() => IFF_BROADCAST | IFF_MULTICAST,
            kind if kind.is_tun() => IFF_POINTOPOINT | IFF_NOARP | IFF_MULTICAST,
            _ => IFF_POINTOPOINT | IFF_NOARP,
        };
        match (self.up, running) {
            (true, true) => kind | IFF_UP | IFF_RUNNING | IFF_LOWER_UP,
            (true, false) => kind | IFF_UP,
            (false, _) => kind,
        }
    }
}
