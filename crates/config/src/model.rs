//! The typed model: what a node can be told to be.
//!
//! A [`Config`] is plain data. Its reader ([`Config::from_toml`]) checks it as a whole, so code that applies it need not: names
//! are unique, routes lead to links that exist, keys have their algorithm's length.

use std::net::IpAddr;

use base::{IfAddr, Prefix, TableId};
use driver::DriverKind;
use xfrm::{PolicyConfig, SaConfig};

use crate::features::FeatureSet;

pub use crate::bridge::{BridgeConfig, BridgePort};
pub use ila::{AdjTransport, CsumMode, HookType, IdentType, Locator, RouteEncap};

/// Everything a node is configured with. The empty one is a node without links.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Config {
    /// The links, in the order of their numbers.
    pub links: Vec<LinkConfig>,
    /// Routes beyond those that the links' own addresses make.
    pub routes: Vec<RouteConfig>,
    /// Security associations, of both directions.
    pub sas: Vec<SaConfig>,
    /// Security policies.
    pub policies: Vec<PolicyConfig>,
    /// Default action on packets that no policy is for.
    pub policy_default: PolicyDefault,
    /// Settings of all SAs.
    pub xfrm: XfrmOptions,
    /// The thread that moves packets.
    pub worker: WorkerConfig,
    /// Who does the ciphers' work.
    pub crypto: CryptoConfig,
    /// How fragments wait for each other.
    pub reassembly: ReassemblyConfig,
    /// The network namespace of the node's own.
    pub host: HostConfig,
    /// ILA's mappings.
    pub ila: Vec<IlaConfig>,
    /// Sign of ILA's checksum mode `adj-transport`.
    pub ila_adj_transport: AdjTransport,
    /// Treatment of the destination that an ICMPv6 error quotes.
    pub ila_icmp_errors: IlaErrors,
}

/// Treatment of ICMPv6 errors about packets that a route of this node has translated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum IlaErrors {
    /// The quoted destination is translated back, so that sockets know their packet.
    #[default]
    Restored,
    /// They stay as they are, as in Linux.
    Linux,
}

/// An ILA mapping.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct IlaConfig {
    /// Locator of the destinations that are translated.
    pub locator_match: Locator,
    /// Locator that they get.
    pub locator: Locator,
    /// Name of the link or VRF that the packets come by; any without.
    pub dev: Option<String>,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Type of the identifiers, which is shown and has no effect.
    pub ident_type: IdentType,
}

/// The network namespace of the node's own, in which each link is a device of the kernel's, for programs' sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HostConfig {
    /// Whether it is made.
    pub side: HostSide,
    /// The most devices, 1 to [`MAX_LINKS`](Self::MAX_LINKS); links above that have none.
    pub max_links: u16,
    /// The MTU of the devices.
    pub mtu: HostMtu,
}

impl HostConfig {
    /// The largest `max_links`. The kernel takes 16 ms to close a TUN or TAP device.
    pub const MAX_LINKS: u16 = 256;
}

impl Default for HostConfig {
    fn default() -> Self {
        Self { side: HostSide::default(), max_links: Self::MAX_LINKS, mtu: HostMtu::default() }
    }
}

/// Whether a node has a network namespace of its own.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostSide {
    /// One is made if that is possible.
    #[default]
    Auto,
    /// None is made.
    Off,
}

/// MTU of the devices in the namespace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostMtu {
    /// The largest that the device can have, so that large datagrams cross it whole.
    #[default]
    Largest,
    /// The link's.
    Link,
}

/// The thread that moves packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WorkerConfig {
    /// The CPU that it is bound to; any that the process may use without.
    pub cpu: Option<u16>,
}

/// Who does the ciphers' work (Linux `pcrypt`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CryptoConfig {
    /// Threads beside the worker that moves packets; 0 leaves all of it to that.
    pub workers: u16,
    /// The CPUs that the threads are bound to, one after the other; any if empty.
    pub cpus: Vec<u16>,
}

