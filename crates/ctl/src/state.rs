//! State of a running node for `fatpath show`: plain values, one snapshot, that survive a round trip through JSON.

use std::net::{IpAddr, SocketAddr};

use base::{IfAddr, Prefix};
use serde::{Deserialize, Serialize};

use config::protocols::WITH_PORTS;
use ila::Locator;
use xfrm::{
    Action, Dir, EspInUdp, Level, Lifetime, Limits, Mark, Mode, NatTraversal, PortMask, SaDir, Selector, Template,
};

/// A link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkState {
    /// Interface index, from 1.
    pub index: u32,
    /// Name.
    pub name: String,
    /// `tun`, `tap`, `udp`, `packet`, `xdp` or `vrf`.
    pub kind: String,
    /// Address of the link's socket or name of the host interface below it, for kinds that have one.
    pub on: Option<String>,
    /// The VRF that it belongs to, by the name of its device.
    pub vrf: Option<String>,
    /// Port of a bridge, if the link is one.
    pub port: Option<BridgePortState>,
    /// Other end of a vhost-user link.
    pub guest: Option<GuestState>,
    /// The table of the VRF that it is the device of.
    pub table: Option<u32>,
    /// Layer-3 MTU in bytes.
    pub mtu: u32,
    /// Whether it carries packets.
    pub up: bool,
    /// Reason for which the link is down, if known.
    pub why_down: Option<String>,
    /// Link-layer address, if the link has one.
    pub lladdr: Option<String>,
    /// This node's own addresses on it.
    #[serde(with = "config::serde_display::list")]
    pub addresses: Vec<IfAddr>,
    /// Each offload that its kind can have.
    pub offloads: Vec<OffloadState>,
    /// The device's ring of frames, if it receives into one.
    pub ring: Option<RingState>,
    /// Queueing discipline, if it was given one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qdisc: Option<QdiscState>,
    /// Packet counters.
    pub stats: LinkStats,
    /// Linux's counters of IPv6 and ICMPv6, as far as they are this link's and not 0.
    #[serde(default)]
    pub ip6: Vec<CounterState>,
}

/// Queueing discipline of a link, with the counters of `tc -s qdisc`. Fat packets count as their segments, but for `drops` and `qlen`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct QdiscState {
    /// `pfifo`, `bfifo` or `tbf`.
    pub kind: String,
    /// Bytes that left, counted as on the wire.
    pub bytes: u64,
    /// Packets that left.
    pub packets: u64,
    /// Packets that were refused.
    pub drops: u64,
    /// Times that a packet had to wait for tokens.
    pub overlimits: u64,
    /// Packets given back by a link that was busy.
    pub requeues: u64,
    /// Bytes that wait, counted as on the wire.
    pub backlog: u64,
    /// Packets that wait.
    pub qlen: u32,
}

/// The network namespace of a node's own.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostState {
    /// `on`; `off`, as the configuration says; or `failed`.
    pub side: String,
    /// Reason for which the namespace could not be created.
    pub why: Option<String>,
    /// The file that it is bound to.
    pub namespace: Option<String>,
    /// Whether there is a user namespace around it.
    pub user_namespace: bool,
    /// Devices, and those that are missing.
    pub devices: Vec<HostDeviceState>,
    /// Addresses that it has as the node has them.
    pub addresses: u64,
    /// Routes that it has as the node has them.
    pub routes: u64,
    /// Whether the node has more routes than are mirrored: default routes stand for all.
    pub routes_limited: bool,
    /// Address, route or device that the namespace's kernel has refused last.
    pub refused: Option<String>,
    /// Changes of other programs that were undone.
    pub put_back: u64,
}

/// A device of the node's own network namespace.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostDeviceState {
    /// Name, which is the link's.
    pub name: String,
    /// Number, which is the link's.
    pub index: u32,
    /// `tap`, `tun`, or `veth` in place of either.
    pub kind: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Reason for which the device is missing.
    pub why_not: Option<String>,
}

