//! Table of descriptors that are connections, and the slot of each connection.
//!
//! A connection is identified by its inode number, which `dup` and `fork` preserve and which is unique while the
//! connection is open. The table by descriptor is only a hint: it may be out of date, since some ways of closing
//! descriptors bypass the owner of the table, and is corrected by the inode number at the next use. So the table does not
//! depend on calls to `close`, not even in a `vfork`ed child, which shares it with its parent. A descriptor that was
//! never a connection costs one load.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::primitives::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence};

/// Value of a slot's connection during initialisation: no file has this inode number.
const FILLING: u64 = u64::MAX;

/// Inode number in a slot's connection. The other bits count initialisations of slots, since an inode number may recur
/// in the same slot.
const INODE: u64 = u64::MAX >> u16::BITS;

/// Connection that a slot contains.
///
/// A slot is free, then being initialised, then in use, and is freed by the thread that finds no descriptor for the
/// connection that the slot contained at the look-up. A slot that is reused meanwhile has another value, and is not freed.
/// So threads need no lock, which would stay locked forever in a child of `fork`.
#[derive(Debug)]
pub struct Connection {
    /// 0: free; [`FILLING`]; or the connection's value ([`INODE`]).
    value: AtomicU64,
    /// Number of times that the connection got another descriptor. It wraps, and is never reset.
    moves: AtomicU32,
}

impl Connection {
    /// No connection.
    #[cfg(not(feature = "loom"))]
    pub const fn none() -> Self {
        Self { value: AtomicU64::new(0), moves: AtomicU32::new(0) }
    }

    /// No connection.
    #[cfg(feature = "loom")]
    pub fn none() -> Self {
        Self { value: AtomicU64::new(0), moves: AtomicU32::new(0) }
    }

    /// Value that is unique among all connections of this slot, past and future.
    pub fn value(&self) -> u64 {
        self.value.load(Acquire)
    }

    /// Inode number of the connection.
    pub fn inode(&self) -> u64 {
        self.value() & INODE
    }

    /// Claims a free slot.
    fn claim(&self) -> bool {
        self.value.compare_exchange(0, FILLING, AcqRel, Relaxed).is_ok()
    }

    /// Frees the slot of a closed connection. A reused slot stays.
    fn forget(&self, value: u64) {
        let _ = self.value.compare_exchange(value, 0, AcqRel, Relaxed);
    }

    /// Counts another descriptor, after its hint was stored.
    fn moved(&self) {
        self.moves.fetch_add(1, Release);
    }
}

/// Slot of a [`Table`]: a [`Connection`] with state of the table's owner.
pub trait HasConnection {
    /// The slot's connection.
    fn connection(&self) -> &Connection;
}

/// Slots of connections, with hints by descriptor. Its functions take `inode_of`, the inode number of a descriptor that is
/// a socket.
#[derive(Debug)]
pub struct Table<S, const FDS: usize, const SLOTS: usize> {
    /// Number of the slot, from 1, of each descriptor.
    by_fd: [AtomicU16; FDS],
    slots: [S; SLOTS],
    /// Lowest descriptor from which on none was ever a connection.
    never: AtomicUsize,
    /// Slot at which the search for a free one begins: earlier slots are in use, or not swept yet.
    next: AtomicUsize,
    /// Number of initialisations of slots.
    fills: AtomicU16,
}

/// Error: the table has no slot for a connection, or no hint for its descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Full;

impl<S, const FDS: usize, const SLOTS: usize> Table<S, FDS, SLOTS> {
    /// A table of these slots, without connections.
    #[cfg(not(feature = "loom"))]
    pub const fn new(slots: [S; SLOTS]) -> Self {
        let by_fd = [const { AtomicU16::new(0) }; FDS];
        Self { by_fd, slots, never: AtomicUsize::new(0), next: AtomicUsize::new(0), fills: AtomicU16::new(0) }
    }

    /// A table of these slots, without connections.
    #[cfg(feature = "loom")]
    pub fn new(slots: [S; SLOTS]) -> Self {
        let by_fd = std::array::from_fn(|_| AtomicU16::new(0));
        Self { by_fd, slots, never: AtomicUsize::new(0), next: AtomicUsize::new(0), fills: AtomicU16::new(0) }
    }

    /// All slots, in use or not.
    pub fn slots(&self) -> &[S; SLOTS] {
        &self.slots
    }

    fn hint(&self, fd: i32) -> Option<&AtomicU16> {
        usize::try_from(fd).ok().and_then(|fd| self.by_fd.get(fd))
    }

    fn slot(&self, at: u16) -> Option<&S> {
        self.slots.get(usize::from(at).wrapping_sub(1))
    }

    /// Slots with their numbers, which begin at 1.
    fn numbered(&self) -> impl Iterator<Item = (u16, &S)> {
        (1..).zip(&self.slots)
    }
}

impl<S: HasConnection, const FDS: usize, const SLOTS: usize> Table<S, FDS, SLOTS> {
    /// Slot of `fd`, if that is a connection.
    pub fn find(&self, fd: i32, inode_of: impl Fn(i32) -> Option<u64>) -> Option<&S> {
        let hint = self.hint(fd)?;
        let at = match hint.load(Relaxed) {
            0 => return None,
            at => at,
        };
        // Another thread may reuse a closed descriptor at any time.
        let known = inode_of(fd).and_then(|inode| self.slot_of(inode, at));
        let right = known.map_or(0, |(at, _)| at);
        if right != at {
            // The exchange fails if another thread has just opened a connection with that number.
            let _ = hint.compare_exchange(at, right, AcqRel, Relaxed);
        }
        known.map(|(_, slot)| slot)
    }