/// How fragments for this node wait for each other. The defaults are Linux's, but for the policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReassemblyConfig {
    /// What happens when memory is full.
    pub policy: Eviction,
    /// What happens to the pages that fragments came in.
    pub coalesce: Coalesce,
    /// IPv4.
    pub v4: FragLimits,
    /// IPv6.
    pub v6: FragLimits,
    /// Fragments that an IPv4 source may send between two of one datagram (`ipfrag_max_dist`); 0 is without limit.
    pub max_distance: u32,
}

/// What may wait of one family, and how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FragLimits {
    /// Memory in bytes (`ipfrag_high_thresh`); 0 takes nothing.
    pub high_thresh: u64,
    /// At most as much (`ipfrag_low_thresh`), which is kept for those who set it and has no effect, as in Linux since 4.17.
    pub low_thresh: u64,
    /// How long a datagram may take from the fragment that comes first (`ipfrag_time`).
    pub timeout_secs: u32,
}

/// Who makes room when the memory for fragments is full.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Eviction {
    /// The datagram that is least likely to become whole.
    #[default]
    Fair,
    /// Nobody, until datagrams time out.
    Linux,
}

/// What happens to the pages that fragments came in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Coalesce {
    /// They become slots of one packet.
    #[default]
    Move,
    /// They go home at once: fragments are copied.
    Copy,
    /// They wait, each fragment a packet of its own.
    Off,
}

impl Default for ReassemblyConfig {
    fn default() -> Self {
        let limits = |timeout_secs| FragLimits { high_thresh: 4 << 20, low_thresh: 3 << 20, timeout_secs };
        let (policy, coalesce) = (Eviction::default(), Coalesce::default());
        Self { policy, coalesce, v4: limits(30), v6: limits(60), max_distance: 64 }
    }
}

/// A link of the node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkConfig {
    /// Its name: 1 to 15 bytes, as Linux's `IFNAMSIZ` allows.
    pub name: String,
    /// What moves its bytes.
    pub kind: LinkKind,
    /// Its layer-3 MTU in bytes; `None` is the kind's own: the interface's for `packet` and `xdp`, 1500 for the
    /// others.
    pub mtu: Option<u16>,
    /// This node's own addresses on the link. That of a UDP link is where it is bound, and is not repeated here.
    pub addresses: Vec<IfAddr>,
    /// Whether IKE is for a key manager: of a UDP link what stands on its port behind the non-ESP marker, of a packet or XDP
    /// link what comes to ports 500 and 4500 of this node's addresses.
    pub ike: bool,
    /// Whether the MSS of forwarded SYNs that come or leave by it is lowered to what its paths take.
    pub clamp_mss: bool,
    /// Whether datagrams that are forwarded to the host behind a TUN link go whole.
    pub defrag: bool,
    /// False switches every offload off, and sends and receives one packet at a time.
    pub offloads: bool,
    /// Whether ESP may be decrypted before IP input, unless a client switches it.
    pub esp_gro: bool,
    /// Those that are to be on of the features that can be switched while it is open (Linux `wanted_features`). A file does
    /// not say.
    pub features: FeatureSet,
    /// The VRF or bridge that it belongs to, by the name of its device.
    pub master: Option<String>,
    /// Settings of a port of a bridge, or of a bridge's own port.
    pub port: Option<Box<BridgePort>>,
    /// Queueing discipline; without one, packets wait for nothing but the device.
    pub qdisc: Option<qdisc::Options>,
}

/// Kind of a link: moved by a driver, or by the node itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkKind {
    /// `lo`, which every node has by itself: it has addresses, and no packet passes by it.
    Loopback,
    /// The device of a VRF, which the links that name it as their `master` belong to: it has addresses, and no packet passes
    /// by it.
    Vrf {
        /// The routing table of these links.
        table: u32,
    },
    /// A bridge, whose ports are the links that name it as their `master`. The link is the bridge's own port: it has addresses.
    Bridge(BridgeConfig),
    /// The frames of one VLAN of another link (Linux `net/8021q`).
    Vlan {
        /// The link below, by its name.
        link: String,
        /// The VLAN, 1 to 4094.
        id: u16,
    },
    /// A link that a driver moves packets of.
    Driver(DriverKind),
}

