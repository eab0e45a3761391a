//! State of a running node for `fatpath show`: plain values of one snapshot, which survive a round trip through JSON.

use std::net::{IpAddr, SocketAddr};

use base::{IfAddr, Prefix};
use serde::{Deserialize, Serialize};

use config::protocols::WITH_PORTS;
use ila::Locator;
use xfrm::{
    Action, Dir, EspInUdp, Level, Lifetime, Limits, Mark, Mode, NatTraversal, PortMask, SaDir, Selector, Template,
};

/// Link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkState {
    /// Interface index, from 1.
    pub index: u32,
    /// Name.
    pub name: String,
    /// `tun`, `tap`, `udp`, `packet`, `xdp` or `vrf`.
    pub kind: String,
    /// Address of the link's socket or name of the underlying host interface, for kinds that have one.
    pub on: Option<String>,
    /// VRF of the link, by the name of its device.
    pub vrf: Option<String>,
    /// Port of a bridge, if the link is one.
    pub port: Option<BridgePortState>,
    /// Other end of a vhost-user link.
    pub guest: Option<GuestState>,
    /// Table of the VRF, if the link is its device.
    pub table: Option<u32>,
    /// Layer-3 MTU in bytes.
    pub mtu: u32,
    /// Whether the link is up.
    pub up: bool,
    /// Reason why the link is down, if known.
    pub why_down: Option<String>,
    /// Link-layer address, if the link has one.
    pub lladdr: Option<String>,
    /// Addresses of this node on the link.
    #[serde(with = "config::serde_display::list")]
    pub addresses: Vec<IfAddr>,
    /// Offloads that the link's kind can have.
    pub offloads: Vec<OffloadState>,
    /// Receive ring of the device, if it has one.
    pub ring: Option<RingState>,
    /// Queueing discipline, if explicitly set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qdisc: Option<QdiscState>,
    /// Packet counters.
    pub stats: LinkStats,
    /// Last errors that the network reported about peers of a UDP link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_errors: Vec<PeerErrorState>,
    /// Linux's counters of IPv6 and ICMPv6 that are per link and not 0.
    #[serde(default)]
    pub ip6: Vec<CounterState>,
}

/// Last error that the network reported about packets to a peer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PeerErrorState {
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// Text of the error, such as `Connection refused` for an ICMP *port unreachable*.
    pub error: String,
    /// Number of errors since the link was opened.
    pub count: u64,
    /// Seconds since the last error.
    pub last_secs: u64,
}

/// Queueing discipline of a link, with the counters of `tc -s qdisc`. Fat packets count as their segments, except in
/// `drops` and `qlen`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct QdiscState {
    /// `pfifo`, `bfifo` or `tbf`.
    pub kind: String,
    /// Sent bytes, counted as on the wire.
    pub bytes: u64,
    /// Sent packets.
    pub packets: u64,
    /// Dropped packets.
    pub drops: u64,
    /// Number of times that a packet waited for tokens.
    pub overlimits: u64,
    /// Queued bytes, counted as on the wire.
    pub backlog: u64,
    /// Queued packets.
    pub qlen: u32,
}

/// Host side: a node's own network namespace.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostState {
    /// `on`; `off` by the configuration; or `failed`.
    pub side: String,
    /// Reason why the namespace could not be created.
    pub why: Option<String>,
    /// File that the namespace is bound to.
    pub namespace: Option<String>,
    /// Whether the namespace is in a user namespace.
    pub user_namespace: bool,
    /// Devices, including missing ones.
    pub devices: Vec<HostDeviceState>,
    /// Number of mirrored addresses.
    pub addresses: u64,
    /// Number of mirrored routes.
    pub routes: u64,
    /// Whether the node has too many routes to mirror, so that default routes replace them.
    pub routes_limited: bool,
    /// Address, route or device that the namespace's kernel refused most recently.
    pub refused: Option<String>,
    /// Number of other programs' changes that were undone.
    pub put_back: u64,
}

/// Device in the node's own network namespace.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostDeviceState {
    /// Name of the device and its link.
    pub name: String,
    /// Number of the device and its link.
    pub index: u32,
    /// `tap`, `tun`, or `veth` in place of either.
    pub kind: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Reason why the device is missing.
    pub why_not: Option<String>,
}

