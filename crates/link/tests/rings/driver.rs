//! A driver of the crates `virtio-queue` and `vm-memory`, in memory of two regions that touch.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use link::Link;
use link::vhost::VhostUser;
use packet::Memory;
use rustix::fs::{MemfdFlags, memfd_create};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::{AvailRing, DescriptorTable, UsedRing};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) const MRG_RXBUF: u64 = 1 << 15;
pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
pub(crate) const VERSION_1: u64 = 1 << 32;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Bytes of the two regions.
const REGIONS: [usize; 2] = [1 << 20, 3 << 20];

/// Bytes that a queue's ring has.
const RING: u64 = 0x4000;

/// Address of the indirect tables, of which each queue has so many bytes.
const TABLES: u64 = 0x2_0000;
const TABLES_LEN: u64 = 0x1_0000;

/// Address of the buffers, of which each queue has so many bytes. Those of queue 1 are in both regions.
const BUFFERS: u64 = 0x8_0000;
const BUFFERS_LEN: u64 = 0x6_0000;

/// Memory of a guest.
pub(crate) fn memory() -> GuestMemoryMmap {
    let mut start = 0;
    let regions = REGIONS.map(|len| {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len as u64).unwrap();
        let region = (GuestAddress(start), len, Some(FileOffset::new(file, 0)));
        start += len as u64;
        region
    });
    GuestMemoryMmap::from_ranges_with_files(regions).unwrap()
}

/// A queue, as its driver sees it.
pub(crate) struct Queue<'a> {
    mem: &'a GuestMemoryMmap,
    number: u64,
    pub(crate) size: u16,
    table: DescriptorTable<'a, GuestMemoryMmap>,
    avail: AvailRing<'a, GuestMemoryMmap>,
    used: UsedRing<'a, GuestMemoryMmap>,
    event_index: bool,
    /// Descriptors that the device does not have, and those of each chain that it has.
    free: Vec<u16>,
    lent: HashMap<u16, Vec<u16>>,
    /// The next element of the used ring to be read.
    next_used: u16,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
}

impl<'a> Queue<'a> {
    /// A queue whose indices begin at `base`.
    fn new(mem: &'a GuestMemoryMmap, number: u64, size: u16, base: u16, event_index: bool) -> Self {
        let queue = Self {
            mem,
            number,
            size,
            table: DescriptorTable::new(mem, GuestAddress(number * RING), size),
            avail: AvailRing::new(mem, GuestAddress(avail_at(number)), size),
            used: UsedRing::new(mem, GuestAddress(used_at(number)), size),
            event_index,
            free: (0..size).collect(),
            lent: HashMap::new(),
            next_used: base,
            kick: EventFd::new(EFD_NONBLOCK).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
        };
        queue.avail.idx().store(base);
        queue.used.idx().store(base);
        queue
    }

    /// Address of a buffer that belongs to a descriptor, and its length.
    pub(crate) fn buffer(&self, head: u16) -> (u64, u32) {
        let len = BUFFERS_LEN / u64::from(self.size);
        (BUFFERS + self.number * BUFFERS_LEN + u64::from(head) * len, len as u32)
    }

    /// The descriptor that the next chain begins with.
    pub(crate) fn next_head(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Descriptors that the device does not have.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Offers a chain of pieces, in an indirect table or not. Tells whether the device is to be kicked.
    pub(crate) fn offer(&mut self, pieces: &[(u64, u32)], is_writable: bool, is_indirect: bool) -> bool {
        let direction = if is_writable { WRITE } else { 0 };
        let count = if is_indirect { 1 } else { pieces.len() };
        let chain: Vec<u16> = (0..count).map(|_| self.free.pop().expect("a free descriptor")).collect();
        let head = chain[0];
        let descriptor = |at: usize, next: u16| {
            let (addr, len) = pieces[at];
            let more = if at + 1 < pieces.len() { NEXT } else { 0 };
            RawDescriptor::from(Descriptor::new(addr, len, direction | more, next))
        };
        if is_indirect {
            let at = TABLES + self.number * TABLES_LEN + u64::from(head) * 256;
            assert!(pieces.len() <= 16);
            let table = DescriptorTable::new(self.mem, GuestAddress(at), 16);
            for index in 0..pieces.len() {
                table.store(index as u16, descriptor(index, index as u16 + 1)).unwrap();
            }
            let one = Descriptor::new(at, 16 * pieces.len() as u32, INDIRECT, 0);
            self.table.store(head, RawDescriptor::from(one)).unwrap();
        } else {
            for (at, &index) in chain.iter().enumerate() {
                let next = chain.get(at + 1).copied().unwrap_or(0);
                self.table.store(index, descriptor(at, next)).unwrap();
            }
        }
        self.lent.insert(head, chain);
        let before = self.avail.idx().load();
        self.avail.ring().ref_at((before % self.size).into()).unwrap().store(head);
        fence(Ordering::SeqCst);
        self.avail.idx().store(before.wrapping_add(1));
        fence(Ordering::SeqCst);
        if self.event_index { self.avail_event() == before } else { self.used_flags() & 1 == 0 }
    }

    /// Kicks the device.
    pub(crate) fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    /// Index at which the device wants a kick.
    fn avail_event(&self) -> u16 {
        self.mem.read_obj(GuestAddress(used_at(self.number) + 4 + 8 * u64::from(self.size))).unwrap()
    }

    fn used_flags(&self) -> u16 {
        self.mem.read_obj(GuestAddress(used_at(self.number))).unwrap()
    }

    /// Asks for an interrupt when the `n`th chain from now has been used; never, if there is no number.
    pub(crate) fn want_call(&self, n: Option<u16>) {
        let (at, value) = match n {
            Some(n) if self.event_index => (4 + 2 * u64::from(self.size), self.next_used.wrapping_add(n - 1)),
            // Behind what has been used.
            None if self.event_index => (4 + 2 * u64::from(self.size), self.next_used.wrapping_sub(1)),
            Some(_) => (0, 0),
            None => (0, 1),
        };
        self.mem.write_obj(value, GuestAddress(avail_at(self.number) + at)).unwrap();
    }

    /// Interrupts since the last time.
    pub(crate) fn calls(&self) -> u64 {
        self.call.read().unwrap_or(0)
    }

    /// Takes back what the device has used next: the chain's first descriptor, and the bytes that were written.
    pub(crate) fn take(&mut self) -> Option<(u16, u32)> {
        let ahead = self.used.idx().load().wrapping_sub(self.next_used);
        assert!(ahead <= self.size, "used index {ahead} ahead");
        if ahead == 0 {
            return None;
        }
        let element = self.used.ring().ref_at((self.next_used % self.size).into()).unwrap().load();
        self.next_used = self.next_used.wrapping_add(1);
        let head = element.id() as u16;
        let chain = self.lent.remove(&head).expect("a chain that the device has");
        self.free.extend(chain);
        Some((head, element.len()))
    }

    /// Index of the used ring, where a back end that has crashed is said to go on.
    pub(crate) fn used_index(&self) -> u16 {
        self.used.idx().load()
    }
}

fn avail_at(number: u64) -> u64 {
    number * RING + 0x2000
}

fn used_at(number: u64) -> u64 {
    number * RING + 0x3000
}

/// A driver and its front end.
pub(crate) struct Driver<'a> {
    mem: &'a GuestMemoryMmap,
    pub(crate) features: u64,
    pub(crate) queues: Vec<Queue<'a>>,
    front: Option<Frontend>,
}

