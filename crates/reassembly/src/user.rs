//! Users of reassembly (Linux's `enum ip_defrag_users`).

use base::Domain;
use wire::Version;

/// A user of reassembly. Fragments of different users are never combined.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum User {
    /// The node itself, for packets that end here (`IP_DEFRAG_LOCAL_DELIVER`). Only this user, [`Output`](Self::Output)
    /// and [`Host`](Self::Host) coalesce fragments permanently; datagrams of other users keep their original fragment
    /// sizes.
    #[default]
    Local,
    /// The node itself, for packets of its own sockets that a kernel has fragmented for a device's MTU.
    Output,
    /// The node itself, for packets to a host that receives complete datagrams.
    Host,
    /// Sockets that read packets with the router alert option (`IP_DEFRAG_CALL_RA_CHAIN`).
    RouterAlert,
    /// Connection tracking (`IP_DEFRAG_CONNTRACK_*`).
    Tracking {
        /// Hook of the call.
        hook: Hook,
        /// Number of the zone.
        zone: u16,
    },
    /// A packet socket with fanout (`IP_DEFRAG_AF_PACKET`).
    PacketSocket,
    /// A switch that distributes flows (`IP_DEFRAG_MACVLAN`).
    Switch,
}

/// Hooks of connection tracking.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Hook {
    /// Before routing.
    In,
    /// Output of the node.
    Out,
    /// On a bridge.
    Bridge,
}

/// A user in one L3 domain.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ReassemblyContext {
    /// The user.
    pub user: User,
    /// The domain.
    pub domain: Domain,
}

impl ReassemblyContext {
    /// The node itself, outside of all VRFs.
    pub const LOCAL: Self = Self { user: User::Local, domain: Domain::DEFAULT };
}

impl User {
    /// A unique number below 2²⁴.
    pub(crate) const fn to_bits(self) -> u32 {
        match self {
            Self::Local => 0,
            Self::RouterAlert => 1,
            Self::PacketSocket => 2,
            Self::Switch => 3,
            Self::Output => 4,
            Self::Host => 5,
            Self::Tracking { hook, zone } => 1 << 18 | (hook as u32) << 16 | zone as u32,
        }
    }

    /// Tells whether fragments are coalesced: copied into the tailroom or turned into slots of one packet. Otherwise
    /// each fragment stays a packet.
    pub(crate) const fn joins(self) -> bool {
        matches!(self, Self::Local | Self::Output | Self::Host)
    }

    /// Tells whether the user is an observer, which sends no errors, counts nothing and passes malformed packets on:
    /// IPv6 tracking (Linux's `nf_ct_frag6_gather`).
    pub(crate) const fn is_observer(self, version: Version) -> bool {
        matches!((self, version), (Self::Tracking { .. }, Version::V6))
    }
}
