//! Ports of IKE, and the messages received there.

use std::collections::VecDeque;
use std::net::SocketAddr;

use base::PortId;

/// The port of IKE (RFC 7296 §2).
pub(crate) const IKE_PORT: u16 = 500;

/// The port of ESP in UDP, and of IKE behind the marker (RFC 3948 §2.2).
pub(crate) const ENCAP_PORT: u16 = 4500;

/// Place of IKE on a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IkeAt {
    /// At one address and port, behind the non-ESP marker. Messages from there are sent by this link.
    Port(SocketAddr),
    /// At ports 500 and, behind the marker, 4500 of each of this node's addresses in the link's domain. Messages are routed in
    /// that domain.
    Node,
}

impl IkeAt {
    /// Tells whether `at`, which may be any address of its family, is a place of IKE.
    pub(crate) fn has(self, at: SocketAddr) -> bool {
        match self {
            Self::Port(own) if at.ip().is_unspecified() => own.is_ipv4() == at.is_ipv4() && own.port() == at.port(),
            Self::Port(own) => own == at,
            Self::Node => matches!(at.port(), IKE_PORT | ENCAP_PORT),
        }
    }
}

/// A message of IKE, without the non-ESP marker.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IkeMessage {
    /// This node's address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
    /// The message.
    pub bytes: Vec<u8>,
}

/// The ports of IKE, and the messages received there.
#[derive(Debug, Default)]
pub(crate) struct Ike {
    pub(crate) links: Vec<(PortId, IkeAt)>,
    pub(crate) waiting: VecDeque<IkeMessage>,
    /// Bytes of `waiting`.
    pub(crate) bytes: usize,
}