/// Receive ring of an AF_XDP device, with counters summed over all queues. The last six are the kernel's
/// (`struct xdp_statistics`).
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RingState {
    /// `native`: the driver delivers frames; `generic`: the network stack does.
    pub mode: String,
    /// Whether the driver writes directly to the frames.
    pub zero_copy: bool,
    /// Receive queues.
    pub queues: u32,
    /// Receive frames of each queue.
    pub frames: u32,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// Frames that are in use by packets.
    pub held: u64,
    /// Number of times that a queue had no free frame because packets used all of them.
    pub rx_no_buffer: u64,
    /// Packets dropped for other reasons than invalid descriptors, mostly for lack of a frame.
    pub rx_dropped: u64,
    /// Packets dropped because of an invalid descriptor.
    pub rx_invalid_descs: u64,
    /// Packets not sent because of an invalid descriptor.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Number of times that the kernel found the fill ring empty.
    pub rx_fill_ring_empty_descs: u64,
    /// Number of times that the kernel found the transmit ring empty.
    pub tx_ring_empty_descs: u64,
}

/// Offload of a link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct OffloadState {
    /// Name, such as `tso4`.
    pub name: String,
    /// Whether the offload is on.
    pub on: bool,
    /// Reason why the offload is off, or the probe that found it working.
    pub why: Option<String>,
}

/// Packet counters of a link. A *packet* may be a super-packet of up to 64 KiB; a *wire packet* is one of its segments,
/// as sent on the wire.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkStats {
    /// Received packets.
    pub rx_packets: u64,
    /// Received bytes.
    pub rx_bytes: u64,
    /// Received wire packets.
    pub rx_wire_packets: u64,
    /// System calls that received at least one packet.
    pub rx_calls: u64,
    /// Dropped packets that had come in by the link. With [`tx_dropped`](Self::tx_dropped), the sum of the link's
    /// [`DropState`]s.
    pub rx_dropped: u64,
    /// Sent packets.
    pub tx_packets: u64,
    /// Sent bytes.
    pub tx_bytes: u64,
    /// Sent wire packets.
    pub tx_wire_packets: u64,
    /// System calls that sent at least one packet.
    pub tx_calls: u64,
    /// Packets that the link's device could not send.
    pub tx_dropped: u64,
    /// Packets of a VRF without a route after its queueing discipline.
    #[serde(default)]
    pub tx_errors: u64,
}

/// Route, connected or static.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RouteState {
    /// `unicast`, `local`, `blackhole`, `unreachable` or `prohibit`.
    pub kind: String,
    /// Destinations.
    #[serde(with = "config::serde_display")]
    pub to: Prefix,
    /// Gateway.
    pub via: Option<IpAddr>,
    /// Output link. Of a route with several paths, the first one's that is not dead; so is the gateway.
    pub dev: Option<String>,
    /// Paths, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nexthops: Vec<NextHopState>,
    /// Origin: iproute2's name of the protocol, such as `kernel` or `static`, or its number.
    #[serde(default)]
    pub proto: String,
    /// iproute2's name of the scope, such as `global` or `link`, or its number.
    #[serde(default)]
    pub scope: String,
    /// Preferred source of the node's own packets, if one is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<IpAddr>,
    /// The metric.
    pub metric: u32,
    /// Number of the table.
    pub table: u32,
    /// ILA translation of destinations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap: Option<IlaEncapState>,
}

/// One of several paths of a route.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NextHopState {
    /// Gateway.
    pub via: Option<IpAddr>,
    /// Output link.
    pub dev: String,
    /// Share of flows.
    pub weight: u16,
    /// Whether the link is down, so that packets take the other paths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dead: bool,
}

/// ILA translation of a route, under the names of `ip -j route`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct IlaEncapState {
    /// New locator of destinations.
    #[serde(with = "config::serde_display")]
    pub locator: Locator,
    /// Treatment of checksums.
    pub csum_mode: String,
    /// Type of the identifiers.
    pub ident_type: String,
    /// Translated packets: `output` or `input`.
    pub hook_type: String,
}

