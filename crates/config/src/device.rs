//! The host's side of the device of a TUN or TAP link: its addresses and routes in the gateway's network namespace.

use std::net::IpAddr;

use base::{IfAddr, Prefix};

/// Addresses and routes of the host's side of a device.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DeviceConfig {
    /// Addresses of the host.
    pub addresses: Vec<IfAddr>,
    /// Routes of the host over the device, in addition to those to the addresses' prefixes.
    pub routes: Vec<DeviceRoute>,
}

/// Route of the host over a device, in the main table.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DeviceRoute {
    /// Destinations.
    pub to: Prefix,
    /// Source address of the host's packets; the kernel chooses one if `None`.
    pub src: Option<IpAddr>,
    /// Metric; among routes to one prefix the smallest wins.
    pub metric: u32,
}

impl DeviceRoute {
    /// Default metric of an IPv6 route: Linux's `IP6_RT_PRIO_USER`. IPv4's is 0.
    pub const METRIC_V6: u32 = 1024;
    /// Largest metric of a route; the next one is that of the routes that drop packets while the device is away.
    pub const MAX_METRIC: u32 = u32::MAX - 1;

    /// The route with the default metric, and without a source address.
    pub const fn new(to: Prefix) -> Self {
        Self { to, src: None, metric: if to.is_ipv4() { 0 } else { Self::METRIC_V6 } }
    }
}

impl DeviceConfig {
    /// Whether the device has neither addresses nor routes.
    pub const fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.routes.is_empty()
    }
}
