//! Peers behind a NAT, whose address and port may change at any time (RFC 3948, RFC 7296 §2.23, Linux
//! `km_new_mapping`).
//!
//! A peer's mapping follows an authentic packet that is newer than all packets before it: an attacker may have delayed
//! an older one and sent it again from any address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use base::{Instant, SaId};
use wire::Spi;
use xfrm::{Mode, SaDir};

use crate::events::Event;
use crate::sa::{Mapping, Sa};
use crate::sad::Sad;
use crate::shared::SharedChange;

/// State of NAT traversal for all SAs of a node.
#[derive(Debug, Default)]
pub(crate) struct Nat {
    /// Changed mappings that the current train has shown. Kept for its storage.
    pub(crate) seen: Vec<Mapping>,
    /// SAs whose peers have moved, by the peer's new address and SPI.
    moved: BTreeMap<(IpAddr, Spi), SaId>,
    /// Number of entries of `moved` at which stale ones are removed.
    tidy_at: usize,
    pub(crate) keepalives: BTreeSet<(Instant, SaId)>,
}

impl Nat {
    /// Starts NAT traversal of a new SA: at its peer's present address, if older SAs have followed it there.
    pub(crate) fn begin(&mut self, sad: &mut Sad, id: SaId) {
        let Some(sa) = sad.get(id).filter(|sa| sa.mode == Mode::Tunnel && sa.encap.is_some()) else { return };
        let (spi, encap) = (sa.spi, sa.encap);
        if sa.moved_to().is_some() {
            return;
        }
        let tunnels = sad.tunnels_to(sa.dst, sa.reqid);
        let mut places = tunnels.filter(|elder| elder.id() != id && elder.encap == encap).map(Sa::moved_to);
        let Some(towards) = places.find_map(|towards| towards) else { return };
        drop(places);
        if let Some(sa) = sad.get_mut(id) {
            sa.place_mut().towards = Some(towards);
            self.moved.insert((towards.ip(), spi), id);
            // Without it, each rekey of a moved peer would leave an entry behind.
            self.tidy(sad);
        }
    }

    /// The SA that sends to `end`, which may differ from its destination, with `spi`.
    pub(crate) fn sa_to<'s>(&self, sad: &'s Sad, end: IpAddr, spi: Spi) -> Option<&'s Sa> {
        let by_place = self.moved.get(&(end, spi)).copied();
        let sa = by_place.or_else(|| sad.by_spi(end, spi, 0)).and_then(|id| sad.get(id));
        sa.filter(|sa| sa.end() == end)
    }

    /// Handles the changed mappings of the current train: reports them, and redirects the tunnels to these peers.
    #[cold]
    pub(crate) fn follow_peers(&mut self, sad: &mut Sad) {
        for mapping in std::mem::take(&mut self.seen) {
            if mapping.followed {
                self.follow(sad, &mapping);
                sad.tell(SharedChange::PeerMoved(mapping));
            }
            sad.events.push(Event::Mapping(mapping));
        }
    }

    /// Follows a moved peer: redirects the tunnels with its `reqid` from the peer's old address to the new one.
    pub(crate) fn follow(&mut self, sad: &mut Sad, mapping: &Mapping) {
        let Some(src) = sad.get(mapping.sa).map(|sa| sa.src) else { return };
        let tunnels: Vec<SaId> = sad.tunnels_to(src, mapping.reqid).map(Sa::id).collect();
        for id in tunnels {
            let Some(sa) = sad.get_mut(id) else { continue };
            let at = sa.encap_to().map(|encap| SocketAddr::new(sa.end(), encap.dport));
            let is_of_family = mapping.new.is_ipv4() == sa.dst.is_ipv4();
            if sa.dir != Some(SaDir::In) && at == Some(mapping.old) && is_of_family {
                sa.place_mut().towards = Some(mapping.new);
                self.moved.insert((mapping.new.ip(), sa.spi), id);
            }
        }
        self.tidy(sad);
    }

    /// Removes entries of SAs that are gone or redirected again, if there are many more than after the last time.
    fn tidy(&mut self, sad: &Sad) {
        if self.moved.len() > self.tidy_at {
            self.moved.retain(|&(end, _), id| sad.get(*id).is_some_and(|sa| sa.end() == end));
            self.tidy_at = 2 * self.moved.len() + 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfrm::{Algorithm, EspInUdp, SaConfig};

    #[test]
    fn rekeys_of_a_moved_peer_use_constant_memory() {
        let [src, dst] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let place: SocketAddr = "198.51.100.7:61000".parse().unwrap();
        let encap = Some(EspInUdp { sport: 4500, dport: 4500 });
        let config = |spi| SaConfig { encap, ..SaConfig::new(src, dst, Spi(spi), Mode::Tunnel, Algorithm::null()) };
        let mut sad = Sad::default();
        let mut nat = Nat::default();
        let first = sad.add(&config(1), 1).unwrap();
        sad.get_mut(first).unwrap().place_mut().towards = Some(place);
        for spi in 2..1000 {
            let id = sad.add(&config(spi), u64::from(spi)).unwrap();
            nat.begin(&mut sad, id);
            sad.remove(dst, Spi(spi - 1), 0).unwrap();
            assert_eq!(nat.sa_to(&sad, place.ip(), Spi(spi)).map(Sa::id), Some(id), "{spi}");
            assert!(nat.moved.len() <= 2 * 2 + 64, "{spi}: {}", nat.moved.len());
        }
    }
}
