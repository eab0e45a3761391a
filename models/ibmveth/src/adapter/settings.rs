//! Settings of an adapter: offloads, MTU, pools, address, groups. Most changes close and reopen the adapter.

use offload::{CsumOffload, Features};
use wire::MacAddr;

use super::{Adapter, FragListMode, Style, TX_BUFFER, TxOffloads};
use crate::attributes::Attributes;
use crate::error::SettingError;
use crate::lan::Lan;
use crate::pool::{BufferPool, OVERHEAD, PoolConfig};

/// Smallest MTU.
const MIN_MTU: usize = 68;

/// Largest MTU.
const MAX_MTU: usize = 65_535 - OVERHEAD;

/// Length of the handle and the MSS in front of a fat frame in its receive buffer.
const LARGE_FRONT: usize = 16;

impl Adapter {
    /// Current offloads as features of a link, including the trunk's frag lists.
    pub fn features(&self) -> Features {
        let agreed = self.agreed;
        let (v4, v6) = (self.completes(true), self.completes(false));
        let csum = match (v4, v6) {
            (true, true) => CsumOffload::Both,
            (true, false) => CsumOffload::Ipv4,
            (false, true) => CsumOffload::Ipv6,
            (false, false) => CsumOffload::None,
        };
        Features {
            sg: true,
            frag_list: self.is_active_trunk,
            csum,
            tso4: self.wanted.tso4 && agreed.tso4 && v4,
            tso6: self.wanted.tso6 && agreed.tso6 && v6,
            // The frame must fit into the longest receive buffer.
            gso_max_size: TX_BUFFER - LARGE_FRONT + 1,
            ..Features::NONE
        }
    }

    /// Tells whether the receiver completes TCP checksums over that version of IP.
    pub(super) const fn completes(&self, is_v4: bool) -> bool {
        let agreed = if is_v4 { self.stats.fw_enabled_ipv4_csum } else { self.stats.fw_enabled_ipv6_csum };
        self.wanted.tx_csum && agreed == 1
    }

    /// Requested offloads, after [the rules](Self::set_offloads).
    pub const fn offloads(&self) -> TxOffloads {
        self.wanted
    }

    /// Tells whether fat frames are sent with the MSS as an argument of the call.
    pub(super) fn speaks_new_style(&self, lan: &mut Lan) -> bool {
        let word = lan.illan_attributes(self.unit, Attributes::NONE, Attributes::NONE);
        self.config.style == Style::New && word.is_ok_and(|word| word.contains(Attributes::LARGE_SEND_SUPPORT))
    }

    /// Sets offloads, as `ethtool -K`. Transmit checksums require receive checksums, and large send requires transmit
    /// checksums. A change closes and opens the adapter.
    ///
    /// # Errors
    /// [`SettingError::Refused`] if the hypervisor refuses for either version of IP; other offloads are set.
    /// [`SettingError::NotRegistered`], [`SettingError::Memory`] if the adapter does not reopen.
    pub fn set_offloads(&mut self, lan: &mut Lan, wanted: TxOffloads) -> Result<(), SettingError> {
        let tx_csum = wanted.tx_csum && wanted.rx_csum;
        let mut fixed = TxOffloads { tx_csum, tso4: wanted.tso4 && tx_csum, tso6: wanted.tso6 && tx_csum, ..wanted };
        let mut result = Ok(());
        if fixed.rx_csum != self.agreed.rx_csum {
            result = self.set_csum(lan, fixed.rx_csum);
            if !self.agreed.rx_csum {
                fixed = TxOffloads::NONE;
            }
        }
        let is_large = fixed.tso4 || fixed.tso6;
        if is_large != self.agreed.tso4 {
            let set = self.set_large_send(lan, is_large);
            result = result.and(set);
        }
        fixed.tso4 &= self.agreed.tso4;
        fixed.tso6 &= self.agreed.tso6;
        self.wanted = fixed;
        result
    }

    /// Negotiates checksum offload on or off, separately for each version of IP.
    fn set_csum(&mut self, lan: &mut Lan, on: bool) -> Result<(), SettingError> {
        let was_open = self.is_open();
        self.leave(lan);
        let word = lan.illan_attributes(self.unit, Attributes::NONE, Attributes::NONE);
        let mut result = Err(SettingError::Refused);
        if word.is_ok_and(|word| word.contains(Attributes::PADDED_CSUM)) {
            let is_v4_set = self.set_bit(lan, Attributes::IPV4_TCP_CSUM, on);
            let is_v6_set = self.set_bit(lan, Attributes::IPV6_TCP_CSUM, on);
            if is_v4_set {
                self.stats.fw_enabled_ipv4_csum = on.into();
            }
            if is_v6_set {
                self.stats.fw_enabled_ipv6_csum = on.into();
            }
            if is_v4_set || is_v6_set {
                self.agreed.rx_csum = on;
                result = Ok(());
            }
        }
        if was_open { result.and(self.open(lan)) } else { result }
    }