/// Neighbour on an Ethernet link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NeighbourState {
    /// Address of the neighbour.
    pub to: IpAddr,
    /// Link.
    pub dev: String,
    /// Link-layer address, once resolved.
    pub lladdr: Option<String>,
    /// Linux's word for the state, such as `REACHABLE`.
    pub state: String,
    /// Packets queued until the link-layer address is resolved.
    pub queued: u32,
}

/// Entry of a bridge's forwarding database.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FdbState {
    /// Link-layer address.
    pub mac: String,
    /// Port of the address, or the bridge itself.
    pub dev: String,
    /// VLAN, in a bridge with VLAN filtering.
    pub vlan: Option<u16>,
    /// Bridge.
    pub master: String,
    /// Word of `bridge fdb`: `permanent`, `static` or `dynamic`.
    pub state: String,
    /// Whether the entry stays at its port when its address is received on another port.
    pub sticky: bool,
    /// Seconds since the entry was learnt or refreshed.
    pub updated_secs: u64,
    /// Seconds since a frame was forwarded by the entry.
    pub used_secs: u64,
}

/// Peer of a vhost-user link: a guest, or another switch.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct GuestState {
    /// Whether the peer is connected.
    pub connected: bool,
    /// Whether the peer's driver receives.
    pub running: bool,
    /// Negotiated features, by virtio's names.
    pub features: Vec<String>,
    /// Number of the peer's memory regions.
    pub regions: u64,
    /// Queues: the guest receives from even ones and sends on odd ones.
    pub queues: Vec<GuestQueueState>,
    /// Number of connections so far.
    pub connections: u64,
    /// Connections that were closed because of a protocol violation.
    pub violations: u64,
    /// Bytes copied from and to the peer's memory.
    pub copied: u64,
}

/// Queue of a guest.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct GuestQueueState {
    /// Whether the ring is running.
    pub running: bool,
    /// Whether the queue is enabled.
    pub enabled: bool,
    /// Number of descriptors of the ring.
    pub size: u16,
    /// Used descriptor chains.
    pub chains: u64,
    /// Interrupts.
    pub calls: u64,
    /// Number of times that the guest had no buffers for a frame.
    pub full: u64,
}

/// State of a port of a bridge.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct BridgePortState {
    /// Bridge.
    pub bridge: String,
    /// State, as in `bridge link`.
    pub state: String,
    /// VLAN of untagged frames.
    pub pvid: Option<u16>,
    /// VLANs that are sent tagged, as numbers and ranges.
    pub tagged: Vec<String>,
    /// VLANs that are sent untagged, as numbers and ranges.
    pub untagged: Vec<String>,
    /// Priority of a trunk.
    pub trunk: Option<u8>,
    /// Number of learnt addresses.
    pub learnt: u32,
    /// Frames whose source was not learnt because the port's limit of addresses was reached.
    pub fdb_full: u64,
    /// Times that an address moved to this port from another one; many are a sign of a loop.
    #[serde(default)]
    pub moved: u64,
    /// Frames whose source is an address of the bridge, or one bound to another port.
    #[serde(default)]
    pub pinned: u64,
    /// Received frames that an ingress rule refused, or that no port accepts.
    pub rx_dropped: u64,
    /// Frames to the port that the port does not accept.
    pub tx_dropped: u64,
    /// Frames longer than the port's MTU.
    pub tx_errors: u64,
}

/// Cached path MTU of a destination.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PmtuState {
    /// Destination.
    pub to: IpAddr,
    /// VRF of the destination, by the name of its device.
    pub vrf: Option<String>,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Seconds until the entry expires.
    pub expires_secs: u64,
}

