//! Allocation of SPIs for peers, before their SAs are known (Linux `xfrm_alloc_userspi`).

use std::time::Duration;

use base::{Instant, ShardId};
use wire::Spi;
use xfrm::{ConfigError, Mark, Mode, SaDir};

use super::{Larval, Sad};

/// Number of random SPIs that are tried before a linear search.
const TRIES: usize = 32;

/// Request for an SPI: `ip xfrm state allocspi`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpiRequest {
    /// The outer source of the SA to come.
    pub src: std::net::IpAddr,
    /// Destination, at which the SPI is valid.
    pub dst: std::net::IpAddr,
    /// Mode.
    pub mode: Mode,
    /// `reqid`.
    pub reqid: u32,
    /// Marked packets that it is for.
    pub mark: Mark,
    /// The number of its XFRM interface; 0 for none.
    pub if_id: u32,
    /// The only direction in which it may be used.
    pub dir: Option<SaDir>,
    /// Number of the CPU whose packets it is for.
    pub cpu: Option<u32>,
    /// Number of the acquired SA that it is for ([`Acquire::seq`](crate::Acquire::seq)); 0 for none.
    pub seq: u32,
    /// The smallest SPI to choose from; 0 itself is never chosen.
    pub min: u32,
    /// The largest SPI to choose from.
    pub max: u32,
}

impl Sad {
    /// Chooses a random SPI that no SA has, and reserves it for `lasts` by the returned larval SA.
    ///
    /// # Errors
    /// [`ConfigError::SpiRange`], [`ConfigError::NoSpi`], and [`ConfigError::TooMany`] SAs to come.
    pub(crate) fn alloc_spi(
        &mut self,
        now: Instant,
        lasts: Duration,
        request: &SpiRequest,
        random: &mut dyn FnMut() -> u32,
    ) -> Result<&Larval, ConfigError> {
        let &SpiRequest { src, dst, mode, reqid, mark, if_id, dir, cpu, seq, min, max } = request;
        if min > max {
            return Err(ConfigError::SpiRange(min, max));
        }
        if dst.is_unspecified() {
            return Err(ConfigError::NoDestination);
        }
        let named = self.larvae.numbered(seq, dst, mark, cpu);
        let same = |larval: &&Larval| {
            let (its, wanted) = ((larval.src, larval.mode, larval.mark), (src, mode, mark));
            larval.spi.0 == 0 && its == wanted && (larval.if_id, larval.cpu) == (if_id, cpu)
        };
        let found = named.or_else(|| self.larvae.with(dst, reqid).find(same));
        let found = found.map(|larval| (larval.seq, larval.spi));
        // A larval SA keeps the SPI that it has.
        if let Some((seq, _)) = found.filter(|&(_, spi)| spi.0 != 0) {
            return self.larvae.get(seq).ok_or(ConfigError::NotFound);
        }
        let owner = self.next_owner(request);
        let spi = self.free_spi(owner, min, max, random).ok_or(ConfigError::NoSpi)?;
        let seq = match found {
            Some((seq, _)) => seq,
            None => {
                let larval = Larval { mark, if_id, dir, cpu, ..Larval::new(src, dst, mode, reqid) };
                self.larvae.add(now, lasts, larval).ok_or(ConfigError::TooMany)?
            }
        };
        self.changes += 1;
        self.larvae.set_spi(seq, spi, dir);
        self.larvae.get(seq).ok_or(ConfigError::NotFound)
    }

    /// The shard that is to own an SPI: that of the CPU, else that of the SA that it replaces, so that a flow stays in one shard
    /// over a rekey, else each in turn.
    fn next_owner(&mut self, request: &SpiRequest) -> ShardId {
        let &SpiRequest { src, dst, reqid, cpu, .. } = request;
        let count = self.place.count;
        if let Some(owner) = cpu.and_then(|cpu| count.all().nth(cpu as usize)) {
            return owner;
        }
        if let Some(before) = self.newest_of(dst, reqid, |sa| sa.src == src && sa.cpu().is_none()) {
            return before.owner();
        }
        self.last_steered = ShardId((self.last_steered.0 + 1) % count.get() as u8);
        self.last_steered
    }

    /// An SPI of `min..=max` that is free, whatever its destination, and that steers packets to `owner` if there is such a one;
    /// never 0.
    fn free_spi(&self, owner: ShardId, min: u32, max: u32, random: &mut dyn FnMut() -> u32) -> Option<Spi> {
        let span = u64::from(max - min) + 1;
        let mut pick = || Spi(min + ((u64::from(random()) * span) >> 32) as u32);
        let is_free = |spi: &Spi| spi.0 != 0 && !self.spis.contains_key(spi) && !self.larvae.has_spi(*spi);
        let count = self.place.count;
        let mut of_others = None;
        for spi in (0..TRIES * count.get()).map(|_| pick()).filter(&is_free) {
            if count.owner_of_spi(spi.0) == owner {
                return Some(spi);
            }
            of_others.get_or_insert(spi);
        }
        if of_others.is_some() {
            return of_others;
        }
        // The search skips at most as many SPIs as are in use.
        let start = pick().0;
        (start..=max).chain(min..start).map(Spi).find(is_free)
    }
}
