//! Errors in an operator's request.

use std::fmt;

use base::PortId;
use wire::MacAddr;

use crate::vid::Vid;

/// Reasons to refuse a setting of a bridge or a port. A refusal changes nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BridgeError {
    /// The link is not a port of this bridge (`EINVAL`).
    NoPort(PortId),
    /// The link is a port of this bridge already (`EBUSY`).
    PortExists(PortId),
    /// The link is above the bridge: a VLAN device of the bridge, or of a bridge below it (`EBUSY`).
    Loop(PortId),
    /// The bridge already has the maximum number of ports (`EXFULL`).
    TooManyPorts,
    /// The address is not a unicast address (`EADDRNOTAVAIL`).
    Mac(MacAddr),
    /// The mask contains a group reserved for bridges (`EINVAL`).
    GroupMask(u16),
    /// A range of VLANs cannot be the PVID (`EINVAL`).
    PvidRange(Vid, Vid),
    /// The last VLAN of a range is smaller than its first (`EINVAL`).
    Range(Vid, Vid),
    /// The default PVID changes only while the bridge does not filter (`EPERM`).
    Filtering,
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPort(link) => write!(f, "Link {} is no port of this bridge.", link.0),
            Self::PortExists(link) => write!(f, "Link {} is a port of this bridge already.", link.0),
            Self::Loop(link) => write!(f, "Link {} is above this bridge itself.", link.0),
            Self::TooManyPorts => f.write_str("A bridge has at most 1023 ports."),
            Self::Mac(mac) => write!(f, "Invalid address {mac}: not a station's."),
            Self::GroupMask(mask) => write!(f, "Invalid group mask {mask:#x}: it has groups reserved for bridges."),
            Self::PvidRange(first, last) => write!(f, "Invalid range {first}-{last}: only one VLAN can be the PVID."),
            Self::Range(first, last) => write!(f, "Invalid range {first}-{last}: its end is before its start."),
            Self::Filtering => f.write_str("The default PVID cannot change while the bridge filters by VLAN."),
        }
    }
}

impl std::error::Error for BridgeError {}

/// Reasons to refuse a change of the forwarding database. A refusal changes nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FdbError {
    /// The link is not a port of this bridge (`EINVAL`).
    NoPort(PortId),
    /// The address is zero (`EINVAL`).
    ZeroAddress,
    /// The port is not in that VLAN (`EINVAL`).
    NotInVlan(Vid),
    /// An entry of that address exists already (`EEXIST`).
    Exists(MacAddr, Option<Vid>),
    /// No such entry exists (`ENOENT`).
    Missing(MacAddr, Option<Vid>),
    /// The bridge's device has local entries only (`EINVAL`).
    NotLocal,
    /// A local entry cannot be sticky (`EINVAL`).
    StickyLocal,
    /// A port that does not learn has no dynamic entries (`EPERM`).
    PortNotLearning(PortId),
}

impl fmt::Display for FdbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = |f: &mut fmt::Formatter<'_>, mac: &MacAddr, vid: &Option<Vid>| match vid {
            Some(vid) => write!(f, "{mac} in VLAN {vid}"),
            None => write!(f, "{mac}"),
        };
        match self {
            Self::NoPort(link) => write!(f, "Link {} is no port of this bridge.", link.0),
            Self::ZeroAddress => f.write_str("Invalid address 00:00:00:00:00:00."),
            Self::NotInVlan(vid) => write!(f, "The port is not in VLAN {vid}."),
            Self::Exists(mac, vid) => {
                f.write_str("There is an entry of ")?;
                entry(f, mac, vid)?;
                f.write_str(" already.")
            }
            Self::Missing(mac, vid) => {
                f.write_str("There is no entry of ")?;
                entry(f, mac, vid)?;
                f.write_str(".")
            }
            Self::NotLocal => f.write_str("An entry of the bridge itself is permanent."),
            Self::StickyLocal => f.write_str("A permanent entry cannot be sticky."),
            Self::PortNotLearning(link) => write!(f, "Port {} does not learn in its state.", link.0),
        }
    }
}

impl std::error::Error for FdbError {}
