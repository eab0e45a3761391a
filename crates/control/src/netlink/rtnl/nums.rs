//! Numbers of `linux/rtnetlink.h`, `if_link.h`, `if_addr.h`, `neighbour.h` and `fib_rules.h`, by Linux's names.
#![allow(missing_docs, reason = "the names are Linux's, and documented there")]

pub const AF_UNSPEC: u8 = 0;
pub const AF_INET: u8 = 2;
pub const AF_BRIDGE: u8 = 7;
pub const AF_INET6: u8 = 10;

pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_GETLINK: u16 = 18;
pub const RTM_SETLINK: u16 = 19;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
pub const RTM_GETADDR: u16 = 22;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub const RTM_NEWNEIGH: u16 = 28;
pub const RTM_DELNEIGH: u16 = 29;
pub const RTM_GETNEIGH: u16 = 30;
pub const RTM_NEWRULE: u16 = 32;
pub const RTM_DELRULE: u16 = 33;
pub const RTM_GETRULE: u16 = 34;
pub const RTM_NEWNSID: u16 = 88;
pub const RTM_GETQDISC: u16 = 38;
pub const RTM_GETTCLASS: u16 = 42;
pub const RTM_GETTFILTER: u16 = 46;
pub const RTM_GETACTION: u16 = 50;
pub const RTM_GETNETCONF: u16 = 82;
pub const RTM_NEWNETCONF: u16 = 80;
pub const RTM_GETMDB: u16 = 86;
pub const RTM_GETCHAIN: u16 = 102;
pub const RTM_GETNEXTHOP: u16 = 106;
pub const RTM_GETVLAN: u16 = 114;
pub const RTM_GETNEXTHOPBUCKET: u16 = 118;
pub const RTM_GETTUNNEL: u16 = 122;
pub const RTM_GETNSID: u16 = 90;
pub const NETNSA_NSID: u16 = 1;

pub const RTNLGRP_LINK: u32 = 1;
pub const RTNLGRP_NEIGH: u32 = 3;
pub const RTNLGRP_IPV4_IFADDR: u32 = 5;
pub const RTNLGRP_IPV4_ROUTE: u32 = 7;
pub const RTNLGRP_IPV4_RULE: u32 = 8;
pub const RTNLGRP_IPV6_IFADDR: u32 = 9;
pub const RTNLGRP_IPV6_ROUTE: u32 = 11;
pub const RTNLGRP_IPV6_RULE: u32 = 19;
/// The last one that Linux 6.18 has.
pub const RTNLGRP_MAX: u32 = 39;

pub const IFLA_ADDRESS: u16 = 1;
pub const IFLA_BROADCAST: u16 = 2;
pub const IFLA_IFNAME: u16 = 3;
pub const IFLA_MTU: u16 = 4;
pub const IFLA_LINK: u16 = 5;
pub const IFLA_QDISC: u16 = 6;
pub const IFLA_STATS: u16 = 7;
pub const IFLA_MASTER: u16 = 10;
pub const IFLA_TXQLEN: u16 = 13;
pub const IFLA_OPERSTATE: u16 = 16;
pub const IFLA_LINKMODE: u16 = 17;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_NET_NS_PID: u16 = 19;
pub const IFLA_IFALIAS: u16 = 20;
pub const IFLA_STATS64: u16 = 23;
pub const IFLA_AF_SPEC: u16 = 26;
pub const IFLA_GROUP: u16 = 27;
pub const IFLA_NET_NS_FD: u16 = 28;
pub const IFLA_EXT_MASK: u16 = 29;
pub const IFLA_PROMISCUITY: u16 = 30;
pub const IFLA_NUM_TX_QUEUES: u16 = 31;
pub const IFLA_NUM_RX_QUEUES: u16 = 32;
pub const IFLA_CARRIER: u16 = 33;
pub const IFLA_VFINFO_LIST: u16 = 22;
pub const IFLA_PROTINFO: u16 = 12;
pub const IFLA_CARRIER_CHANGES: u16 = 35;
pub const IFLA_PROTO_DOWN: u16 = 39;
pub const IFLA_GSO_MAX_SEGS: u16 = 40;
pub const IFLA_GSO_MAX_SIZE: u16 = 41;
pub const IFLA_XDP: u16 = 43;
/// In [`IFLA_XDP`].
pub const IFLA_XDP_FD: u16 = 1;
pub const IFLA_CARRIER_UP_COUNT: u16 = 47;
pub const IFLA_CARRIER_DOWN_COUNT: u16 = 48;
pub const IFLA_GRO_MAX_SIZE: u16 = 58;
pub const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
pub const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
pub const IFLA_ALT_IFNAME: u16 = 53;
pub const IFLA_MIN_MTU: u16 = 50;
pub const IFLA_MAX_MTU: u16 = 51;
pub const IFLA_MAX: usize = 70;

