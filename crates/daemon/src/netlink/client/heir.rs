//! Processes that inherited a connection and its privilege.

use crate::privilege::Peer;

/// Process that inherited a connection from its claimant, as a daemon inherits the connections that it opened before its
/// `fork`, and that held `CAP_NET_ADMIN` when it claimed the privilege.
#[derive(Debug)]
pub(super) struct Heir {
    pub(super) peer: Peer,
    /// Datagrams from this position of the connection on, in bytes, were sent after the check.
    pub(super) since: u64,
}

/// Maximum number of [heirs](Heir) of a connection. The oldest is forgotten.
pub(super) const MAX_HEIRS: usize = 8;