/// Security association, or a larval one. Its key is never shown.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaState {
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// Security parameters index; 0 if not assigned yet.
    pub spi: u32,
    /// `valid`; `acq` for a larval SA, and `error` for one whose negotiation failed.
    pub state: String,
    /// Direction, if restricted to one.
    pub dir: Option<SaDir>,
    /// Tunnel or transport.
    pub mode: Mode,
    /// Number that matches the SA to templates.
    pub reqid: u32,
    /// Linux's name of the encryption algorithm; `None` for a larval SA.
    pub algorithm: Option<String>,
    /// Length of the encryption key in bits, without salt; 0 without a key.
    pub key_bits: u16,
    /// Linux's name of the authentication algorithm, unless the encryption algorithm authenticates.
    pub auth: Option<String>,
    /// Length of the integrity check value in bits; 0 without one.
    pub icv_bits: u16,
    /// Width of the anti-replay window in packets.
    pub replay_window: u32,
    /// Flags that are set, by iproute2's names.
    pub flags: Vec<String>,
    /// UDP encapsulation.
    pub encap: Option<EspInUdp>,
    /// Current address and port of the peer instead of `dst`, if the peer has moved.
    pub moved_to: Option<SocketAddr>,
    /// Length that inner packets are padded to; 0 for none.
    pub tfcpad: u32,
    /// Behaviour towards a NAT.
    pub nat: NatTraversal,
    /// Inner packets that may use the SA.
    pub selector: Option<SelectorState>,
    /// Last sent sequence number, with all 64 bits.
    pub oseq: u64,
    /// Highest authenticated sequence number.
    pub seq: u64,
    /// Anti-replay window in words of 32 bits: bit `n`, counted from the first word's lowest, is `seq - n`.
    pub bitmap: Vec<u32>,
    /// Mark of packets that use the SA.
    pub mark: Option<Mark>,
    /// Mark that the SA sets on its packets.
    pub output_mark: Option<Mark>,
    /// Device that processes the SA's packets, with its link and the direction: `dev wan dir out mode crypto`.
    #[serde(default)]
    pub offload: Option<String>,
    /// Number of the SA's XFRM interface; 0 for none.
    pub if_id: u32,
    /// Number of the CPU whose packets the SA is for; `None` for all.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// The worker that has its key, its numbers and its window; `None` for a larval SA, and with one worker.
    #[serde(default)]
    pub worker: Option<u8>,
    /// Limits of the SA's lifetime.
    pub limit: LimitState,
    /// Whether a soft limit has been reached.
    pub dying: bool,
    /// Time since the SA was added and since its first use.
    pub ages: Ages,
    /// Seconds since the SA's last use; `None` before its first.
    #[serde(default)]
    pub last_used_secs: Option<u64>,
    /// Counters.
    pub stats: SaStats,
}

/// Counters of an SA: its packets, and refused ones by reason.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaStats {
    /// ESP packets.
    pub packets: u64,
    /// Protected bytes.
    pub bytes: u64,
    /// Packets dropped for a replayed sequence number.
    pub replay: u64,
    /// Packets dropped for a sequence number left of the window.
    pub replay_window: u64,
    /// Packets dropped for a wrong integrity check value.
    pub integrity_failed: u64,
}

/// Selector of an SA or a policy. Ports are shown for protocols that have them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SelectorState {
    /// Sources.
    #[serde(with = "config::serde_display")]
    pub src: Prefix,
    /// Destinations.
    #[serde(with = "config::serde_display")]
    pub dst: Prefix,
    /// IP protocol; any if `None`.
    pub proto: Option<u8>,
    /// Source port; any if `None`.
    pub sport: Option<u16>,
    /// Destination port.
    pub dport: Option<u16>,
}

/// SA that a policy requires.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TemplateState {
    /// Outer source.
    pub src: Option<IpAddr>,
    /// Outer destination.
    pub dst: Option<IpAddr>,
    /// Mode of the SA.
    pub mode: Mode,
    /// `reqid` of the SA; 0 for any.
    pub reqid: u32,
    /// Whether packets may pass without the SA.
    pub level: Level,
}

/// Limits at which an SA or a policy expires (iproute2's `limit`).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LimitState {
    /// Limits with a notification to listeners.
    pub soft: BoundsState,
    /// Limits at which the SA or policy is removed.
    pub hard: BoundsState,
}

/// Soft or hard limits; `None` for none.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct BoundsState {
    /// Protected bytes.
    pub bytes: Option<u64>,
    /// Protected packets.
    pub packets: Option<u64>,
    /// Seconds since addition.
    pub add_secs: Option<u64>,
    /// Seconds since use: the first one of an SA, the last one of a policy.
    pub use_secs: Option<u64>,
}

/// Ages in seconds; `None` for an event that has not happened yet.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ages {
    /// Since addition.
    pub add_secs: Option<u64>,
    /// Since use: the first one of an SA, the last one of a policy.
    pub use_secs: Option<u64>,
}

