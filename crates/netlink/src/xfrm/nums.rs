//! Numbers of `linux/xfrm.h`.

/// Types of messages (`XFRM_MSG_*`).
pub mod msg {
    /// Adds an SA; in a reply, an SA.
    pub const NEW_SA: u16 = 0x10;
    /// Removes an SA.
    pub const DEL_SA: u16 = 0x11;
    /// Requests one SA or, as a dump, all.
    pub const GET_SA: u16 = 0x12;
    /// Adds a policy; in a reply, a policy.
    pub const NEW_POLICY: u16 = 0x13;
    /// Removes a policy.
    pub const DEL_POLICY: u16 = 0x14;
    /// Requests one policy or, as a dump, all.
    pub const GET_POLICY: u16 = 0x15;
    /// Requests an SPI.
    pub const ALLOC_SPI: u16 = 0x16;
    /// Notification that a packet needs an SA; or, from a client, that the negotiation failed.
    pub const ACQUIRE: u16 = 0x17;
    /// Notification of an SA's expiry; or, from a client, a request for it.
    pub const EXPIRE: u16 = 0x18;
    /// Replaces or adds a policy.
    pub const UPD_POLICY: u16 = 0x19;
    /// Completes or changes an SA.
    pub const UPD_SA: u16 = 0x1a;
    /// Notification of a policy's expiry; or, from a client, a request for it.
    pub const POL_EXPIRE: u16 = 0x1b;
    /// Removes all SAs.
    pub const FLUSH_SA: u16 = 0x1c;
    /// Removes all policies.
    pub const FLUSH_POLICY: u16 = 0x1d;
    /// Sets an SA's sequence numbers and counters; notifies of them.
    pub const NEW_AE: u16 = 0x1e;
    /// Requests an SA's sequence numbers and counters.
    pub const GET_AE: u16 = 0x1f;
    /// Moves SAs to other addresses.
    pub const MIGRATE: u16 = 0x21;
    /// Number of SAs.
    pub const NEW_SAD_INFO: u16 = 0x22;
    /// Requests the number of SAs.
    pub const GET_SAD_INFO: u16 = 0x23;
    /// Number of policies; or hash thresholds.
    pub const NEW_SPD_INFO: u16 = 0x24;
    /// Requests the number of policies.
    pub const GET_SPD_INFO: u16 = 0x25;
    /// Notification that a peer's address or port has changed.
    pub const MAPPING: u16 = 0x26;
    /// Sets the default policies.
    pub const SET_DEFAULT: u16 = 0x27;
    /// Requests the default policies.
    pub const GET_DEFAULT: u16 = 0x28;
}

/// Subject and reason of `NEWAE` (`XFRM_AE_*`).
pub mod ae_flag {
    /// The packet threshold for notifications is requested (`XFRM_AE_RTHR`).
    pub const REPLAY_THRESH: u32 = 1;
    /// The timer for notifications is requested (`XFRM_AE_ETHR`).
    pub const ETIMER_THRESH: u32 = 1 << 3;
    /// Reason: the packet threshold was reached (`XFRM_AE_CR`).
    pub const REACHED: u32 = 1 << 4;
    /// Reason: the timer expired (`XFRM_AE_CE`).
    pub const TIMEOUT: u32 = 1 << 5;
    /// Reason: a client set the sequence numbers (`XFRM_AE_CU`).
    pub const UPDATED: u32 = 1 << 6;
}

/// Attributes (`XFRMA_*`).
pub mod attr {
    #![expect(missing_docs, reason = "Linux's names")]
    pub const ALG_AUTH: u16 = 1;
    pub const ALG_CRYPT: u16 = 2;
    pub const ALG_COMP: u16 = 3;
    pub const ENCAP: u16 = 4;
    pub const TMPL: u16 = 5;
    pub const SA: u16 = 6;
    pub const POLICY: u16 = 7;
    pub const SEC_CTX: u16 = 8;
    pub const LTIME_VAL: u16 = 9;
    pub const REPLAY_VAL: u16 = 10;
    pub const REPLAY_THRESH: u16 = 11;
    pub const ETIMER_THRESH: u16 = 12;
    pub const SRCADDR: u16 = 13;
    pub const COADDR: u16 = 14;
    pub const LASTUSED: u16 = 15;
    pub const POLICY_TYPE: u16 = 16;
    pub const MIGRATE: u16 = 17;
    pub const ALG_AEAD: u16 = 18;
    pub const KMADDRESS: u16 = 19;
    pub const ALG_AUTH_TRUNC: u16 = 20;
    pub const MARK: u16 = 21;
    pub const TFCPAD: u16 = 22;
    pub const REPLAY_ESN_VAL: u16 = 23;
    pub const SA_EXTRA_FLAGS: u16 = 24;
    pub const PROTO: u16 = 25;
    pub const ADDRESS_FILTER: u16 = 26;
    pub const OFFLOAD_DEV: u16 = 28;
    pub const SET_MARK: u16 = 29;
    pub const SET_MARK_MASK: u16 = 30;
    pub const IF_ID: u16 = 31;
    pub const MTIMER_THRESH: u16 = 32;
    pub const SA_DIR: u16 = 33;
    pub const NAT_KEEPALIVE_INTERVAL: u16 = 34;
    pub const SA_PCPU: u16 = 35;
    pub const IPTFS_DROP_TIME: u16 = 36;
    pub const IPTFS_PKT_SIZE: u16 = 41;

