//! Reasons for dropping a packet.
//!
//! The documentation of each reason is its cause, and after that its remedy: `fatpath explain`, `fatpath show drops` and
//! `docs/drops.md` print it.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The rule that a dropped packet broke. Each drop is counted with one reason, by link.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])* $name,)* }

        impl DropReason {
            /// Every reason, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The variant's own name, as `fatpath show drops` prints it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The variant's documentation, a line of the source each.
            const fn doc(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc, "\n",)*),)* }
            }
        }
    };
}

drop_reasons! {
    /// The Ethernet header is truncated.
    ///
    /// Remedy: capture on the link; the sender's driver or a cable is broken.
    EthTruncated,
    /// A link-layer protocol that this node does not implement, or a frame for another station.
    ///
    /// Remedy: ordinary on a shared wire; if all packets end so, compare the destination MAC address in a capture with
    /// that of `fatpath ip link`.
    EthNotForUs,
    /// A virtio-net header that contradicts its frame, or uses a feature that was not negotiated.
    ///
    /// Remedy: report the guest's driver; `offloads = false` of the link avoids the header's features.
    VirtioHeader,
    /// A ring descriptor of a frame that its device does not own, or longer than a frame.
    ///
    /// Remedy: restart the device or guest at the other end of the ring, and report it.
    RingDescriptor,
    /// An ARP packet that is malformed or of another address family (RFC 826).
    ///
    /// Remedy: capture on the link; the sender's MAC address names the station.
    ArpMalformed,
    /// The IPv4 header is short or its length fields are wrong (RFC 791 §3.1).
    ///
    /// Remedy: capture on the link; a sender or a device on the way writes wrong headers.
    Ipv4Header,
    /// The IPv4 header has a wrong checksum (`IpExtInCsumErrors`, RFC 1812 §5.2.2).
    ///
    /// Remedy: look for a broken device on the way; on veth and virtual machines, for a checksum offload of the sender
    /// that is not finished (`ethtool -K DEV tx off` there).
    Ipv4Checksum,
    /// An IPv4 option exceeds its header (RFC 791 §3.1).
    ///
    /// Remedy: capture on the link; the sender writes malformed options.
    Ipv4Options,
    /// The packet is shorter than the length in its IP header (`IpInTruncatedPkts`).
    ///
    /// Remedy: compare the MTUs of both ends; a device on the way cuts frames.
    IpTruncated,
    /// The IPv6 header or its chain of extension headers is malformed (RFC 8200 §4).
    ///
    /// Remedy: capture on the link; the sender writes malformed headers.
    Ipv6Header,
    /// A source address that no host may send from (multicast, broadcast, loopback from outside: RFC 1122 §3.2.1.3).
    ///
    /// Remedy: correct the source address of the sender; a copy of the node's own address on the network looks the
    /// same.
    IpSourceInvalid,
    /// A destination that no host may send to (loopback and this network from outside: RFC 1122 §3.2.1.3).
    ///
    /// Remedy: correct the destination; 127.0.0.0/8, 0.0.0.0 and ::1 never cross a link.
    IpDestinationInvalid,
    /// TTL or hop limit expired in transit (RFC 1812 §5.3.1, RFC 8200 §3).
    ///
    /// Remedy: look for a routing loop with `traceroute`; a `traceroute` through the gateway causes this reason by
    /// itself.
    TtlExceeded,
    /// Larger than the next link's MTU, and may not be fragmented (RFC 1191, RFC 8201).
    ///
    /// Remedy: ordinary while a sender learns the path's MTU; if it lasts, ICMP errors are filtered on the way back, or
    /// the link's `mtu` is larger than the path.
    PacketTooBig,
    /// No route leads to the destination.
    ///
    /// Remedy: add a route (`fatpath ip route add`), or compare `fatpath show routes` with the packet's destination and
    /// VRF.
    NoRoute,
    /// A blackhole route.
    ///
    /// Remedy: remove the route if it is not intended (`fatpath ip route`).
    RouteBlackhole,
    /// An unreachable route.
    ///
    /// Remedy: remove the route if it is not intended (`fatpath ip route`).
    RouteUnreachable,
    /// A prohibit route (RFC 1812 §5.2.7.1).
    ///
    /// Remedy: remove the route if it is not intended (`fatpath ip route`).
    RouteProhibit,
    /// A route with an ILA encapsulation without a gateway, while no other route on its link leads to the translated
    /// destination (Linux `ila_output`).
    ///
    /// Remedy: add a route to the locator on the link, or a gateway to the route with the encapsulation.
    IlaUnreachable,
    /// The next hop did not answer ARP or neighbour discovery (RFC 4861 §7.3.3).
    ///
    /// Remedy: check that the next hop is up and on this link; `fatpath show neighbours` lists its state.
    NeighbourFailed,
    /// Too many packets waited for the next hop's link-layer address.
    ///
    /// Remedy: ordinary for some packets before the first answer; if it lasts, the next hop is slow to answer.
    NeighbourQueueFull,
    /// Too many unknown next hops on a link were needed in a second, or too many unknown stations on it requested this
    /// node's addresses (RFC 6583 §6.4, §7.1).
    ///
    /// Remedy: look for a scan of the subnet; a smaller prefix or static neighbours avoid it.
    NeighbourRateLimited,
    /// The packet was for another worker, whose queue of packets from workers is full.
    ///
    /// Remedy: look at `fatpath show workers` which worker is busy; a link with a queue for each worker leaves fewer packets
    /// to hand over.
    ShardQueueFull,
    /// A neighbour discovery message that RFC 4861 §7.1 or §8.1 requires to ignore.
    ///
    /// Remedy: capture on the link; the sender's MAC address names the station.
    NeighbourMalformed,
    /// For this node, but of a protocol without a listener.
    ///
    /// Remedy: send no such protocol to this node, or add the missing SA, policy or forwarding route.
    ProtocolUnknown,
    /// For this node's UDP, but to a closed port.
    ///
    /// Remedy: start the program that the port belongs to, under `fatpath exec`.
    UdpNoPort,
    /// To an open port of IKE or of ESP in UDP, but neither ESP nor a message that a key manager accepts: too short, or
    /// IKE on a link without IKE (RFC 3948 §2).
    ///
    /// Remedy: ordinary for keepalives of unknown kinds; if IKE is lost, start the key manager under `fatpath exec`, or
    /// set `ike = true` on a link of a gateway without a host side.
    EncapIgnored,
    /// For this node's TCP, without such a connection or listener.
    ///
    /// Remedy: start the program that the port belongs to, under `fatpath exec`.
    TcpNoPort,
    /// A transport header that is short, or whose length fields are wrong.
    ///
    /// Remedy: capture on the link; the sender writes malformed headers.
    TransportHeader,
    /// A wrong checksum.
    ///
    /// Remedy: look for a broken device on the way, or for a checksum offload of the sender that is not finished.
    ChecksumWrong,
    /// An ICMP or ICMPv6 message that is malformed or does not belong to a request of this node.
    ///
    /// Remedy: none needed for a few; many name a station that sends replies to requests of others.
    IcmpIgnored,
    /// An ICMP error about a path that quotes no packet sent by this node (RFC 4301 §6.1.1, RFC 5927 §4).
    ///
    /// Remedy: none needed for a few; many are an attempt to lower the path's MTU.
    IcmpQuote,
    /// IKE for a key manager whose queue is full.
    ///
    /// Remedy: look why the key manager does not read: its log, its CPU time.
    IkeQueueFull,
    /// IKE of a key manager whose source is not an IKE port of this node, or whose addresses are of two families.
    ///
    /// Remedy: let the key manager listen on ports 500 and 4500 of addresses of this node, of one family.
    IkeUnsendable,
    /// An ICMP error suppressed by the rate limit.
    ///
    /// Remedy: none needed; the packets that caused the errors have their own reasons.
    IcmpRateLimited,
    /// A fragment where a complete packet is needed.
    ///
    /// Remedy: raise the MTU on the way or let the sender send packets that fit, so that there are no fragments.
    FragmentNotReassembled,
    /// A fragment whose bytes have all arrived before; the first copy is kept (RFC 5722 §4 with erratum 3089).
    ///
    /// Remedy: none needed; a network that duplicates packets.
    FragmentDuplicate,
    /// Fragments that overlap: the complete datagram is dropped (RFC 5722 §4, RFC 8200 §4.5).
    ///
    /// Remedy: none; no correct sender overlaps fragments, an attack does.
    FragmentOverlap,
    /// Fragments that contradict each other in the end of their datagram (RFC 815 §3).
    ///
    /// Remedy: none; no correct sender sends them, an attack or a reused identification does.
    FragmentEnd,
    /// A fragment without data, or one before the last with less than 8 bytes of data.
    ///
    /// Remedy: none; no correct sender sends them.
    FragmentEmpty,
    /// A fragment before the last whose length is not a multiple of 8 (RFC 8200 §4.5).
    ///
    /// Remedy: none; no correct sender sends them.
    FragmentLength,
    /// A datagram that would be longer than 65 535 bytes (RFC 791 §3.1, RFC 8200 §4.5).
    ///
    /// Remedy: none; no correct sender sends them.
    FragmentTooLong,
    /// A first fragment that ends before its upper-layer header (RFC 7112 §5).
    ///
    /// Remedy: let the sender put its headers into the first fragment.
    FragmentHeaderChain,
    /// A fragment header in a packet that was reassembled from fragments already.
    ///
    /// Remedy: none; no correct sender sends them.
    FragmentNested,
    /// Fragments with and without ECN in one datagram (RFC 3168 §5.3).
    ///
    /// Remedy: look for a device on the way that changes the ECN bits of some packets.
    FragmentEcn,
    /// More fragments arrived from the source than an old fragment with this identification may wait for: the old
    /// fragment belongs to another datagram (Linux's `ipfrag_max_dist`).
    ///
    /// Remedy: look for lost packets on the way; a fragment of that datagram is missing.
    FragmentDistance,
    /// Waiting fragments use all of their memory limit (Linux's `ipfrag_high_thresh`).
    ///
    /// Remedy: look for lost packets or a flood of fragments; `sysctl net.ipv4.ipfrag_high_thresh` sets the limit.
    FragmentMemory,
    /// Fragments of a datagram that was evicted as the least likely to complete.
    ///
    /// Remedy: look for lost packets or a flood of fragments; `sysctl net.ipv4.ipfrag_high_thresh` sets the limit.
    FragmentEvicted,
    /// Other fragments of the datagram did not arrive in time (RFC 791 §3.2, RFC 8200 §4.5).
    ///
    /// Remedy: look for lost packets on the way; a datagram is lost with any of its fragments.
    FragmentTimeout,
    /// A packet that cannot be segmented or fragmented as its link requires.
    ///
    /// Remedy: capture on the link; the sender's super-packet has headers that do not fit its segment size.
    CannotSegment,
    /// A fat packet inside a tunnel whose headers do not lead to the transport header to segment at, or differ between
    /// segments: an unknown encapsulation, GRE with a checksum or sequence number (RFC 2890).
    ///
    /// Remedy: switch off the guest's or device's segmentation for that tunnel (`ethtool -K DEV tx-udp_tnl-segmentation
    /// off`).
    GsoEncapsulation,
    /// The link is down or gone.
    ///
    /// Remedy: set the link up (`fatpath ip link set LINK up`), or look in the log why it is down.
    LinkDown,
    /// The link accepts no packets, and its queue is full.
    ///
    /// Remedy: lower the rate, or add a queueing discipline (`tc qdisc`); the device is slower than its senders.
    TxQueueFull,
    /// The limit of the link's queueing discipline was reached (Linux `SKB_DROP_REASON_QDISC_DROP`).
    ///
    /// Remedy: ordinary for a limit that shapes; raise `limit` if bursts are to pass.
    QdiscFull,
    /// Longer than the bucket depth of the link's queueing discipline (Linux `tbf_enqueue`).
    ///
    /// Remedy: raise `burst` of `tbf` above the link's MTU.
    QdiscTooLong,
    /// Waited in a queueing discipline that was replaced or removed (Linux `dev_deactivate`).
    ///
    /// Remedy: none needed; the discipline was changed.
    QdiscRemoved,
    /// A bridged frame with a group or zero as its source address, or a PAUSE frame.
    ///
    /// Remedy: none needed for PAUSE frames; a group address as source names a broken station.
    BridgeSource,
    /// A bridged frame whose ingress or egress port does not forward.
    ///
    /// Remedy: set the port to forwarding (`bridge link set dev PORT state forwarding`), if that is intended.
    BridgeState,
    /// A bridged frame in a VLAN of which its ingress or egress port is not a member.
    ///
    /// Remedy: make the port a member (`bridge vlan add dev PORT vid VID`), at both ports.
    BridgeVlan,
    /// A bridged frame with a VLAN tag in its payload, on a port with `payload-tags = false`.
    ///
    /// Remedy: none needed against a station that hops between VLANs; a station with VLANs of its own needs `payload-tags = true`.
    BridgePayloadTag,
    /// A bridged frame on a locked port at which its source is not known.
    ///
    /// Remedy: let the station authenticate, or add its address (`bridge fdb add MAC dev PORT master static`).
    BridgeLocked,
    /// A bridged frame from a standby trunk, or to an address at one.
    ///
    /// Remedy: none needed; the trunk of higher priority carries these frames.
    BridgeStandby,
    /// A bridged frame to an address at its ingress port.
    ///
    /// Remedy: ordinary on a shared wire behind the port.
    BridgeSamePort,
    /// A bridged frame from one isolated port to another.
    ///
    /// Remedy: take `isolated` from one of the ports, if they are to talk.
    BridgeIsolated,
    /// A bridged frame longer than the MTU of each egress port.
    ///
    /// Remedy: give the bridge's ports equal MTUs.
    BridgeTooBig,
    /// A flooded frame without an egress port.
    ///
    /// Remedy: ordinary on a bridge with one port; otherwise look at the VLANs and states of the others.
    BridgeNoPort,
    /// Passed eight virtual devices, VLAN devices and bridges one above the other, on its way out (Linux `XMIT_RECURSION_LIMIT`).
    ///
    /// Remedy: remove devices from the stack above the link; `fatpath ip -d link` shows it.
    DeviceNesting,
    /// In a VRF, after the limit of look-ups of its sockets was reached.
    ///
    /// Remedy: bind the program's sockets to the VRF (`fatpath exec --vrf NAME`).
    SocketUnknown,
    /// A packet of a flow that belongs to another VRF, or to none: its socket is bound to no device, and would take the packet for its
    /// own (Linux binds an accepted socket to its VRF, `inet_request_bound_dev_if`).
    ///
    /// Remedy: bind the program's sockets to their VRFs (`fatpath exec --vrf NAME`); equal addresses and ports in two VRFs need that.
    SocketOtherVrf,
    /// Sent by a socket that is bound to no device, from an address of VRFs alone, in no known flow: its VRF is unknown.
    ///
    /// Remedy: bind the program's sockets to their VRFs (`fatpath exec --vrf NAME`).
    SocketVrfUnknown,
    /// The receive buffer of a link's socket was full (Linux `SKB_DROP_REASON_SOCKET_RCVBUFF`).
    ///
    /// Remedy: lower the rate, or give the worker a CPU of its own (`[worker] cpu`); packets arrive faster than it takes them.
    SocketFull,
    /// The system refused the packet.
    ///
    /// Remedy: look in the log for the link's error; a source address that is not the system's own is a frequent cause.
    TxError,
    /// No buffer was free.
    ///
    /// Remedy: give the machine or its memory cgroup more memory, or lower rates and limits of queues.
    NoMemory,
    /// The queue of packets for ciphers is full.
    ///
    /// Remedy: lower the rate, or add crypto threads (`[crypto] workers`).
    CryptoQueueFull,
    /// Shorter than an ESP header, or than header, IV and ICV (RFC 4303 §2).
    ///
    /// Remedy: capture on the link; the peer or a device on the way cuts packets.
    EspTruncated,
    /// No SA has that SPI and destination (RFC 4301 §4.1).
    ///
    /// Remedy: compare the SPIs of `fatpath show sa` with the peer's; after a restart of a key manager, wait for its
    /// next negotiation.
    EspNoState,
    /// Sequence number seen before, or left of the window (RFC 4303 §3.4.3).
    ///
    /// Remedy: ordinary for a few on networks that reorder: raise `replay-window`; if all packets end so, the peer was
    /// restarted with static keys and without state.
    EspReplay,
    /// The integrity check failed (RFC 4303 §3.4.4.1).
    ///
    /// Remedy: compare keys and algorithms of both ends; with ESN the peer may have been restarted with static keys and
    /// without state.
    EspIcv,
    /// Padding, next header or inner length is impossible (RFC 4303 §2.4).
    ///
    /// Remedy: compare algorithms and modes of both ends; the packet was authentic, so its sender built it wrongly.
    EspFormat,
    /// A dummy packet, next header 59 (RFC 4303 §2.6).
    ///
    /// Remedy: none needed; the peer hides its traffic pattern.
    EspDummy,
    /// The encapsulation or mode differs from the SA's.
    ///
    /// Remedy: set the same mode and encapsulation (`encap`) at both ends.
    EspMismatch,
    /// The direction of the SA is the opposite one (RFC 4301 §4.1: an SA is simplex).
    ///
    /// Remedy: take `dir` from the SA, or correct it.
    EspDirection,
    /// A device failed to decrypt the packet, or decrypted a packet that another SA protects.
    ///
    /// Remedy: take the offload from the SA.
    EspDevice,
    /// A packet that only another device can encrypt (Linux `tx_dropped`), or that this device cannot encrypt.
    ///
    /// Remedy: route the packet to the device that the SA is offloaded to, or take the offload from the SA.
    EspWrongDevice,
    /// The sequence number would wrap (RFC 4303 §3.3.3).
    ///
    /// Remedy: make a new SA; use ESN or IKE, which does that in time.
    EspSequenceOverflow,
    /// A hard limit of the SA is reached (RFC 4301 §4.4.2.1).
    ///
    /// Remedy: make a new SA; use IKE, which does that in time.
    EspExpired,
    /// The SA cannot be used: it is larval, or has expired.
    ///
    /// Remedy: wait for the key manager, or look in its log.
    EspState,
    /// The action of a policy is block.
    ///
    /// Remedy: remove or change the policy (`fatpath ip xfrm policy`), if it is not intended.
    PolicyBlock,
    /// The packet arrived in clear, or through SAs other than the policy requires (RFC 4301 §5.2).
    ///
    /// Remedy: let the peer protect this traffic, or correct the policies of `in` and `fwd`.
    PolicyMismatch,
    /// The policy requires an SA that does not exist.
    ///
    /// Remedy: start a key manager, or add the SA that the policy's template names (its addresses, mode and `reqid`).
    PolicyNoState,
    /// The policy requires an SA that does not exist yet, and its queue is full.
    ///
    /// Remedy: ordinary for some packets while the key manager negotiates; if it lasts, look in its log.
    PolicyQueueFull,
    /// The packet would leave in clear, but belongs to traffic that a policy protects, or quotes a packet that arrived
    /// protected (RFC 4301 §7).
    ///
    /// Remedy: route this traffic so that the policy's SA can protect it, or narrow the policy's selector.
    PolicyClear,
    /// More SAs than a packet may pass: in the policy's templates, or in the packet's own nesting (`XFRM_MAX_DEPTH`).
    ///
    /// Remedy: use fewer templates in one policy.
    PolicyDepth,
}

