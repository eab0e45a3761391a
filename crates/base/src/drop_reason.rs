//! Reasons for dropping a packet.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The rule that a dropped packet broke. Each drop is counted with one reason, by link.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// Every reason, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The variant's own name, as `fatpath show drops` prints it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

drop_reasons! {
    /// The Ethernet header is truncated.
    EthTruncated,
    /// A link-layer protocol that this node does not implement, or a frame for another station.
    EthNotForUs,
    /// A virtio-net header that contradicts its frame, or uses a feature that was not negotiated.
    VirtioHeader,
    /// A ring descriptor of a frame that its device does not own, or longer than a frame.
    RingDescriptor,
    /// An ARP packet that is malformed or of another address family (RFC 826).
    ArpMalformed,
    /// The IPv4 header is short or its length fields are wrong (RFC 791 §3.1).
    Ipv4Header,
    /// The IPv4 header has a wrong checksum (`IpExtInCsumErrors`, RFC 1812 §5.2.2).
    Ipv4Checksum,
    /// An IPv4 option exceeds its header (RFC 791 §3.1).
    Ipv4Options,
    /// The packet is shorter than the length in its IP header (`IpInTruncatedPkts`).
    IpTruncated,
    /// The IPv6 header or its chain of extension headers is malformed (RFC 8200 §4).
    Ipv6Header,
    /// A source address that no host may send from (multicast, broadcast, loopback from outside: RFC 1122 §3.2.1.3).
    IpSourceInvalid,
    /// A destination that no host may send to (loopback and this network from outside: RFC 1122 §3.2.1.3).
    IpDestinationInvalid,
    /// TTL or hop limit expired in transit (RFC 1812 §5.3.1, RFC 8200 §3).
    TtlExceeded,
    /// Larger than the next link's MTU, and may not be fragmented (RFC 1191, RFC 8201).
    PacketTooBig,
    /// No route leads to the destination.
    NoRoute,
    /// A blackhole route.
    RouteBlackhole,
    /// An unreachable route.
    RouteUnreachable,
    /// A prohibit route (RFC 1812 §5.2.7.1).
    RouteProhibit,
    /// A route with an ILA encapsulation without a gateway, while no other route on its link leads to the translated
    /// destination (Linux `ila_output`).
    IlaUnreachable,
    /// The next hop did not answer ARP or neighbour discovery (RFC 4861 §7.3.3).
    NeighbourFailed,
    /// Too many packets waited for the next hop's link-layer address.
    NeighbourQueueFull,
    /// Too many unknown next hops on a link were needed in a second, or too many unknown stations on it requested this
    /// node's addresses (RFC 6583 §6.4, §7.1).
    NeighbourRateLimited,
    /// A neighbour discovery message that RFC 4861 §7.1 or §8.1 requires to ignore.
    NeighbourMalformed,
    /// For this node, but of a protocol without a listener.
    ProtocolUnknown,
    /// For this node's UDP, but to a closed port.
    UdpNoPort,
    /// To an open port of IKE or of ESP in UDP, but neither ESP nor a message that a key manager accepts: too short, or
    /// IKE on a link without IKE (RFC 3948 §2).
    EncapIgnored,
    /// For this node's TCP, without such a connection or listener.
    TcpNoPort,
    /// A transport header that is short, or whose length fields are wrong.
    TransportHeader,
    /// A wrong checksum.
    ChecksumWrong,
    /// An ICMP or ICMPv6 message that is malformed or does not belong to a request of this node.
    IcmpIgnored,
    /// An ICMP error about a path that quotes no packet sent by this node (RFC 4301 §6.1.1, RFC 5927 §4).
    IcmpQuote,
    /// IKE for a key manager whose queue is full.
    IkeQueueFull,
    /// IKE of a key manager whose source is not an IKE port of this node, or whose addresses are of two families.
    IkeUnsendable,
    /// An ICMP error suppressed by the rate limit.
    IcmpRateLimited,
    /// A fragment where a complete packet is needed.
    FragmentNotReassembled,
    /// A fragment whose bytes have all arrived before; the first copy is kept (RFC 5722 §4 with erratum 3089).
    FragmentDuplicate,
    /// Fragments that overlap: the complete datagram is dropped (RFC 5722 §4, RFC 8200 §4.5).
    FragmentOverlap,
    /// Fragments that contradict each other in the end of their datagram (RFC 815 §3).
    FragmentEnd,
    /// A fragment without data, or one before the last with less than 8 bytes of data.
    FragmentEmpty,
    /// A fragment before the last whose length is not a multiple of 8 (RFC 8200 §4.5).
    FragmentLength,
    /// A datagram that would be longer than 65 535 bytes (RFC 791 §3.1, RFC 8200 §4.5).
    FragmentTooLong,
    /// A first fragment that ends before its upper-layer header (RFC 7112 §5).
    FragmentHeaderChain,
    /// A fragment header in a packet that was reassembled from fragments already.
    FragmentNested,
    /// Fragments with and without ECN in one datagram (RFC 3168 §5.3).
    FragmentEcn,
    /// More fragments arrived from the source than an old fragment with this identification may wait for: the old
    /// fragment belongs to another datagram (Linux's `ipfrag_max_dist`).
    FragmentDistance,
    /// Waiting fragments use all of their memory limit (Linux's `ipfrag_high_thresh`).
    FragmentMemory,
    /// Fragments of a datagram that was evicted as the least likely to complete.
    FragmentEvicted,
    /// Other fragments of the datagram did not arrive in time (RFC 791 §3.2, RFC 8200 §4.5).
    FragmentTimeout,
    /// A packet that cannot be segmented or fragmented as its link requires.
    CannotSegment,
    /// A fat packet inside a tunnel whose headers do not lead to the transport header to segment at, or differ between
    /// segments: an unknown encapsulation, GRE with a checksum or sequence number (RFC 2890).
    GsoEncapsulation,
    /// The link is down or gone.
    LinkDown,
    /// The link accepts no packets, and its queue is full.
    TxQueueFull,
    /// The limit of the link's queueing discipline was reached (Linux `SKB_DROP_REASON_QDISC_DROP`).
    QdiscFull,
    /// Longer than the bucket depth of the link's queueing discipline (Linux `tbf_enqueue`).
    QdiscTooLong,
    /// Waited in a queueing discipline that was replaced or removed (Linux `dev_deactivate`).
    QdiscRemoved,
    /// A bridged frame with a group or zero as its source address, or a PAUSE frame.
    BridgeSource,
    /// A bridged frame whose ingress or egress port does not forward.
    BridgeState,
    /// A bridged frame in a VLAN of which its ingress or egress port is not a member.
    BridgeVlan,
    /// A bridged frame on a locked port at which its source is not known.
    BridgeLocked,
    /// A bridged frame from a standby trunk, or to an address at one.
    BridgeStandby,
    /// A bridged frame to an address at its ingress port.
    BridgeSamePort,
    /// A bridged frame from one isolated port to another.
    BridgeIsolated,
    /// A bridged frame longer than the MTU of each egress port.
    BridgeTooBig,
    /// A flooded frame without an egress port.
    BridgeNoPort,
    /// In a VRF, after the limit of look-ups of its sockets was reached.
    SocketUnknown,
    /// A packet of a flow that belongs to another VRF, or to none: its socket is bound to no device, and would take the packet for its
    /// own (Linux binds an accepted socket to its VRF, `inet_request_bound_dev_if`).
    SocketOtherVrf,
    /// Sent by a socket that is bound to no device, from an address of VRFs alone, in no known flow: its VRF is unknown.
    SocketVrfUnknown,
    /// The system refused the packet.
    TxError,
    /// No buffer was free.
    NoMemory,
    /// The queue of packets for ciphers is full.
    CryptoQueueFull,
    /// Shorter than an ESP header, or than header, IV and ICV (RFC 4303 §2).
    EspTruncated,
    /// No SA has that SPI and destination (RFC 4301 §4.1).
    EspNoState,
    /// Sequence number seen before, or left of the window (RFC 4303 §3.4.3).
    EspReplay,
    /// The integrity check failed (RFC 4303 §3.4.4.1).
    EspIcv,
    /// Padding, next header or inner length is impossible (RFC 4303 §2.4).
    EspFormat,
    /// A dummy packet, next header 59 (RFC 4303 §2.6).
    EspDummy,
    /// The encapsulation or mode differs from the SA's.
    EspMismatch,
    /// The direction of the SA is the opposite one (RFC 4301 §4.1: an SA is simplex).
    EspDirection,
    /// A device failed to decrypt the packet, or decrypted a packet that another SA protects.
    EspDevice,
    /// A packet that only another device can encrypt (Linux `tx_dropped`), or that this device cannot encrypt.
    EspWrongDevice,
    /// The sequence number would wrap (RFC 4303 §3.3.3).
    EspSequenceOverflow,
    /// A hard limit of the SA is reached (RFC 4301 §4.4.2.1).
    EspExpired,
    /// The SA cannot be used: it is larval, or has expired.
    EspState,
    /// The action of a policy is block.
    PolicyBlock,
    /// The packet arrived in clear, or through SAs other than the policy requires (RFC 4301 §5.2).
    PolicyMismatch,
    /// The policy requires an SA that does not exist.
    PolicyNoState,
    /// The policy requires an SA that does not exist yet, and its queue is full.
    PolicyQueueFull,
    /// The packet would leave in clear, but belongs to traffic that a policy protects, or quotes a packet that arrived
    /// protected (RFC 4301 §7).
    PolicyClear,
    /// More SAs than a packet may pass: in the policy's templates, or in the packet's own nesting (`XFRM_MAX_DEPTH`).
    PolicyDepth,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();
}