    /// Copies the hint of `from` to its duplicate `to`.
    pub fn duplicated(&self, from: i32, to: i32) {
        if let (Some(from), Some(hinted)) = (self.hint(from), self.hint(to)) {
            let known = from.load(Relaxed);
            if known != 0 {
                hinted.store(known, Relaxed);
                self.never.fetch_max(to as usize + 1, Relaxed);
                self.slot(known).into_iter().for_each(|slot| slot.connection().moved());
            }
        }
    }

    /// Slot of a connection, by [`Connection::value`].
    pub fn by_connection(&self, value: u64) -> Option<&S> {
        self.slots.iter().find(|slot| slot.connection().value() == value)
    }

    /// Open connections for which `matches` returns true, each with a descriptor; a connection with several descriptors is
    /// returned several times.
    pub fn live<'a>(
        &'a self,
        inode_of: impl Fn(i32) -> Option<u64>,
        matches: impl Fn(&'a S) -> bool,
    ) -> impl Iterator<Item = (i32, &'a S)> {
        let hints = self.by_fd.iter().take(self.never.load(Relaxed));
        (0..).zip(hints).filter_map(move |(fd, hint)| {
            let at = hint.load(Acquire);
            let hinted = self.slot(at)?;
            // A stale hint stays: another thread may be reusing the descriptor.
            let (_, slot) = matches(hinted).then(|| self.look_up(fd, at, &inode_of)).flatten()?;
            matches(slot).then_some((fd, slot))
        })
    }

    /// Enters the new connection `fd`, whose inode number is `inode`. `fill` initialises its slot, before any other thread
    /// finds that.
    ///
    /// # Errors
    /// [`Full`].
    pub fn enter(
        &self,
        fd: i32,
        inode: u64,
        inode_of: impl Fn(i32) -> Option<u64>,
        fill: impl FnOnce(&S),
    ) -> Result<&S, Full> {
        let hint = self.hint(fd).ok_or(Full)?;
        let (at, slot) = self.take().or_else(|| self.take_swept(inode_of)).ok_or(Full)?;
        fill(slot);
        // The hint is stored before the slot can be found, so that a concurrent sweep finds the descriptor.
        hint.store(at, Release);
        self.never.fetch_max(fd as usize + 1, Relaxed);
        let fill = u64::from(self.fills.fetch_add(1, Relaxed));
        slot.connection().value.store(fill << INODE.trailing_ones() | inode & INODE, Release);
        Ok(slot)
    }

    /// Frees the slots of connections without a descriptor.
    pub fn sweep(&self, inode_of: impl Fn(i32) -> Option<u64>) {
        let mut before = [(0, 0); SLOTS];
        let now = |slot: &S| (slot.connection().value(), slot.connection().moves.load(Acquire));
        before.iter_mut().zip(&self.slots).for_each(|(before, slot)| *before = now(slot));
        let mut used = [false; SLOTS];
        for (fd, hint) in (0..).zip(self.by_fd.iter().take(self.never.load(Relaxed))) {
            let at = hint.load(Acquire);
            // A stale hint stays: another thread may be reusing the descriptor.
            if let Some((at, _)) = (at != 0).then(|| self.look_up(fd, at, &inode_of)).flatten() {
                used.get_mut(usize::from(at).wrapping_sub(1)).into_iter().for_each(|used| *used = true);
            }
        }
        // The moves are read after the descriptors.
        fence(SeqCst);
        for ((slot, (before, moves)), used) in self.slots.iter().zip(before).zip(used) {
            let connection = slot.connection();
            // The sweep may have missed a connection that got a new descriptor and lost its old one meanwhile.
            if !used && !matches!(before, 0 | FILLING) && connection.moves.load(Relaxed) == moves {
                connection.forget(before);
            }
        }
    }

    /// Slot of the connection `fd`, with the hint `at`.
    fn look_up(&self, fd: i32, at: u16, inode_of: impl Fn(i32) -> Option<u64>) -> Option<(u16, &S)> {
        self.slot_of(inode_of(fd)?, at)
    }

    fn slot_of(&self, inode: u64, at: u16) -> Option<(u16, &S)> {
        let inode = inode & INODE;
        let hinted = self.slot(at).filter(|slot| slot.connection().inode() == inode);
        let search = || self.numbered().find(|(_, slot)| slot.connection().inode() == inode);
        hinted.map(|slot| (at, slot)).or_else(search)
    }

    /// Takes a free slot. The search begins after the last one taken.
    fn take(&self) -> Option<(u16, &S)> {
        let all = self.numbered().skip(self.next.load(Relaxed)).chain(self.numbered());
        let taken = all.take(SLOTS).find(|(_, slot)| slot.connection().claim())?;
        self.next.store(usize::from(taken.0), Relaxed);
        Some(taken)
    }

    /// Takes a free slot after a sweep. If another thread takes the slot first, the sweep is repeated.
    fn take_swept(&self, inode_of: impl Fn(i32) -> Option<u64>) -> Option<(u16, &S)> {
        const TRIES: usize = if cfg!(feature = "loom") { 2 } else { 16 };
        (0..TRIES).find_map(|_| {
            self.sweep(&inode_of);
            self.take()
        })
    }
}