impl LinkKind {
    /// Settings of the link's driver; `None` for a link of the node itself.
    pub const fn driver(&self) -> Option<&DriverKind> {
        match self {
            Self::Driver(kind) => Some(kind),
            Self::Loopback | Self::Vrf { .. } | Self::Bridge(_) | Self::Vlan { .. } => None,
        }
    }

    /// Socket of vhost-user.
    pub fn socket(&self) -> Option<&str> {
        self.driver()?.socket()
    }

    /// Whether its packets begin with an Ethernet header.
    pub const fn is_ethernet(&self) -> bool {
        match self {
            Self::Bridge(_) | Self::Vlan { .. } => true,
            Self::Loopback | Self::Vrf { .. } => false,
            Self::Driver(kind) => kind.is_ethernet(),
        }
    }

    /// The interface of this host that it stands on.
    pub fn interface(&self) -> Option<&str> {
        self.driver()?.interface()
    }

    /// The word for it in a configuration and in `fatpath show links`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Vrf { .. } => "vrf",
            Self::Bridge(_) => "bridge",
            Self::Vlan { .. } => "vlan",
            Self::Driver(kind) => kind.word(),
        }
    }
}

/// Default action on packets that no policy is for, by direction: `ip xfrm policy setdefault`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PolicyDefault {
    /// Whether those to this node are dropped.
    pub block_in: bool,
    /// Whether those out of it are dropped.
    pub block_out: bool,
    /// Whether those through it are dropped.
    pub block_fwd: bool,
}

/// Settings of all SAs: Linux's `net.core.xfrm_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct XfrmOptions {
    /// Packets whose SA is missing are dropped, and do not wait for it.
    pub larval_drop: bool,
    /// Seconds that an SA may take which was asked for.
    pub acq_expires: u32,
    /// Packets after which an SA's numbers are told of; 0 for never.
    pub aevent_rseqth: u32,
    /// Tenths of a second after which they are told of again; 0 for never.
    pub aevent_etime: u32,
}

/// A static route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RouteConfig {
    /// The destinations.
    pub to: Prefix,
    /// What becomes of their packets.
    pub action: RouteAction,
    /// The smallest wins among routes to one prefix.
    pub metric: u32,
    /// The table that it stands in.
    pub table: TableId,
    /// The ILA translation of destinations, for a unicast route of IPv6.
    pub encap: Option<RouteEncap>,
}

/// What a route does with a packet: Linux's `RTN_*` types.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RouteAction {
    /// Send it on.
    Unicast {
        /// To this neighbour; to the destination itself if `None`.
        via: Option<IpAddr>,
        /// By the link of this name.
        dev: String,
    },
    /// Drop it silently.
    Blackhole,
    /// Drop it and answer *host unreachable*.
    Unreachable,
    /// Drop it and answer *administratively prohibited*.
    Prohibit,
}

impl Default for XfrmOptions {
    fn default() -> Self {
        Self { larval_drop: true, acq_expires: 30, aevent_rseqth: 2, aevent_etime: 10 }
    }
}

impl LinkConfig {
    /// Features that are wanted until a client switches them.
    pub const fn first_features(&self) -> FeatureSet {
        FeatureSet::wanted_first(self.offloads, self.esp_gro)
    }

    /// The node's own addresses on this link, that of a UDP link's socket among them.
    pub fn own_addresses(&self) -> impl Iterator<Item = IfAddr> + '_ {
        let bound = match self.kind {
            LinkKind::Driver(DriverKind::Udp { bind }) => Some(IfAddr::host(bind.ip())),
            _ => None,
        };
        bound.into_iter().chain(self.addresses.iter().copied())
    }
}