    /// Attribute of [`NEW_SAD_INFO`](super::msg::NEW_SAD_INFO).
    pub const SAD_CNT: u16 = 1;
    pub const SAD_HINFO: u16 = 2;
    /// Attribute of [`NEW_SPD_INFO`](super::msg::NEW_SPD_INFO).
    pub const SPD_INFO: u16 = 1;
    pub const SPD_HINFO: u16 = 2;
    pub const SPD_IPV4_HTHRESH: u16 = 3;
    pub const SPD_IPV6_HTHRESH: u16 = 4;
}

/// Multicast groups (`XFRMNLGRP_*`).
pub mod group {
    /// Requests for SAs that packets need.
    pub const ACQUIRE: u32 = 1;
    /// Expiry of SAs and policies.
    pub const EXPIRE: u32 = 2;
    /// Added, changed and removed SAs.
    pub const SA: u32 = 3;
    /// Added, changed and removed policies.
    pub const POLICY: u32 = 4;
    /// Sequence numbers of SAs.
    pub const AEVENTS: u32 = 5;
    /// Changed addresses of peers.
    pub const MAPPING: u32 = 8;
}

/// Flags of an SA (`XFRM_STATE_*`), as in `usersa_info`.
pub mod sa_flag {
    #![expect(missing_docs, reason = "Linux's names")]
    pub const NOECN: u8 = 1;
    pub const DECAP_DSCP: u8 = 2;
    pub const NOPMTUDISC: u8 = 4;
    pub const WILDRECV: u8 = 8;
    pub const ICMP: u8 = 16;
    pub const AF_UNSPEC: u8 = 32;
    pub const ESN: u8 = 128;
    /// Flag in `XFRMA_SA_EXTRA_FLAGS`.
    pub const EXTRA_DONT_ENCAP_DSCP: u32 = 1;
    pub const EXTRA_OSEQ_MAY_WRAP: u32 = 2;
}

/// Flags of policies (`XFRM_POLICY_*`).
pub mod policy_flag {
    #![expect(missing_docs, reason = "Linux's names")]
    pub const LOCALOK: u8 = 1;
    pub const ICMP: u8 = 2;
    pub const CPU_ACQUIRE: u8 = 4;
}

/// Modes (`XFRM_MODE_*`).
pub mod mode {
    /// Transport.
    pub const TRANSPORT: u8 = 0;
    /// Tunnel.
    pub const TUNNEL: u8 = 1;
    /// Route optimisation of mobile IPv6.
    pub const ROUTE_OPTIMIZATION: u8 = 2;
    /// Bound end to end tunnel.
    pub const BEET: u8 = 4;
    /// Aggregation and fragmentation (RFC 9347).
    pub const IPTFS: u8 = 5;
    /// Lowest number that is invalid in a template.
    pub const MAX: u8 = 5;
}

/// Protocols that have SAs.
pub mod proto {
    /// Any of AH, ESP and IPComp (`IPSEC_PROTO_ANY`).
    pub const ANY: u8 = 255;
    /// ESP.
    pub const ESP: u8 = 50;
    /// AH.
    pub const AH: u8 = 51;
    /// IPComp.
    pub const COMP: u8 = 108;
    /// Mobile IPv6's routing header.
    pub const ROUTING: u8 = 43;
    /// Mobile IPv6's destination options.
    pub const DSTOPTS: u8 = 60;
}

/// `AF_INET`.
pub const AF_INET: u16 = 2;
/// `AF_INET6`.
pub const AF_INET6: u16 = 10;
/// An infinite limit.
pub const INFINITE: u64 = u64::MAX;
/// The most templates of a policy (`XFRM_MAX_DEPTH`).
pub const MAX_DEPTH: usize = 6;
/// The kernel's limit of SAD buckets, as shown to clients (`xfrm_state_hashmax`).
pub const HASH_MAX: u32 = 1 << 20;
