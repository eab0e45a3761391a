//! The typed model: what a node can be told to be.
//!
//! A [`Config`] is plain data in the standard library's types. Whoever builds one ([`Config::from_toml`] today)
//! checks it as a whole, so whoever applies one need not: names are unique, routes lead to links that exist, keys
//! have their algorithm's length.

use std::fmt;
use std::net::IpAddr;

use base::{IfAddr, Prefix, TableId};
use driver::DriverKind;
use serde::{Deserialize, Serialize};

use crate::features::FeatureSet;
use crate::protocols::PROTOCOLS;

pub use crate::algorithm::{Aead, Algorithm, Auth, AuthConfig, Enc};
pub use crate::bridge::{BridgeConfig, BridgePort};
pub use crate::key::Key;
pub use crate::xfrm::{Bounds, Limit, Mark, PolicyDefault, XfrmOptions};
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
    /// What becomes of packets that none of them is for.
    pub policy_default: PolicyDefault,
    /// What holds for all SAs.
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

/// An ESP security association (RFC 4301 §4.4.2), for one direction.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SaConfig {
    /// The outer source.
    pub src: IpAddr,
    /// The outer destination, of the same family.
    pub dst: IpAddr,
    /// The security parameters index, in host byte order; not 0.
    pub spi: u32,
    /// The only direction in which it may be used; `None` leaves it to its use.
    pub dir: Option<SaDir>,
    /// What is protected: whole packets or their payload.
    pub mode: Mode,
    /// Ties the SA to the templates with the same number; 0 ties it to none in particular.
    pub reqid: u32,
    /// How it protects.
    pub algorithm: Algorithm,
    /// Width of the anti-replay window in packets; 0 checks nothing. At most 4096.
    pub replay_window: u32,
    /// Options that are off unless named.
    pub flags: SaFlags,
    /// The UDP header around ESP, if there is one.
    pub encap: Option<Encap>,
    /// Which inner packets may use it; `None` lets any of its own family, or of both with the flag `af-unspec`.
    pub selector: Option<Selector>,
    /// The highest sequence number that counts as received when the SA is added.
    pub seq: u64,
    /// The last sequence number that counts as sent when it is added.
    pub oseq: u64,
    /// Which marked packets it is for; `None` is all.
    pub mark: Option<Mark>,
    /// What its packets are marked with.
    pub output_mark: Option<Mark>,
    /// The number of the XFRM interface that it is for; 0 for none.
    pub if_id: u32,
    /// When it ends.
    pub limit: Limit,
    /// To how many bytes inner packets are padded, if the path takes so many; 0 pads none.
    pub tfcpad: u32,
    /// What it does about a NAT.
    pub nat: NatTraversal,
}

/// What an SA with a UDP header does about the NAT that it is for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NatTraversal {
    /// Seconds without a packet after which a keepalive is sent; 0 for never.
    pub keepalive_interval: u32,
    /// Seconds after which it is told again that the peer sends from elsewhere; 0 tells each new place once.
    pub mapping_threshold: u32,
    /// Whether the tunnels to the peer follow it.
    pub follow: bool,
}

/// Which way an SA's packets go: Linux's `XFRM_SA_DIR_*`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SaDir {
    /// They are received and opened: those to the node itself, and those to hosts behind it.
    In,
    /// They are sealed and sent.
    Out,
}

/// RFC 4301's modes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The payload of the packet is protected; its own IP header stays outside.
    Transport,
    /// The whole packet is protected, inside a new IP header.
    Tunnel,
}

