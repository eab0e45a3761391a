//! Hypervisor: a LAN between the adapters of partitions.
//!
//! It identifies an adapter by its [`Unit`], and uses only state that the partition has registered, mapped and posted.
//! It validates every value: looks addresses up in the partition's [`IoMemory`], compares lengths with the mapping, and
//! flags with the negotiated ones.
//!
//! Rules that the interface leaves open: a frame goes into the smallest sufficient buffer, and among equals into the
//! one posted last (whose bytes are likely in a cache); one call delivers a frame for a group to
//! [`Firmware::copies_per_call`] adapters, and then returns [`Refusal::Busy`] with the correlator that continues it;
//! the hypervisor completes checksums and segments fat frames for a receiver that has not negotiated these offloads.

mod deliver;
mod filter;
mod forward;
mod free_list;
mod tcp;

use packet::Buf;
use wire::MacAddr;

use crate::attributes::Attributes;
use crate::descriptor::{BufDesc, RxEntry};
use crate::error::{Refusal, SettingError};
use crate::io_memory::IoMemory;

pub use filter::McastCommand;
use filter::McastFilter;
pub use forward::SendAnswer;
pub(crate) use forward::{MIN_MSS, TAGGED_HEADER};
use free_list::FreeList;

/// Maximum number of VLANs of an adapter, without the VLAN of its untagged frames.
pub const MAX_VLANS: usize = 20;

/// Maximum number of receive buffers that one call adds.
pub const BUFFERS_PER_CALL: usize = 8;

/// Minimum length of a posted buffer: a handle and an Ethernet header.
const MIN_BUFFER: usize = 22;

/// Maximum number of entries of a receive queue.
const MAX_ENTRIES: usize = 1 << 16;

/// Capabilities of the hypervisor.
#[derive(Clone, Copy, Debug)]
pub struct Firmware {
    /// Supported bits of the attribute word; `None`: a hypervisor older than large send, without an attribute word.
    pub attributes: Option<Attributes>,
    /// Maximum number of descriptors of a frame.
    pub descriptors: usize,
    /// Number of adapters to which one call delivers a group's frame.
    pub copies_per_call: usize,
    /// Maximum number of regions that a partition can map for an adapter.
    pub io_regions: usize,
}

impl Firmware {
    /// Number of descriptors in the call of a current hypervisor.
    pub const DESCRIPTORS: usize = 6;

    /// Maximum number of descriptors of any modelled hypervisor.
    pub const MAX_DESCRIPTORS: usize = 128;

    /// A current hypervisor.
    pub const CURRENT: Self = Self {
        attributes: Some(Attributes::ALL),
        descriptors: Self::DESCRIPTORS,
        copies_per_call: 8,
        io_regions: usize::MAX,
    };
}

/// Configuration of an adapter in the hypervisor.
#[derive(Clone, Debug)]
pub struct AdapterPlace {
    /// Link-layer address.
    pub mac: MacAddr,
    /// VLAN of the adapter's untagged frames.
    pub pvid: u16,
    /// VLANs of the adapter's tagged frames.
    pub vlans: Vec<u16>,
    /// Priority as a trunk, 1 (best) to 15; `None`: no trunk.
    pub trunk: Option<u8>,
    /// Number of groups in the adapter's filter.
    pub filter_slots: usize,
}

impl AdapterPlace {
    /// A guest's adapter, in VLAN 1 alone.
    pub const fn guest(mac: MacAddr) -> Self {
        Self { mac, pvid: 1, vlans: Vec::new(), trunk: None, filter_slots: 8 }
    }

    /// A trunk for VLAN 1 untagged, and `vlans` tagged.
    pub const fn trunk(mac: MacAddr, priority: u8, vlans: Vec<u16>) -> Self {
        Self { mac, pvid: 1, vlans, trunk: Some(priority), filter_slots: 8 }
    }
}

/// Unit address of an adapter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unit(usize);

