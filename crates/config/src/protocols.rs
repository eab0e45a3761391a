//! IP protocols: their names, and those with ports.

/// IP protocols by name.
pub const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("ipv6-icmp", 58),
    ("sctp", 132),
    ("udplite", 136),
];

/// IP protocols with ports, by number.
pub const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