macro_rules! sa_flags {
    ($($(#[$doc:meta])* $field:ident $name:literal,)*) => {
        /// Options of an SA, by the names that `ip xfrm state … flag` gives them.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct SaFlags { $($(#[$doc])* pub $field: bool,)* }

        impl SaFlags {
            /// Every name, in iproute2's order.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Switches the flag of that name on. False if there is none.
            pub fn set(&mut self, name: &str) -> bool {
                match name {
                    $($name => self.$field = true,)*
                    _ => return false,
                }
                true
            }

            /// The names of the flags that are on.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$(self.$field.then_some($name),)*].into_iter().flatten()
            }
        }
    };
}

sa_flags! {
    /// Congestion marks are not carried between the outer and the inner header (RFC 6040).
    noecn "noecn",
    /// The outer DSCP is copied to the inner header on the way in.
    decap_dscp "decap-dscp",
    /// The outer IPv4 header does not carry Don't Fragment.
    nopmtudisc "nopmtudisc",
    /// It is received by alone: no template finds it.
    wildrecv "wildrecv",
    /// An ICMP error comes through it also if only the packet that it quotes is one of the selector's.
    icmp "icmp",
    /// Without a selector it takes both families, and not only that of its own addresses.
    af_unspec "af-unspec",
    /// 64-bit sequence numbers (RFC 4303 §2.2.1).
    esn "esn",
    /// The inner DSCP is not copied to the outer header on the way out.
    dont_encap_dscp "dont-encap-dscp",
    /// 32-bit sequence numbers may start over instead of ending the SA.
    oseq_may_wrap "oseq-may-wrap",
}

/// A UDP header around ESP (RFC 3948): `espinudp`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Encap {
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
}

/// Which packets a policy or an SA is for (RFC 4301 §4.4.1.1).
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct Selector {
    /// Their sources.
    #[serde(with = "crate::serde_display")]
    pub src: Prefix,
    /// Their destinations, of the same family.
    #[serde(with = "crate::serde_display")]
    pub dst: Prefix,
    /// Their IP protocol; any if `None`.
    pub proto: Option<u8>,
    /// Their source port; any if `None`. Only with a protocol that has ports.
    pub sport: Option<u16>,
    /// Their destination port.
    pub dport: Option<u16>,
}

impl fmt::Display for Selector {
    /// With a blank at its end, as iproute2's `xfrm_selector_print` leaves it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src {} dst {} ", self.src, self.dst)?;
        if let Some(proto) = self.proto {
            match PROTOCOLS.iter().find(|&&(_, number)| number == proto) {
                Some((name, _)) => write!(f, "proto {name} ")?,
                None => write!(f, "proto {proto} ")?,
            }
        }
        for (word, port) in [("sport", self.sport), ("dport", self.dport)] {
            if let Some(port) = port {
                write!(f, "{word} {port} ")?;
            }
        }
        Ok(())
    }
}

/// A security policy (RFC 4301 §4.4.1).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyConfig {
    /// Which way the packets go.
    pub dir: Dir,
    /// Which packets it is for.
    pub selector: Selector,
    /// The smallest wins.
    pub priority: u32,
    /// What becomes of them.
    pub action: PolicyAction,
    /// The SAs that they need, the innermost first. None: they pass in clear.
    pub templates: Vec<Template>,
    /// Which marked packets it is for; `None` is all.
    pub mark: Option<Mark>,
    /// The number of the XFRM interface that it is for; 0 for none.
    pub if_id: u32,
    /// When it ends.
    pub limit: Limit,
}

/// Which way a policy's packets go: Linux's `XFRM_POLICY_*`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dir {
    /// To this node.
    In,
    /// Out of this node, forwarded or its own.
    Out,
    /// Through this node, judged as they came in.
    Fwd,
}

/// What a policy says of its packets.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyAction {
    /// They pass, protected as the templates say.
    Allow,
    /// They are dropped.
    Block,
}

/// One ESP SA that a policy asks for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Template {
    /// The outer source. `None`, in transport mode: the packet's own.
    pub src: Option<IpAddr>,
    /// The outer destination. `None`, in transport mode: the packet's own.
    pub dst: Option<IpAddr>,
    /// The SA's mode.
    pub mode: Mode,
    /// The SA's `reqid`; 0 is any.
    pub reqid: u32,
    /// Whether packets may go without.
    pub level: Level,
}

/// Whether a template's SA has to be there.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Without it the packet is dropped.
    Required,
    /// Without it the packet passes.
    Use,
}

macro_rules! words {
    ($($type:ident { $($variant:ident $word:literal,)* })*) => {$(
        impl $type {
            /// Every value, by iproute2's word for it.
            pub const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant),)*];

            /// iproute2's word.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}

words! {
    SaDir { In "in", Out "out", }
    Mode { Transport "transport", Tunnel "tunnel", }
    Dir { In "in", Out "out", Fwd "fwd", }
    PolicyAction { Allow "allow", Block "block", }
    Level { Required "required", Use "use", }
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