/// Counters of the hypervisor's work.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LanCounters {
    /// Send calls, including those refused as busy.
    pub calls: u64,
    /// Frames copied into receive buffers.
    pub copies: u64,
    /// Bytes copied, including those of frames assembled for changes.
    pub copied_bytes: u64,
    /// Frames dropped because no posted buffer was long enough.
    pub no_buffer: u64,
    /// Frames dropped because the receiver had overwritten the handle of the buffer.
    pub overwritten: u64,
    /// Frames dropped for lack of a receiver.
    pub no_receiver: u64,
    /// Fat frames segmented for receivers without large send, with or without buffers for the segments.
    pub cut: u64,
    /// Frames copied into receive buffers whose checksums were completed for their receivers.
    pub completed: u64,
}

/// LAN of one hypervisor.
#[derive(Debug)]
pub struct Lan {
    firmware: Firmware,
    ports: Vec<Port>,
    counters: LanCounters,
    /// Storage of frames assembled for changes.
    scratch: tcp::FrameStorage,
}

/// Hypervisor's record of an adapter.
#[derive(Debug)]
struct Port {
    place: AdapterPlace,
    /// Settable bits that this adapter has set.
    set: Attributes,
    io: IoMemory,
    open: Option<Registration>,
}

/// State of an open adapter.
#[derive(Debug)]
struct Registration {
    mac: MacAddr,
    queue: Vec<[u8; RxEntry::LEN]>,
    /// Next entry to write, and its toggle.
    head: usize,
    toggle: bool,
    /// Posted buffers, the shortest first.
    buffers: Vec<FreeList>,
    no_buffer: u64,
    filter: McastFilter,
}

impl Lan {
    /// A LAN without adapters.
    pub fn new(firmware: Firmware) -> Self {
        let descriptors = firmware.descriptors.clamp(1, Firmware::MAX_DESCRIPTORS);
        let copies_per_call = firmware.copies_per_call.max(1);
        Self {
            firmware: Firmware { descriptors, copies_per_call, ..firmware },
            ports: Vec::new(),
            counters: LanCounters::default(),
            scratch: tcp::FrameStorage::default(),
        }
    }

    /// Adds an adapter of a partition.
    ///
    /// # Errors
    /// [`SettingError::Range`] for a VLAN outside 1 to 4094, more than [`MAX_VLANS`] of them, or a priority outside 1
    /// to 15; [`SettingError::Address`] for an address that is not unicast.
    pub fn add_adapter(&mut self, place: AdapterPlace) -> Result<Unit, SettingError> {
        let wrong = place.vlans.iter().chain([&place.pvid]).find(|vid| !(1..=4094).contains(*vid));
        if let Some(&vid) = wrong {
            return Err(SettingError::Range(vid.into()));
        }
        if place.vlans.len() > MAX_VLANS {
            return Err(SettingError::Range(place.vlans.len()));
        }
        if let Some(priority) = place.trunk.filter(|priority| !(1..=15).contains(priority)) {
            return Err(SettingError::Range(priority.into()));
        }
        if !place.mac.is_unicast() {
            return Err(SettingError::Address);
        }
        self.ports.push(Port { place, set: Attributes::NONE, io: IoMemory::new(self.firmware.io_regions), open: None });
        Ok(Unit(self.ports.len() - 1))
    }

    /// Capabilities.
    pub const fn firmware(&self) -> &Firmware {
        &self.firmware
    }

    /// Counters.
    pub const fn counters(&self) -> LanCounters {
        self.counters
    }

    /// Configuration of an adapter.
    pub fn place(&self, unit: Unit) -> Option<&AdapterPlace> {
        Some(&self.ports.get(unit.0)?.place)
    }

    /// I/O memory of an adapter.
    ///
    /// # Panics
    /// For a unit of another LAN.
    pub fn io(&mut self, unit: Unit) -> &mut IoMemory {
        &mut self.ports[unit.0].io
    }

