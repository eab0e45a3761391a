//! Typed configuration of a node.
//!
//! A [`Config`] is plain data. [`Config::from_toml`] validates the whole file, so code that applies a `Config` does not
//! validate again: names are unique, links of routes exist, keys have their algorithm's length.

use std::net::{IpAddr, SocketAddr};

use base::{IfAddr, Prefix, ShardCount, TableId};
use driver::{DriverKind, Resource};
use xfrm::{PolicyConfig, SaConfig};

use crate::features::FeatureSet;

pub use crate::bridge::{BridgeConfig, BridgePort};
pub use crate::device::{DeviceConfig, DeviceRoute};
pub use ila::{AdjTransport, CsumMode, HookType, IdentType, Identifier, Locator, RouteEncap};

/// Configuration of a node. The default is a node without links.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Config {
    /// Links, in the order of their numbers.
    pub links: Vec<LinkConfig>,
    /// Addresses of `lo`, which every node has. With an address `lo` is up.
    pub lo: Vec<IfAddr>,
    /// Static routes, in addition to the connected routes of links.
    pub routes: Vec<RouteConfig>,
    /// Security associations of both directions.
    pub sas: Vec<SaConfig>,
    /// Security policies.
    pub policies: Vec<PolicyConfig>,
    /// Names of the tunnels that these links, routes, SAs and policies are of. Nothing but what is shown depends on them.
    pub tunnels: Vec<TunnelName>,
    /// Default action on packets without a policy.
    pub policy_default: PolicyDefault,
    /// Settings of all SAs.
    pub xfrm: XfrmOptions,
    /// Settings of the packet workers.
    pub worker: WorkerConfig,
    /// Crypto threads.
    pub crypto: CryptoConfig,
    /// Fragment reassembly.
    pub reassembly: ReassemblyConfig,
    /// Host side: the node's own network namespace.
    pub host: HostConfig,
    /// Limits of memory and of tables.
    pub limits: LimitsConfig,
    /// ILA mappings.
    pub ila: Vec<IlaConfig>,
    /// Sign of ILA's checksum mode `adj-transport`.
    pub ila_adj_transport: AdjTransport,
    /// Treatment of the destination quoted in an ICMPv6 error.
    pub ila_icmp_errors: IlaErrors,
}

/// Name of a `[[tunnel]]`, with its outer addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TunnelName {
    /// Name.
    pub name: String,
    /// Address of this end.
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: IpAddr,
}

/// Treatment of ICMPv6 errors for packets that a route of this node has translated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum IlaErrors {
    /// The quoted destination is translated back, so that the error reaches the socket that sent the packet.
    #[default]
    Restored,
    /// The quoted destination stays translated, as in Linux.
    Linux,
}

/// ILA mapping.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct IlaConfig {
    /// Locator of translated destinations.
    pub locator_match: Locator,
    /// Identifier of the translated destination; all of the locator if `None`.
    pub identifier: Option<Identifier>,
    /// New locator of the destinations.
    pub locator: Locator,
    /// Name of the packets' input link or VRF; any if `None`.
    pub dev: Option<String>,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Type of the identifiers, for display only.
    pub ident_type: IdentType,
}

/// Host side: the node's own network namespace, with a kernel device for each link, for programs' sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HostConfig {
    /// Whether the namespace is created.
    pub side: HostSide,
    /// Maximum number of devices, 1 to [`MAX_LINKS`](Self::MAX_LINKS); further links have no device.
    pub max_links: u16,
    /// MTU of the devices.
    pub mtu: HostMtu,
}

impl HostConfig {
    /// Maximum of `max_links`. The kernel takes 16 ms to close a TUN or TAP device.
    pub const MAX_LINKS: u16 = 256;
}

impl Default for HostConfig {
    fn default() -> Self {
        Self { side: HostSide::default(), max_links: Self::MAX_LINKS, mtu: HostMtu::default() }
    }
}

