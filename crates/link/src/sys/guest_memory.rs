//! Memory of a guest, mapped into this process. The guest may write it at any moment, so no slice or reference into it
//! is made, except for single numbers that both sides access by atomic operations. Bytes are copied, once in and once
//! out.
//!
//! Invariant 1: the bytes of a [`Window`], and of a region, lie inside a mapping, which stays mapped as long as they
//! exist. Invariant 2: a [`GuestPiece`] is a number and two lengths, not an address: each access checks it against the
//! present regions.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{StatFs, fstat, fstatfs};

use super::bus_faults::Watch;

/// `TMPFS_MAGIC`: memfd and `/dev/shm`.
const TMPFS: i64 = 0x0102_1994;
/// `HUGETLBFS_MAGIC`.
const HUGETLBFS: i64 = 0x9584_58f6;

/// Alignment of regions: the smallest pages, so that a buffer spans few regions.
pub(crate) const PAGE: u64 = 4096;

/// Tells whether a file is one of memory (memfd, tmpfs, huge pages).
pub(crate) fn is_memory(kind: &StatFs) -> bool {
    granularity(kind).is_some()
}

/// Bytes of a page of a file of memory; `None` of another file.
fn granularity(kind: &StatFs) -> Option<u64> {
    match kind.f_type {
        TMPFS => Some(PAGE.max(rustix::param::page_size() as u64)),
        HUGETLBFS => Some(kind.f_bsize as u64),
        _ => None,
    }
}

/// A mapping of a file that is shared with another process. Pointers into it are those of windows.
#[derive(Debug)]
struct Mapping {
    /// First address.
    start: usize,
    len: usize,
    /// Device and inode of the file, and the mapping's offset there.
    source: (u64, u64, u64),
    /// Loss detection, dropped before the memory is unmapped.
    watch: Option<Watch>,
}

impl Mapping {
    /// Maps a part of a file, and returns its first byte.
    fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<(Self, NonNull<u8>)> {
        let stat = fstat(fd)?;
        let source = (stat.st_dev, stat.st_ino, offset);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a mapping at an address that the kernel chooses, which replaces no other.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd.as_raw_fd(), offset) };
        let first = match NonNull::new(start.cast::<u8>()) {
            Some(first) if first.as_ptr() != libc::MAP_FAILED.cast() => first,
            _ => return Err(io::Error::last_os_error()),
        };
        let start = first.as_ptr().expose_provenance();
        let mut mapping = Self { start, len, source, watch: None };
        mapping.watch = Some(Watch::new(start, len)?);
        Ok((mapping, first))
    }

    fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_lost)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watch = None;
        // SAFETY: `new` mapped exactly this, and every window into it is gone.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.start), self.len) };
    }
}

/// Range of memory that another process may write: a part of a ring, or a region.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    start: NonNull<u8>,
    len: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: a pointer into a mapping that goes with it, used by atomic operations and copies alone.
