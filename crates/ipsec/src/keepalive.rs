//! Keepalives, so that a NAT does not forget the mapping to a peer (RFC 3948 §4, Linux `xfrm_nat_keepalive.c`).

use std::net::IpAddr;
use std::time::Duration;

use base::{Instant, SaId};
use xfrm::{EspInUdp, SaDir};

use crate::ipsec::Ipsec;
use crate::nat::Nat;
use crate::sa::Sa;
use crate::sad::Sad;

/// The one byte of payload of a keepalive (RFC 3948 §2.3).
pub const KEEPALIVE: [u8; 1] = [0xff];

/// A keepalive to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Keepalive {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Ports.
    pub ports: EspInUdp,
}

impl Sa {
    /// Maximum time without a packet; `None` without keepalives.
    fn keepalive_interval(&self) -> Option<Duration> {
        let seconds = self.nat().keepalive_interval;
        (seconds > 0 && self.dir == Some(SaDir::Out)).then(|| Duration::from_secs(seconds.into()))
    }
}

impl Ipsec {
    /// Time of the next call of [`handle_keepalives`](Self::handle_keepalives).
    pub fn poll_keepalives(&self) -> Option<Instant> {
        self.nat.keepalives.first().map(|&(at, _)| at)
    }

    /// Appends the keepalives that are due: of each SA that has a keepalive interval and was not used within it. A new
    /// SA's first one is due at once.
    pub fn handle_keepalives(&mut self, now: Instant, out: &mut Vec<Keepalive>) {
        while let Some(&(at, id)) = self.nat.keepalives.first().filter(|&&(at, _)| at <= now) {
            self.nat.keepalives.remove(&(at, id));
            let Some(sa) = self.sad.get_mut(id) else { continue };
            let Some(interval) = sa.keepalive_interval() else {
                sa.place_mut().keepalive = None;
                continue;
            };
            let quiet_until = sa.stats.last_used.map(|used| used + interval).filter(|&until| until > now);
            let next = quiet_until.unwrap_or(now + interval);
            if let (None, Some(ports), false) = (quiet_until, sa.encap_to(), sa.src.is_unspecified()) {
                out.push(Keepalive { src: sa.src, dst: sa.end(), ports });
            }
            sa.place_mut().keepalive = Some(next);
            self.nat.keepalives.insert((next, id));
        }
    }
}

impl Nat {
    /// Schedules the keepalives of an added or changed SA.
    pub(crate) fn look_for_keepalive(&mut self, sad: &mut Sad, id: SaId) {
        let place = sad.place;
        let Some(sa) = sad.get_mut(id).filter(|sa| sa.owner() == place.id) else { return };
        if sa.keepalive_interval().is_none() {
            return;
        }
        if let Some(before) = sa.place_mut().keepalive.replace(Instant::ZERO) {
            self.keepalives.remove(&(before, id));
        }
        self.keepalives.insert((Instant::ZERO, id));
    }
}