/// Whether a node has its own network namespace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostSide {
    /// The namespace is created if possible.
    #[default]
    Auto,
    /// No namespace is created.
    Off,
}

/// MTU of the devices in the namespace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostMtu {
    /// Maximum MTU of the device, so that large datagrams pass unfragmented.
    #[default]
    Largest,
    /// MTU of the link.
    Link,
}

/// Limits of memory and of tables.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LimitsConfig {
    /// Most memory of the gateway in bytes; nine tenths of the system's limits if `None`.
    pub memory: Option<u64>,
    /// Limits of tables.
    pub tables: TableLimits,
}

/// Numbers of entries above which requests that add an entry are refused; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TableLimits {
    /// Routes of all tables, with those of addresses.
    pub routes: u32,
    /// SAs.
    pub sas: u32,
    /// Policies.
    pub policies: u32,
    /// Neighbours that requests have added.
    pub neighbours: u32,
    /// ILA mappings.
    pub mappings: u32,
}

impl TableLimits {
    /// Refusal of an entry more for a table of `used` entries, whose limit is `limit` and whose name is `table`.
    ///
    /// # Errors
    /// The text of the refusal.
    pub fn admit(limit: u32, used: usize, table: &str) -> Result<(), String> {
        if limit != 0 && used >= limit as usize {
            return Err(format!("limit of {limit} {table} of [limits]"));
        }
        Ok(())
    }
}

impl Config {
    /// Feature of the configuration that several workers cannot have.
    pub fn feature_of_one_worker(&self) -> Option<&'static str> {
        let features = [
            (self.links.iter().any(|link| link.esp_offload.is_some()), "`esp-offload`"),
            (self.crypto.workers > 0, "threads of `[crypto]`"),
        ];
        features.into_iter().find(|(is_there, _)| *is_there).map(|(_, name)| name)
    }
}

/// Settings of the packet workers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WorkerConfig {
    /// Number of workers.
    pub count: ShardCount,
    /// Whether the number was chosen by the CPUs that the process might use when the file was read.
    pub is_auto: bool,
    /// CPUs that the workers are bound to, one for each; any permitted CPU if empty.
    pub cpus: Vec<u16>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self { count: ShardCount::ONE, is_auto: false, cpus: Vec::new() }
    }
}

/// Threads that encrypt and decrypt ESP packets (Linux `pcrypt`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CryptoConfig {
    /// Number of crypto threads; with 0 the worker encrypts and decrypts inline.
    pub workers: u16,
    /// CPUs that the threads are bound to, in order; any if empty.
    pub cpus: Vec<u16>,
}

/// Settings of fragment reassembly. The defaults are Linux's, except for the eviction policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReassemblyConfig {
    /// Eviction policy when the reassembly memory is full.
    pub policy: Eviction,
    /// Treatment of the receive pages with fragments.
    pub coalesce: Coalesce,
    /// IPv4.
    pub v4: FragLimits,
    /// IPv6.
    pub v6: FragLimits,
    /// Maximum number of fragments from an IPv4 source between two of one datagram (`ipfrag_max_dist`); 0 for no limit.
    pub max_distance: u32,
}

/// Reassembly limits of one address family: memory and time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FragLimits {
    /// Memory limit in bytes (`ipfrag_high_thresh`); 0 drops every fragment.
    pub high_thresh: u64,
    /// `ipfrag_low_thresh`, at most `high_thresh`. Stored and shown, but without effect, as in Linux since 4.17.
    pub low_thresh: u64,
    /// Time in seconds from the first received fragment until the datagram is dropped (`ipfrag_time`).
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

/// Treatment of the receive pages with fragments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Coalesce {
    /// Moves the pages into the frags of the reassembled packet, without a copy.
    #[default]
    Move,
    /// Copies each fragment and returns its page to the pool at once.
    Copy,
    /// Keeps each fragment as a separate packet until the datagram is complete.
    Off,
}