    /// Opens an adapter with an empty receive queue of `entries` (`H_REGISTER_LOGICAL_LAN`), and without buffers.
    ///
    /// # Errors
    /// [`Refusal::Parameter`] if the adapter is open already or does not exist, for a queue without entries or with too
    /// many, and for an address that is not unicast.
    pub fn register(&mut self, unit: Unit, entries: usize, mac: MacAddr) -> Result<(), Refusal> {
        let port = self.ports.get_mut(unit.0).ok_or(Refusal::Parameter)?;
        if port.open.is_some() || !(1..=MAX_ENTRIES).contains(&entries) || !mac.is_unicast() {
            return Err(Refusal::Parameter);
        }
        port.open = Some(Registration {
            mac,
            queue: vec![[0; RxEntry::LEN]; entries],
            head: 0,
            toggle: true,
            buffers: Vec::new(),
            no_buffer: 0,
            filter: McastFilter::new(port.place.filter_slots),
        });
        Ok(())
    }

    /// Closes an adapter and drops its buffers (`H_FREE_LOGICAL_LAN`). Its mappings stay.
    ///
    /// # Errors
    /// [`Refusal::Parameter`] if the adapter is not open.
    pub fn free(&mut self, unit: Unit) -> Result<(), Refusal> {
        let port = self.ports.get_mut(unit.0).ok_or(Refusal::Parameter)?;
        port.open.take().map(drop).ok_or(Refusal::Parameter)
    }

    /// Changes the address of an open adapter (`H_CHANGE_LOGICAL_LAN_MAC`).
    ///
    /// # Errors
    /// [`Refusal::Parameter`] if the adapter is not open, or the address is not unicast.
    pub fn change_mac(&mut self, unit: Unit, mac: MacAddr) -> Result<(), Refusal> {
        let open = self.open_mut(unit)?;
        if !mac.is_unicast() {
            return Err(Refusal::Parameter);
        }
        open.mac = mac;
        Ok(())
    }

    /// Clears the bits of `reset`, sets those of `set`, and returns the word (`H_ILLAN_ATTRIBUTES`). With both empty
    /// the call only reads.
    ///
    /// # Errors
    /// [`Refusal::Function`] if the hypervisor has no attribute word; [`Refusal::Parameter`] for a bit that is
    /// read-only, is both set and cleared, or is not supported. The word is unchanged then.
    pub fn illan_attributes(&mut self, unit: Unit, reset: Attributes, set: Attributes) -> Result<Attributes, Refusal> {
        let has = self.firmware.attributes.ok_or(Refusal::Function)?;
        let word = self.word(unit, has).ok_or(Refusal::Parameter)?;
        let cannot_change = (reset | set).intersects(!Attributes::SETTABLE) || reset.intersects(set);
        let lacks = !has.contains(set)
            || (set.contains(Attributes::LARGE_SEND_ENABLED) && !has.contains(Attributes::LARGE_SEND_SUPPORT));
        if cannot_change || lacks {
            return Err(Refusal::Parameter);
        }
        let port = &mut self.ports[unit.0];
        port.set = (port.set & !reset) | set;
        Ok((word & !Attributes::SETTABLE) | port.set)
    }

    /// The attribute word of an adapter.
    fn word(&self, unit: Unit, has: Attributes) -> Option<Attributes> {
        let port = self.ports.get(unit.0)?;
        let active = if self.is_active_trunk(unit) { Attributes::ACTIVE_TRUNK } else { Attributes::NONE };
        let priority = Attributes::of_priority(port.place.trunk.unwrap_or(0));
        Some((has & !Attributes::SETTABLE) | port.set | active | priority)
    }

