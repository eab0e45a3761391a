//! Adapter: driver and device. Large send and checksums of sent packets are in `transmit.rs`, those of received ones in
//! `receive.rs`.

mod receive;
mod scratch;
mod settings;
mod transmit;

use packet::{Copied, CopyReason, Memory, Packet, Pool};
use wire::MacAddr;

use crate::attributes::Attributes;
use crate::descriptor::{BufDesc, FrameFlags, RxEntry};
use crate::error::{Refusal, SettingError};
use crate::lan::{BUFFERS_PER_CALL, Lan, McastCommand, Unit};
use crate::pool::{BufferName, BufferPool, PoolConfig};
use crate::stats::Stats;

pub use transmit::TxError;

/// Size of a transmit buffer, and maximum length of a frame.
const TX_BUFFER: usize = 64 * 1024;

/// Maximum number of transmit queues.
pub const MAX_TX_QUEUES: usize = 16;

/// Convention by which fat frames are sent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Style {
    /// The MSS is an argument of the call, if the hypervisor supports this convention.
    #[default]
    New,
    /// The MSS is in the frame, whether or not the hypervisor supports the new convention (`old_large_send=1`).
    Old,
}

/// Treatment of a fat packet in several buffers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FragListMode {
    /// A packet with a frag list is segmented before it is transmitted.
    Cut,
    /// The packet is copied into the transmit buffer, like every other frame.
    #[default]
    Linearize,
    /// Headers are copied, and payload is described in place, as far as there are descriptors.
    InPlace,
}

/// Initial settings of an adapter.
#[derive(Clone, Copy, Debug)]
pub struct AdapterConfig {
    /// Layer-3 MTU.
    pub mtu: usize,
    /// Convention for fat frames.
    pub style: Style,
    /// Treatment of fat packets in several buffers.
    pub frag_list: FragListMode,
    /// Transmit queues, 1 to [`MAX_TX_QUEUES`].
    pub tx_queues: usize,
    /// Pools.
    pub pools: [PoolConfig; 5],
    /// Maximum number of pages of each pool, including those that packets hold.
    pub pool_pages: usize,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            style: Style::New,
            frag_list: FragListMode::Linearize,
            tx_queues: 1,
            pools: PoolConfig::DEFAULT,
            pool_pages: usize::MAX,
        }
    }
}

/// Offloads, by the names of `ethtool -K`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TxOffloads {
    /// Trust in the checksums of received frames (`rx`).
    pub rx_csum: bool,
    /// TCP checksums by the device (`tx`).
    pub tx_csum: bool,
    /// Fat frames of TCP over IPv4 (`tso`).
    pub tso4: bool,
    /// Fat frames of TCP over IPv6 (`tx-tcp6-segmentation`).
    pub tso6: bool,
}

impl TxOffloads {
    /// All offloads.
    pub const ALL: Self = Self { rx_csum: true, tx_csum: true, tso4: true, tso6: true };
    /// Only checksum offloads.
    pub const CSUM: Self = Self { rx_csum: true, tx_csum: true, tso4: false, tso6: false };
    /// No offload.
    pub const NONE: Self = Self { rx_csum: false, tx_csum: false, tso4: false, tso6: false };
}

/// Counters that `ethtool -S` does not show.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AdapterCounters {
    /// Frames sent, including those that the hypervisor dropped.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that could not be sent.
    pub tx_dropped: u64,
    /// Calls repeated because the hypervisor was busy.
    pub tx_retries: u64,
    /// Fat packets segmented here.
    pub tx_cut: u64,
    /// Packets that were linearized.
    pub tx_linearized: u64,
    /// Packets sent from their own buffers.
    pub tx_in_place: u64,
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames lost in the queue when the adapter was closed.
    pub rx_lost: u64,
    /// Resets after an invalid queue entry.
    pub resets: u64,
    /// Frames copied into transmit buffers, whole or in part, and out of small receive buffers.
    pub copied: Copied,
}

