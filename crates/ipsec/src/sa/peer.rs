//! Address of an SA's peer: configured, or learnt from what the peer sends (RFC 3948, RFC 7296 §2.23).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base::Instant;
use xfrm::{EspInUdp, NatTraversal, SaConfig};

use super::Sa;
use super::place::{Mapping, Place};

impl Sa {
    /// Outer destination of its packets: the configured one, or the address that its peer has moved to.
    #[inline]
    pub fn end(&self) -> IpAddr {
        self.moved_to().map_or(self.dst, |place| place.ip())
    }

    /// Address that the peer of an outbound SA has moved to.
    #[inline]
    pub fn moved_to(&self) -> Option<SocketAddr> {
        self.extras.as_deref()?.place.towards
    }

    /// Address of its peer, for changes.
    pub(crate) fn place_mut(&mut self) -> &mut Place {
        &mut self.extras.get_or_insert_default().place
    }

    /// The UDP header of outbound ESP.
    #[inline]
    pub fn encap_to(&self) -> Option<EspInUdp> {
        let encap = self.encap?;
        Some(EspInUdp { dport: self.moved_to().map_or(encap.dport, |place| place.port()), ..encap })
    }

    /// Address of its peer, if that sends ESP in UDP.
    #[inline]
    fn peer(&self) -> Option<SocketAddr> {
        let configured = SocketAddr::new(self.src, self.encap?.sport);
        Some(self.extras.as_deref().and_then(|extras| extras.place.seen).unwrap_or(configured))
    }

    /// Tells whether the source `from` of a packet equals the known address of its peer.
    #[inline]
    pub(crate) fn peer_is_at(&self, from: SocketAddr) -> bool {
        self.peer() == Some(from)
    }

    /// Records the source `from` of an authentic packet; `is_newest` if no newer one had come before. Some: the change
    /// has to be reported.
    #[inline]
    pub(crate) fn came_from(&mut self, now: Instant, from: SocketAddr, is_newest: bool) -> Option<Mapping> {
        let old = self.peer()?;
        if old == from || !is_newest { None } else { self.came_from_elsewhere(now, old, from) }
    }

    #[cold]
    fn came_from_elsewhere(&mut self, now: Instant, old: SocketAddr, new: SocketAddr) -> Option<Mapping> {
        let NatTraversal { mapping_threshold: threshold, follow: followed, .. } = self.nat();
        let place = self.place_mut();
        let is_news = match place.reported {
            Some((reported, at)) if reported == new => {
                threshold > 0 && now.since(at) > Duration::from_secs(threshold.into())
            }
            _ => true,
        };
        if followed {
            place.seen = Some(new);
        }
        if !is_news && !followed {
            return None;
        }
        place.reported = Some((new, now));
        Some(Mapping { sa: self.id(), dst: self.dst, spi: self.spi, reqid: self.reqid, old, new, followed })
    }

    /// Forgets the learnt address of its peer, if `config` sets a new one.
    pub(crate) fn settle(&mut self, config: &SaConfig) {
        if (self.src, self.encap, self.nat()) != (config.src, config.encap, config.nat)
            && let Some(extras) = &mut self.extras
        {
            extras.place = Place { keepalive: extras.place.keepalive, ..Place::default() };
        }
    }
}