impl Default for ReassemblyConfig {
    fn default() -> Self {
        let limits = |timeout_secs| FragLimits { high_thresh: 4 << 20, low_thresh: 3 << 20, timeout_secs };
        let (policy, coalesce) = (Eviction::default(), Coalesce::default());
        Self { policy, coalesce, v4: limits(30), v6: limits(60), max_distance: 64 }
    }
}

/// Link of the node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkConfig {
    /// Name: 1 to 15 bytes, as Linux's `IFNAMSIZ` allows.
    pub name: String,
    /// Driver or virtual device, with its settings.
    pub kind: LinkKind,
    /// Layer-3 MTU in bytes; `None` for the default of the link's kind: the interface's MTU for `packet` and `xdp`,
    /// 1500 for other kinds.
    pub mtu: Option<u16>,
    /// This node's own addresses on the link, without the address that the socket of a UDP link is bound to.
    pub addresses: Vec<IfAddr>,
    /// Host's side of the device of a TUN or TAP link.
    pub device: DeviceConfig,
    /// Whether IKE messages are delivered to a key manager. On a UDP link they are the datagrams with a non-ESP marker;
    /// on a packet or XDP link, datagrams to ports 500 and 4500 of this node's addresses.
    pub ike: bool,
    /// Whether the MSS of forwarded SYNs from or to the link is clamped to the path MTU.
    pub clamp_mss: bool,
    /// Whether fragmented datagrams to the host behind a TUN link are reassembled before they are forwarded.
    pub defrag: bool,
    /// Whether offloads are used; false disables all, and sends and receives one packet at a time.
    pub offloads: bool,
    /// Initial value of the feature [`FeatureSet::ESP_GRO`]: ESP may be decrypted before IP input. A client can switch
    /// it.
    pub esp_gro: bool,
    /// Device that encrypts and decrypts the packets of SAs that are offloaded to the link; `None` if it has none.
    pub esp_offload: Option<EspOffload>,
    /// Requested features, among those that can be switched while the link is open (Linux `wanted_features`). A
    /// configuration file does not set them.
    pub features: FeatureSet,
    /// VRF or bridge of the link, by the name of its device.
    pub master: Option<String>,
    /// Settings of a port of a bridge, or of a bridge's device.
    pub port: Option<Box<BridgePort>>,
    /// Queueing discipline; without one, packets are queued in the device only.
    pub qdisc: Option<qdisc::Options>,
}

/// Device of a link that offloads ESP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EspOffload {
    /// Software does the work of the device.
    Software,
}

/// Kind of a link: with a driver, or virtual.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkKind {
    /// `lo`, which exists on every node: it has addresses, and carries no packets.
    Loopback,
    /// Device of a VRF, with the links as members whose `master` it is: it has addresses, and carries no packets.
    Vrf {
        /// Routing table of the VRF.
        table: u32,
    },
    /// Bridge, with the links as ports whose `master` it is. The link is the bridge's device, with addresses.
    Bridge(BridgeConfig),
    /// VLAN device: the frames of one VLAN of another link (Linux `net/8021q`).
    Vlan {
        /// Name of the lower link.
        link: String,
        /// VLAN, 1 to 4094.
        id: u16,
    },
    /// Link with a driver.
    Driver(DriverKind),
}

impl LinkKind {
    /// Settings of the link's driver; `None` for a virtual link.
    pub const fn driver(&self) -> Option<&DriverKind> {
        match self {
            Self::Driver(kind) => Some(kind),
            Self::Loopback | Self::Vrf { .. } | Self::Bridge(_) | Self::Vlan { .. } => None,
        }
    }

