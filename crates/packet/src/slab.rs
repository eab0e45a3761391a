//! Memory of a pool in consecutive pages, which a device maps at once.

use std::ptr::NonNull;

/// Memory of a slab, for example a mapping shared with a device, or huge pages.
///
/// # Safety
/// [`memory`](Self::memory) returns the same range of initialised memory at each call, during the value's lifetime,
/// also after a move. Only the pages and a device access the range: the device may access a page from the time its
/// driver takes the page from the pool until the driver releases it, and may not access the memory of a dropped value.
pub unsafe trait Backing: Send + Sync {
    /// The complete range.
    fn memory(&self) -> NonNull<[u8]>;
}

/// Consecutive pages of one size.
pub(crate) struct Slab {
    backing: Box<dyn Backing>,
    page_size: usize,
}

impl Slab {
    /// The pages of `page_size` bytes that fit into the memory.
    pub(crate) fn new(backing: Box<dyn Backing>, page_size: usize) -> Self {
        assert!((1..1 << 30).contains(&page_size), "a page of {page_size} bytes");
        Self { backing, page_size }
    }

    /// The complete range.
    pub(crate) fn memory(&self) -> NonNull<[u8]> {
        self.backing.memory()
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.memory().len() / self.page_size
    }

    /// Start of each page.
    pub(crate) fn pages(&self) -> impl DoubleEndedIterator<Item = NonNull<u8>> + '_ {
        let start = self.memory().cast::<u8>();
        // SAFETY: every page lies inside the memory.
        (0..self.len()).map(move |number| unsafe { start.add(number * self.page_size) })
    }

    /// Number of the page that starts at `page`.
    pub(crate) fn number_of(&self, page: NonNull<u8>) -> Option<usize> {
        let offset = page.addr().get().checked_sub(self.memory().addr().get())?;
        Some(offset / self.page_size).filter(|&number| number < self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::{Buf, CopyReason, Memory, Packet, Pool};

    /// Zeroed memory from the heap.
    struct Heap(NonNull<[u8]>);

    // SAFETY: `slab` allocated the memory, and only the drop of this value frees it.
    unsafe impl Backing for Heap {
        fn memory(&self) -> NonNull<[u8]> {
            self.0
        }
    }

    // SAFETY: plain bytes, which this type itself neither reads nor writes.
    unsafe impl Send for Heap {}
    // SAFETY: as above.
    unsafe impl Sync for Heap {}

    impl Drop for Heap {
        fn drop(&mut self) {
            // SAFETY: `slab` took the pointer from a box, and no references to it are left.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }

    fn slab(page_size: usize, pages: usize) -> Pool {
        // The remainder is less than a page.
        let memory = vec![0; page_size * pages + page_size - 1].into_boxed_slice();
        Pool::slab(Box::new(Heap(NonNull::from(Box::leak(memory)))), page_size)
    }

    #[test]
    fn pages_of_a_slab_are_adjacent_and_return_to_their_pool() {
        let pool = slab(2048, 5);
        let memory = pool.memory().expect("a slab has memory").cast::<u8>().addr().get();
        let mut all: Vec<Buf> = (0..5).map(|_| pool.take(256).expect("one of five")).collect();
        for (at, buf) in all.iter_mut().enumerate() {
            assert_eq!((pool.number_of(buf), buf.headroom(), buf.tailroom()), (Some(at), 256, 2048 - 256));
            let data = buf.put(10).expect("room");
            assert_eq!(data.as_ptr().addr(), memory + at * 2048 + 256);
            data.fill(at as u8);
        }
        assert_eq!((pool.take(0).is_err(), pool.dry(), pool.in_use()), (true, 1, 5));
        // A split page is in use until its last part is freed; its parts are writable, and belong to the same page.
        let mut back = all.remove(3);
        let mut front = back.split_to(4);
        assert!(front.is_writable() && back.is_writable());
        assert_eq!((pool.number_of(&front), pool.number_of(&back)), (Some(3), Some(3)));
        drop(front);
        assert_eq!(pool.in_use(), 5);
        drop(back);
        assert_eq!(pool.in_use(), 4);
        assert_eq!(pool.number_of(&pool.take(0).expect("the page that came home")), Some(3));
        drop(all);
        assert_eq!(pool.in_use(), 0);
        let (first, mut rest) = (pool.take(0).expect("one of five"), Vec::new());
        pool.take_free(&mut rest);
        assert_eq!((rest.len(), pool.in_use(), pool.dry()), (4, 5, 1));
        assert!(rest.iter().all(|buf| buf.headroom() == 0 && buf.tailroom() == 2048));
        rest.push(first);
        let mut numbers: Vec<_> = rest.iter().filter_map(|buf| pool.number_of(buf)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn pages_of_a_slab_are_scarce_and_of_one_pool() {
        let (mem, pool) = (Memory::heap(), slab(512, 100));
        let mut buf = pool.take(0).expect("one of many");
        buf.put(4).expect("room").fill(1);
        let heap = mem.take(0, 1).expect("memory");
        assert_eq!((buf.is_scarce_frame(&mem), heap.is_scarce_frame(&mem)), (true, false));
        assert_eq!((pool.number_of(&buf), pool.number_of(&heap)), (Some(0), None));
        assert!(Pool::heap(512).memory().is_none() && Pool::heap(512).number_of(&buf).is_none());
        let copy = Packet::from_buf(buf).copy(&mem, CopyReason::Copy).expect("memory");
        assert!(!copy.bufs().any(|buf| buf.is_scarce_frame(&mem)) && pool.in_use() == 0);
    }

    #[test]
    fn a_slabs_page_whose_last_two_users_let_go_at_once_comes_home() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 2_000 };
        let pool = slab(512, 1);
        let barrier = Barrier::new(2);
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Buf>(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                for buf in receiver {
                    barrier.wait();
                    drop(buf);
                    barrier.wait();
                }
            });
            for _ in 0..ROUNDS {
                let mut buf = pool.take(0).expect("the one there is");
                sender.send(buf.share()).expect("the other thread");
                barrier.wait();
                drop(buf);
                barrier.wait();
                assert_eq!(pool.in_use(), 0);
            }
            drop(sender);
        });
    }

    #[test]
    fn a_slabs_page_outlives_its_pool() {
        let pool = slab(512, 2);
        let mut buf = pool.take(0).expect("one of two");
        buf.put(4).expect("room").copy_from_slice(b"here");
        let twin = buf.share();
        drop(pool);
        assert_eq!(twin.bytes(), b"here");
        drop(buf);
        assert_eq!(twin.bytes(), b"here");
    }
}
