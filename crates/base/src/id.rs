//! Identifiers: small numbers with a meaning.

use std::fmt;

/// A port of this node, as an index into the datapath's table of ports, by which packets enter and leave.
///
/// Behind a port is a link, which has a driver, or a device without one: that of a bridge, a VLAN, a VRF, or a link's host side. Files
/// and netlink call all of these but the host side's *links*, as Linux does, and netlink clients use their [`IfIndex`]. So a `PortId`
/// named `link` is that of a link in either sense.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortId(pub u32);

/// L3 domain: the links of one VRF, or the links outside of all VRFs (Linux `l3mdev`). Equal addresses in two domains
/// are unrelated.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Domain(u32);

/// Place at which a packet entered this node.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Origin {
    /// The port that received the packet.
    Port(PortId),
    /// This node itself, which created the packet in a domain.
    Local(Domain),
}

/// The number of a link in netlink (Linux `ifindex`).
///
/// A link that is an interface of the host has that interface's number, since programs use it on the host too: to bind
/// a socket, or to name the interface of a frame. All others have numbers from [`IfIndex::FIRST_OWN`] on, above those
/// of the host's interfaces (Linux counts from 1), so that the host returns `ENODEV` for them. `lo` is 1 on both.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IfIndex(pub u32);

/// Number of a routing table. Linux's well-known ones are [`TableId::MAIN`] and [`TableId::LOCAL`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TableId(pub u32);

/// A security association of this node, numbered by the SAD; the number of a removed SA is not reused. Not the SPI,
/// which is sent on the wire.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SaId(pub u32);

impl PortId {
    /// `lo`, which carries no packets. The numbers of other ports are larger, as on Linux.
    pub const LOOPBACK: Self = Self(1);
}

impl Domain {
    /// The links outside of all VRFs (Linux's default VRF).
    pub const DEFAULT: Self = Self(0);

    /// The domain of the VRF with that device.
    #[must_use]
    pub const fn vrf(device: PortId) -> Self {
        Self(device.0)
    }

    /// The device of the VRF, if the domain is a VRF's.
    #[inline]
    #[must_use]
    pub const fn vrf_device(self) -> Option<PortId> {
        match self.0 {
            0 => None,
            device => Some(PortId(device)),
        }
    }

    /// The domain as a number, unique for each domain: 0, or the number of the VRF's device.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl Origin {
    /// This node, outside all VRFs.
    pub const NODE: Self = Self::Local(Domain::DEFAULT);

    /// The port that received the packet.
    #[inline]
    #[must_use]
    pub const fn port(self) -> Option<PortId> {
        match self {
            Self::Port(link) => Some(link),
            Self::Local(_) => None,
        }
    }

    /// Tells whether this node created the packet.
    #[inline]
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// Device that stands for the origin (Linux `skb->dev` of a received packet): the port, or for a packet of this
    /// node the loopback device of its domain: `lo` or the VRF's device.
    #[inline]
    #[must_use]
    pub const fn device(self) -> PortId {
        match self {
            Self::Port(link) => link,
            Self::Local(domain) => match domain.vrf_device() {
                Some(device) => device,
                None => PortId::LOOPBACK,
            },
        }
    }
}

impl IfIndex {
    /// Smallest number of a link that is not an interface of the host. A host that creates a hundred interfaces a
    /// second reaches this number after four months; the largest number on Linux is `i32::MAX`.
    pub const FIRST_OWN: u32 = 1_000_000_000;

    /// The number of a link that is not an interface of the host; 0 for the number 0, which no link has.
    #[must_use]
    pub const fn own(link: PortId) -> Self {
        match link {
            // 0, netlink's "no interface", stays 0.
            PortId(0) | PortId::LOOPBACK => Self(link.0),
            PortId(id) => Self(id.saturating_add(Self::FIRST_OWN)),
        }
    }

    /// The link with this [own](Self::own) number, if the number is in that range.
    #[must_use]
    pub const fn as_own(self) -> Option<PortId> {
        match self.0.checked_sub(Self::FIRST_OWN) {
            None | Some(0 | 1) => None,
            Some(id) => Some(PortId(id)),
        }
    }
}

impl TableId {
    /// `RT_TABLE_DEFAULT`, looked up after all others.
    pub const DEFAULT: Self = Self(253);
    /// `RT_TABLE_MAIN`, the default table in a configuration.
    pub const MAIN: Self = Self(254);
    /// `RT_TABLE_LOCAL`, looked up before all others.
    pub const LOCAL: Self = Self(255);
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DEFAULT => f.write_str("default"),
            Self::MAIN => f.write_str("main"),
            Self::LOCAL => f.write_str("local"),
            Self(number) => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_number_leads_back_to_its_link() {
        let first = IfIndex::FIRST_OWN;
        let links = [(PortId(0), 0), (PortId::LOOPBACK, 1), (PortId(2), first + 2), (PortId(65535), first + 65535)];
        for (link, number) in links {
            assert_eq!(IfIndex::own(link), IfIndex(number));
            assert_eq!(IfIndex(number).as_own(), Some(link).filter(|link| link.0 > 1));
        }
        for number in [2, first - 1, first, first + 1] {
            assert_eq!(IfIndex(number).as_own(), None, "{number}");
        }
        // Clients may send any number.
        assert_eq!(IfIndex::own(PortId(u32::MAX)), IfIndex(u32::MAX));
    }
}