/// Receive ring of an AF_XDP device, with counters summed over all queues. The last six are the kernel's own (`struct xdp_statistics`).
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RingState {
    /// `native`: the driver hands frames over; `generic`: the network stack does.
    pub mode: String,
    /// Whether the driver writes to the frames itself.
    pub zero_copy: bool,
    /// Receive queues.
    pub queues: u32,
    /// Frames of each queue to receive into.
    pub frames: u32,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// Frames that packets hold now.
    pub held: u64,
    /// Times that a queue ran out of frames because packets held all of them.
    pub rx_no_buffer: u64,
    /// Packets dropped, but for descriptors that are wrong: above all because there was no frame.
    pub rx_dropped: u64,
    /// Packets dropped because a frame's descriptor was wrong.
    pub rx_invalid_descs: u64,
    /// Packets that were not sent because a descriptor was wrong.
    pub tx_invalid_descs: u64,
    /// Packets dropped because too many waited to be read.
    pub rx_ring_full: u64,
    /// Times that the kernel found the fill ring empty.
    pub rx_fill_ring_empty_descs: u64,
    /// Times that the kernel found the transmit ring empty.
    pub tx_ring_empty_descs: u64,
}

/// One offload of a link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct OffloadState {
    /// Name, such as `tso4`.
    pub name: String,
    /// Whether it is in use.
    pub on: bool,
    /// Reason for which the offload is off, or the probe that found it to work.
    pub why: Option<String>,
}

/// Packet counters of a link. A *packet* may be a super-packet of up to 64 KiB; a *wire packet* is one segment of it, as it
/// travels on the wire.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// The wire packets in them.
    pub rx_wire_packets: u64,
    /// System calls that brought at least one.
    pub rx_calls: u64,
    /// Packets that were received and dropped.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// The wire packets in them.
    pub tx_wire_packets: u64,
    /// System calls that took at least one.
    pub tx_calls: u64,
    /// Packets that could not be sent.
    pub tx_dropped: u64,
    /// Packets of a VRF that had no route any more behind its queueing discipline.
    #[serde(default)]
    pub tx_errors: u64,
}

/// A route, connected or static.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RouteState {
    /// `unicast`, `local`, `blackhole`, `unreachable` or `prohibit`.
    pub kind: String,
    /// The destinations.
    #[serde(with = "config::serde_display")]
    pub to: Prefix,
    /// The next hop.
    pub via: Option<IpAddr>,
    /// The link.
    pub dev: Option<String>,
    /// The metric.
    pub metric: u32,
    /// The table's number.
    pub table: u32,
    /// The ILA translation of destinations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap: Option<IlaEncapState>,
}

/// The ILA translation of a route, under the names of `ip -j route`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct IlaEncapState {
    /// Locator that destinations get.
    #[serde(with = "config::serde_display")]
    pub locator: Locator,
    /// Treatment of checksums.
    pub csum_mode: String,
    /// Type of the identifiers.
    pub ident_type: String,
    /// Packets that are translated: `output` or `input`.
    pub hook_type: String,
}

/// A neighbour on an Ethernet link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NeighbourState {
    /// Address of the neighbour.
    pub to: IpAddr,
    /// The link.
    pub dev: String,
    /// Link-layer address, once resolved.
    pub lladdr: Option<String>,
    /// Linux's word for its state, such as `REACHABLE`.
    pub state: String,
    /// Packets queued until the link-layer address is resolved.
    pub queued: u32,
}

/// Entry of a bridge's forwarding database.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FdbState {
    /// The address.
    pub mac: String,
    /// The port that it is behind, or the bridge itself.
    pub dev: String,
    /// VLAN, in a bridge that filters.
    pub vlan: Option<u16>,
    /// The bridge.
    pub master: String,
    /// Word of `bridge fdb`: `permanent`, `static` or `dynamic`.
    pub state: String,
    /// Whether it stays at its port when its address is seen elsewhere.
    pub sticky: bool,
    /// Seconds since it was learnt or refreshed.
    pub updated_secs: u64,
    /// Seconds since a frame was forwarded by it.
    pub used_secs: u64,
}

