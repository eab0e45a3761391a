//! Split virtqueue, the device's side (virtio 1.2 §2.7): takes chains of descriptors off the available ring and gives
//! them back by the used one.
//!
//! Nothing that the driver writes is trusted: each number is read once, checked, then used. A violation of the rules is
//! a [`BadRing`], after which the ring is no longer used.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use serde::{Deserialize, Serialize};

use crate::sys::guest_memory::{GuestMemory, GuestPiece, Window};

/// `VIRTQ_DESC_F_NEXT`.
pub(super) const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`.
pub(super) const WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`.
pub(super) const INDIRECT: u16 = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`.
const NO_INTERRUPT: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY`.
const NO_NOTIFY: u16 = 1;

/// Bytes of a descriptor.
pub(super) const DESC_LEN: usize = 16;
/// Bytes of an element of the used ring.
const USED_LEN: usize = 8;
/// Offset of the flags in the available and the used ring.
const FLAGS_AT: usize = 0;
/// Offset of the index.
const INDEX_AT: usize = 2;
/// Offset of the first element.
const ELEMENTS_AT: usize = 4;

/// Descriptors of a queue (virtio 1.2 §2.7).
pub(super) const MAX_SIZE: u32 = 32_768;

/// Descriptors of an indirect table, if the queue has fewer: a driver of a short queue makes longer ones (Linux
/// `virtqueue_add_split`).
const MAX_INDIRECT: usize = 128;

/// Descriptors of a chain, if the queue has more.
const MAX_CHAIN: usize = 1024;

/// Bytes of a chain that are used: more than the longest frame. Bytes behind them are ignored.
const MAX_CHAIN_LEN: u64 = 128 << 10;

/// Violations of the ring's rules by the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BadRing {
    /// The index of the available ring is this far ahead of the chains taken.
    Index(u16),
    /// A descriptor index beyond the table.
    Descriptor(u16),
    /// A chain with more descriptors than it may have: a loop.
    Loop,
    /// An indirect table that was not negotiated, is nested or followed by a descriptor, or has no whole descriptors.
    Indirect,
    /// A buffer that is not in the guest's memory.
    Outside { addr: u64, len: u32 },
    /// A writable buffer instead of a readable one, or the other way round.
    Direction,
    /// Buffers so small that a frame needs more than a thousand.
    Tiny,
}

impl fmt::Display for BadRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(ahead) => write!(f, "available index {ahead} ahead"),
            Self::Descriptor(index) => write!(f, "descriptor {index} beyond the table"),
            Self::Loop => f.write_str("loop of descriptors"),
            Self::Indirect => f.write_str("malformed indirect table"),
            Self::Outside { addr, len } => write!(f, "{len} bytes at {addr:#x} outside of guest memory"),
            Self::Direction => f.write_str("descriptor of the wrong direction"),
            Self::Tiny => f.write_str("buffers of a few bytes"),
        }
    }
}

/// Direction of a chain: the side that writes its buffers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    /// The driver has written; the device reads.
    FromDriver,
    /// The device writes.
    ToDriver,
}

/// Addresses of a ring's parts, in the front end's address space.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// Chain taken off the available ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// First descriptor, which identifies the chain on the used ring.
    pub(super) head: u16,
    /// Number of descriptors, including those of an indirect table.
    pub(super) descriptors: usize,
    /// Bytes of its buffers.
    pub(super) len: u64,
}

/// Negotiated features of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingFeatures {
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub(super) indirect: bool,
    /// `VIRTIO_F_EVENT_IDX`.
    pub(super) event_index: bool,
}

/// A ring that is running.
#[derive(Debug)]
pub(super) struct Ring {
    table: Window,
    available: Window,
    used: Window,
    /// Descriptors, a power of two.
    size: u16,
    features: RingFeatures,
    /// The next element of the available ring to be taken.
    next: u16,
    /// The driver's index when it was last read.
    seen: u16,
    /// The next element of the used ring to be filled; the elements from `shown` on are not published yet.
    given: u16,
    shown: u16,
    /// Used index at the last interrupt; `None` before the first one.
    interrupted: Option<u16>,
    /// Whether kicks by the driver are enabled.
    kicks: bool,
    /// A copy of an indirect table.
    indirect: Vec<u8>,
}

