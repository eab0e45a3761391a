//! Pool of receive buffers of one size.

use packet::{Buf, Memory, Pool, PoolDry};

use crate::error::SettingError;

/// Bytes of a buffer in addition to a frame's payload: the handle, and an Ethernet header.
pub const OVERHEAD: usize = 22;

/// Maximum number of buffers of a pool.
pub const MAX_COUNT: usize = 4096;

/// Maximum length of a buffer, in bytes.
pub const MAX_SIZE: usize = 128 * 1024;

/// Settings of a pool: the files `active`, `num` and `size` of its sysfs directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolConfig {
    /// Whether the pool's buffers are posted.
    pub active: bool,
    /// Number of buffers.
    pub count: usize,
    /// Bytes of a buffer.
    pub size: usize,
}

impl PoolConfig {
    /// Default pools of an adapter.
    pub const DEFAULT: [Self; 5] = [
        Self { active: true, count: 256, size: 512 },
        Self { active: true, count: 512, size: 2048 },
        Self { active: false, count: 256, size: 16 * 1024 },
        Self { active: false, count: 256, size: 32 * 1024 },
        Self { active: true, count: 256, size: 64 * 1024 },
    ];

    /// Checks ranges.
    ///
    /// # Errors
    /// [`SettingError::Range`] with the value out of range.
    pub const fn check(&self) -> Result<(), SettingError> {
        if self.count == 0 || self.count > MAX_COUNT {
            return Err(SettingError::Range(self.count));
        }
        if self.size <= OVERHEAD || self.size > MAX_SIZE {
            return Err(SettingError::Range(self.size));
        }
        Ok(())
    }

    /// Tells whether the pool's buffers hold frames of an MTU.
    pub const fn holds(&self, mtu: usize) -> bool {
        mtu + OVERHEAD <= self.size
    }
}

/// Name of a buffer: its pool and its slot in the pool, as encoded in the correlator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BufferName {
    pub(crate) pool: usize,
    pub(crate) index: usize,
}

impl BufferName {
    pub(crate) const fn correlator(self) -> u64 {
        (self.pool as u64) << 32 | self.index as u64
    }

    pub(crate) const fn of(correlator: u64) -> Self {
        Self { pool: (correlator >> 32) as usize, index: (correlator & 0xffff_ffff) as usize }
    }
}

/// Buffers of a pool.
#[derive(Debug)]
pub(crate) struct BufferPool {
    pub(crate) config: PoolConfig,
    memory: Pool,
    /// Address of each buffer that is posted or holds a received frame; 0 for none.
    addresses: Vec<u32>,
    /// Slots without a buffer, the latest on top.
    free: Vec<u16>,
}

impl BufferPool {
    /// A pool without buffers, of at most `pages` pages of memory.
    pub(crate) fn new(config: PoolConfig, pages: usize) -> Self {
        let memory = Pool::bounded(Memory::HEADROOM + config.size, pages);
        Self { config, memory, addresses: Vec::new(), free: Vec::new() }
    }

    /// Marks all slots as free.
    pub(crate) fn open(&mut self) {
        let count = if self.config.active { self.config.count } else { 0 };
        self.addresses = vec![0; count];
        self.free = (0..count as u16).rev().collect();
    }

    /// Removes all buffers, and returns their addresses.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = u32> + use<> {
        self.free.clear();
        std::mem::take(&mut self.addresses).into_iter().filter(|&address| address != 0)
    }

    /// Number of buffers that are posted or hold received frames.
    pub(crate) fn available(&self) -> usize {
        self.addresses.len() - self.free.len()
    }

    /// Tells whether the pool needs a refill: it is below seven eighths.
    pub(crate) fn is_low(&self) -> bool {
        self.available() * 8 < self.config.count * 7 && !self.addresses.is_empty()
    }

    /// A slot without a buffer.
    pub(crate) fn free_place(&self, nth: usize) -> Option<usize> {
        let at = self.free.len().checked_sub(nth + 1)?;
        Some(self.free[at].into())
    }

    /// A new buffer, all of it data.
    pub(crate) fn buffer(&self) -> Result<Buf, PoolDry> {
        let mut buf = self.memory.take(Memory::HEADROOM)?;
        buf.put(self.config.size).ok_or(PoolDry)?;
        Ok(buf)
    }

    /// Fills the top `addresses.len()` of the free slots.
    pub(crate) fn fill(&mut self, addresses: &[u32]) {
        for &address in addresses {
            if let Some(index) = self.free.pop() {
                self.addresses[usize::from(index)] = address;
            }
        }
    }

    /// Address of a buffer; `None` for a slot that does not exist or is free.
    pub(crate) fn address(&self, index: usize) -> Option<u32> {
        self.addresses.get(index).copied().filter(|&address| address != 0)
    }

    /// Frees a slot. Returns the address of its buffer.
    pub(crate) fn remove(&mut self, index: usize) -> Option<u32> {
        let address = self.address(index)?;
        self.addresses[index] = 0;
        self.free.push(index as u16);
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_config_has_limits() {
        let good = PoolConfig { active: true, count: 1, size: 23 };
        let cases = [
            (good, Ok(())),
            (PoolConfig { count: 4096, size: 128 * 1024, ..good }, Ok(())),
            (PoolConfig { count: 0, ..good }, Err(SettingError::Range(0))),
            (PoolConfig { count: 4097, ..good }, Err(SettingError::Range(4097))),
            (PoolConfig { size: 22, ..good }, Err(SettingError::Range(22))),
            (PoolConfig { size: 128 * 1024 + 1, ..good }, Err(SettingError::Range(131_073))),
        ];
        for (config, want) in cases {
            assert_eq!(config.check(), want, "{config:?}");
        }
        assert!(PoolConfig::DEFAULT[1].holds(2026) && !PoolConfig::DEFAULT[1].holds(2027));
        assert_eq!(PoolConfig::DEFAULT.map(|pool| pool.active), [true, true, false, false, true]);
    }

    #[test]
    fn pool_is_low_below_seven_eighths() {
        let mut pool = BufferPool::new(PoolConfig { active: true, count: 16, size: 512 }, usize::MAX);
        assert!(!pool.is_low(), "closed");
        pool.open();
        assert!(pool.is_low());
        pool.fill(&[1 << 17; 13]);
        assert!(pool.is_low() && pool.available() == 13);
        pool.fill(&[1 << 17]);
        assert!(!pool.is_low() && pool.available() == 14);
        assert_eq!(pool.remove(0), Some(1 << 17));
        assert_eq!((pool.remove(0), pool.remove(16), pool.is_low()), (None, None, true));
        assert_eq!(pool.free_place(0), Some(0));
        assert_eq!(pool.close().count(), 13);
    }

    #[test]
    fn correlator_names_pool_and_place() {
        let name = BufferName { pool: 4, index: 255 };
        assert_eq!(name.correlator(), 0x4_0000_00ff);
        assert_eq!(BufferName::of(name.correlator()), name);
        assert_eq!(BufferName::of(u64::MAX), BufferName { pool: 0xffff_ffff, index: 0xffff_ffff });
    }
}
