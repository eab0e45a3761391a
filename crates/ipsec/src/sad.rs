//! The database of security associations (RFC 4301 §4.4.2).

use std::net::IpAddr;

use base::SaId;
use hashbrown::HashMap;
use wire::Spi;

use crate::config::{ConfigError, Mode, SaConfig, SaDir, Template};
use crate::flowi::Flowi;
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
    by_template: HashMap<TemplateKey, Vec<SaId>, foldhash::fast::RandomState>,
    /// How many SAs expect ESP in UDP at an address and port.
    encap_ports: HashMap<(IpAddr, u16), usize, foldhash::fast::RandomState>,
}

/// What a template asks for: destination, `reqid` and mode.
type TemplateKey = (IpAddr, u32, Mode);

#[derive(Debug)]
struct Slot {
    uses: u32,
    sa: Option<Box<Sa>>,
}

impl Sa {
    const fn template_key(&self) -> TemplateKey {
        (self.dst, self.reqid, self.mode)
    }
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
        if let Some(encap) = config.encap {
            self.expect_port((config.dst, encap.dport));
        }
        self.by_template.entry((config.dst, config.reqid, config.mode)).or_default().push(id);
        Ok(id)
    }

    /// Gives the SA with that destination and SPI another configuration, but for its key: its sequence numbers go on and
    /// its replay window remembers, so that neither a vector nor a packet is taken twice (Linux `xfrm_state_update`).
    ///
    /// # Errors
    /// What is wrong with `config`, [`ConfigError::NotFound`] when there is no such SA, [`ConfigError::EsnChanged`],
    /// [`ConfigError::DirReversed`]. It then stays as it was.
    pub fn update(&mut self, config: &SaConfig) -> Result<SaId, ConfigError> {
        config.check()?;
        let id = self.by_spi(config.dst, config.spi).ok_or(ConfigError::NotFound)?;
        let sa = self.get_mut(id).ok_or(ConfigError::NotFound)?;
        let (old, old_encap) = (sa.template_key(), sa.encap);
        sa.update(config)?;
        let new = sa.template_key();
        if let Some(encap) = config.encap {
            self.expect_port((config.dst, encap.dport));
        }
        if let Some(encap) = old_encap {
            self.forget_port((config.dst, encap.dport));
        }
        if old != new {
            self.forget_template(old, id);
            self.by_template.entry(new).or_default().push(id);
        }
        Ok(id)
    }

    /// Takes an SA out; `None` when there is none with that SPI.
    pub fn remove(&mut self, dst: IpAddr, spi: Spi) -> Option<Box<Sa>> {
        let id = self.by_spi.remove(&(dst, spi))?;
        let slot = self.slots.get_mut(slot_of(id))?;
        let sa = slot.sa.take()?;
        slot.uses = slot.uses.wrapping_add(1) & (u32::MAX >> SLOT_BITS);
        self.free.push(slot_of(id) as u32);
        self.forget_template(sa.template_key(), id);
        if let Some(encap) = sa.encap {
            self.forget_port((dst, encap.dport));
        }
        Some(sa)
    }

    fn expect_port(&mut self, key: (IpAddr, u16)) {
        *self.encap_ports.entry(key).or_default() += 1;
    }

    fn forget_port(&mut self, key: (IpAddr, u16)) {
        if let Some(users) = self.encap_ports.get_mut(&key) {
            *users -= 1;
            if *users == 0 {
                self.encap_ports.remove(&key);
            }
        }
    }

    fn forget_template(&mut self, key: TemplateKey, id: SaId) {
        if let Some(ids) = self.by_template.get_mut(&key) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.by_template.remove(&key);
            }
        }
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

    /// Tells whether an SA expects ESP in UDP that is sent to this port of `dst`.
    #[inline]
    pub fn is_encap_port(&self, dst: IpAddr, port: u16) -> bool {
        self.encap_ports.contains_key(&(dst, port))
    }

    /// Tells whether ESP with `spi` to `dst`, which is not this node, is for this node to open all the same: as the "bump
    /// in the wire" of RFC 4301 §3.3, in front of a host that knows nothing of IPsec. Its SA says so by [`SaDir::In`];
    /// without it a packet that this node itself has sent, and that came back, would be opened.
    #[inline]
    pub fn opens_for_others(&self, dst: IpAddr, spi: Spi) -> bool {
        self.by_spi(dst, spi).and_then(|id| self.get(id)).is_some_and(|sa| sa.dir == Some(SaDir::In))
    }

    /// The SA to send `flow` by as `template` asks, from `src` to `dst`: the newest that fits (Linux
    /// `xfrm_state_find`). Its direction is the caller's to look at.
    pub fn for_template(&self, template: &Template, src: IpAddr, dst: IpAddr, flow: &Flowi) -> Option<SaId> {
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