/// A descriptor that was read.
#[derive(Clone, Copy, Debug)]
struct Desc {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Desc {
    /// Parses the two words of a descriptor.
    fn from_words(addr: u64, rest: u64) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    fn from_bytes(bytes: &[u8; DESC_LEN]) -> Self {
        let (addr, rest) = bytes.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight of sixteen"));
        Self::from_words(word(addr), word(rest))
    }
}

impl Ring {
    /// A ring of `size` descriptors whose parts are at `place`, from element `next` on; `None` unless all parts are in
    /// the guest's memory and aligned.
    pub(super) fn new(
        memory: &GuestMemory,
        place: Place,
        size: u16,
        next: u16,
        features: RingFeatures,
    ) -> Option<Self> {
        if !size.is_power_of_two() {
            return None;
        }
        let event = if features.event_index { size_of::<u16>() } else { 0 };
        let count = usize::from(size);
        let table = memory.part(place.descriptors, count * DESC_LEN, 16)?;
        let available = memory.part(place.available, ELEMENTS_AT + 2 * count + event, 2)?;
        let used = memory.part(place.used, ELEMENTS_AT + USED_LEN * count + event, 4)?;
        let given = used.load_u16(INDEX_AT, Ordering::Relaxed);
        let mut ring = Self {
            table,
            available,
            used,
            size,
            features,
            next,
            seen: next,
            given,
            shown: given,
            interrupted: None,
            kicks: true,
            indirect: Vec::new(),
        };
        ring.want_kicks(false);
        Some(ring)
    }

    /// The next element of the available ring to be taken.
    pub(super) fn next(&self) -> u16 {
        self.next
    }

    /// The next element of the used ring to be filled. All elements before it are published between two bursts.
    pub(super) fn used(&self) -> u16 {
        self.given
    }

    /// Checks a ring of another process, which has stopped at `used` as [`used`](Self::used) is. Its own number counts: a
    /// driver does not write the used ring, so that its index is the same, and has no more chains than descriptors.
    ///
    /// # Errors
    /// The reason why the ring is not the one that has stopped.
    pub(super) fn check_same(&mut self, used: u16) -> Result<(), String> {
        if self.given != used {
            return Err(format!("used index {}, and {used} before", self.given));
        }
        self.look().map(drop).map_err(|bad| bad.to_string())
    }

    /// Descriptors.
    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// Takes the next chain, and appends its buffers; `None` if the available ring is empty.
    #[inline]
    pub(super) fn take(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
        pieces: &mut Vec<GuestPiece>,
    ) -> Result<Option<Chain>, BadRing> {
        if self.next == self.seen && !self.look()? {
            return Ok(None);
        }
        let element = ELEMENTS_AT + 2 * usize::from(self.next & (self.size - 1));
        let head = self.available.load_u16(element, Ordering::Relaxed);
        let mut walk = Walk { memory, direction, pieces, descriptors: 0, len: 0 };
        let mut index = head;
        let longest = usize::from(self.size).min(MAX_CHAIN);
        loop {
            if index >= self.size {
                return Err(BadRing::Descriptor(index));
            }
            if walk.descriptors >= longest {
                return Err(BadRing::Loop);
            }
            let at = usize::from(index) * DESC_LEN;
            let desc = Desc::from_words(self.table.load_u64(at), self.table.load_u64(at + 8));
            if desc.flags & INDIRECT != 0 {
                if !self.features.indirect || desc.flags & NEXT != 0 {
                    return Err(BadRing::Indirect);
                }
                walk.table(desc, longest.max(MAX_INDIRECT), &mut self.indirect)?;
                break;
            }
            walk.buffer(desc)?;
            if desc.flags & NEXT == 0 {
                break;
            }
            index = desc.next;
        }
        let Walk { descriptors, len, .. } = walk;
        self.next = self.next.wrapping_add(1);
        Ok(Some(Chain { head, descriptors, len }))
    }

    /// Rewinds over the last `n` chains taken and not returned, so that they are taken again.
    pub(super) fn untake(&mut self, n: u16) {
        self.next = self.next.wrapping_sub(n);
    }

    /// Reads the driver's index. Tells whether a chain is available.
    fn look(&mut self) -> Result<bool, BadRing> {
        let seen = self.available.load_u16(INDEX_AT, Ordering::Acquire);
        let ahead = seen.wrapping_sub(self.next);
        if ahead > self.size {
            return Err(BadRing::Index(ahead));
        }
        self.seen = seen;
        Ok(ahead > 0)
    }

