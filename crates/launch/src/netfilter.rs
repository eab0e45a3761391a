//! Sockets and options by which programs configure packet filters of a kernel: the gateway has no filter and no NAT,
//! and a kernel's filter never sees the packets that the gateway forwards.

use libc::c_int;

/// Level of `setsockopt(2)` and `getsockopt(2)`, and first and last number of a range of options. `IPV6_RECVTCLASS` and
/// `IPV6_TCLASS` are 66 and 67.
pub(crate) const OPTIONS: [(c_int, c_int, c_int); 4] = [
    (libc::SOL_IP, 64, 65),   // IPT_SO_SET_REPLACE, IPT_SO_SET_ADD_COUNTERS
    (libc::SOL_IPV6, 64, 65), // IP6T_SO_SET_REPLACE, IP6T_SO_SET_ADD_COUNTERS
    (libc::SOL_IP, 96, 97),   // ARPT_SO_SET_REPLACE, ARPT_SO_SET_ADD_COUNTERS
    (libc::SOL_IP, 128, 129), // EBT_SO_SET_ENTRIES, EBT_SO_SET_COUNTERS
];

/// Tells whether an option, at `level` of `setsockopt(2)` or `getsockopt(2)`, is one of iptables, ip6tables, arptables
/// or ebtables.
pub fn is_option(level: c_int, name: c_int) -> bool {
    OPTIONS.iter().any(|&(of, first, last)| level == of && (first..=last).contains(&name))
}

/// Error of `socket(2)` for `NETLINK_NETFILTER`, as of a kernel without netfilter: programs that only look for it, such
/// as libpcap, go on.
pub const NO_PROTOCOL: c_int = libc::EPROTONOSUPPORT;

/// Error of a [netfilter option](is_option), as of a kernel without iptables.
pub const NO_OPTION: c_int = libc::ENOPROTOOPT;