unsafe impl Send for Window {}
// SAFETY: as above. Copies of two threads to the same bytes, which a guest may ask for by one buffer in two queues, are as those of this
// process and the guest: they decide which bytes are there.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `len` bytes of a file of memory (memfd, tmpfs, huge pages) from `offset` on.
    ///
    /// # Errors
    /// The file is shorter, or of another kind: a page fault on such a file could block for ever.
    pub(crate) fn map(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Self> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
        let granularity = granularity(&fstatfs(fd)?);
        let granularity = granularity.ok_or_else(|| invalid("not a memfd, nor a file of a tmpfs or of huge pages"))?;
        let end = offset.checked_add(len).filter(|&end| end <= fstat(fd).map_or(0, |stat| stat.st_size as u64));
        let end = end.ok_or_else(|| invalid("longer than its file"))?;
        if len == 0 || !granularity.is_power_of_two() {
            return Err(invalid("no bytes"));
        }
        let from = offset & !(granularity - 1);
        let until = end.checked_next_multiple_of(granularity).ok_or_else(|| invalid("longer than its file"))?;
        let all = usize::try_from(until - from).map_err(|_| invalid("longer than an address space"))?;
        let (mapping, first) = Mapping::new(fd, from, all)?;
        // SAFETY: inside of the mapping, which begins less than its granularity before `offset` and ends behind `end`.
        let start = unsafe { first.add((offset - from) as usize) };
        Ok(Self { start, len: len as usize, mapping: Arc::new(mapping) })
    }

    /// Subrange of `len` bytes at `offset`; `None` if the window is shorter, or the start is no multiple of `align`.
    pub(crate) fn part(&self, offset: u64, len: usize, align: usize) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: inside of the window, just checked.
        let start = unsafe { self.start.add(offset) };
        let is_aligned = start.addr().get().is_multiple_of(align);
        is_aligned.then(|| Self { start, len, mapping: Arc::clone(&self.mapping) })
    }

    /// Tells whether the memory was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// Address of `size_of::<T>()` bytes at `offset`, which is inside the window and aligned.
    #[inline]
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset <= self.len && size_of::<T>() <= self.len - offset, "{offset} of {}", self.len);
        // SAFETY: inside of the window, just checked.
        let at = unsafe { self.start.add(offset) };
        assert!(at.addr().get().is_multiple_of(align_of::<T>()), "{at:?} is not aligned");
        at.as_ptr().cast()
    }

    /// Reads a little-endian number.
    #[inline]
    pub(crate) fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        // SAFETY: by invariant 1 and the checks of `at` valid as long as `self` is, and used by atomic operations alone.
        let number = unsafe { AtomicU16::from_ptr(self.at(offset)) };
        u16::from_le(number.load(order))
    }

    /// Writes a little-endian number.
    #[inline]
    pub(crate) fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        // SAFETY: as in `load_u16`.
        let number = unsafe { AtomicU16::from_ptr(self.at(offset)) };
        number.store(value.to_le(), order);
    }

    /// Reads a little-endian number.
    #[inline]
    pub(crate) fn load_u32(&self, offset: usize) -> u32 {
        // SAFETY: as in `load_u16`.
        let number = unsafe { AtomicU32::from_ptr(self.at(offset)) };
        u32::from_le(number.load(Ordering::Relaxed))
    }

    /// Writes a little-endian number.
    #[inline]
    pub(crate) fn store_u32(&self, offset: usize, value: u32) {
        // SAFETY: as in `load_u16`.
        let number = unsafe { AtomicU32::from_ptr(self.at(offset)) };
        number.store(value.to_le(), Ordering::Relaxed);
    }

    /// Reads a little-endian number.
    #[inline]
    pub(crate) fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: as in `load_u16`.
        let number = unsafe { AtomicU64::from_ptr(self.at(offset)) };
        u64::from_le(number.load(Ordering::Relaxed))
    }

    /// Writes a little-endian number.
    #[inline]
    pub(crate) fn store_u64(&self, offset: usize, value: u64) {
        // SAFETY: as in `load_u16`.
        let number = unsafe { AtomicU64::from_ptr(self.at(offset)) };
        number.store(value.to_le(), Ordering::Relaxed);
    }

    /// Copies bytes out of the window.
    ///
    /// # Panics
    /// With fewer bytes from `offset` on.
    #[inline]
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset <= self.len && to.len() <= self.len - offset, "{} at {offset} of {}", to.len(), self.len);
        // SAFETY: inside of the window, just checked.
        let from = unsafe { self.start.add(offset) };
        // SAFETY: `to` is exclusive, so does not overlap; `from` is as long by the check above. Concurrent writes of another process
        // only change which bytes are copied.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes into the window.
    ///
    /// # Panics
    /// With fewer bytes from `offset` on.
    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "{} at {offset} of {}", from.len(), self.len);
        // SAFETY: inside of the window, just checked.
        let to = unsafe { self.start.add(offset) };
        // SAFETY: `from` is a slice, and guest memory is never one, so they do not overlap; `to` is as long by the check above.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }
}