/// Receive queue of an open adapter.
#[derive(Clone, Copy, Debug)]
struct RxQueue {
    index: usize,
    slots: usize,
    toggle: bool,
}

/// A virtual Ethernet adapter with its driver.
#[derive(Debug)]
pub struct Adapter {
    unit: Unit,
    mac: MacAddr,
    mtu: usize,
    config: AdapterConfig,
    /// Requested offloads.
    wanted: TxOffloads,
    /// Negotiated offloads.
    agreed: TxOffloads,
    is_active_trunk: bool,
    pools: [BufferPool; 5],
    queue: Option<RxQueue>,
    /// Address of the transmit buffer of each queue.
    tx_buffers: Vec<u32>,
    tx_pool: Pool,
    /// Whether the hypervisor accepts several buffers in one call.
    adds_many: bool,
    /// Whether the next poll closes and opens the adapter.
    is_reset_due: bool,
    is_promiscuous: bool,
    groups: Vec<MacAddr>,
    filter_slots: usize,
    stats: Stats,
    counters: AdapterCounters,
    /// Frames dropped without a buffer before the last open.
    no_buffer_before: u64,
    mem: Memory,
    scratch: scratch::Scratch,
}

impl Adapter {
    /// The closed adapter of a unit, with default offloads: all that the hypervisor grants, except large send in the
    /// old style, which requires support by every partition.
    ///
    /// # Errors
    /// [`SettingError::NotRegistered`] if the LAN has no such adapter; [`SettingError::Range`] for a number of queues,
    /// a pool or an MTU out of range.
    pub fn probe(lan: &mut Lan, unit: Unit, config: AdapterConfig) -> Result<Self, SettingError> {
        let place = lan.place(unit).ok_or(SettingError::NotRegistered)?;
        let (mac, filter_slots) = (place.mac, place.filter_slots);
        if !(1..=MAX_TX_QUEUES).contains(&config.tx_queues) {
            return Err(SettingError::Range(config.tx_queues));
        }
        config.pools.iter().try_for_each(PoolConfig::check)?;
        let mut adapter = Self {
            unit,
            mac,
            mtu: 1500,
            wanted: TxOffloads::NONE,
            agreed: TxOffloads::NONE,
            is_active_trunk: false,
            pools: config.pools.map(|pool| BufferPool::new(pool, config.pool_pages)),
            queue: None,
            tx_buffers: Vec::new(),
            tx_pool: Pool::heap(TX_BUFFER),
            adds_many: true,
            is_reset_due: false,
            is_promiscuous: false,
            groups: Vec::new(),
            filter_slots,
            stats: Stats::default(),
            counters: AdapterCounters::default(),
            no_buffer_before: 0,
            mem: Memory::heap(),
            scratch: scratch::Scratch::default(),
            config,
        };
        adapter.set_mtu(lan, config.mtu)?;
        let is_new = adapter.speaks_new_style(lan);
        // Offloads that the hypervisor refuses stay off.
        let _ = adapter.set_offloads(lan, TxOffloads { tso4: is_new, tso6: is_new, ..TxOffloads::CSUM });
        Ok(adapter)
    }

    /// Registers with the hypervisor, and posts buffers.
    ///
    /// # Errors
    /// [`SettingError::NotRegistered`], [`SettingError::Memory`]; the adapter is closed then.
    pub fn open(&mut self, lan: &mut Lan) -> Result<(), SettingError> {
        if self.queue.is_some() {
            return Ok(());
        }
        let slots = 1 + self.pools.iter().map(|pool| pool.config.count).sum::<usize>();
        lan.register(self.unit, slots, self.mac).map_err(|_| SettingError::NotRegistered)?;
        self.queue = Some(RxQueue { index: 0, slots, toggle: true });
        for _ in 0..self.config.tx_queues {
            let buffer = self.tx_pool.take(0).ok().and_then(|mut buf| {
                buf.put(TX_BUFFER)?;
                lan.io(self.unit).map(buf).ok()
            });
            let Some(address) = buffer else {
                self.leave(lan);
                return Err(SettingError::Memory);
            };
            self.tx_buffers.push(address);
        }
        self.pools.iter_mut().for_each(BufferPool::open);
        self.replenish(lan);
        self.apply_groups(lan);
        self.look(lan);
        self.is_reset_due = false;
        Ok(())
    }

