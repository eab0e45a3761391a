//! Allocation of SPIs for peers, before their SAs are known (Linux `xfrm_alloc_userspi`).

use std::time::Duration;

use base::Instant;
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
        let &SpiRequest { src, dst, mode, reqid, mark, if_id, dir, seq, min, max } = request;
        if min > max {
            return Err(ConfigError::SpiRange(min, max));
        }
        if dst.is_unspecified() {
            return Err(ConfigError::NoDestination);
        }
        let named = self.larvae.numbered(seq, dst, mark);
        let same = |larval: &&Larval| {
            larval.spi.0 == 0 && (larval.src, larval.mode, larval.mark, larval.if_id) == (src, mode, mark, if_id)
        };
        let found = named.or_else(|| self.larvae.with(dst, reqid).find(same));
        let found = found.map(|larval| (larval.seq, larval.spi));
        // A larval SA keeps the SPI that it has.
        if let Some((seq, _)) = found.filter(|&(_, spi)| spi.0 != 0) {
            return self.larvae.get(seq).ok_or(ConfigError::NotFound);
        }
        let spi = self.free_spi(min, max, random).ok_or(ConfigError::NoSpi)?;
        let seq = match found {
            Some((seq, _)) => seq,
            None => {
                let larval = Larval { mark, if_id, dir, ..Larval::new(src, dst, mode, reqid) };
                self.larvae.add(now, lasts, larval).ok_or(ConfigError::TooMany)?
            }
        };
        self.changes += 1;
        self.larvae.set_spi(seq, spi, dir);
        self.larvae.get(seq).ok_or(ConfigError::NotFound)
    }

    /// An SPI of `min..=max` that is free, whatever its destination; never 0.
    fn free_spi(&self, min: u32, max: u32, random: &mut dyn FnMut() -> u32) -> Option<Spi> {
        let span = u64::from(max - min) + 1;
        let mut pick = || Spi(min + ((u64::from(random()) * span) >> 32) as u32);
        let is_free = |spi: &Spi| spi.0 != 0 && !self.spis.contains_key(spi) && !self.larvae.has_spi(*spi);
        if let Some(spi) = (0..TRIES).map(|_| pick()).find(is_free) {
            return Some(spi);
        }
        // The search skips at most as many SPIs as are in use.
        let start = pick().0;
        (start..=max).chain(min..start).map(Spi).find(is_free)
    }
}