/// Range of guest memory with its addresses, from a vhost-user message.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Start address in descriptors of the guest.
    pub(crate) guest_addr: u64,
    /// Start address in messages about rings.
    pub(crate) user_addr: u64,
    pub(crate) window: Window,
    /// The file that is mapped, for a process that takes the guest over.
    pub(crate) file: Arc<OwnedFd>,
    /// Offset of the window in the file.
    pub(crate) offset: u64,
}

impl Region {
    /// Maps `len` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// As [`Window::map`].
    pub(crate) fn map(guest_addr: u64, user_addr: u64, len: u64, offset: u64, file: Arc<OwnedFd>) -> io::Result<Self> {
        let window = Window::map(file.as_fd(), offset, len)?;
        Ok(Self { guest_addr, user_addr, window, file, offset })
    }

    pub(crate) fn len(&self) -> u64 {
        self.window.len as u64
    }

    fn has_addrs(&self, guest_addr: u64, user_addr: u64, len: u64) -> bool {
        (self.guest_addr, self.user_addr, self.len()) == (guest_addr, user_addr, len)
    }

    /// Tells whether it is the same range of the same file at the same addresses.
    fn is_same(&self, other: &Self) -> bool {
        let (mapping, others) = (&self.window.mapping, &other.window.mapping);
        let skipped = self.window.start.addr().get() - mapping.start;
        let others_skipped = other.window.start.addr().get() - others.start;
        self.has_addrs(other.guest_addr, other.user_addr, other.len())
            && (mapping.source, skipped) == (others.source, others_skipped)
    }

    fn overlaps(&self, guest_addr: u64, len: u64) -> bool {
        let end = guest_addr.saturating_add(len);
        guest_addr < self.guest_addr + self.len() && self.guest_addr < end
    }
}

/// Range of a region that a descriptor refers to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GuestPiece {
    region: u32,
    pub(crate) len: u32,
    offset: u64,
}

/// Memory map of a guest. A clone has the same regions, and is not changed with the map.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestMemory {
    /// Regions by the guest's addresses, without overlaps.
    regions: Arc<[Region]>,
    /// Region of the last look-up.
    recent: Cell<usize>,
}

impl GuestMemory {
    /// Adds a region; `None` if it overlaps another, ends behind the address space or is not of whole pages. An
    /// existing region stays: QEMU before 8.0 announces each region once for each queue pair.
    pub(crate) fn add(&mut self, region: Region) -> Option<()> {
        let has_pages = region.guest_addr.is_multiple_of(PAGE) && region.len().is_multiple_of(PAGE);
        region.guest_addr.checked_add(region.len())?;
        region.user_addr.checked_add(region.len())?;
        if self.regions.iter().any(|other| other.is_same(&region)) {
            return Some(());
        }
        if !has_pages || self.regions.iter().any(|other| other.overlaps(region.guest_addr, region.len())) {
            return None;
        }
        let at = self.regions.partition_point(|other| other.guest_addr < region.guest_addr);
        let (below, above) = self.regions.split_at(at);
        self.regions = below.iter().cloned().chain([region]).chain(above.iter().cloned()).collect();
        Some(())
    }

    /// Removes the region with these addresses; `None` if others overlap it. A missing region is no error: see
    /// [`Self::add`].
    pub(crate) fn remove(&mut self, guest_addr: u64, user_addr: u64, len: u64) -> Option<()> {
        self.recent.set(0);
        let others = self.regions.iter().filter(|region| !region.has_addrs(guest_addr, user_addr, len));
        self.regions = others.cloned().collect();
        (!self.regions.iter().any(|region| region.overlaps(guest_addr, len))).then_some(())
    }