    /// Leaves the LAN, until the next [`open`](Self::open). Frames in the receive queue are lost, and counted.
    pub fn close(&mut self, lan: &mut Lan) {
        self.is_reset_due = false;
        self.leave(lan);
    }

    /// Leaves the LAN temporarily.
    fn leave(&mut self, lan: &mut Lan) {
        let Some(queue) = self.queue.take() else { return };
        self.counters.rx_lost += waiting(lan, self.unit, queue);
        self.no_buffer_before += lan.no_buffer(self.unit);
        // The adapter is open, which is the call's only condition.
        let _ = lan.free(self.unit);
        for pool in &mut self.pools {
            for address in pool.close() {
                lan.unmap(self.unit, address);
            }
        }
        for address in self.tx_buffers.drain(..) {
            lan.unmap(self.unit, address);
        }
    }

    /// Link-layer address.
    pub const fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Layer-3 MTU.
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// Tells whether the adapter is on the LAN.
    pub const fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    /// Tells whether the adapter was the active trunk of a VLAN at the last poll.
    pub const fn is_active_trunk(&self) -> bool {
        self.is_active_trunk
    }

    /// Counters of `ethtool -S`.
    pub fn stats(&self) -> Stats {
        let large = self.agreed.tso6;
        Stats { fw_enabled_large_send: large.into(), ..self.stats }
    }

    /// Counters that `ethtool -S` does not show.
    pub const fn counters(&self) -> AdapterCounters {
        self.counters
    }

