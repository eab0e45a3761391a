//! Typed configuration of a node.
//!
//! A [`Config`] is plain data. [`Config::from_toml`] validates the whole file, so code that applies a `Config` need not: names
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
    /// Crypto threads.
    pub crypto: CryptoConfig,
    /// Fragment reassembly.
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
    /// The quoted destination is translated back, so that the error matches the socket that sent the packet.
    #[default]
    Restored,
    /// The quoted destination stays translated, as in Linux.
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

/// Threads that encrypt and decrypt ESP packets (Linux `pcrypt`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CryptoConfig {
    /// Number of crypto threads; with 0 the worker encrypts and decrypts inline.
    pub workers: u16,
    /// The CPUs that the threads are bound to, one after the other; any if empty.
    pub cpus: Vec<u16>,
}

/// Reassembly of fragments for this node. The defaults are Linux's, except for the eviction policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReassemblyConfig {
    /// Eviction policy when the reassembly memory is full.
    pub policy: Eviction,
    /// Treatment of the receive pages that hold fragments.
    pub coalesce: Coalesce,
    /// IPv4.
    pub v4: FragLimits,
    /// IPv6.
    pub v6: FragLimits,
    /// Fragments that an IPv4 source may send between two of one datagram (`ipfrag_max_dist`); 0 is without limit.
    pub max_distance: u32,
}

/// Reassembly limits of one address family: memory and time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FragLimits {
    /// Memory limit in bytes (`ipfrag_high_thresh`); 0 drops every fragment.
    pub high_thresh: u64,
    /// `ipfrag_low_thresh`, at most `high_thresh`. Stored and shown, but without effect, as in Linux since 4.17.
    pub low_thresh: u64,
    /// Time in seconds from the first fragment that arrives until the datagram is dropped (`ipfrag_time`).
    pub timeout_secs: u32,
}

/// Eviction policy when the reassembly memory is full.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Eviction {
    /// Evicts the datagram that is least likely to be completed.
    #[default]
    Fair,
    /// Evicts nothing: new fragments are dropped until datagrams time out.
    Linux,
}

/// Treatment of the receive pages that hold fragments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Coalesce {
    /// Moves the pages into the frags of the reassembled packet, without a copy.
    #[default]
    Move,
    /// Copies each fragment and returns its page to the pool at once.
    Copy,
    /// Keeps each fragment as a packet of its own until the datagram is complete.
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
    /// Name: 1 to 15 bytes, as Linux's `IFNAMSIZ` allows.
    pub name: String,
    /// Driver or virtual device, with its settings.
    pub kind: LinkKind,
    /// Layer-3 MTU in bytes; `None` is the default of the link's kind: the interface's MTU for `packet` and `xdp`, 1500 for the
    /// other kinds.
    pub mtu: Option<u16>,
    /// This node's own addresses on the link, without the address that the socket of a UDP link is bound to.
    pub addresses: Vec<IfAddr>,
    /// Whether IKE messages are delivered to a key manager. On a UDP link these are the datagrams with a non-ESP marker; on a
    /// packet or XDP link, datagrams to ports 500 and 4500 of this node's addresses.
    pub ike: bool,
    /// Whether the MSS of SYNs that are forwarded from or to the link is clamped to the path MTU.
    pub clamp_mss: bool,
    /// Whether fragmented datagrams that are forwarded to the host behind a TUN link are reassembled first.
    pub defrag: bool,
    /// False switches every offload off, and sends and receives one packet at a time.
    pub offloads: bool,
    /// Whether ESP may be decrypted before IP input, unless a client switches it.
    pub esp_gro: bool,
    /// Requested features, among those that can be switched while the link is open (Linux `wanted_features`). A file
    /// does not set them.
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
    /// Lifetime in seconds of a larval SA, which waits for a key manager.
    pub acq_expires: u32,
    /// Packets after which an SA's sequence numbers are reported to netlink listeners; 0 for never.
    pub aevent_rseqth: u32,
    /// Tenths of a second after which an SA's sequence numbers are reported again; 0 for never.
    pub aevent_etime: u32,
}

/// A static route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RouteConfig {
    /// The destinations.
    pub to: Prefix,
    /// Action on packets that match the route.
    pub action: RouteAction,
    /// Metric; among routes to one prefix the smallest wins.
    pub metric: u32,
    /// The table that it stands in.
    pub table: TableId,
    /// The ILA translation of destinations, for a unicast route of IPv6.
    pub encap: Option<RouteEncap>,
}

/// Action of a route on a packet: Linux's `RTN_*` types.
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
    /// Requested features until a client switches them.
    pub const fn first_features(&self) -> FeatureSet {
        FeatureSet::initial(self.offloads, self.esp_gro)
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