    /// Regions by the guest's addresses.
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Number of regions.
    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// Bytes of all regions.
    pub(crate) fn bytes(&self) -> u64 {
        self.regions.iter().map(Region::len).sum()
    }

    /// Tells whether any region was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.window.is_lost())
    }

    /// A part of a ring, by the front end's address of it; `None` if it is not in one region, or not aligned.
    pub(crate) fn part(&self, user_addr: u64, len: usize, align: usize) -> Option<Window> {
        let holds = |region: &&Region| user_addr.wrapping_sub(region.user_addr) < region.len();
        let region = self.regions.iter().find(holds)?;
        region.window.part(user_addr - region.user_addr, len, align)
    }

    /// The region that contains a guest's address, and the offset in it.
    #[inline]
    fn place(&self, addr: u64) -> Option<(usize, u64)> {
        let recent = self.recent.get();
        if let Some(region) = self.regions.get(recent)
            && addr.wrapping_sub(region.guest_addr) < region.len()
        {
            return Some((recent, addr - region.guest_addr));
        }
        let at = self.regions.partition_point(|region| region.guest_addr <= addr).checked_sub(1)?;
        let offset = addr - self.regions[at].guest_addr;
        (offset < self.regions[at].len()).then(|| {
            self.recent.set(at);
            (at, offset)
        })
    }

    /// Appends the pieces of the `len` bytes at a guest's address. Tells whether all of them are in regions.
    #[inline]
    #[must_use]
    pub(crate) fn locate(&self, mut addr: u64, mut len: u32, pieces: &mut Vec<GuestPiece>) -> bool {
        while len > 0 {
            let Some((at, offset)) = self.place(addr) else { return false };
            let here = (self.regions[at].len() - offset).min(len.into()) as u32;
            pieces.push(GuestPiece { region: at as u32, len: here, offset });
            // No region ends behind the address space.
            addr = addr.wrapping_add(here.into());
            len -= here;
        }
        true
    }

    /// Copies bytes of a piece from its byte `skip` on.
    ///
    /// # Panics
    /// If the piece is not in this memory, or shorter.
    #[inline]
    pub(crate) fn read(&self, piece: GuestPiece, skip: u32, to: &mut [u8]) {
        self.regions[piece.region as usize].window.read((piece.offset + u64::from(skip)) as usize, to);
    }

    /// Copies bytes into a piece from its byte `skip` on.
    ///
    /// # Panics
    /// If the piece is not in this memory, or shorter.
    #[inline]
    pub(crate) fn write(&self, piece: GuestPiece, skip: u32, from: &[u8]) {
        self.regions[piece.region as usize].window.write((piece.offset + u64::from(skip)) as usize, from);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memfd(pages: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, pages * PAGE).unwrap();
        file
    }

    /// Region of that many pages.
    fn region(guest_addr: u64, user_addr: u64, pages: u64) -> Region {
        Region::map(guest_addr, user_addr, pages * PAGE, 0, Arc::new(memfd(pages))).unwrap()
    }

    /// Regions of these numbers of pages, each at a page number of the guest's.
    fn memory(regions: &[(u64, u64)]) -> GuestMemory {
        let mut memory = GuestMemory::default();
        for &(page, pages) in regions {
            memory.add(region(page * PAGE, page * PAGE + (1 << 40), pages)).unwrap();
        }
        memory
    }

    #[test]
    fn buffers_are_found_across_regions_that_touch() {
        let memory = memory(&[(4, 2), (1, 1), (2, 2)]);
        let found = |addr, len| {
            let mut pieces = Vec::new();
            memory.locate(addr, len, &mut pieces).then(|| pieces.iter().map(|piece| piece.len).collect::<Vec<_>>())
        };
        assert_eq!(found(PAGE, 4096), Some(vec![4096]));
        assert_eq!(found(2 * PAGE - 1, 2), Some(vec![1, 1]));
        assert_eq!(found(PAGE, 5 * 4096), Some(vec![4096, 8192, 8192]));
        assert_eq!(found(PAGE, 5 * 4096 + 1), None, "a byte behind the end");
        assert_eq!(found(PAGE - 1, 2), None, "a byte before the start");
        assert_eq!(found(0, 1), None);
        assert_eq!(found(u64::MAX, u32::MAX), None);
        assert_eq!(found(PAGE, 0), Some(vec![]));
    }

    #[test]
    fn piece_written_is_read_back() {
        let memory = memory(&[(1, 1), (2, 1)]);
        let mut pieces = Vec::new();
        assert!(memory.locate(2 * PAGE - 3, 6, &mut pieces));
        memory.write(pieces[0], 0, &[1, 2, 3]);
        memory.write(pieces[1], 1, &[5, 6]);
        let mut bytes = [9; 3];
        memory.read(pieces[1], 0, &mut bytes);
        assert_eq!(bytes, [0, 5, 6]);
        memory.read(pieces[0], 1, &mut bytes[..2]);
        assert_eq!(bytes, [2, 3, 6]);
    }

    #[test]
    fn regions_that_overlap_or_wrap_are_refused() {
        let mut memory = memory(&[(4, 2), (8, 2)]);
        let add =
            |memory: &mut GuestMemory, guest_addr: u64, pages: u64| memory.add(region(guest_addr, 0, pages)).is_some();
        for (page, pages) in [(3, 2), (4, 2), (5, 1), (5, 2), (7, 2), (9, 1), (3, 9)] {
            assert!(!add(&mut memory, page * PAGE, pages), "{pages} pages at page {page}");
        }
        assert!(!add(&mut memory, 20 * PAGE + 1, 1), "not at a page");
        assert!(!add(&mut memory, 0_u64.wrapping_sub(PAGE), 2), "behind the address space");
        assert!(add(&mut memory, 6 * PAGE, 2) && add(&mut memory, 3 * PAGE, 1));
        assert_eq!(memory.count(), 4);
        assert!(memory.remove(6 * PAGE, 0, PAGE).is_none() && memory.remove(6 * PAGE, 0, 2 * PAGE).is_some());
    }

    #[test]
    fn short_file_or_other_kind_of_file_is_refused() {
        let file = memfd(2);
        assert!(Window::map(file.as_fd(), 0, 2 * PAGE).is_ok());
        assert!(Window::map(file.as_fd(), PAGE, PAGE).is_ok());
        for (offset, len) in [(0, 2 * PAGE + 1), (PAGE, 2 * PAGE), (u64::MAX, 2), (1, u64::MAX), (0, 0)] {
            assert!(Window::map(file.as_fd(), offset, len).is_err(), "{len} at {offset}");
        }
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Window::map(program.as_fd(), 0, PAGE).is_err());
    }

    #[test]
    fn truncated_memory_reads_as_zeros_and_is_detected() {
        let file = memfd(4);
        let window = Window::map(file.as_fd(), PAGE, 3 * PAGE).unwrap();
        let other = Window::map(memfd(1).as_fd(), 0, PAGE).unwrap();
        window.write(0, &[7; 4096]);
        ftruncate(&file, 0).unwrap();
        let mut bytes = [9; 100];
        window.read(2 * PAGE as usize, &mut bytes);
        assert_eq!(bytes, [0; 100]);
        window.write(5, &[1]);
        assert_eq!(window.load_u16(0, Ordering::Acquire), 0);
        assert!(window.is_lost() && !other.is_lost());
    }

    #[test]
    #[should_panic(expected = "2 at 4095 of 4096")]
    fn read_past_the_end_panics() {
        let window = Window::map(memfd(1).as_fd(), 0, PAGE).unwrap();
        window.read(4095, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "4096 of 4096")]
    fn store_past_the_end_panics() {
        let window = Window::map(memfd(1).as_fd(), 0, PAGE).unwrap();
        window.store_u16(4096, 1, Ordering::Relaxed);
    }
}