pub const IFLA_INET6_TOKEN: u16 = 7;
pub const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

pub const IFLA_INFO_KIND: u16 = 1;
pub const IFLA_INFO_DATA: u16 = 2;
pub const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub const IFLA_INFO_SLAVE_DATA: u16 = 5;
/// In the data of a VRF.
pub const IFLA_VRF_TABLE: u16 = 1;
/// In the data of what belongs to one.
pub const IFLA_VRF_PORT_TABLE: u16 = 1;
/// Of `IFLA_INFO_DATA`, fatpath's own and in no other message than those that are saved: the features that are wanted of a link.
pub const IFLA_FATPATH_FEATURES: u16 = 0x100;

pub const RTEXT_FILTER_SKIP_STATS: u32 = 8;

pub const IFF_UP: u32 = 0x1;
pub const IFF_BROADCAST: u32 = 0x2;
/// Who gave `lo` its IPv6 address (`IFAPROT_KERNEL_LO`).
pub const IFAPROT_KERNEL_LO: u8 = 1;
pub const IFF_LOOPBACK: u32 = 0x8;
pub const IFF_POINTOPOINT: u32 = 0x10;
pub const IFF_RUNNING: u32 = 0x40;
pub const IFF_NOARP: u32 = 0x80;
pub const IFF_MASTER: u32 = 0x400;
pub const IFF_MULTICAST: u32 = 0x1000;
pub const IFF_LOWER_UP: u32 = 0x10000;
/// The flags that follow from what a device is and does: nobody sets them (`IFF_VOLATILE`).
pub const IFF_VOLATILE: u32 = 0x70c5a;

pub const ARPHRD_ETHER: u16 = 1;
pub const ARPHRD_LOOPBACK: u16 = 772;
pub const ARPHRD_NONE: u16 = 0xfffe;

pub const IFA_ADDRESS: u16 = 1;
pub const IFA_LOCAL: u16 = 2;
pub const IFA_LABEL: u16 = 3;
pub const IFA_BROADCAST: u16 = 4;
pub const IFA_ANYCAST: u16 = 5;
pub const IFA_CACHEINFO: u16 = 6;
pub const IFA_FLAGS: u16 = 8;
pub const IFA_RT_PRIORITY: u16 = 9;
pub const IFA_PROTO: u16 = 11;
pub const IFA_F_SECONDARY: u32 = 0x01;
pub const IFA_F_NODAD: u32 = 0x02;
pub const IFA_F_HOMEADDRESS: u32 = 0x10;
pub const IFA_F_DEPRECATED: u32 = 0x20;
pub const IFA_F_PERMANENT: u32 = 0x80;
pub const IFA_F_MANAGETEMPADDR: u32 = 0x100;
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;

pub const RTA_DST: u16 = 1;
pub const RTA_SRC: u16 = 2;
pub const RTA_IIF: u16 = 3;
pub const RTA_OIF: u16 = 4;
pub const RTA_GATEWAY: u16 = 5;
pub const RTA_PRIORITY: u16 = 6;
pub const RTA_PREFSRC: u16 = 7;
pub const RTA_METRICS: u16 = 8;
pub const RTA_MULTIPATH: u16 = 9;
pub const RTA_FLOW: u16 = 11;
pub const RTA_CACHEINFO: u16 = 12;
pub const RTA_TABLE: u16 = 15;
pub const RTA_MARK: u16 = 16;
pub const RTA_VIA: u16 = 18;
pub const RTA_PREF: u16 = 20;
pub const RTA_ENCAP_TYPE: u16 = 21;
pub const RTA_ENCAP: u16 = 22;
pub const RTA_EXPIRES: u16 = 23;
pub const RTA_UID: u16 = 25;
pub const RTA_TTL_PROPAGATE: u16 = 26;
pub const RTA_IP_PROTO: u16 = 27;
pub const RTA_SPORT: u16 = 28;
pub const RTA_DPORT: u16 = 29;
pub const RTA_NH_ID: u16 = 30;
pub const RTA_MAX: usize = 31;

