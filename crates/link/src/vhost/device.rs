//! State that a front end sets up by vhost-user messages: features, memory and rings.
//!
//! A ring runs once it has its size, its addresses and a kick descriptor, and all its parts are in memory. It stops at
//! `GET_VRING_BASE`, which returns its index. A new memory table keeps the index.
//!
//! Each queue has a lock of its own, with what its frames need: the map of the guest's memory and the features. So a shard serves its
//! queues while others serve theirs, and no other thread uses a ring but the one that handles messages, which starts and stops it. A
//! message locks the queues that it changes, and waits for a burst at most.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;
use rustix::fs::fstat;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::features::Bits;
use super::notify::Doorbell;
use super::passed::{ConnectionState, RegionState, VringState};
use super::ring::{MAX_SIZE, Place, Ring, RingFeatures};
use crate::sys::guest_memory::{GuestMemory, Region};
use crate::sys::inspection::is_eventfd;

/// Regions of memory that a guest may have.
const MAX_REGIONS: usize = 128;

/// Token of all kicks in the epoll instance.
const KICK: u64 = 3;

/// Reply to a message about a feature that was not offered.
const NOT_OFFERED: Error = Error::InvalidOperation("not offered");

/// Protocol features offered; the crate `vhost` adds `REPLY_ACK`.
pub(super) const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::RESET_DEVICE)
    .union(VhostUserProtocolFeatures::REPLY_ACK);

/// A queue of the guest, which receives from even ones and sends by odd ones.
#[derive(Debug, Default)]
pub(super) struct Vring {
    size: u16,
    place: Option<Place>,
    /// Index of the available ring to start from.
    base: u16,
    /// Whether the front end has enabled the queue.
    pub(super) enabled: bool,
    started: bool,
    kick: Option<Kick>,
    call: Option<Doorbell>,
    /// Ring, while it runs.
    pub(super) ring: Option<Ring>,
    /// The guest's memory, and the negotiated features, when the ring was started. Both are those of the device: a new map starts all
    /// rings again, and features do not change while a ring runs.
    pub(super) memory: GuestMemory,
    pub(super) features: Bits,
    /// Violation of the rules by which the ring was stopped for the rest of the connection.
    fault: Option<String>,
    pub(super) stats: VringStats,
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct VringStats {
    /// Interrupts.
    pub(super) calls: u64,
    /// Times that the guest had no buffers.
    pub(super) full: u64,
    /// Chains that were taken.
    pub(super) chains: u64,
    /// Bytes that were copied.
    pub(super) copied: u64,
}

/// The queues of a device. Even ones receive, odd ones send.
pub(super) type Vrings = Arc<[Mutex<Vring>]>;

/// Locks a queue or a device, also after a panic of another thread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kick descriptor, registered with the link's epoll instance.
#[derive(Debug)]
struct Kick {
    fd: OwnedFd,
    epoll: Arc<OwnedFd>,
}

impl Kick {
    /// Registers the eventfd edge-triggered with `epoll`: it is never read.
    fn new(fd: OwnedFd, epoll: &Arc<OwnedFd>) -> std::io::Result<Self> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(epoll, &fd, epoll::EventData::new_u64(KICK), flags)?;
        Ok(Self { fd, epoll: Arc::clone(epoll) })
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        // The front end keeps the eventfd open, so closing our descriptor would not remove it from the epoll instance.
        let _ = epoll::delete(&self.epoll, &self.fd);
    }
}

impl Vring {
    /// Tells whether the queue is enabled and its ring runs.
    pub(super) fn is_ready(&self) -> bool {
        self.enabled && self.ring.is_some()
    }

    /// Publishes used chains to the guest, and interrupts the guest if it has enabled interrupts.
    pub(super) fn publish(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if ring.publish()
            && let Some(call) = &self.call
        {
            self.stats.calls += 1;
            call.ring();
        }
    }

    /// Stops the ring, after publishing used chains.
    fn stop(&mut self) {
        self.publish();
        if let Some(ring) = self.ring.take() {
            self.base = ring.next();
        }
        self.started = false;
        self.memory = GuestMemory::default();
    }

    /// Stops a ring that violates the rules, until the front end has disconnected.
    #[cold]
    pub(super) fn stop_for(&mut self, fault: String) {
        self.ring = None;
        self.fault.get_or_insert(fault);
    }

