//! Rings that are shared with the kernel: one side fills slots, the other empties them (Linux
//! `Documentation/networking/af_xdp.rst`).
//!
//! Invariant 1: `producer`, `consumer`, `flags` and the `mask + 1` slots lie inside `mapping`.
//! Invariant 2: the consumer owns the slots from its index to the producer's index, the producer owns the others; an
//! index is written by its own side only, after the accesses to the slots that it passes on.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::{io, ptr};

use packet::Backing;

/// Mapping of its own, private or shared with the kernel; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: NonNull<[u8]>,
}

// SAFETY: a range of memory, which this type itself neither reads nor writes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}
// SAFETY: `memory` never changes; a mapping that becomes the backing of a pool moves into it, so the pool has the only handle.
// Pages that a device still holds when its socket is closed are unmapped, not reused: they stay the kernel's until
// released.
unsafe impl Backing for Mapping {
    fn memory(&self) -> NonNull<[u8]> {
        self.memory
    }
}

impl Mapping {
    /// Zeroed memory.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Self::new(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Memory that a socket shares at `offset`.
    pub(crate) fn of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        Self::new(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset as libc::off_t)
    }

    fn new(len: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping at an address that the kernel chooses, so it replaces no other mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, offset) };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => {
                Ok(Self { memory: NonNull::slice_from_raw_parts(start, len) })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this range, and no reference into it is left.
        unsafe { libc::munmap(self.memory.cast().as_ptr(), self.memory.len()) };
    }
}

/// Offsets of a ring's parts in its mapping: `struct xdp_ring_offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    pub(crate) flags: u64,
    pub(crate) slots: u64,
}

/// Types that a slot may hold: numbers without padding, so that any bytes are a value.
///
/// # Safety
/// Every bit pattern of the type is a value, and it has no padding.
pub(crate) unsafe trait Slot: Copy {}

// SAFETY: a number.
unsafe impl Slot for u64 {}

/// Range of a frame: `struct xdp_desc`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub(crate) struct Desc {
    /// Offset of the data in the memory registered with the socket.
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

// SAFETY: three numbers that fill 16 bytes.
unsafe impl Slot for Desc {}

const _: () = assert!(size_of::<Desc>() == size_of::<libc::xdp_desc>() && size_of::<Desc>() == 16);

/// One side of a ring.
#[derive(Debug)]
struct Ring<T> {
    /// Mapping that the pointers below point into.
    #[expect(dead_code, reason = "keeps the memory mapped")]
    mapping: std::sync::Arc<Mapping>,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    slots: NonNull<T>,
    mask: u32,
    of: PhantomData<T>,
}

// SAFETY: pointers into a mapping that moves with them; the other side is the kernel's, whichever thread this side is on.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Slot> Ring<T> {
    /// A ring of `size` slots, a power of two, in `mapping`; `None` unless all its parts are inside and aligned.
    fn new(mapping: &std::sync::Arc<Mapping>, parts: Parts, size: NonZeroU32) -> Option<Self> {
        let len = mapping.memory.len();
        let at = |offset: u64, bytes: usize, align: usize| {
            let offset = usize::try_from(offset).ok()?;
            let end = offset.checked_add(bytes)?;
            // SAFETY: inside the mapping, just checked.
            (end <= len && offset % align == 0).then(|| unsafe { mapping.memory.cast::<u8>().add(offset) })
        };
        let index = |offset| Some(at(offset, size_of::<u32>(), align_of::<u32>())?.cast());
        if !size.is_power_of_two() {
            return None;
        }
        let slots = at(parts.slots, (size.get() as usize).checked_mul(size_of::<T>())?, align_of::<T>())?.cast();
        Some(Self {
            producer: index(parts.producer)?,
            consumer: index(parts.consumer)?,
            flags: index(parts.flags)?,
            slots,
            mapping: std::sync::Arc::clone(mapping),
            mask: size.get() - 1,
            of: PhantomData,
        })
    }

    fn index(&self, of: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: by invariant 1 inside the mapping, aligned (checked in `new`), and written by atomic operations alone.
        unsafe { of.as_ref() }
    }

    fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: by invariant 1 there are `mask + 1` slots.
        unsafe { self.slots.add((index & self.mask) as usize) }
    }
}