/// Security policy.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PolicyState {
    /// Direction of the packets.
    pub dir: Dir,
    /// Packets that the policy matches.
    pub selector: SelectorState,
    /// Priority; the smallest number wins.
    pub priority: u32,
    /// Action: pass or drop.
    pub action: Action,
    /// Required SAs.
    pub templates: Vec<TemplateState>,
    /// Mark of packets that the policy matches.
    pub mark: Option<Mark>,
    /// Number of the policy's XFRM interface; 0 for none.
    pub if_id: u32,
    /// Limits of the policy's lifetime.
    pub limit: LimitState,
    /// Time since the policy was added and since its last use.
    pub ages: Ages,
    /// Whether a template requires an SA and there is none.
    #[serde(default)]
    pub without_sa: bool,
}

/// Counters of the node. All counters are listed, including zeros.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CountersState {
    /// Linux's counters.
    pub counters: Vec<CounterState>,
    /// Bytes copied between packet buffers, without the cipher's processing of the payload and the kernel's copies.
    pub copies: Vec<CopyState>,
    /// Packets forwarded from one link to another; a super-packet counts once.
    pub forwarded_packets: u64,
    /// Bytes of the forwarded packets, for comparison with `copies`.
    pub forwarded_bytes: u64,
}

/// Counter.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CounterState {
    /// Linux's name, such as `IpForwDatagrams`.
    pub name: String,
    /// Value.
    pub value: u64,
}

/// Copies made for one reason.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CopyState {
    /// Name of the reason.
    pub reason: String,
    /// Number of copies.
    pub copies: u64,
    /// Bytes copied.
    pub bytes: u64,
}

/// Packets of one link, dropped for one reason.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DropState {
    /// Input link of the packets; `None` for packets of the node itself.
    pub link: Option<String>,
    /// Name of the reason.
    pub reason: String,
    /// Number of packets.
    pub count: u64,
}

/// Fragments of one family in reassembly.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FragmentsState {
    /// `FRAG` for IPv4, `FRAG6` for IPv6, as in Linux's `/proc/net/sockstat` and `sockstat6`.
    pub name: String,
    /// Incomplete datagrams.
    pub inuse: u64,
    /// Memory of the fragments in bytes.
    pub memory: u64,
}

/// Restrictions of the gateway's process, as the kernel reports them for its threads.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SandboxState {
    /// Whether the gateway was started without `--no-sandbox`.
    pub enabled: bool,
    /// Number of threads.
    pub threads: u64,
    /// Number of threads with a seccomp filter.
    pub filtered: u64,
    /// Whether no thread gains privileges by `execve` (`no_new_privs`).
    pub no_new_privs: bool,
    /// ABI of Landlock by which files are restricted; `None` if they are not.
    pub landlock: Option<i32>,
    /// User that a gateway of root has changed to.
    #[serde(default)]
    pub user: Option<String>,
    /// Directories of this gateway's own that it may read, besides those that it may write; files, if an opener reads them.
    pub read: Vec<String>,
    /// Directories that it may write.
    pub write: Vec<String>,
    /// Whether its opener reads and writes there, and the gateway itself does not.
    #[serde(default)]
    pub by_opener: bool,
    /// Effective capabilities of any thread.
    pub capabilities: Vec<String>,
    /// Restrictions that could not be set, each with the reason.
    pub missing: Vec<String>,
}

/// Memory of the gateway.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemoryState {
    /// Limit in bytes; `None` if there is none.
    pub limit: Option<u64>,
    /// Source of the limit: `[limits]`, or nine tenths of `the control group`, `RLIMIT_AS` or `the machine`.
    pub source: Option<String>,
    /// Bytes in use that the limit counts.
    pub used: u64,
    /// Bytes that the gateway has allocated and not freed.
    pub live: u64,
    /// Bytes that requests leave free.
    pub reserve: u64,
    /// Bytes that requests leave free in addition, for the growth of the largest table.
    pub growth: u64,
    /// Bytes of page tables, among them those of guests' memory.
    pub page_tables: u64,
    /// Tables that requests add to.
    pub tables: Vec<TableMemory>,
    /// Truesize in bytes of packets that wait for links and in queueing disciplines.
    pub queues: u64,
    /// Memory in bytes of fragments in reassembly.
    pub fragments: u64,
    /// Number of captures in progress.
    pub captures: u64,
    /// Pools of pages.
    pub pools: Vec<PoolState>,
}

