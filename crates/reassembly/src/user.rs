//! Users of reassembly (Linux's `enum ip_defrag_users`).

use base::Domain;

/// A user of reassembly. Fragments of different users are never combined.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum User {
    /// The node itself, for packets that end here (`IP_DEFRAG_LOCAL_DELIVER`).
    #[default]
    Local,
    /// The node itself, for packets of its own sockets that a kernel has fragmented for a device's MTU.
    Output,
    /// The node itself, for packets to a host that receives complete datagrams.
    Host,
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
