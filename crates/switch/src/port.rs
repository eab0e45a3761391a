//! Configuration of a port, with Linux's names and defaults (`struct net_bridge_port`).

use std::fmt;

use base::PortId;
use wire::MacAddr;

use crate::error::BridgeError;
use crate::fdb::PortNumber;
use crate::stats::{LearnStats, PortStats};
use crate::vlans::Vlans;

/// State of a port by IEEE 802.1D §8.4, with Linux's numbers.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum PortState {
    /// Neither learns nor forwards (0).
    Disabled,
    /// Neither learns nor forwards (1).
    Listening,
    /// Learns, but does not forward (2).
    Learning,
    /// Learns and forwards (3).
    #[default]
    Forwarding,
    /// Neither learns nor forwards (4).
    Blocking,
}

impl PortState {
    /// Tells whether sources of frames are learnt.
    pub const fn can_learn(self) -> bool {
        matches!(self, Self::Learning | Self::Forwarding)
    }

    /// Linux's number (`BR_STATE_*`).
    pub const fn number(self) -> u8 {
        match self {
            Self::Disabled => 0,
            Self::Listening => 1,
            Self::Learning => 2,
            Self::Forwarding => 3,
            Self::Blocking => 4,
        }
    }

    /// The state with that number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Disabled),
            1 => Some(Self::Listening),
            2 => Some(Self::Learning),
            3 => Some(Self::Forwarding),
            4 => Some(Self::Blocking),
            _ => None,
        }
    }
}

/// Link-local groups 01-80-C2-00-00-0x that are forwarded, one bit each.
///
/// A port's mask may contain every group except PAUSE; the bridge's mask may not contain the first three, which are
/// reserved for bridges (IEEE 802.1D Table 7-10, Linux `BR_GROUPFWD_RESTRICTED`, `BR_GROUPFWD_MACPAUSE`).
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct GroupMask(u16);

impl GroupMask {
    /// No group.
    pub const NONE: Self = Self(0);

    /// Mask of a bridge.
    ///
    /// # Errors
    /// [`BridgeError::GroupMask`] if the mask contains 01-80-C2-00-00-00, -01 or -02.
    pub const fn for_bridge(mask: u16) -> Result<Self, BridgeError> {
        if mask & 0b111 == 0 { Ok(Self(mask)) } else { Err(BridgeError::GroupMask(mask)) }
    }

    /// Mask of a port.
    ///
    /// # Errors
    /// [`BridgeError::GroupMask`] if the mask contains 01-80-C2-00-00-01.
    pub const fn for_port(mask: u16) -> Result<Self, BridgeError> {
        if mask & 0b10 == 0 { Ok(Self(mask)) } else { Err(BridgeError::GroupMask(mask)) }
    }

    /// The mask as a number.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Tells whether the group that ends in `group` is forwarded.
    pub(crate) const fn contains(self, group: LinkLocalGroup) -> bool {
        self.0 >> group.0 & 1 == 1
    }
}

impl fmt::Debug for GroupMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Last half-byte of a group address 01-80-C2-00-00-0x.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LinkLocalGroup(u8);

impl LinkLocalGroup {
    /// Bridge group address, of STP.
    pub(crate) const BRIDGE: Self = Self(0);
    /// MAC control, of PAUSE frames.
    pub(crate) const PAUSE: Self = Self(1);

    /// The group of a destination, if that is a link-local group.
    #[inline]
    pub(crate) fn of(dst: MacAddr) -> Option<Self> {
        match dst.0 {
            [0x01, 0x80, 0xc2, 0x00, 0x00, last] if last < 0x10 => Some(Self(last)),
            _ => None,
        }
    }
}

/// Priority of a trunk, 0 to 15; a larger number takes precedence.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TrunkPriority(u8);

