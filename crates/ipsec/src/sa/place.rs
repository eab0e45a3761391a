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
    /// Whether the tunnels to it have followed.
    pub followed: bool,
}

/// Address of an SA's peer, as far as it is another than the configured one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Place {
    /// From where it receives.
    pub(super) seen: Option<SocketAddr>,
    /// Whither it sends.
    pub(crate) towards: Option<SocketAddr>,
    /// Place of the peer that was reported last, and the time.
    pub(super) told: Option<(SocketAddr, Instant)>,
    /// When the next keepalive is looked at.
    pub(crate) keepalive: Option<Instant>,
}