/// Table that requests add to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TableMemory {
    /// Name, as in `[limits]`.
    pub name: String,
    /// Number of entries.
    pub entries: u64,
    /// Limit of entries; `None` if there is none.
    pub limit: Option<u64>,
    /// Bytes of the entries, by the mean size of an entry.
    pub bytes: u64,
}

/// Pool of pages.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PoolState {
    /// Size of a page in bytes.
    pub page_size: u64,
    /// Number of pages, including free ones.
    pub pages: u64,
    /// Number of pages in use.
    pub in_use: u64,
    /// Bytes of all pages.
    pub bytes: u64,
    /// Number of requests for a page that failed.
    pub dry: u64,
}

/// Established flow of a socket of the host side.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FlowState {
    /// `tcp` or `udp`.
    pub proto: String,
    /// Address and port of the socket.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// VRF of the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
}

/// Packet worker. Times and counts are since its start.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerState {
    /// Number, from 0.
    pub worker: u8,
    /// CPU that the worker is bound to; any if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u16>,
    /// Time from the beginnings to the ends of its turns, in nanoseconds; time without a processor within a turn counts.
    pub busy_ns: u64,
    /// Time between its turns, in nanoseconds.
    pub idle_ns: u64,
    /// Number of times that the worker was woken.
    pub wakeups: u64,
    /// Number of bursts that its queues of links, and sockets of the host side, had for it.
    #[serde(default)]
    pub bursts: u64,
    /// Packets that its queues of links received; a super-packet is one.
    pub rx_packets: u64,
    /// Packets of the wire that these were.
    #[serde(default)]
    pub rx_wire_packets: u64,
    /// System calls by which they were received, or accesses to a ring.
    #[serde(default)]
    pub rx_calls: u64,
    /// Packets of the wire that it sent by its queues of links.
    #[serde(default)]
    pub tx_wire_packets: u64,
    /// System calls by which they were sent, or accesses to a ring.
    #[serde(default)]
    pub tx_calls: u64,
    /// Packets handed over to other workers.
    pub handed_over: u64,
    /// Packets taken over from other workers.
    pub taken_over: u64,
    /// Packets from other workers that wait for this one.
    pub queued: u64,
    /// Packets that wait for their encryption.
    #[serde(default)]
    pub sealing: u64,
    /// Packets that wait for their decryption.
    #[serde(default)]
    pub opening: u64,
    /// Links without a queue for this worker, whose packets the first worker sends.
    pub without_queue: Vec<String>,
}

/// Numbers, sums and budgets of a gateway. What the numbers count is not here, so the cost of a summary does not grow with tables.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SummaryState {
    /// Version of the gateway.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Start of the process, in milliseconds since the Unix epoch: all counters began then.
    pub started_ms: u64,
    /// Routes of each table that has any, of both families.
    pub routes: Vec<RouteCountState>,
    /// Security associations.
    pub sas: SaCountState,
    /// Number of [sums](SaSumsState) of SAs.
    pub sa_sums: u64,
    /// Policies.
    pub policies: PolicyCountState,
    /// ILA mappings.
    pub mappings: u64,
    /// Flows of the host side's sockets, with those that are idle.
    pub flows: u64,
    /// Neighbours in each state.
    pub neighbours: Vec<NeighbourCountState>,
    /// Fragments in reassembly.
    pub fragments: Vec<FragmentsState>,
    /// Budget of memory, and sizes of queues and pools.
    pub memory: MemoryState,
    /// Workers.
    pub workers: Vec<WorkerState>,
}

/// Number of routes of a table.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RouteCountState {
    /// Number of the table.
    pub table: u32,
    /// Number of routes.
    pub count: u64,
}