/// Guest at the other end of a link of vhost-user, or the other switch.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct GuestState {
    /// Whether it is connected.
    pub connected: bool,
    /// Whether its driver receives.
    pub running: bool,
    /// Features that were negotiated, by virtio's names.
    pub features: Vec<String>,
    /// Regions of its memory.
    pub regions: u64,
    /// Queues: the guest receives from even ones and sends by odd ones.
    pub queues: Vec<GuestQueueState>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that were closed because a rule was broken.
    pub violations: u64,
    /// Bytes that were copied out of its memory and into it.
    pub copied: u64,
}

/// A queue of a guest.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct GuestQueueState {
    /// Whether its ring runs.
    pub running: bool,
    /// Whether frames may pass.
    pub enabled: bool,
    /// Descriptors of its ring.
    pub size: u16,
    /// Chains of descriptors that were used.
    pub chains: u64,
    /// Interrupts.
    pub calls: u64,
    /// Times that the guest had no buffers for a frame.
    pub full: u64,
}

/// State of a port of a bridge.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct BridgePortState {
    /// The bridge.
    pub bridge: String,
    /// State, as `bridge link` names it.
    pub state: String,
    /// VLAN of untagged frames.
    pub pvid: Option<u16>,
    /// VLANs that leave tagged, as numbers and ranges.
    pub tagged: Vec<String>,
    /// VLANs that leave untagged, as numbers and ranges.
    pub untagged: Vec<String>,
    /// Priority of a trunk.
    pub trunk: Option<u8>,
    /// Addresses that it has learnt.
    pub learnt: u32,
    /// Frames whose source was not learnt since the port has as many addresses as it may have.
    pub fdb_full: u64,
    /// Received frames that a rule of the ingress refused, or that no port takes.
    pub rx_dropped: u64,
    /// Frames to the port that it does not take.
    pub tx_dropped: u64,
    /// Frames longer than the port's MTU.
    pub tx_errors: u64,
}

/// Cached path MTU of a destination.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PmtuState {
    /// Destination.
    pub to: IpAddr,
    /// The VRF that it is in, by the name of its device.
    pub vrf: Option<String>,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Seconds until the entry expires.
    pub expires_secs: u64,
}

/// A security association, or a larval one. Its key is never shown.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaState {
    /// The outer source.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// The security parameters index; 0 if it has none yet.
    pub spi: u32,
    /// `valid`; `acq` if a packet or a key manager waits for it, and `error` if it cannot be had.
    pub state: String,
    /// The only direction in which it may be used.
    pub dir: Option<SaDir>,
    /// Tunnel or transport.
    pub mode: Mode,
    /// The number that ties it to templates.
    pub reqid: u32,
    /// Linux's name of the algorithm that encrypts; `None` for a larval SA.
    pub algorithm: Option<String>,
    /// Length of its key in bits, without salt; 0 if it has none.
    pub key_bits: u16,
    /// Linux's name of the authentication algorithm, if the one that encrypts does not authenticate.
    pub auth: Option<String>,
    /// Length of the integrity check value in bits; 0 if there is none.
    pub icv_bits: u16,
    /// Width of the anti-replay window in packets.
    pub replay_window: u32,
    /// The flags that are on, by iproute2's names.
    pub flags: Vec<String>,
    /// The UDP header around ESP.
    pub encap: Option<EspInUdp>,
    /// Address and port that its packets go to instead of `dst`, because the peer has moved there.
    pub moved_to: Option<SocketAddr>,
    /// Bytes to which inner packets are padded; 0 for none.
    pub tfcpad: u32,
    /// Behaviour towards a NAT.
    pub nat: NatTraversal,
    /// Inner packets that may use it.
    pub selector: Option<SelectorState>,
    /// The last sequence number sent, all 64 bits of it.
    pub oseq: u64,
    /// The highest sequence number authenticated.
    pub seq: u64,
    /// The anti-replay window in words of 32 bits: bit `n`, counted from the first word's lowest, stands for `seq - n`.
    pub bitmap: Vec<u32>,
    /// Marked packets that it is for.
    pub mark: Option<Mark>,
    /// Mark that its packets get.
    pub output_mark: Option<Mark>,
    /// The number of its XFRM interface; 0 for none.
    pub if_id: u32,
    /// Limits at which it ends.
    pub limit: LimitState,
    /// Whether a soft limit is reached.
    pub dying: bool,
    /// Time since it was added and since it was used first.
    pub ages: Ages,
    /// Counters.
    pub stats: SaStats,
}