pub const RTN_UNSPEC: u8 = 0;
pub const RTN_UNICAST: u8 = 1;
pub const RTN_LOCAL: u8 = 2;
pub const RTN_BROADCAST: u8 = 3;
pub const RTN_ANYCAST: u8 = 4;
pub const RTN_MULTICAST: u8 = 5;
pub const RTN_BLACKHOLE: u8 = 6;
pub const RTN_UNREACHABLE: u8 = 7;
pub const RTN_PROHIBIT: u8 = 8;
pub const RTN_THROW: u8 = 9;
pub const RTN_MAX: u8 = 11;

pub const RT_SCOPE_UNIVERSE: u8 = 0;
pub const RT_SCOPE_LINK: u8 = 253;
pub const RT_SCOPE_HOST: u8 = 254;
pub const RT_SCOPE_NOWHERE: u8 = 255;

pub const RTPROT_UNSPEC: u8 = 0;
pub const RTPROT_KERNEL: u8 = 2;
pub const RTPROT_STATIC: u8 = 4;

pub const RT_TABLE_UNSPEC: u32 = 0;
pub const RT_TABLE_COMPAT: u32 = 252;
pub const RT_TABLE_DEFAULT: u32 = 253;
pub const RT_TABLE_MAIN: u32 = 254;
pub const RT_TABLE_LOCAL: u32 = 255;

pub const RTNH_F_DEAD: u32 = 1;
pub const RTNH_F_ONLINK: u32 = 4;
pub const RTNH_F_LINKDOWN: u32 = 16;
pub const RTM_F_NOTIFY: u32 = 0x100;
pub const RTM_F_CLONED: u32 = 0x200;
pub const RTM_F_PREFIX: u32 = 0x800;
pub const RTM_F_FIB_MATCH: u32 = 0x2000;
pub const RTM_F_LOOKUP_TABLE: u32 = 0x1000;

pub const FRA_DST: u16 = 1;
pub const FRA_SRC: u16 = 2;
pub const FRA_IIFNAME: u16 = 3;
pub const FRA_GOTO: u16 = 4;
pub const FRA_PRIORITY: u16 = 6;
pub const FRA_FWMARK: u16 = 10;
pub const FRA_FLOW: u16 = 11;
pub const FRA_TUN_ID: u16 = 12;
pub const FRA_SUPPRESS_IFGROUP: u16 = 13;
pub const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub const FRA_TABLE: u16 = 15;
pub const FRA_FWMASK: u16 = 16;
pub const FRA_OIFNAME: u16 = 17;
pub const FRA_L3MDEV: u16 = 19;
pub const FRA_UID_RANGE: u16 = 20;
pub const FRA_PROTOCOL: u16 = 21;
pub const FRA_IP_PROTO: u16 = 22;
pub const FRA_SPORT_RANGE: u16 = 23;
pub const FRA_DPORT_RANGE: u16 = 24;
pub const FRA_MAX: usize = 26;
pub const FR_ACT_TO_TBL: u8 = 1;

pub const NDA_DST: u16 = 1;
pub const NDA_LLADDR: u16 = 2;
pub const NDA_CACHEINFO: u16 = 3;
pub const NDA_PROBES: u16 = 4;
pub const NDA_MASTER: u16 = 9;
pub const NDA_IFINDEX: u16 = 8;
pub const NDA_FLAGS_EXT: u16 = 15;
pub const NDA_PROTOCOL: u16 = 12;
pub const NDA_MAX: usize = 18;
pub const NUD_INCOMPLETE: u16 = 0x01;
pub const NUD_REACHABLE: u16 = 0x02;
pub const NUD_STALE: u16 = 0x04;
pub const NUD_DELAY: u16 = 0x08;
pub const NUD_PROBE: u16 = 0x10;
pub const NUD_FAILED: u16 = 0x20;
pub const NUD_NOARP: u16 = 0x40;
pub const NUD_PERMANENT: u16 = 0x80;