impl TrunkPriority {
    /// The priority of that number; `None` above 15, as the field has four bits.
    pub const fn new(priority: u8) -> Option<Self> {
        if priority < 16 { Some(Self(priority)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Settings of a port, without VLANs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortConfig {
    /// State.
    pub state: PortState,
    /// Whether sources are learnt.
    pub learning: bool,
    /// Whether unicast frames to unknown addresses are flooded to this port.
    pub unicast_flood: bool,
    /// Whether frames to groups are flooded to this port. Frames of the bridge itself always are.
    pub multicast_flood: bool,
    /// Whether broadcasts are flooded to this port. Frames of the bridge itself always are.
    pub broadcast_flood: bool,
    /// Whether frames of other isolated ports are refused.
    pub isolated: bool,
    /// Whether frames may leave through their ingress port.
    pub hairpin: bool,
    /// Whether frames are refused unless their source is known at this port (IEEE 802.1X).
    pub locked: bool,
    /// Whether frames whose payload begins with a VLAN tag are accepted under VLAN filtering. Untagged on another bridge's port, such a
    /// frame is in the VLAN of that inner tag.
    pub payload_tags: bool,
    /// Link-local groups that are forwarded from this port.
    pub group_mask: GroupMask,
    /// Maximum number of learnt addresses.
    pub fdb_limit: u32,
    /// Role of a trunk, with its priority.
    pub trunk: Option<TrunkPriority>,
}

impl PortConfig {
    /// Default maximum number of addresses that a port learns.
    pub const FDB_LIMIT: u32 = 1024;
}

impl Default for PortConfig {
    /// A port with Linux's defaults, and a limit on learnt addresses.
    fn default() -> Self {
        Self {
            state: PortState::Forwarding,
            learning: true,
            unicast_flood: true,
            multicast_flood: true,
            broadcast_flood: true,
            isolated: false,
            hairpin: false,
            locked: false,
            payload_tags: true,
            group_mask: GroupMask::NONE,
            fdb_limit: Self::FDB_LIMIT,
            trunk: None,
        }
    }
}

/// A port of a bridge.
#[derive(Clone, Debug)]
pub struct Port {
    pub(crate) link: PortId,
    pub(crate) number: PortNumber,
    pub(crate) mac: MacAddr,
    pub(crate) mtu: usize,
    pub(crate) config: PortConfig,
    pub(crate) vlans: Vlans,
    pub(crate) stats: PortStats,
    pub(crate) learn_stats: LearnStats,
}

impl Port {
    /// The link.
    pub fn link(&self) -> PortId {
        self.link
    }

    /// Number in its bridge, from 1 on (`IFLA_BRPORT_NO`).
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Settings.
    pub fn config(&self) -> &PortConfig {
        &self.config
    }

    /// VLANs.
    pub fn vlans(&self) -> &Vlans {
        &self.vlans
    }

    /// Counters.
    pub fn stats(&self) -> PortStats {
        self.stats
    }

    /// Counters of learning.
    pub fn learn_stats(&self) -> LearnStats {
        self.learn_stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_has_linux_number() {
        for number in 0..=u8::MAX {
            let state = PortState::from_number(number);
            assert_eq!(state.map(PortState::number), (number < 5).then_some(number));
        }
        assert!(PortState::Learning.can_learn() && !PortState::Blocking.can_learn());
    }

    #[test]
    fn group_mask_refuses_the_bridges_own_groups() {
        // Mask, whether valid for a bridge, whether valid for a port.
        let cases = [
            (0, true, true),
            (1, false, true),
            (2, false, false),
            (4, false, true),
            (8, true, true),
            (0x4000, true, true),
            (0xfff8, true, true),
            (0xfffd, false, true),
            (0xffff, false, false),
        ];
        for (mask, bridge, port) in cases {
            let got = [GroupMask::for_bridge(mask), GroupMask::for_port(mask)];
            let want = [bridge, port].map(|is_allowed| is_allowed.then_some(mask).ok_or(BridgeError::GroupMask(mask)));
            assert_eq!(got.map(|mask| mask.map(GroupMask::bits)), want, "{mask:#x}");
        }
    }

    #[test]
    fn link_local_groups_are_sixteen_addresses() {
        let cases = [
            ("01:80:c2:00:00:00", Some(0)),
            ("01:80:c2:00:00:0e", Some(14)),
            ("01:80:c2:00:00:0f", Some(15)),
            ("01:80:c2:00:00:10", None),
            ("01:80:c2:00:01:00", None),
            ("01:80:c3:00:00:00", None),
            ("ff:ff:ff:ff:ff:ff", None),
        ];
        for (dst, want) in cases {
            assert_eq!(LinkLocalGroup::of(dst.parse().unwrap()), want.map(LinkLocalGroup), "{dst}");
        }
    }

    #[test]
    fn trunk_priority_has_four_bits() {
        for (number, want) in [(0, Some(0)), (15, Some(15)), (16, None), (255, None)] {
            assert_eq!(TrunkPriority::new(number).map(TrunkPriority::get), want);
        }
    }
}