impl<'a> Driver<'a> {
    /// A driver with so many pairs of queues, whose indices begin at `base`.
    pub(crate) fn new(mem: &'a GuestMemoryMmap, features: u64, pairs: u64, size: u16, base: u16) -> Self {
        let event_index = features & EVENT_IDX != 0;
        let queues = (0..2 * pairs).map(|number| Queue::new(mem, number, size, base, event_index)).collect();
        Self { mem, features: features | PROTOCOL_FEATURES, queues, front: None }
    }

    /// Connects, and says where the rings are and that they go on at `bases`.
    pub(crate) fn connect(&mut self, back: &mut VhostUser, socket: &Path, bases: &[u16]) {
        let regions: Vec<_> =
            self.mem.iter().map(|region| VhostUserMemoryRegionInfo::from_guest_region(region).unwrap()).collect();
        let host = |addr: u64| self.mem.get_host_address(GuestAddress(addr)).unwrap() as u64;
        let rings = self.queues.iter().zip(bases).map(|(queue, &base)| Ring {
            base,
            place: VringConfigData {
                queue_max_size: queue.size,
                queue_size: queue.size,
                flags: 0,
                desc_table_addr: host(queue.number * RING),
                used_ring_addr: host(used_at(queue.number)),
                avail_ring_addr: host(avail_at(queue.number)),
                log_addr: None,
            },
            kick: queue.kick.try_clone().unwrap(),
            call: queue.call.try_clone().unwrap(),
        });
        let rings: Vec<Ring> = rings.collect();
        let features = self.features;
        let front = Frontend::from_stream(UnixStream::connect(socket).unwrap(), rings.len() as u64);
        let theirs = front.clone();
        beside(back, move || negotiate(theirs, features, &regions, &rings));
        self.front = Some(front);
    }

    /// Sends a message of the front end's.
    pub(crate) fn say<T: Send>(&self, back: &mut VhostUser, what: impl FnOnce(&mut Frontend) -> T + Send) -> T {
        let mut front = self.front.clone().expect("it is connected");
        beside(back, move || what(&mut front))
    }

    pub(crate) fn disconnect(&mut self) {
        self.front = None;
    }

    /// Bytes of the header in front of a frame.
    pub(crate) fn header_len(&self) -> usize {
        if self.features & (VERSION_1 | MRG_RXBUF) == 0 { 10 } else { 12 }
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        self.mem.write_slice(bytes, GuestAddress(addr)).unwrap();
    }

    pub(crate) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mem.read_slice(&mut bytes, GuestAddress(addr)).unwrap();
        bytes
    }
}

/// Ring as a front end describes it.
struct Ring {
    base: u16,
    place: VringConfigData,
    kick: EventFd,
    call: EventFd,
}

fn negotiate(mut front: Frontend, features: u64, regions: &[VhostUserMemoryRegionInfo], rings: &[Ring]) {
    let offered = front.get_features().unwrap();
    assert_eq!(features & !offered, 0, "not offered");
    let protocol = front.get_protocol_features().unwrap();
    let wanted = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK;
    assert!(protocol.contains(wanted));
    front.set_protocol_features(wanted).unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front.set_owner().unwrap();
    front.set_features(features).unwrap();
    front.set_mem_table(regions).unwrap();
    for (index, ring) in rings.iter().enumerate() {
        front.set_vring_num(index, ring.place.queue_size).unwrap();
        front.set_vring_base(index, ring.base).unwrap();
        front.set_vring_addr(index, &ring.place).unwrap();
        front.set_vring_call(index, &ring.call).unwrap();
        front.set_vring_kick(index, &ring.kick).unwrap();
        front.set_vring_enable(index, true).unwrap();
    }
}

/// Runs a blocking front end on a thread while the back end handles messages and receives no frames.
fn beside<T: Send>(back: &mut VhostUser, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(what);
        let mut got = Vec::new();
        while !thread.is_finished() {
            back.recv(&Memory::heap(), &mut got).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(got.len(), 0);
        thread.join().unwrap()
    })
}
