//! Table of the files, by name below `/proc/sys/net`.

use super::number::{INT, SECONDS};
use super::settings::{Family, Limit, Setting};

/// File, or pattern of files for each link, `all` and `default`.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) value: Value,
    pub(super) mode: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Setting(Setting),
    Fixed {
        value: i32,
        min: i64,
        max: i64,
    },
    /// MTU of the link in the file's path.
    Mtu,
    /// No value: a write flushes the cached path MTUs of IPv4.
    Flush,
}

/// Placeholder in a name for each link, `all` and `default`.
pub(super) const CONF: &str = "{conf}";
/// Placeholder in a name for each link and `default`.
pub(super) const NEIGH: &str = "{neigh}";
/// Placeholder in a name for each link.
pub(super) const LINK: &str = "{link}";

const fn setting(name: &'static str, setting: Setting) -> Entry {
    Entry { name, value: Value::Setting(setting), mode: 0o644 }
}

/// Entry with a fixed value, of Linux's type `int`.
const fn fixed(name: &'static str, value: i32) -> Entry {
    between(name, value, *INT.start() as i64, *INT.end() as i64)
}

/// Entry with a fixed value that is never negative.
const fn count(name: &'static str, value: i32) -> Entry {
    between(name, value, 0, *INT.end() as i64)
}

const fn seconds(name: &'static str, value: i32) -> Entry {
    between(name, value, *SECONDS.start() as i64, *SECONDS.end() as i64)
}

const fn between(name: &'static str, value: i32, min: i64, max: i64) -> Entry {
    Entry { name, value: Value::Fixed { value, min, max }, mode: 0o644 }
}

/// Read-only entry.
const fn shown(name: &'static str, value: i32) -> Entry {
    Entry { mode: 0o444, ..fixed(name, value) }
}