/// Numbers of SAs. `inbound`, `outbound` and `undirected` add up to `valid` and `dying`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaCountState {
    /// SAs that have reached no limit.
    pub valid: u64,
    /// SAs that have reached a soft limit.
    pub dying: u64,
    /// Larval SAs.
    pub larval: u64,
    /// SAs with the direction `in`.
    pub inbound: u64,
    /// SAs with the direction `out`.
    pub outbound: u64,
    /// SAs without a direction, as key managers add them.
    pub undirected: u64,
}

/// Sums of SAs that follow one another, and policies that need SAs.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaSumsState {
    /// Sums by addresses, `reqid` and direction.
    pub sums: Vec<SaSumState>,
    /// Number of SAs that found no room for a sum.
    pub left_out: u64,
    /// Policies with a template that requires an SA, in the order of their lookup.
    pub policies: Vec<PolicySaState>,
    /// Names of tunnels.
    #[serde(default)]
    pub tunnels: Vec<TunnelNameState>,
}

/// Name of a `[[tunnel]]` of the file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TunnelNameState {
    /// Name.
    pub name: String,
    /// Outer address of this end.
    pub local: IpAddr,
    /// Outer address of the peer.
    pub remote: IpAddr,
}

/// Sum of the SAs with these addresses, `reqid` and direction, with those that have ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaSumState {
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// Number that matches the SAs to templates.
    pub reqid: u32,
    /// The SAs' direction, or, for those without one, `in` if the node has the destination.
    pub dir: SaDir,
    /// ESP packets since the start of the gateway.
    pub packets: u64,
    /// Protected bytes since the start of the gateway.
    pub bytes: u64,
    /// Milliseconds until the last of its SAs reaches its hard limit, if each has one of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// Policy with a template that requires an SA.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PolicySaState {
    /// Packets that the policy matches.
    pub selector: SelectorState,
    /// Direction of the packets.
    pub dir: Dir,
    /// Whether there is no SA, so that the packets wait or are dropped. `None`: not known, as a template leaves its destination or `reqid`
    /// to the packet, or has too many SAs to look at.
    pub without_sa: Option<bool>,
    /// SA that it requires: the outermost, if it requires several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateState>,
}

/// Numbers of policies by direction.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct PolicyCountState {
    /// Direction `in`.
    pub inbound: u64,
    /// Direction `out`.
    pub outbound: u64,
    /// Direction `fwd`.
    pub forward: u64,
}

/// Number of neighbours in a state.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NeighbourCountState {
    /// Linux's name of the state.
    pub state: String,
    /// Number of neighbours.
    pub count: u64,
}

/// ILA mapping, under the names of `ip -j ila`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct IlaState {
    /// Locator of translated destinations.
    #[serde(with = "config::serde_display")]
    pub locator_match: Locator,
    /// Identifier of the one translated destination, in the mapping of a single address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identifier: Option<String>,
    /// New locator of the destinations.
    #[serde(with = "config::serde_display")]
    pub locator: Locator,
    /// Input link or VRF of the packets; any if `None`.
    pub interface: Option<String>,
    /// Treatment of checksums.
    pub csum_mode: String,
    /// Type of the identifiers.
    pub ident_type: String,
}

impl From<&Selector> for SelectorState {
    fn from(selector: &Selector) -> Self {
        let Selector { src, dst, protocol, sport, dport, .. } = *selector;
        let has_ports = protocol.is_some_and(|protocol| WITH_PORTS.contains(&protocol.0));
        let port = |port: PortMask| (has_ports && port.mask != 0).then_some(port.port);
        Self { src, dst, proto: protocol.map(|protocol| protocol.0), sport: port(sport), dport: port(dport) }
    }
}

impl From<&Template> for TemplateState {
    fn from(template: &Template) -> Self {
        let Template { src, dst, mode, reqid, level, .. } = *template;
        Self { src, dst, mode, reqid, level }
    }
}

impl From<&Lifetime> for LimitState {
    fn from(lifetime: &Lifetime) -> Self {
        let number = |limit: u64| (limit != u64::MAX).then_some(limit);
        let bounds = |limits: &Limits| BoundsState {
            bytes: number(limits.bytes),
            packets: number(limits.packets),
            add_secs: limits.added.map(|it| it.as_secs()),
            use_secs: limits.used.map(|it| it.as_secs()),
        };
        Self { soft: bounds(&lifetime.soft), hard: bounds(&lifetime.hard) }
    }
}