    /// Posts a receive buffer (`H_ADD_LOGICAL_LAN_BUFFER`), which begins with its correlator.
    ///
    /// # Errors
    /// [`Refusal::Parameter`] if the adapter is not open, or the buffer is not mapped or too short;
    /// [`Refusal::Resource`] if as many buffers are posted as the queue has entries.
    pub fn add_buffer(&mut self, unit: Unit, desc: BufDesc) -> Result<(), Refusal> {
        let port = self.ports.get_mut(unit.0).ok_or(Refusal::Parameter)?;
        let open = port.open.as_mut().ok_or(Refusal::Parameter)?;
        let bytes = port.io.bytes(desc.address(), desc.len()).filter(|bytes| bytes.len() >= MIN_BUFFER);
        let correlator = bytes.and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_be_bytes(*bytes));
        let correlator = correlator.filter(|_| desc.is_valid()).ok_or(Refusal::Parameter)?;
        if open.buffers.iter().map(FreeList::len).sum::<usize>() >= open.queue.len() {
            return Err(Refusal::Resource);
        }
        FreeList::post(&mut open.buffers, desc, correlator);
        Ok(())
    }

    /// Posts up to [`BUFFERS_PER_CALL`] buffers (`H_ADD_LOGICAL_LAN_BUFFERS`). Returns the number of accepted buffers,
    /// counted from the first.
    ///
    /// # Errors
    /// [`Refusal::Function`] if the hypervisor has no such call; [`Refusal::Parameter`] for more descriptors; as
    /// [`add_buffer`](Self::add_buffer) if the first descriptor is refused.
    pub fn add_buffers(&mut self, unit: Unit, descs: &[BufDesc]) -> Result<usize, Refusal> {
        if !self.firmware.attributes.is_some_and(|has| has.contains(Attributes::RX_MULTI_BUFFER)) {
            return Err(Refusal::Function);
        }
        if descs.is_empty() || descs.len() > BUFFERS_PER_CALL {
            return Err(Refusal::Parameter);
        }
        for (at, &desc) in descs.iter().enumerate() {
            match self.add_buffer(unit, desc) {
                Ok(()) => {}
                Err(refusal) if at == 0 => return Err(refusal),
                Err(_) => return Ok(at),
            }
        }
        Ok(descs.len())
    }

    /// Changes the multicast filter of an adapter (`H_MULTICAST_CTRL`).
    ///
    /// # Errors
    /// [`Refusal::Parameter`] if the adapter is not open, for an unknown command, or an address that is not multicast;
    /// [`Refusal::Resource`] if the filter is full.
    pub fn multicast_ctrl(&mut self, unit: Unit, command: McastCommand, group: MacAddr) -> Result<(), Refusal> {
        self.open_mut(unit)?.filter.control(command, group)
    }

    /// Raw entry of an adapter's receive queue; zeros past its end.
    #[inline]
    pub fn rx_entry(&self, unit: Unit, at: usize) -> [u8; RxEntry::LEN] {
        let open = self.ports.get(unit.0).and_then(|port| port.open.as_ref());
        open.and_then(|open| open.queue.get(at)).copied().unwrap_or_default()
    }

    /// Overwrites an entry of an adapter's receive queue, as a broken hypervisor would: for tests of the adapter.
    pub fn corrupt_rx_entry(&mut self, unit: Unit, at: usize, bytes: [u8; RxEntry::LEN]) {
        let open = self.ports.get_mut(unit.0).and_then(|port| port.open.as_mut());
        if let Some(entry) = open.and_then(|open| open.queue.get_mut(at)) {
            *entry = bytes;
        }
    }

    /// Number of frames to an adapter that were dropped since its last open because no posted buffer was long enough.
    pub fn no_buffer(&self, unit: Unit) -> u64 {
        self.ports.get(unit.0).and_then(|port| port.open.as_ref()).map_or(0, |open| open.no_buffer)
    }

    /// Number of buffers posted for an adapter.
    pub fn posted(&self, unit: Unit) -> usize {
        let open = self.ports.get(unit.0).and_then(|port| port.open.as_ref());
        open.map_or(0, |open| open.buffers.iter().map(FreeList::len).sum())
    }

    /// Unmaps a buffer.
    pub(crate) fn unmap(&mut self, unit: Unit, address: u32) -> Option<Buf> {
        self.ports.get_mut(unit.0)?.io.unmap(address)
    }

    fn open_mut(&mut self, unit: Unit) -> Result<&mut Registration, Refusal> {
        self.ports.get_mut(unit.0).and_then(|port| port.open.as_mut()).ok_or(Refusal::Parameter)
    }
}
