//! The database of security associations (RFC 4301 §4.4.2).

use std::net::IpAddr;

use base::SaId;
use hashbrown::HashMap;
use wire::{FlowKey, Spi};

use crate::config::{ConfigError, Mode, SaConfig, Template};
use crate::sa::Sa;

/// Bits of an [`SaId`] that are a slot's number; those above count how often the slot was used before, so that an id
/// kept by a packet never means another SA than it did.
const SLOT_BITS: u32 = 20;

/// Most SAs there can be.
pub const MAX_SAS: usize = 1 << SLOT_BITS;

/// The SAs of a node, by number, by what arrives, and by what a policy asks for.
#[derive(Debug, Default)]
pub struct Sad {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_spi: HashMap<(IpAddr, Spi), SaId, foldhash::fast::RandomState>,
    by_template: HashMap<(IpAddr, u32, Mode), Vec<SaId>, foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct Slot {
    uses: u32,
    sa: Option<Box<Sa>>,
}

impl Sad {
    /// Adds an SA. `mask` is a random number of its own, from which its initialisation vectors are made.
    ///
    /// # Errors
    /// What is wrong with `config`; [`ConfigError::Exists`] when its destination has that SPI already.
    pub fn add(&mut self, config: &SaConfig, mask: u64) -> Result<SaId, ConfigError> {
        let key = (config.dst, config.spi);
        if self.by_spi.contains_key(&key) {
            return Err(ConfigError::Exists);
        }
        let (slot, uses) = match self.free.last() {
            Some(&slot) => (slot, self.slots[slot as usize].uses),
            None if self.slots.len() < MAX_SAS => (self.slots.len() as u32, 0),
            None => return Err(ConfigError::TooMany),
        };
        let id = SaId(uses << SLOT_BITS | slot);
        let sa = Box::new(Sa::new(id, config, mask)?);
        if self.free.pop().is_none() {
            self.slots.push(Slot { uses: 0, sa: None });
        }
        self.slots[slot as usize].sa = Some(sa);
        self.by_spi.insert(key, id);
        self.by_template.entry((config.dst, config.reqid, config.mode)).or_default().push(id);
        Ok(id)
    }

    /// Takes an SA out; `None` when there is none with that SPI.
    pub fn remove(&mut self, dst: IpAddr, spi: Spi) -> Option<Box<Sa>> {
        let id = self.by_spi.remove(&(dst, spi))?;
        let slot = self.slots.get_mut(slot_of(id))?;
        let sa = slot.sa.take()?;
        slot.uses = slot.uses.wrapping_add(1) & (u32::MAX >> SLOT_BITS);
        self.free.push(slot_of(id) as u32);
        let key = (sa.dst, sa.reqid, sa.mode);
        if let Some(ids) = self.by_template.get_mut(&key) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.by_template.remove(&key);
            }
        }
        Some(sa)
    }

    /// The SA of that number, if it is still there.
    #[inline]
    pub fn get(&self, id: SaId) -> Option<&Sa> {
        self.slots.get(slot_of(id))?.sa.as_deref().filter(|sa| sa.id() == id)
    }

    /// The SA of that number, to use it.
    #[inline]
    pub fn get_mut(&mut self, id: SaId) -> Option<&mut Sa> {
        self.slots.get_mut(slot_of(id))?.sa.as_deref_mut().filter(|sa| sa.id() == id)
    }

    /// The SA that a packet to `dst` with `spi` came by.
    #[inline]
    pub fn by_spi(&self, dst: IpAddr, spi: Spi) -> Option<SaId> {
        self.by_spi.get(&(dst, spi)).copied()
    }

    /// The SA to send `flow` by as `template` asks, from `src` to `dst`: the newest that fits (Linux
    /// `xfrm_state_find`).
    pub fn for_template(&self, template: &Template, src: IpAddr, dst: IpAddr, flow: &FlowKey) -> Option<SaId> {
        let ids = self.by_template.get(&(dst, template.reqid, template.mode))?;
        let fits = |sa: &Sa| {
            (sa.src == src || src.is_unspecified() || sa.src.is_unspecified())
                && template.spi.is_none_or(|spi| spi == sa.spi)
                && sa.selector.is_none_or(|selector| selector.matches(flow))
        };
        ids.iter().rev().copied().find(|&id| self.get(id).is_some_and(fits))
    }

    /// Tells whether there is no SA.
    pub fn is_empty(&self) -> bool {
        self.by_spi.is_empty()
    }

    /// Every SA, in the order of its slot.
    pub fn iter(&self) -> impl Iterator<Item = &Sa> {
        self.slots.iter().filter_map(|slot| slot.sa.as_deref())
    }
}

const fn slot_of(id: SaId) -> usize {
    (id.0 & ((1 << SLOT_BITS) - 1)) as usize
}