    /// State of the queue for another process, with duplicates of its descriptors.
    ///
    /// # Errors
    /// The ring violates the rules, or error of fcntl(2).
    fn pass(&mut self, descriptors: &mut Vec<OwnedFd>) -> std::result::Result<VringState, String> {
        self.publish();
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let duplicate = |copy: std::io::Result<OwnedFd>| copy.map_err(|err| format!("dup: {err}"));
        if let Some(kick) = &self.kick {
            descriptors.push(duplicate(kick.fd.try_clone())?);
        }
        if let Some(call) = &self.call {
            descriptors.push(duplicate(call.eventfd())?);
        }
        Ok(VringState {
            size: self.size,
            place: self.place,
            next: self.ring.as_ref().map_or(self.base, Ring::next),
            used: self.ring.as_ref().map(Ring::used),
            is_enabled: self.enabled,
            is_started: self.started,
            has_kick: self.kick.is_some(),
            has_call: self.call.is_some(),
        })
    }

    /// Resets the guest's settings, except for the call descriptor, which a front end may not send again.
    fn reset(&mut self) {
        self.stop();
        *self = Self { stats: self.stats, call: self.call.take(), fault: self.fault.take(), ..Self::default() };
    }
}

/// State that a front end sets up.
#[derive(Debug)]
pub(super) struct Device {
    offered: Bits,
    /// Whether the front end has asked for the features that are offered.
    has_asked: bool,
    /// Negotiated features; `None` before negotiation.
    pub(super) features: Option<Bits>,
    pub(super) protocol: VhostUserProtocolFeatures,
    pub(super) memory: GuestMemory,
    /// The most bytes of memory.
    memory_limit: u64,
    pub(super) vrings: Vrings,
    /// Epoll instances of the shards, to which the pairs of queues are dealt in turn.
    epolls: Vec<Arc<OwnedFd>>,
}

impl Device {
    /// A device with so many queue pairs and at most so many bytes of memory. Kicks of the pairs go to `epolls` in turn.
    pub(super) fn new(offered: Bits, pairs: usize, memory_limit: u64, epolls: Vec<Arc<OwnedFd>>) -> Self {
        Self {
            offered,
            has_asked: false,
            features: None,
            protocol: VhostUserProtocolFeatures::empty(),
            memory: GuestMemory::default(),
            memory_limit,
            vrings: std::iter::repeat_with(Mutex::default).take(2 * pairs).collect(),
            epolls,
        }
    }

    /// Resets the state after a front end has disconnected.
    pub(super) fn disconnect(&mut self) {
        for vring in &*self.vrings {
            let mut vring = lock(vring);
            *vring = Vring { stats: vring.stats, ..Vring::default() };
        }
        self.has_asked = false;
        self.features = None;
        self.protocol = VhostUserProtocolFeatures::empty();
        self.memory = GuestMemory::default();
    }

    /// State of the connection for another process, and its descriptors but for the socket. The state here is reset.
    ///
    /// # Errors
    /// The reason why no other process can go on with it.
    pub(super) fn pass(&mut self) -> std::result::Result<(ConnectionState, Vec<OwnedFd>), String> {
        let passed = self.state();
        self.disconnect();
        passed
    }

    fn state(&self) -> std::result::Result<(ConnectionState, Vec<OwnedFd>), String> {
        if self.memory.is_lost() {
            return Err("the guest's memory went away".to_owned());
        }
        let failed = |call: &'static str| move |err: std::io::Error| format!("{call}: {err}");
        let mut descriptors = Vec::new();
        // A service manager keeps one descriptor of a file.
        let mut files = Vec::new();
        let mut regions = Vec::new();
        for region in self.memory.regions() {
            let stat = fstat(&region.file).map_err(|err| failed("fstat")(err.into()))?;
            let inode = (stat.st_dev, stat.st_ino);
            let number = files.iter().position(|known| *known == inode);
            if number.is_none() {
                files.push(inode);
                descriptors.push(region.file.try_clone().map_err(failed("dup"))?);
            }
            regions.push(RegionState {
                guest_addr: region.guest_addr,
                user_addr: region.user_addr,
                len: region.len(),
                offset: region.offset,
                file: number.unwrap_or(files.len() - 1) as u8,
            });
        }
        let queues = self.vrings.iter().map(|vring| lock(vring).pass(&mut descriptors));
        let mut queues = queues.collect::<std::result::Result<Vec<_>, _>>()?;
        while queues.last().is_some_and(|queue| *queue == VringState::default()) {
            queues.pop();
        }
        let features = self.features.map(|features| features.0);
        let (has_asked, protocol) = (self.has_asked, self.protocol.bits());
        Ok((ConnectionState { has_asked, features, protocol, regions, queues }, descriptors))
    }