/// Side that fills slots.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    ring: Ring<T>,
    /// Index of the next slot to be filled; the slots from `shown` up to it are not published yet.
    next: u32,
    /// The consumer's index when it was last read.
    emptied: u32,
}

impl<T: Slot> Producer<T> {
    pub(crate) fn new(mapping: &std::sync::Arc<Mapping>, parts: Parts, size: NonZeroU32) -> Option<Self> {
        let ring = Ring::new(mapping, parts, size)?;
        let next = ring.index(ring.producer).load(Ordering::Relaxed);
        let emptied = ring.index(ring.consumer).load(Ordering::Acquire);
        Some(Self { ring, next, emptied })
    }

    /// Number of filled slots that the consumer has not emptied yet.
    pub(crate) fn waiting(&mut self) -> u32 {
        self.emptied = self.ring.index(self.ring.consumer).load(Ordering::Acquire);
        // If the consumer's index is wrongly ahead of ours, the ring counts as full.
        let waiting = self.next.wrapping_sub(self.emptied);
        waiting.min(self.ring.mask + 1)
    }

    /// Fills a slot. Returns false if the ring is full. The consumer sees the slot after [`publish`](Self::publish).
    pub(crate) fn push(&mut self, value: T) -> bool {
        if self.next.wrapping_sub(self.emptied) > self.ring.mask && self.waiting() > self.ring.mask {
            return false;
        }
        let slot = self.ring.slot(self.next);
        // SAFETY: the slot is free, as just checked, so by invariant 2 it is the producer's.
        unsafe { slot.write_volatile(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Publishes the filled slots to the consumer.
    pub(crate) fn publish(&self) {
        self.ring.index(self.ring.producer).store(self.next, Ordering::Release);
    }

    /// Tells whether the kernel needs a wakeup (`XDP_RING_NEED_WAKEUP`). The kernel sets the flag before it reads the
    /// index a last time: either the kernel sees the slots published before this call, or this call sees the flag.
    pub(crate) fn needs_wakeup(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ring.index(self.ring.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Side that empties slots.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    ring: Ring<T>,
    /// Index of the next slot to be emptied.
    next: u32,
    /// The producer's index when it was last read.
    filled: u32,
}

impl<T: Slot> Consumer<T> {
    pub(crate) fn new(mapping: &std::sync::Arc<Mapping>, parts: Parts, size: NonZeroU32) -> Option<Self> {
        let ring = Ring::new(mapping, parts, size)?;
        let next = ring.index(ring.consumer).load(Ordering::Relaxed);
        Some(Self { ring, next, filled: next })
    }

    /// Takes the value of the next filled slot. The slot is the producer's again after [`release`](Self::release).
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.next == self.filled {
            let filled = self.ring.index(self.ring.producer).load(Ordering::Acquire);
            // An index further ahead than the ring has slots is ignored.
            if filled.wrapping_sub(self.next) > self.ring.mask + 1 {
                return None;
            }
            self.filled = filled;
        }
        if self.next == self.filled {
            return None;
        }
        let slot = self.ring.slot(self.next);
        // SAFETY: the slot is filled, so by invariant 2 it is the consumer's; any bytes are a value.
        let value = unsafe { slot.read_volatile() };
        self.next = self.next.wrapping_add(1);
        Some(value)
    }

    /// Returns the emptied slots to the producer.
    pub(crate) fn release(&self) {
        self.ring.index(self.ring.consumer).store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;

    const PARTS: Parts = Parts { producer: 0, consumer: 64, flags: 128, slots: 192 };

    /// Both sides of a ring of `size` slots, whose indices start at `start`.
    fn both(size: u32, start: u32) -> (Arc<Mapping>, Producer<u64>, Consumer<u64>) {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        let size = NonZeroU32::new(size).unwrap();
        set(&mapping, PARTS.producer, start);
        set(&mapping, PARTS.consumer, start);
        let (producer, consumer) = (Producer::new(&mapping, PARTS, size), Consumer::new(&mapping, PARTS, size));
        (mapping, producer.unwrap(), consumer.unwrap())
    }

    /// Writes an index as the other side would.
    fn set(mapping: &Mapping, offset: u64, value: u32) {
        // SAFETY: one of `PARTS`, inside the page.
        let index = unsafe { mapping.memory.cast::<u8>().add(offset as usize) };
        // SAFETY: aligned, and written by atomic operations alone.
        unsafe { index.cast::<AtomicU32>().as_ref() }.store(value, Ordering::Release);
    }

    #[test]
    fn ring_is_a_queue_across_index_wrap() {
        for start in [0, 1, u32::MAX - 20, u32::MAX] {
            let (_mapping, mut producer, mut consumer) = both(8, start);
            let mut model = VecDeque::new();
            let mut random = 12345_u32;
            for value in 0..2000_u64 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                for step in 0..(random >> 16) % 12 {
                    let item = value * 100 + u64::from(step);
                    let room = model.len() < 8;
                    assert_eq!(producer.push(item), room, "{model:?}");
                    if room {
                        model.push_back(item);
                    }
                }
                producer.publish();
                for _ in 0..(random >> 24) % 12 {
                    assert_eq!(consumer.pop(), model.pop_front());
                }
                consumer.release();
                assert_eq!(producer.waiting() as usize, model.len());
            }
        }
    }

    #[test]
    fn consumer_sees_published_slots_only() {
        let (_mapping, mut producer, mut consumer) = both(4, 0);
        assert!(producer.push(1) && producer.push(2));
        assert_eq!(consumer.pop(), None);
        producer.publish();
        assert!(producer.push(3));
        assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Some(1), Some(2), None));
        // Emptied, but not released: one slot of four is free.
        assert!(producer.push(4) && !producer.push(5));
        consumer.release();
        assert!(producer.push(5) && producer.push(6) && !producer.push(7));
    }

    #[test]
    fn impossible_index_is_ignored() {
        let (mapping, mut producer, mut consumer) = both(4, 10);
        set(&mapping, PARTS.producer, 15);
        assert_eq!(consumer.pop(), None, "five in four slots");
        set(&mapping, PARTS.producer, 9);
        assert_eq!(consumer.pop(), None, "fewer than none");
        set(&mapping, PARTS.consumer, 11);
        assert_eq!(producer.waiting(), 4, "more emptied than filled");
        set(&mapping, PARTS.consumer, 10);
        set(&mapping, PARTS.producer, 14);
        assert_eq!(std::iter::from_fn(|| consumer.pop()).count(), 4);
    }

    #[test]
    fn ring_with_parts_outside_its_memory_is_none() {
        let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
        let size = |size| NonZeroU32::new(size).unwrap();
        assert!(Consumer::<Desc>::new(&mapping, PARTS, size(128)).is_some());
        assert!(Consumer::<Desc>::new(&mapping, PARTS, size(256)).is_none(), "slots beyond the end");
        assert!(Consumer::<Desc>::new(&mapping, PARTS, size(3)).is_none(), "no power of two");
        for parts in [
            Parts { producer: 4093, ..PARTS },
            Parts { consumer: u64::MAX, ..PARTS },
            Parts { flags: 2, ..PARTS },
            Parts { slots: 4096 - 8, ..PARTS },
        ] {
            assert!(Producer::<Desc>::new(&mapping, parts, size(4)).is_none(), "{parts:?}");
        }
    }

    #[test]
    fn two_threads_pass_all_values_in_order() {
        let (_mapping, mut producer, mut consumer) = both(16, u32::MAX - 1000);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..20_000 {
                    while !producer.push(value) {
                        producer.publish();
                        std::thread::yield_now();
                    }
                }
                producer.publish();
            });
            for want in 0..20_000 {
                let got = std::iter::repeat_with(|| {
                    consumer.release();
                    consumer.pop().or_else(|| {
                        std::thread::yield_now();
                        None
                    })
                });
                assert_eq!(got.flatten().next(), Some(want));
            }
        });
    }
}
