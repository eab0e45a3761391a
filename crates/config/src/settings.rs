//! Settings of a node that `sysctl` can change at run time.

use base::PathHashPolicy;

use crate::model::{Config, ReassemblyConfig, TableLimits, XfrmOptions};

/// Values that `sysctl` can change at run time. A configuration file sets some of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Settings {
    /// Limits of fragment reassembly.
    pub reassembly: ReassemblyConfig,
    /// Settings of all SAs.
    pub xfrm: XfrmOptions,
    /// Early demux.
    pub early_demux: EarlyDemux,
    /// Acceptance of packets in VRFs by unbound sockets.
    pub l3mdev_accept: L3mdevAccept,
    /// Whether each VRF must have a separate table (Linux `vrf_strict_mode`).
    pub vrf_strict_mode: bool,
    /// Limits of tables.
    pub tables: TableLimits,
    /// Fields of flows that select a path of IPv4 routes, and of IPv6 routes.
    pub path_hash: [PathHashPolicy; 2],
}

/// Whether sockets of the host side that are bound to no device receive packets in VRFs, by protocol (Linux
/// `sysctl_tcp_l3mdev_accept`, `sysctl_udp_l3mdev_accept`). Raw sockets always do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct L3mdevAccept {
    /// TCP sockets.
    pub tcp: bool,
    /// UDP sockets.
    pub udp: bool,
}

/// Early demux to sockets of the host side, by protocol; 0 is off (Linux `sysctl_ip_early_demux`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EarlyDemux {
    /// Early demux of any protocol.
    pub ip: u8,
    /// Early demux of TCP.
    pub tcp: u8,
    /// Early demux of UDP.
    pub udp: u8,
}

impl EarlyDemux {
    /// Early demux enabled for both protocols.
    pub const DEFAULT: Self = Self { ip: 1, tcp: 1, udp: 1 };
}

impl Default for EarlyDemux {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Settings {
    /// Settings of a configuration file.
    pub const fn of(config: &Config) -> Self {
        Self {
            reassembly: config.reassembly,
            xfrm: config.xfrm,
            early_demux: EarlyDemux::DEFAULT,
            l3mdev_accept: L3mdevAccept { tcp: false, udp: false },
            vrf_strict_mode: false,
            tables: config.limits.tables,
            path_hash: [PathHashPolicy::Addresses; 2],
        }
    }
}
