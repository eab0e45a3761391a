//! Address of a peer behind a NAT, which may change at any time.

use std::net::{IpAddr, SocketAddr};

use base::{Instant, SaId};
use wire::Spi;

/// Change of the address or port that the peer of an SA sends from: `XFRM_MSG_MAPPING`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mapping {
    /// The SA that it sends by.
    pub sa: SaId,
    /// Its destination.
    pub dst: IpAddr,
    /// Its SPI.
    pub spi: Spi,
    /// Its `reqid`.
    pub reqid: u32,
    /// Where the peer was.
    pub old: SocketAddr,
    /// Where it is.
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
    /// Where the peer was said to be last, and when.
    pub(super) told: Option<(SocketAddr, Instant)>,
    /// When the next keepalive is looked at.
    pub(crate) keepalive: Option<Instant>,
}