    /// Part of the host that the link is on; `None` for a virtual link.
    pub fn resource(&self) -> Option<Resource<'_>> {
        self.driver().map(DriverKind::resource)
    }

    /// Whether the link has a TUN or TAP device of its own.
    pub fn is_tun(&self) -> bool {
        self.resource() == Some(Resource::Device)
    }

    /// Address and port of the link's UDP socket.
    pub fn bind(&self) -> Option<SocketAddr> {
        match self.resource() {
            Some(Resource::UdpSocket(bind)) => Some(bind),
            _ => None,
        }
    }

    /// Path of a vhost-user socket.
    pub fn socket(&self) -> Option<&str> {
        match self.resource() {
            Some(Resource::VhostSocket(path)) => Some(path),
            _ => None,
        }
    }

    /// Whether the link's packets begin with an Ethernet header.
    pub const fn is_ethernet(&self) -> bool {
        match self {
            Self::Bridge(_) | Self::Vlan { .. } => true,
            Self::Loopback | Self::Vrf { .. } => false,
            Self::Driver(kind) => kind.is_ethernet(),
        }
    }

    /// Underlying interface of this host.
    pub fn interface(&self) -> Option<&str> {
        match self.resource() {
            Some(Resource::Interface(name)) => Some(name),
            _ => None,
        }
    }

    /// Keyword in a configuration and in `fatpath show links`.
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

/// Default action on packets without a policy, by direction: `ip xfrm policy setdefault`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PolicyDefault {
    /// Whether packets to this node are dropped.
    pub block_in: bool,
    /// Whether packets from this node are dropped.
    pub block_out: bool,
    /// Whether forwarded packets are dropped.
    pub block_fwd: bool,
}

/// Settings of all SAs: Linux's `net.core.xfrm_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct XfrmOptions {
    /// Whether packets without their SA are dropped instead of waiting for it.
    pub larval_drop: bool,
    /// Lifetime in seconds of a larval SA, which a key manager has to complete.
    pub acq_expires: u32,
    /// Packet threshold for notifications of an SA's sequence numbers; 0 for never.
    pub aevent_rseqth: u32,
    /// Timer for notifications of an SA's sequence numbers, in tenths of a second; 0 for never.
    pub aevent_etime: u32,
}

/// Static route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RouteConfig {
    /// Destinations.
    pub to: Prefix,
    /// Action on packets that match the route.
    pub action: RouteAction,
    /// Metric; among routes to one prefix the smallest wins.
    pub metric: u32,
    /// Routing table.
    pub table: TableId,
    /// Preferred source of the node's own packets: one of its addresses (Linux `RTA_PREFSRC`).
    pub src: Option<IpAddr>,
    /// ILA translation of destinations, for an IPv6 unicast route.
    pub encap: Option<RouteEncap>,
}

/// Action of a route on a packet: Linux's `RTN_*` types.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RouteAction {
    /// Forwards the packet.
    Unicast {
        /// Gateway; the destination itself if `None`.
        via: Option<IpAddr>,
        /// Name of the output link.
        dev: String,
    },
    /// Drops the packet silently.
    Blackhole,
    /// Drops the packet with the error *host unreachable*.
    Unreachable,
    /// Drops the packet with the error *administratively prohibited*.
    Prohibit,
}

impl Default for XfrmOptions {
    fn default() -> Self {
        Self { larval_drop: true, acq_expires: 30, aevent_rseqth: 2, aevent_etime: 10 }
    }
}

impl LinkConfig {
    /// Initial requested features; a client can switch them.
    pub const fn first_features(&self) -> FeatureSet {
        FeatureSet::initial(self.offloads, self.esp_gro)
    }

    /// Address of a UDP link's socket.
    pub fn bound_address(&self) -> Option<IfAddr> {
        self.kind.bind().map(|bind| IfAddr::host(bind.ip()))
    }

    /// Addresses of the node on this link, including that of a UDP link's socket.
    pub fn own_addresses(&self) -> impl Iterator<Item = IfAddr> + '_ {
        self.bound_address().into_iter().chain(self.addresses.iter().copied())
    }
}
