//! Split virtqueue, the driver's side (virtio 1.2 §2.7): makes chains of descriptors available and takes them back
//! used.
//!
//! The device may be another program, so used elements are checked: the descriptor was lent, and the length is within
//! its buffer.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use super::ring::{DESC_LEN, passes};
use crate::sys::guest_memory::Window;

/// Length of a ring of `size` descriptors: table, available ring, used ring.
pub(super) const fn len_of(size: u16) -> usize {
    used_at(size) + 6 + 8 * size as usize
}

/// Offset of the available ring, behind the table.
pub(super) const fn available_at(size: u16) -> usize {
    DESC_LEN * size as usize
}

/// Offset of the used ring, behind the available ring.
pub(super) const fn used_at(size: u16) -> usize {
    (available_at(size) + 6 + 2 * size as usize).next_multiple_of(4)
}

/// Violations of the ring's rules by the device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BadUsed {
    /// Used index too far ahead of the last one taken.
    Index(u16),
    /// The device returned a descriptor that was not lent.
    NotLent(u32),
    /// The device claims to have written more than the buffer holds.
    Len(u32),
}

impl fmt::Display for BadUsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(ahead) => write!(f, "used index {ahead} ahead"),
            Self::NotLent(id) => write!(f, "used descriptor {id} that was not lent"),
            Self::Len(len) => write!(f, "used length {len} beyond the buffer"),
        }
    }
}

/// A ring with one descriptor for each buffer.
#[derive(Debug)]
pub(super) struct DriverRing {
    pub(super) window: Window,
    size: u16,
    event_index: bool,
    /// The next element of the available ring to be filled; the elements from `shown` on are not published yet.
    offered: u16,
    shown: u16,
    /// The next element of the used ring to be taken.
    next: u16,
    /// The device's index when it was last read.
    seen: u16,
    /// Whether interrupts by the device are enabled.
    calls: bool,
    /// Bytes that the device may write to each lent chain, by its first descriptor.
    lent: Vec<Option<u32>>,
}

impl DriverRing {
    /// A ring in zeroed memory of [`len_of`] bytes.
    pub(super) fn new(window: Window, size: u16, event_index: bool) -> Self {
        let lent = vec![None; size.into()];
        Self { window, size, event_index, offered: 0, shown: 0, next: 0, seen: 0, calls: true, lent }
    }

    /// Writes one descriptor.
    pub(super) fn describe(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = usize::from(index) * DESC_LEN;
        self.window.store_u64(at, addr);
        let rest = u64::from(len) | (u64::from(flags) << 32) | (u64::from(next) << 48);
        self.window.store_u64(at + 8, rest);
    }

    /// Makes the chain available that begins at a descriptor, in which the device may write `room` bytes. The device
    /// sees it after [`publish`](Self::publish).
    pub(super) fn offer(&mut self, head: u16, room: u32) {
        self.lent[usize::from(head)] = Some(room);
        let element = available_at(self.size) + 4 + 2 * usize::from(self.offered & (self.size - 1));
        self.window.store_u16(element, head, Ordering::Relaxed);
        self.offered = self.offered.wrapping_add(1);
    }

    /// Publishes the available chains to the device. Tells whether the device is to be kicked.
    pub(super) fn publish(&mut self) -> bool {
        if self.offered == self.shown {
            return false;
        }
        self.window.store_u16(available_at(self.size) + 2, self.offered, Ordering::Release);
        let before = std::mem::replace(&mut self.shown, self.offered);
        fence(Ordering::SeqCst);
        let used = used_at(self.size);
        if self.event_index {
            let event = self.window.load_u16(used + 4 + 8 * usize::from(self.size), Ordering::Relaxed);
            return passes(event, before, self.offered);
        }
        self.window.load_u16(used, Ordering::Relaxed) & 1 == 0
    }

    /// Takes back the next used chain: its first descriptor, and the number of bytes written.
    pub(super) fn take_back(&mut self) -> Result<Option<(u16, u32)>, BadUsed> {
        let used = used_at(self.size);
        if self.next == self.seen {
            let seen = self.window.load_u16(used + 2, Ordering::Acquire);
            let ahead = seen.wrapping_sub(self.next);
            if ahead > self.size {
                return Err(BadUsed::Index(ahead));
            }
            self.seen = seen;
            if ahead == 0 {
                return Ok(None);
            }
        }
        let element = used + 4 + 8 * usize::from(self.next & (self.size - 1));
        let (id, len) = (self.window.load_u32(element), self.window.load_u32(element + 4));
        let room = self.lent.get_mut(id as usize).and_then(Option::take).ok_or(BadUsed::NotLent(id))?;
        if len > room {
            return Err(BadUsed::Len(len));
        }
        self.next = self.next.wrapping_add(1);
        Ok(Some((id as u16, len)))
    }

    /// Enables or disables interrupts by the device. Tells whether a used chain is there already.
    pub(super) fn want_calls(&mut self, enabled: bool) -> bool {
        let available = available_at(self.size);
        let is_unchanged = std::mem::replace(&mut self.calls, enabled) == enabled;
        match (self.event_index, enabled) {
            (false, _) if is_unchanged => {}
            (true, true) => {
                self.window.store_u16(available + 4 + 2 * usize::from(self.size), self.next, Ordering::Relaxed);
            }
            (true, false) => {}
            (false, _) => self.window.store_u16(available, u16::from(!enabled), Ordering::Relaxed),
        }
        if !enabled {
            return false;
        }
        fence(Ordering::SeqCst);
        self.window.load_u16(used_at(self.size) + 2, Ordering::Acquire) != self.next
    }
}