/// Counters of an SA: packets that it has carried, and refused ones by reason.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SaStats {
    /// ESP packets.
    pub packets: u64,
    /// Their protected bytes.
    pub bytes: u64,
    /// Dropped for a sequence number seen before.
    pub replay: u64,
    /// Dropped for a sequence number left of the window.
    pub replay_window: u64,
    /// Dropped for a wrong integrity check value.
    pub integrity_failed: u64,
}

/// A selector of an SA or a policy. Ports are shown for protocols that have them.
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

/// An SA that a policy asks for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TemplateState {
    /// The outer source.
    pub src: Option<IpAddr>,
    /// The outer destination.
    pub dst: Option<IpAddr>,
    /// The SA's mode.
    pub mode: Mode,
    /// The SA's `reqid`; 0 is any.
    pub reqid: u32,
    /// Whether packets may pass without the SA.
    pub level: Level,
}

/// Limits at which an SA or a policy expires (iproute2's `limit`).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LimitState {
    /// Limits at which the listener is notified.
    pub soft: BoundsState,
    /// Limits at which it ends.
    pub hard: BoundsState,
}

/// Soft or hard limits; `None` is never.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct BoundsState {
    /// Protected bytes.
    pub bytes: Option<u64>,
    /// Protected packets.
    pub packets: Option<u64>,
    /// Seconds since it was added.
    pub add_secs: Option<u64>,
    /// Seconds since it was used: an SA for the first time, a policy for the last.
    pub use_secs: Option<u64>,
}

/// Age in seconds; `None` for a thing that has not happened yet.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ages {
    /// Since it was added.
    pub add_secs: Option<u64>,
    /// Since it was used: an SA for the first time, a policy for the last.
    pub use_secs: Option<u64>,
}

/// A security policy.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PolicyState {
    /// Direction of the packets.
    pub dir: Dir,
    /// Packets that it is for.
    pub selector: SelectorState,
    /// The smallest wins.
    pub priority: u32,
    /// Pass or drop.
    pub action: Action,
    /// The SAs they need.
    pub templates: Vec<TemplateState>,
    /// Marked packets that it is for.
    pub mark: Option<Mark>,
    /// The number of its XFRM interface; 0 for none.
    pub if_id: u32,
    /// Limits at which it ends.
    pub limit: LimitState,
    /// Time since it was added and since it was used last.
    pub ages: Ages,
}

/// Counters of the node. Every counter is listed, also at zero.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CountersState {
    /// Linux's counters.
    pub counters: Vec<CounterState>,
    /// Bytes copied between packet buffers, without the cipher's pass over the payload and the kernel's copies.
    pub copies: Vec<CopyState>,
    /// Packets forwarded from one link to another; a super-packet counts once.
    pub forwarded_packets: u64,
    /// Bytes of the forwarded packets, to which `copies` are compared.
    pub forwarded_bytes: u64,
}

/// One counter.
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
    /// The reason's name.
    pub reason: String,
    /// Number of copies.
    pub copies: u64,
    /// Bytes copied.
    pub bytes: u64,
}

/// Packets of one link that were dropped for one reason.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DropState {
    /// The link they came in by; `None`: the node made them itself.
    pub link: Option<String>,
    /// The reason's name.
    pub reason: String,
    /// Number of packets.
    pub count: u64,
}

/// Fragments of one family that wait for others of their datagrams.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FragmentsState {
    /// `FRAG` for IPv4, `FRAG6` for IPv6, as in Linux's `/proc/net/sockstat` and `sockstat6`.
    pub name: String,
    /// Datagrams that wait.
    pub inuse: u64,
    /// Bytes of memory that they hold.
    pub memory: u64,
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
    /// The VRF that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
}

/// An ILA mapping, under the names of `ip -j ila`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct IlaState {
    /// Locator of the destinations that are translated.
    #[serde(with = "config::serde_display")]
    pub locator_match: Locator,
    /// Locator that they get.
    #[serde(with = "config::serde_display")]
    pub locator: Locator,
    /// The link or VRF that the packets come by; any without.
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