    /// Copies by reason: of frames to and from buffers, and by segmentation and checksums in the adapter.
    pub fn copies(&self) -> impl Iterator<Item = (CopyReason, Copied)> + '_ {
        let frames = (CopyReason::DeviceFrame, self.counters.copied);
        self.mem.copies().iter().filter(|(reason, _)| *reason != CopyReason::DeviceFrame).chain([frames])
    }

    /// Settings of a pool; `None` if there is no such pool.
    pub fn pool(&self, index: usize) -> Option<PoolConfig> {
        self.pools.get(index).map(|pool| pool.config)
    }

    /// Number of buffers of a pool that are posted, or hold frames that were not taken yet.
    pub fn available(&self, index: usize) -> usize {
        self.pools.get(index).map_or(0, BufferPool::available)
    }

    /// Receives up to `budget` frames, and refills the pools. Frames below 128 bytes are copied into memory of `mem`,
    /// others are packets in their receive buffers. Returns the number of frames.
    pub fn poll(&mut self, lan: &mut Lan, mem: &Memory, budget: usize, out: &mut Vec<Packet>) -> usize {
        if self.is_reset_due {
            self.counters.resets += u64::from(self.is_open());
            self.leave(lan);
            // If the open fails, the next poll retries; `is_open` shows the state.
            let _ = self.open(lan);
        }
        let received = self.receive(lan, mem, budget, out);
        if self.queue.is_some() {
            self.replenish(lan);
            self.look(lan);
        }
        received
    }

    /// Reads from the attribute word whether the adapter is an active trunk.
    fn look(&mut self, lan: &mut Lan) {
        let word = lan.illan_attributes(self.unit, Attributes::NONE, Attributes::NONE);
        self.is_active_trunk = word.is_ok_and(|word| word.contains(Attributes::ACTIVE_TRUNK));
    }

    /// Refills every pool that is below seven eighths, the one with the longest buffers first.
    fn replenish(&mut self, lan: &mut Lan) {
        self.stats.replenish_task_cycles += 1;
        for at in (0..self.pools.len()).rev() {
            if self.pools[at].is_low() {
                self.refill(lan, at);
            }
        }
        self.stats.rx_no_buffer = self.no_buffer_before + lan.no_buffer(self.unit);
    }

    /// Fills a pool, until memory runs out or the hypervisor refuses.
    fn refill(&mut self, lan: &mut Lan, at: usize) {
        loop {
            let pool = &mut self.pools[at];
            let missing = pool.config.count - pool.available();
            if missing == 0 {
                return;
            }
            let batch = if self.adds_many { missing.min(BUFFERS_PER_CALL) } else { 1 };
            let (mut descs, mut count) = ([BufDesc::UNUSED; BUFFERS_PER_CALL], 0);
            let mut is_short = false;
            for nth in 0..batch {
                let Some(index) = pool.free_place(nth) else { break };
                let Ok(mut buf) = pool.buffer() else {
                    self.stats.replenish_no_mem += 1;
                    is_short = true;
                    break;
                };
                let correlator = BufferName { pool: at, index }.correlator();
                if let Some(front) = buf.bytes_mut().and_then(|bytes| bytes.first_chunk_mut()) {
                    *front = correlator.to_be_bytes();
                }
                let Ok(address) = lan.io(self.unit).map(buf) else {
                    self.stats.replenish_add_buff_failure += 1;
                    is_short = true;
                    break;
                };
                descs[count] = BufDesc::new(FrameFlags::NONE, pool.config.size, address);
                count += 1;
            }
            let descs = &descs[..count];
            let added = self.add(lan, descs);
            self.stats.replenish_add_buff_success += added as u64;
            self.stats.replenish_add_buff_failure += (count - added) as u64;
            let addresses: arrayvec::ArrayVec<u32, BUFFERS_PER_CALL> =
                descs.iter().map(|desc| desc.address()).collect();
            self.pools[at].fill(&addresses[..added]);
            for &address in &addresses[added..] {
                lan.unmap(self.unit, address);
            }
            if is_short || added < count || count == 0 {
                return;
            }
        }
    }

    /// Posts buffers by one call if the hypervisor supports it, else one by one. Returns the number of accepted
    /// buffers.
    fn add(&mut self, lan: &mut Lan, descs: &[BufDesc]) -> usize {
        if self.adds_many && !descs.is_empty() {
            match lan.add_buffers(self.unit, descs) {
                Ok(added) => return added,
                Err(Refusal::Function) => self.adds_many = false,
                Err(_) => return 0,
            }
        }
        descs.iter().take_while(|&&desc| lan.add_buffer(self.unit, desc).is_ok()).count()
    }

    /// Passes the multicast groups to the hypervisor; enables all groups if there are more than its filter holds.
    fn apply_groups(&mut self, lan: &mut Lan) {
        let unit = self.unit;
        if self.is_promiscuous || self.groups.len() > self.filter_slots {
            let all = McastCommand::ENABLE_RECEPTION.with(McastCommand::DISABLE_FILTERING);
            // The adapter is open, and the command valid.
            let _ = lan.multicast_ctrl(unit, all, MacAddr::ZERO);
            return;
        }
        let clear = McastCommand::ENABLE_RECEPTION.with(McastCommand::DISABLE_FILTERING).with(McastCommand::CLEAR);
        let _ = lan.multicast_ctrl(unit, clear, MacAddr::ZERO);
        for &group in &self.groups {
            let _ = lan.multicast_ctrl(unit, McastCommand::ADD, group);
        }
        let _ = lan.multicast_ctrl(unit, McastCommand::ENABLE_FILTERING, MacAddr::ZERO);
    }
}

/// Number of new entries in a queue.
fn waiting(lan: &Lan, unit: Unit, mut queue: RxQueue) -> u64 {
    let mut count = 0;
    for _ in 0..queue.slots {
        if RxEntry::decode(&lan.rx_entry(unit, queue.index)).toggle() != queue.toggle {
            break;
        }
        queue.advance();
        count += 1;
    }
    count
}

impl RxQueue {
    fn advance(&mut self) {
        self.index += 1;
        if self.index == self.slots {
            self.index = 0;
            self.toggle = !self.toggle;
        }
    }
}