    /// Sets memory and queues as another process has left them, by the functions that front ends' messages call. Features are set
    /// before. `descriptors`: those of [`pass`](Self::pass).
    ///
    /// # Errors
    /// The reason why the guest cannot be taken over. The state is to be reset then.
    pub(super) fn restore(
        &mut self,
        state: &ConnectionState,
        descriptors: Vec<OwnedFd>,
    ) -> std::result::Result<(), String> {
        if state.regions.len() > MAX_REGIONS || state.queues.len() > self.vrings.len() {
            let (regions, queues, most) = (state.regions.len(), state.queues.len(), self.vrings.len());
            return Err(format!("{regions} memory regions of {MAX_REGIONS}, {queues} queues of {most}"));
        }
        let mut descriptors = descriptors.into_iter();
        let files: Vec<_> = descriptors.by_ref().take(state.files()).map(Arc::new).collect();
        for (number, region) in state.regions.iter().enumerate() {
            let &RegionState { guest_addr, user_addr, len, offset, file } = region;
            let file = files.get(usize::from(file)).ok_or("too few files")?;
            let mapped = self.map(guest_addr, user_addr, len, offset, Arc::clone(file));
            mapped.map_err(|err| format!("memory region {number}: {err}"))?;
        }
        for (index, queue) in state.queues.iter().enumerate() {
            let mut next = |has: bool| if has { descriptors.next().map(File::from) } else { None };
            let (kick, call) = (next(queue.has_kick), next(queue.has_call));
            let set = self.restore_vring(index as u8, queue, kick, call).map_err(|err| err.to_string());
            set.and_then(|()| self.check_vring(index, queue)).map_err(|why| format!("queue {index}: {why}"))?;
        }
        Ok(())
    }

    fn restore_vring(&mut self, index: u8, queue: &VringState, kick: Option<File>, call: Option<File>) -> Result<()> {
        let number = u32::from(index);
        if queue.size > 0 {
            self.set_vring_num(number, queue.size.into())?;
        }
        self.set_vring_base(number, queue.next.into())?;
        if let Some(Place { descriptors, available, used }) = queue.place {
            self.set_vring_addr(number, VhostUserVringAddrFlags::empty(), descriptors, used, available, 0)?;
        }
        if call.is_some() {
            self.set_vring_call(index, call)?;
        }
        if queue.is_started {
            self.set_vring_kick(index, kick)?;
        } else if kick.is_some() {
            return Err(Error::InvalidOperation("a descriptor for kicks of a ring that is not started"));
        }
        self.set_vring_enable(number, queue.is_enabled)
    }

    /// Checks that a ring runs if it has run before, and goes on where it has stopped.
    fn check_vring(&self, index: usize, queue: &VringState) -> std::result::Result<(), String> {
        match (&mut lock(&self.vrings[index]).ring, queue.used) {
            (Some(ring), Some(used)) => ring.check_same(used),
            (None, None) => Ok(()),
            (Some(_), None) => Err("a ring that did not run before".to_owned()),
            (None, Some(_)) => Err("a ring that is not aligned, or not in the guest's memory".to_owned()),
        }
    }

    /// Pairs by which the guest can receive, a bit each.
    pub(super) fn ready_pairs(&self) -> u64 {
        let pairs = self.vrings.iter().step_by(2).enumerate();
        pairs.filter(|(_, vring)| lock(vring).is_ready()).fold(0, |ready, (pair, _)| ready | 1 << pair)
    }

    /// Violation of the rules that a shard has found.
    #[cold]
    pub(super) fn fault(&self) -> Option<String> {
        self.vrings.iter().find_map(|vring| lock(vring).fault.clone())
    }

    fn vring(&self, index: u32) -> Result<MutexGuard<'_, Vring>> {
        self.vrings.get(index as usize).map(lock).ok_or(Error::InvalidParam)
    }

    /// Starts the ring if its size, addresses, kick descriptor and memory are set.
    fn start(&self, vring: &mut Vring) {
        let negotiated = self.features.unwrap_or_default();
        let features = RingFeatures { indirect: negotiated.indirect(), event_index: negotiated.event_index() };
        if !vring.started || vring.ring.is_some() || vring.size == 0 || vring.fault.is_some() {
            return;
        }
        let Some(place) = vring.place else { return };
        // Memory may still be announced, slot by slot.
        vring.ring = Ring::new(&self.memory, place, vring.size, vring.base, features);
        vring.memory = if vring.ring.is_some() { self.memory.clone() } else { GuestMemory::default() };
        vring.features = negotiated;
    }

    /// Finds the rings again after a change of the memory table.
    fn restart_all(&self) {
        for vring in &*self.vrings {
            let mut vring = lock(vring);
            if let Some(ring) = vring.ring.take() {
                vring.base = ring.next();
            }
            vring.memory = GuestMemory::default();
            self.start(&mut vring);
        }
    }

    fn map(&mut self, guest_addr: u64, user_addr: u64, len: u64, offset: u64, file: Arc<OwnedFd>) -> Result<()> {
        if self.memory.count() >= MAX_REGIONS {
            return Err(Error::InvalidOperation("too many memory regions"));
        }
        if len > self.memory_limit.saturating_sub(self.memory.bytes()) {
            let text = format!("more than {} bytes of memory; raise `memory` of the link", self.memory_limit);
            return Err(Error::ReqHandlerError(std::io::Error::new(std::io::ErrorKind::OutOfMemory, text)));
        }
        let region = Region::map(guest_addr, user_addr, len, offset, file).map_err(Error::ReqHandlerError)?;
        let added = self.memory.add(region);
        added.ok_or(Error::InvalidOperation("memory regions that overlap, or are not of whole pages"))?;
        Ok(())
    }
}

