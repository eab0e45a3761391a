//! What SAs are called, and which are asked for or given up, where the worker and netlink's thread both see it.
//!
//! So netlink's thread can say that an SA is added, or gone, before the worker has seen to it, as it does with routes; the
//! worker sees to it before it decides on the next packet, or does the next thing that it is asked for. Whatever is not
//! plain is left to the worker, which alone knows all of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::LinkId;
use control::netlink::xfrm::NewSa;
use ipsec::{Mark, SaConfig};
use wire::Spi;

use super::{convert, wall_clock};

/// What an SA is called: destination, SPI, and the mark that it was made with.
pub(super) type SaName = (IpAddr, Spi, Mark);

/// An SA that is promised.
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) said: Box<NewSa>,
    pub(super) config: SaConfig,
    /// A random number of its own.
    pub(super) mask: u64,
    /// When it was asked for, in seconds since the Unix epoch.
    pub(super) added: u64,
}

/// What the worker has to see to.
#[derive(Debug)]
pub(super) enum Change {
    /// An SA is to be added, and kept in that place.
    Add(u64, Box<Promise>),
    /// One is to go.
    Remove(SaName),
}

/// How far an SA of some name is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Promised,
    There,
    GivenUp,
}

/// The names of SAs.
#[derive(Debug, Default)]
pub(super) struct Names {
    places: HashMap<SaName, (u64, Stage)>,
    last_place: u64,
    /// How many have a mark: then several may be meant by one destination and SPI.
    marked: usize,
    /// Whether there may be SAs without names: the file was read again since its SAs were taken in.
    pub(super) stale: bool,
    /// Whether there may be SAs to come that have SPIs.
    pub(super) larval: bool,
    changes: Vec<Change>,
}

impl Names {
    /// A place above all others.
    pub(super) const fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }

    /// Where the SA of that name is kept.
    pub(super) fn get(&self, name: &SaName) -> Option<u64> {
        self.places.get(name).map(|&(place, _)| place)
    }

    /// Notes where the SA of that name is, which is there; returns where it was kept before.
    pub(super) fn insert(&mut self, name: SaName, place: u64) -> Option<u64> {
        let old = self.places.insert(name, (place, Stage::There));
        self.marked += usize::from(old.is_none() && name.2 != Mark::ANY);
        old.map(|(place, _)| place)
    }

    /// Forgets a name; returns where its SA was kept. One that is only promised stays so.
    pub(super) fn remove(&mut self, name: &SaName) -> Option<u64> {
        if self.places.get(name).is_some_and(|&(_, stage)| stage == Stage::Promised) {
            return None;
        }
        self.forget(name)
    }

    fn forget(&mut self, name: &SaName) -> Option<u64> {
        let (place, _) = self.places.remove(name)?;
        self.marked -= usize::from(name.2 != Mark::ANY);
        Some(place)
    }

    /// Forgets the names whose places are not to be kept. Those that are only promised stay.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        self.places.retain(|_, &mut (place, stage)| stage == Stage::Promised || keep(place));
        self.marked = self.places.keys().filter(|name| name.2 != Mark::ANY).count();
    }

    /// How many there are.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it is known from the names alone which SAs there are.
    const fn tell_all(&self) -> bool {
        self.marked == 0 && !self.stale && !self.larval
    }

    /// Promises an SA. Gives it back if the worker has to be asked.
    fn promise(&mut self, promise: Box<Promise>) -> Result<(), Box<Promise>> {
        let config = &promise.config;
        let name = (config.dst, config.spi, config.mark);
        let is_plain = self.tell_all() && config.mark == Mark::ANY && config.offload.is_none();
        if !is_plain || self.places.len() >= ipsec::sad::MAX_SAS || self.places.contains_key(&name) {
            return Err(promise);
        }
        let place = self.next_place();
        self.places.insert(name, (place, Stage::Promised));
        self.changes.push(Change::Add(place, promise));
        Ok(())
    }

    /// Gives up the SA with that destination and SPI. False: the worker has to be asked.
    fn give_up(&mut self, dst: IpAddr, spi: Spi) -> bool {
        let (tells, name) = (self.tell_all(), (dst, spi, Mark::ANY));
        match self.places.get_mut(&name) {
            Some((_, stage)) if tells && *stage != Stage::GivenUp => {
                *stage = Stage::GivenUp;
                self.changes.push(Change::Remove(name));
                true
            }
            _ => false,
        }
    }

    /// Notes that a promise was kept, or could not be.
    pub(super) fn kept(&mut self, name: &SaName, kept: bool) {
        match self.places.get_mut(name) {
            Some((_, stage)) if kept && *stage == Stage::Promised => *stage = Stage::There,
            Some(_) if !kept => drop(self.forget(name)),
            _ => {}
        }
    }

    /// Forgets a name that was given up.
    pub(super) fn remove_given_up(&mut self, name: &SaName) -> Option<u64> {
        self.places.get(name).filter(|&&(_, stage)| stage == Stage::GivenUp)?;
        self.forget(name)
    }
}

/// The [`Names`], for one at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    names: Mutex<Names>,
    /// Whether there are changes.
    some: AtomicBool,
}

impl Shared {
    /// Keeps others from changing anything.
    pub(super) fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises an SA. Gives it back if the worker has to be asked.
    pub(super) fn promise(&self, said: Box<NewSa>, mask: u64) -> Result<(), Box<NewSa>> {
        // Which link has a number, only the worker knows.
        if said.info.sel.ifindex != 0 {
            return Err(said);
        }
        let Ok(config) = convert::sa(&said, LinkId::NONE) else { return Err(said) };
        if config.verify().is_err() {
            return Err(said);
        }
        let done = self.lock().promise(Box::new(Promise { said, config, mask, added: wall_clock() }));
        self.0.some.fetch_or(done.is_ok(), Ordering::Release);
        done.map_err(|promise| promise.said)
    }

    /// Gives up the SA with that destination and SPI. False: the worker has to be asked.
    pub(super) fn give_up(&self, dst: IpAddr, spi: Spi) -> bool {
        let done = self.lock().give_up(dst, spi);
        self.0.some.fetch_or(done, Ordering::Release);
        done
    }

    /// Whether there is something that the worker has to see to.
    pub(super) fn has_changes(&self) -> bool {
        self.0.some.load(Ordering::Acquire)
    }

    /// What the worker has to see to, in its order.
    pub(super) fn take_changes(&self) -> Vec<Change> {
        if !self.has_changes() {
            return Vec::new();
        }
        let mut names = self.lock();
        self.0.some.store(false, Ordering::Relaxed);
        std::mem::take(&mut names.changes)
    }
}
