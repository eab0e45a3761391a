//! Names of IP protocols.

/// IP protocols by name.
pub(crate) const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("ipv6-icmp", 58),
    ("sctp", 132),
    ("udplite", 136),
];