/// Checks that a descriptor is an eventfd. No call here reads or writes it: whether such a call would block is in the front
/// end's hands.
fn eventfd(file: File) -> Result<OwnedFd> {
    if is_eventfd(file.as_fd()) {
        Ok(file.into())
    } else {
        Err(Error::InvalidOperation("a descriptor that is not an eventfd"))
    }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // Deprecated. Some back ends discard the whole state here; this one only disables the rings.
        self.vrings.iter().for_each(|vring| lock(vring).enabled = false);
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.vrings.iter().for_each(|vring| lock(vring).reset());
        self.features = None;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        self.has_asked = true;
        Ok(self.offered.0)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered.0 != 0 {
            return Err(Error::InvalidOperation("features that were not offered"));
        }
        let features = Bits(features);
        if self.features == Some(features) {
            return Ok(());
        }
        if self.vrings.iter().any(|vring| lock(vring).ring.is_some()) {
            return Err(Error::InvalidOperation("other features while rings run"));
        }
        self.features = Some(features);
        if !features.protocol_features() {
            self.vrings.iter().for_each(|vring| lock(vring).enabled = true);
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let before = std::mem::take(&mut self.memory);
        for (region, file) in regions.iter().zip(files) {
            let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } = *region;
            self.map(guest_phys_addr, user_addr, memory_size, mmap_offset, Arc::new(file.into()))?;
        }
        self.restart_all();
        drop(before);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let mut vring = self.vring(index)?;
        if vring.ring.is_some() || num > MAX_SIZE || !num.is_power_of_two() {
            return Err(Error::InvalidOperation("ring size"));
        }
        vring.size = num as u16;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let mut vring = self.vring(index)?;
        vring.place = Some(Place { descriptors, available, used });
        if let Some(ring) = vring.ring.take() {
            vring.base = ring.next();
        }
        self.start(&mut vring);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let mut vring = self.vring(index)?;
        if vring.ring.is_some() {
            return Err(Error::InvalidOperation("ring base while it runs"));
        }
        vring.base = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let mut vring = self.vring(index)?;
        vring.stop();
        vring.kick = None;
        Ok(VhostUserVringState::new(index, vring.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let mut vring = self.vring(index.into())?;
        let epoll = &self.epolls[usize::from(index) / 2 % self.epolls.len()];
        // Without a kick descriptor the guest's rings are polled when the link receives for another reason.
        vring.kick = None;
        if let Some(file) = fd {
            vring.kick = Some(Kick::new(eventfd(file)?, epoll).map_err(Error::ReqHandlerError)?);
        }
        vring.started = true;
        self.start(&mut vring);
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = fd.map(eventfd).transpose()?.map(Doorbell::new).transpose();
        self.vring(index.into())?.call = call.map_err(Error::ReqHandlerError)?;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        // A violation closes the connection, which is more visible than an error descriptor.
        self.vring(index.into()).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let features = VhostUserProtocolFeatures::from_bits(features).filter(|&bits| PROTOCOL.contains(bits));
        self.protocol = features.ok_or(NOT_OFFERED)?;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64 / 2)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.enabled = enable;
        Ok(())
    }

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(NOT_OFFERED)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(NOT_OFFERED)
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } = **region;
        self.map(guest_phys_addr, user_addr, memory_size, mmap_offset, Arc::new(file.into()))?;
        self.restart_all();
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let removed = self.memory.remove(region.guest_phys_addr, region.user_addr, region.memory_size);
        removed.ok_or(Error::InvalidOperation("unknown memory region"))?;
        self.restart_all();
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}