pub(super) static ENTRIES: &[Entry] = &[
    setting("core/xfrm_acq_expires", Setting::AcqExpires),
    setting("core/xfrm_aevent_etime", Setting::AeventEtime),
    setting("core/xfrm_aevent_rseqth", Setting::AeventRseqth),
    setting("core/xfrm_larval_drop", Setting::LarvalDrop),
    setting("ipv4/ip_early_demux", Setting::IpEarlyDemux),
    setting("ipv4/tcp_early_demux", Setting::TcpEarlyDemux),
    setting("ipv4/udp_early_demux", Setting::UdpEarlyDemux),
    setting("ipv4/tcp_l3mdev_accept", Setting::TcpL3mdevAccept),
    setting("ipv4/udp_l3mdev_accept", Setting::UdpL3mdevAccept),
    setting("vrf/strict_mode", Setting::VrfStrictMode),
    setting("ipv4/fib_multipath_hash_policy", Setting::PathHash(Family::V4)),
    setting("ipv6/fib_multipath_hash_policy", Setting::PathHash(Family::V6)),
    between("ipv4/fib_multipath_use_neigh", 0, 0, 1),
    // Limits of tables, as in `[limits]` of a file; 0 is none. Linux's are those of caches and of single devices.
    setting("fatpath/max_routes", Setting::Limit(Limit::Routes)),
    setting("fatpath/max_sas", Setting::Limit(Limit::Sas)),
    setting("fatpath/max_policies", Setting::Limit(Limit::Policies)),
    setting("fatpath/max_neighbours", Setting::Limit(Limit::Neighbours)),
    setting("fatpath/max_mappings", Setting::Limit(Limit::Mappings)),
    // Fixed: the raw sockets of the host side cannot be listed (`raw_diag`).
    between("ipv4/raw_l3mdev_accept", 1, 0, 1),
    setting("ipv4/ipfrag_high_thresh", Setting::HighThresh(Family::V4)),
    setting("ipv4/ipfrag_low_thresh", Setting::LowThresh(Family::V4)),
    setting("ipv4/ipfrag_time", Setting::Time(Family::V4)),
    setting("ipv4/ipfrag_max_dist", Setting::MaxDist),
    setting("ipv6/ip6frag_high_thresh", Setting::HighThresh(Family::V6)),
    setting("ipv6/ip6frag_low_thresh", Setting::LowThresh(Family::V6)),
    setting("ipv6/ip6frag_time", Setting::Time(Family::V6)),
    // A router, with the TTL of its own packets, and Don't Fragment outside.
    fixed("ipv4/ip_forward", 1),
    between("ipv4/ip_default_ttl", 64, 1, 255),
    between("ipv4/ip_no_pmtu_disc", 0, 0, 255),
    // `host::RateLimit`.
    fixed("ipv4/icmp_ratelimit", 1000),
    count("ipv4/icmp_msgs_per_sec", 1000),
    count("ipv4/icmp_msgs_burst", 50),
    fixed("ipv6/icmp/ratelimit", 1000),
    between("ipv4/icmp_echo_ignore_all", 0, 0, 1),
    between("ipv6/icmp/echo_ignore_all", 0, 0, 1),
    // `fib::PathMtu`.
    Entry { name: "ipv4/route/flush", value: Value::Flush, mode: 0o200 },
    between("ipv4/route/min_pmtu", 552, 68, *INT.end() as i64),
    seconds("ipv4/route/mtu_expires", 600),
    seconds("ipv6/route/mtu_expires", 600),
    // `fib::Limits`.
    count("ipv4/neigh/{neigh}/mcast_solicit", 3),
    count("ipv4/neigh/{neigh}/ucast_solicit", 3),
    count("ipv4/neigh/{neigh}/app_solicit", 0),
    fixed("ipv4/neigh/{neigh}/retrans_time_ms", 1000),
    fixed("ipv4/neigh/{neigh}/base_reachable_time_ms", 30_000),
    seconds("ipv4/neigh/{neigh}/delay_first_probe_time", 5),
    seconds("ipv4/neigh/{neigh}/gc_stale_time", 60),
    count("ipv4/neigh/{neigh}/unres_qlen_bytes", 212_992),
    count("ipv4/neigh/default/gc_thresh3", 1024),
    count("ipv6/neigh/{neigh}/mcast_solicit", 3),
    count("ipv6/neigh/{neigh}/ucast_solicit", 3),
    count("ipv6/neigh/{neigh}/app_solicit", 0),
    fixed("ipv6/neigh/{neigh}/retrans_time_ms", 1000),
    fixed("ipv6/neigh/{neigh}/base_reachable_time_ms", 30_000),
    seconds("ipv6/neigh/{neigh}/delay_first_probe_time", 5),
    seconds("ipv6/neigh/{neigh}/gc_stale_time", 60),
    count("ipv6/neigh/{neigh}/unres_qlen_bytes", 212_992),
    count("ipv6/neigh/default/gc_thresh3", 1024),
    // As `netconf` reports, and features that do not exist here: redirects, source routes, router advertisements,
    // duplicate address detection, temporary addresses.
    fixed("ipv4/conf/{conf}/forwarding", 1),
    shown("ipv4/conf/{conf}/mc_forwarding", 0),
    fixed("ipv4/conf/{conf}/rp_filter", 0),
    fixed("ipv4/conf/{conf}/proxy_arp", 0),
    fixed("ipv4/conf/{conf}/ignore_routes_with_linkdown", 0),
    fixed("ipv4/conf/{conf}/accept_redirects", 0),
    fixed("ipv4/conf/{conf}/send_redirects", 0),
    fixed("ipv4/conf/{conf}/accept_source_route", 0),
    fixed("ipv4/conf/{conf}/disable_policy", 0),
    fixed("ipv4/conf/{conf}/disable_xfrm", 0),
    fixed("ipv6/conf/{conf}/forwarding", 1),
    shown("ipv6/conf/{conf}/mc_forwarding", 0),
    fixed("ipv6/conf/{conf}/proxy_ndp", 0),
    fixed("ipv6/conf/{conf}/ignore_routes_with_linkdown", 0),
    fixed("ipv6/conf/{conf}/accept_redirects", 0),
    fixed("ipv6/conf/{conf}/accept_ra", 0),
    fixed("ipv6/conf/{conf}/autoconf", 0),
    fixed("ipv6/conf/{conf}/accept_dad", 0),
    fixed("ipv6/conf/{conf}/dad_transmits", 0),
    fixed("ipv6/conf/{conf}/use_tempaddr", 0),
    fixed("ipv6/conf/{conf}/disable_ipv6", 0),
    fixed("ipv6/conf/{conf}/disable_policy", 0),
    between("ipv6/conf/{conf}/hop_limit", 64, 1, 255),
    Entry { name: "ipv6/conf/{link}/mtu", value: Value::Mtu, mode: 0o644 },
];