    /// Negotiates large send on or off. The old style needs no negotiation, and does not support IPv6.
    fn set_large_send(&mut self, lan: &mut Lan, on: bool) -> Result<(), SettingError> {
        let was_open = self.is_open();
        self.leave(lan);
        let mut result = Ok(());
        if !self.speaks_new_style(lan) {
            (self.agreed.tso4, self.agreed.tso6) = (on, false);
        } else if self.set_bit(lan, Attributes::LARGE_SEND_ENABLED, on) {
            (self.agreed.tso4, self.agreed.tso6) = (on, on);
        } else {
            result = Err(SettingError::Refused);
        }
        if was_open { result.and(self.open(lan)) } else { result }
    }

    /// Sets or clears a bit of the attribute word. Returns whether the hypervisor accepted.
    fn set_bit(&self, lan: &mut Lan, bit: Attributes, on: bool) -> bool {
        let (reset, set) = if on { (Attributes::NONE, bit) } else { (bit, Attributes::NONE) };
        lan.illan_attributes(self.unit, reset, set).is_ok()
    }

    /// Sets the MTU, and activates the pools up to the first one whose buffers hold it.
    ///
    /// # Errors
    /// [`SettingError::Range`] outside 68 to 65 513, or if no pool holds the MTU; nothing has changed then. As
    /// [`open`](Self::open).
    pub fn set_mtu(&mut self, lan: &mut Lan, mtu: usize) -> Result<(), SettingError> {
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return Err(SettingError::Range(mtu));
        }
        let Some(last) = self.pools.iter().position(|pool| pool.config.holds(mtu)) else {
            return Err(SettingError::Range(mtu));
        };
        let was_open = self.is_open();
        self.leave(lan);
        self.pools[..=last].iter_mut().for_each(|pool| pool.config.active = true);
        self.mtu = mtu;
        if was_open { self.open(lan) } else { Ok(()) }
    }

    /// Enables or disables a pool.
    ///
    /// # Errors
    /// [`SettingError::LastPool`] if no other active pool holds the MTU; [`SettingError::Range`] if there is no such
    /// pool. As [`open`](Self::open).
    pub fn set_pool_active(&mut self, lan: &mut Lan, index: usize, active: bool) -> Result<(), SettingError> {
        let config = self.pool(index).ok_or(SettingError::Range(index))?;
        let others = self.pools.iter().enumerate().filter(|&(at, pool)| at != index && pool.config.active);
        let is_last = !others.into_iter().any(|(_, pool)| pool.config.holds(self.mtu));
        if !active && config.active && is_last {
            return Err(SettingError::LastPool);
        }
        if active == config.active {
            return Ok(());
        }
        self.set_pool(lan, index, PoolConfig { active, ..config })
    }

    /// Sets the number of buffers of a pool.
    ///
    /// # Errors
    /// [`SettingError::Range`] outside 1 to 4096. As [`open`](Self::open).
    pub fn set_pool_count(&mut self, lan: &mut Lan, index: usize, count: usize) -> Result<(), SettingError> {
        let config = self.pool(index).ok_or(SettingError::Range(index))?;
        self.set_pool(lan, index, PoolConfig { count, ..config })
    }

    /// Sets the size of a pool's buffers.
    ///
    /// # Errors
    /// [`SettingError::Range`] outside 23 to 128 KiB. As [`open`](Self::open).
    pub fn set_pool_size(&mut self, lan: &mut Lan, index: usize, size: usize) -> Result<(), SettingError> {
        let config = self.pool(index).ok_or(SettingError::Range(index))?;
        self.set_pool(lan, index, PoolConfig { size, ..config })
    }

    fn set_pool(&mut self, lan: &mut Lan, index: usize, config: PoolConfig) -> Result<(), SettingError> {
        config.check()?;
        let was_open = self.is_open();
        self.leave(lan);
        let pool = &mut self.pools[index];
        if pool.config.size == config.size {
            pool.config = config;
        } else {
            *pool = BufferPool::new(config, self.config.pool_pages);
        }
        if was_open { self.open(lan) } else { Ok(()) }
    }

    /// Sets the treatment of fat packets in several buffers.
    pub fn set_frag_list_mode(&mut self, mode: FragListMode) {
        self.config.frag_list = mode;
    }

    /// Sets the link-layer address.
    ///
    /// # Errors
    /// [`SettingError::Address`] if the address is not unicast.
    pub fn set_mac(&mut self, lan: &mut Lan, mac: MacAddr) -> Result<(), SettingError> {
        if !mac.is_unicast() || self.is_open() && lan.change_mac(self.unit, mac).is_err() {
            return Err(SettingError::Address);
        }
        self.mac = mac;
        Ok(())
    }

    /// Sets the multicast groups to receive, and whether all are received.
    pub fn set_groups(&mut self, lan: &mut Lan, is_promiscuous: bool, groups: &[MacAddr]) {
        self.is_promiscuous = is_promiscuous;
        self.groups.clear();
        self.groups.extend_from_slice(groups);
        if self.is_open() {
            self.apply_groups(lan);
        }
    }
}