    /// Puts a chain, with `len` bytes written to its buffers, on the used ring. The driver sees it after
    /// [`publish`](Self::publish).
    #[inline]
    pub(super) fn give_back(&mut self, head: u16, len: u32) {
        let element = ELEMENTS_AT + USED_LEN * usize::from(self.given & (self.size - 1));
        self.used.store_u32(element, head.into());
        self.used.store_u32(element + 4, len);
        self.given = self.given.wrapping_add(1);
    }

    /// Publishes the used chains to the driver. Tells whether the driver is to be interrupted.
    pub(super) fn publish(&mut self) -> bool {
        if self.given == self.shown {
            return false;
        }
        self.used.store_u16(INDEX_AT, self.given, Ordering::Release);
        self.shown = self.given;
        // The driver enables interrupts before it reads the index a last time: either the driver sees the new index, or
        // this call sees that interrupts are enabled.
        fence(Ordering::SeqCst);
        if self.features.event_index {
            let event = self.available.load_u16(ELEMENTS_AT + 2 * usize::from(self.size), Ordering::Relaxed);
            let before = self.interrupted.replace(self.given);
            return before.is_none_or(|before| passes(event, before, self.given));
        }
        self.available.load_u16(FLAGS_AT, Ordering::Relaxed) & NO_INTERRUPT == 0
    }

    /// Enables or disables kicks by the driver. Tells whether a chain is available already.
    pub(super) fn want_kicks(&mut self, enabled: bool) -> bool {
        match (self.features.event_index, enabled) {
            (true, true) => {
                let event = ELEMENTS_AT + USED_LEN * usize::from(self.size);
                self.used.store_u16(event, self.seen, Ordering::Relaxed);
            }
            // The event index stays behind, so the driver does not pass it.
            (true, false) => {}
            (false, _) if enabled == self.kicks => {}
            (false, _) => self.used.store_u16(FLAGS_AT, if enabled { 0 } else { NO_NOTIFY }, Ordering::Relaxed),
        }
        self.kicks = enabled;
        if !enabled {
            return false;
        }
        // The same race as in `publish`, with the roles exchanged.
        fence(Ordering::SeqCst);
        self.available.load_u16(INDEX_AT, Ordering::Acquire) != self.seen
    }
}

/// Tells whether an index that went from `old` to `new` has passed `event` (virtio 1.2 §2.7.7.2, Linux
/// `vring_need_event`).
pub(super) fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// State of the walk along a chain.
struct Walk<'a> {
    memory: &'a GuestMemory,
    direction: Direction,
    pieces: &'a mut Vec<GuestPiece>,
    descriptors: usize,
    len: u64,
}

impl Walk<'_> {
    /// Adds one buffer.
    #[inline]
    fn buffer(&mut self, desc: Desc) -> Result<(), BadRing> {
        if (desc.flags & WRITE != 0) != (self.direction == Direction::ToDriver) {
            return Err(BadRing::Direction);
        }
        self.descriptors += 1;
        let room = MAX_CHAIN_LEN.saturating_sub(self.len);
        let here = u64::from(desc.len).min(room) as u32;
        self.len += u64::from(desc.len);
        if self.memory.locate(desc.addr, here, self.pieces) {
            return Ok(());
        }
        Err(BadRing::Outside { addr: desc.addr, len: desc.len })
    }

    /// Adds the buffers of an indirect table, which is copied to `copy` first.
    fn table(&mut self, table: Desc, most: usize, copy: &mut Vec<u8>) -> Result<(), BadRing> {
        let count = table.len as usize / DESC_LEN;
        if count == 0 || count > most || !(table.len as usize).is_multiple_of(DESC_LEN) {
            return Err(BadRing::Indirect);
        }
        let first = self.pieces.len();
        if !self.memory.locate(table.addr, table.len, self.pieces) {
            return Err(BadRing::Outside { addr: table.addr, len: table.len });
        }
        copy.resize(table.len as usize, 0);
        let mut rest = &mut copy[..];
        for piece in self.pieces.drain(first..) {
            let (here, behind) = rest.split_at_mut(piece.len as usize);
            self.memory.read(piece, 0, here);
            rest = behind;
        }
        let (all, _) = copy.as_chunks::<DESC_LEN>();
        let mut index = 0;
        for _ in 0..count {
            let desc = Desc::from_bytes(&all[usize::from(index)]);
            if desc.flags & INDIRECT != 0 {
                return Err(BadRing::Indirect);
            }
            self.buffer(desc)?;
            if desc.flags & NEXT == 0 {
                return Ok(());
            }
            index = desc.next;
            if usize::from(index) >= count {
                return Err(BadRing::Descriptor(index));
            }
        }
        Err(BadRing::Loop)
    }
}
