//! Reasons for which a packet goes no further.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The rule that a dropped packet broke. Each drop is counted under one of these, by link.
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
    /// A link-layer protocol that this node does not support, or a frame for another station.
    EthNotForUs,
    /// A virtio-net header that contradicts its frame, or uses a feature that was not negotiated.
    VirtioHeader,
    /// A ring's descriptor of a frame that its device does not own, or of more than a frame.
    RingDescriptor,
    /// An ARP packet that is malformed or of another address family (RFC 826).
    ArpMalformed,
    /// The IPv4 header is short or lies about its length (RFC 791 §3.1).
    Ipv4Header,
    /// The IPv4 header has a wrong checksum (`IpExtInCsumErrors`, RFC 1812 §5.2.2).
    Ipv4Checksum,
    /// An IPv4 option runs past its header (RFC 791 §3.1).
    Ipv4Options,
    /// The packet is shorter than its IP header says (`IpInTruncatedPkts`).
    IpTruncated,
    /// The IPv6 header or its chain of extension headers is malformed (RFC 8200 §4).
    Ipv6Header,
    /// A source address that no host may send from (multicast, broadcast, loopback from outside: RFC 1122 §3.2.1.3).
    IpSourceInvalid,
    /// A destination that no host may send to (loopback and this network from outside: RFC 1122 §3.2.1.3).
    IpDestinationInvalid,
    /// TTL or hop limit ran out on the way (RFC 1812 §5.3.1, RFC 8200 §3).
    TtlExceeded,
    /// Larger than the next link takes, and may not be fragmented (RFC 1191, RFC 8201).
    PacketTooBig,
    /// No route leads to the destination.
    NoRoute,
    /// A blackhole route.
    RouteBlackhole,
    /// An unreachable route.
    RouteUnreachable,
    /// A prohibit route (RFC 1812 §5.2.7.1).
    RouteProhibit,
    /// A route with an ILA encapsulation without a gateway, and no other route by its link leads to the translated
    /// destination (Linux `ila_output`).
    IlaUnreachable,
    /// The next hop did not answer ARP or neighbour discovery (RFC 4861 §7.3.3).
    NeighbourFailed,
    /// Too many packets waited for the next hop's link-layer address.
    NeighbourQueueFull,
    /// Too many unknown next hops on a link were resolved in a second, or too many unknown stations there solicited this
    /// node's addresses (RFC 6583 §6.4, §7.1).
    NeighbourRateLimited,
    /// A neighbour discovery message that RFC 4861 §7.1 or §8.1 says to ignore.
    NeighbourMalformed,
    /// For this node, but of a protocol without a listener here.
    ProtocolUnknown,
    /// For this node's UDP, but to a closed port.
    UdpNoPort,
    /// To an open port of IKE or of ESP in UDP, and neither a message that a key manager here accepts nor ESP: too
    /// short, or IKE on a link without it (RFC 3948 §2).
    EncapIgnored,
    /// For this node's TCP, without such a connection or listener.
    TcpNoPort,
    /// A transport header that is short, or lies about its length.
    TransportHeader,
    /// A checksum that does not match.
    ChecksumWrong,
    /// An ICMP or ICMPv6 message that is malformed or that answers no request of this node.
    IcmpIgnored,
    /// An ICMP error about a path that quotes no packet that this node has sent (RFC 4301 §6.1.1, RFC 5927 §4).
    IcmpQuote,
    /// IKE for a key manager that does not read.
    IkeQueueFull,
    /// IKE of a key manager between addresses that no link has.
    IkeUnsendable,
    /// An ICMP error that the rate limit held back.
    IcmpRateLimited,
    /// A fragment where a whole packet is needed.
    FragmentNotReassembled,
    /// A fragment whose bytes have all come before; the first copy counts (RFC 5722 §4 with erratum 3089).
    FragmentDuplicate,
    /// Fragments that overlap: the whole datagram is dropped (RFC 5722 §4, RFC 8200 §4.5).
    FragmentOverlap,
    /// Fragments that disagree about where their datagram ends (RFC 815 §3).
    FragmentEnd,
    /// A fragment without data, or whose data is less than the 8 bytes that one before others must have.
    FragmentEmpty,
    /// A fragment before others whose length is not a multiple of 8 (RFC 8200 §4.5).
    FragmentLength,
    /// A datagram that would be longer than 65 535 bytes (RFC 791 §3.1, RFC 8200 §4.5).
    FragmentTooLong,
    /// A first fragment that does not reach to its upper-layer header (RFC 7112 §5).
    FragmentHeaderChain,
    /// A fragment header in a packet that has been put together from fragments already.
    FragmentNested,
    /// Fragments of which some take part in ECN and others do not (RFC 3168 §5.3).
    FragmentEcn,
    /// More fragments came from the source than an old fragment with this identification may wait for: it is of another
    /// datagram (Linux's `ipfrag_max_dist`).
    FragmentDistance,
    /// Waiting fragments use all the memory that they may (Linux's `ipfrag_high_thresh`).
    FragmentMemory,
    /// Fragments of a datagram that was evicted as the least likely to be completed.
    FragmentEvicted,
    /// The other fragments did not come in time (RFC 791 §3.2, RFC 8200 §4.5).
    FragmentTimeout,
    /// A packet that cannot be cut or fragmented as its link demands.
    CannotSegment,
    /// A fat packet inside a tunnel whose headers do not lead to the transport header to segment at, or differ between
    /// segments: an unknown encapsulation, GRE with a checksum or sequence number (RFC 2890).
    GsoEncapsulation,
    /// The link is down or gone.
    LinkDown,
    /// The link accepts no packet, and its queue is full.
    TxQueueFull,
    /// The limit of the link's queueing discipline was reached (Linux `SKB_DROP_REASON_QDISC_DROP`).
    QdiscFull,
    /// Longer than the buckets of the link's queueing discipline are deep (Linux `tbf_enqueue`).
    QdiscTooLong,
    /// Waited in a queueing discipline that was replaced or removed (Linux `dev_deactivate`).
    QdiscRemoved,
    /// A bridged frame from a group or from address zero, or a PAUSE frame.
    BridgeSource,
    /// A bridged frame whose port, or the port that it goes to, does not forward.
    BridgeState,
    /// A bridged frame in a VLAN of which its port, or the port that it goes to, is no member.
    BridgeVlan,
    /// A bridged frame from a locked port, whose source is not known there.
    BridgeLocked,
    /// A bridged frame of a trunk on standby, or to an address behind one.
    BridgeStandby,
    /// A bridged frame to an address behind the port that it came from.
    BridgeSamePort,
    /// A bridged frame from one isolated port to another.
    BridgeIsolated,
    /// A bridged frame longer than the MTU of each port that it goes to.
    BridgeTooBig,
    /// A flooded frame that goes to no port.
    BridgeNoPort,
    /// In a VRF, after the limit of look-ups of its sockets was reached.
    SocketUnknown,
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
    /// The encapsulation or mode is not the SA's.
    EspMismatch,
    /// The SA is for the other direction (RFC 4301 §4.1: an SA is simplex).
    EspDirection,
    /// A device failed to decrypt it, or decrypted a packet that is not its own.
    EspDevice,
    /// A packet that only another device can encrypt (Linux `tx_dropped`), or that this one cannot.
    EspWrongDevice,
    /// The sequence number would wrap (RFC 4303 §3.3.3).
    EspSequenceOverflow,
    /// A hard limit of the SA is reached (RFC 4301 §4.4.2.1).
    EspExpired,
    /// The SA cannot be used: it is larval, or has expired.
    EspState,
    /// A policy says block.
    PolicyBlock,
    /// The packet came in clear, or through other SAs than the policy demands (RFC 4301 §5.2).
    PolicyMismatch,
    /// The policy demands an SA that does not exist.
    PolicyNoState,
    /// The policy demands an SA that does not exist yet, and its queue is full.
    PolicyQueueFull,
    /// It would leave in clear, and belongs to traffic that a policy protects, or quotes a packet that came protected
    /// (RFC 4301 §7).
    PolicyClear,
    /// More SAs than a packet may go through: by the policy's templates, or by the packet's own nesting
    /// (`XFRM_MAX_DEPTH`).
    PolicyDepth,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();
}
