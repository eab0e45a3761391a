//! Address of a peer behind a NAT, which may change at any time.

use std::net::{IpAddr, SocketAddr};

use base::{Instant, SaId};
use wire::Spi;

/// Change of the address or port that the peer of an SA sends from: `XFRM_MSG_MAPPING`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mapping {
    /// The SA that it sends by.
    pub sa: SaId,
    /// Destination.
    pub dst: IpAddr,
    /// SPI.
    pub spi: Spi,
    /// `reqid`.
    pub reqid: u32,
    /// Former place of the peer.
    pub old: SocketAddr,
    /// New place.
    pub new: SocketAddr,
    /// Whether the tunnels to the peer were redirected.
    pub followed: bool,
}

/// Learnt address of an SA's peer, where it differs from the configured one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Place {
    /// Source of received packets.
    pub(super) seen: Option<SocketAddr>,
    /// Destination of sent packets.
    pub(crate) towards: Option<SocketAddr>,
    /// Last reported address of the peer, and the time of the report.
    pub(super) reported: Option<(SocketAddr, Instant)>,
    /// Time of the next keepalive check.
    pub(crate) keepalive: Option<Instant>,
}