/// First word of a remedy in the documentation of a reason.
const REMEDY: &str = "Remedy:";

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason of that name, in upper or lower case.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.name().eq_ignore_ascii_case(name))
    }

    /// The rule that was broken, as one line of text, with its source.
    pub fn cause(self) -> String {
        one_line(self.doc().split(REMEDY).next().unwrap_or_default())
    }

    /// The cause without its source, a last part in parentheses, and without what follows a colon.
    pub fn short_cause(self) -> String {
        let cause = self.cause();
        let text = cause.strip_suffix(").").and_then(|text| text.rsplit_once(" (")).map(|(text, _)| text);
        let text = text.unwrap_or(cause.trim_end_matches('.'));
        text.split(": ").next().unwrap_or_default().to_owned()
    }

    /// The next step for an operator, as one line of text.
    pub fn remedy(self) -> String {
        one_line(self.doc().split(REMEDY).nth(1).unwrap_or_default())
    }
}

/// Joins lines of documentation.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_cause_and_a_remedy() {
        for reason in DropReason::ALL {
            let (cause, remedy) = (reason.cause(), reason.remedy());
            assert!(cause.len() > 10 && cause.ends_with('.'), "{}: {cause:?}", reason.name());
            assert!(remedy.len() > 10 && remedy.ends_with('.'), "{}: {remedy:?}", reason.name());
            assert!(!reason.short_cause().is_empty() && reason.short_cause().len() <= 160, "{}", reason.name());
            assert_eq!(DropReason::by_name(&reason.name().to_lowercase()), Some(*reason));
        }
        assert_eq!(DropReason::by_name("nothing"), None);
    }

    #[test]
    fn texts_of_a_reason_are_its_documentation() {
        let reason = DropReason::EspIcv;
        assert_eq!(reason.cause(), "The integrity check failed (RFC 4303 §3.4.4.1).");
        assert_eq!(reason.short_cause(), "The integrity check failed");
        assert!(reason.remedy().starts_with("compare keys and algorithms of both ends;"), "{}", reason.remedy());
        assert_eq!(DropReason::RouteBlackhole.short_cause(), "A blackhole route");
    }
}
