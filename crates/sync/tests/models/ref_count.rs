use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::RefCount;

use crate::check;

/// Page with two pieces of memory, of which each reference writes one, as a `Buf` does.
struct Page {
    users: RefCount,
    pieces: [UnsafeCell<u8>; 2],
}

impl Page {
    fn new() -> Arc<Self> {
        let mut users = RefCount::none();
        users.set_one();
        Arc::new(Self { users, pieces: [0; 2].map(UnsafeCell::new) })
    }

    /// Writes a piece. Loom compares the accesses of threads.
    fn write(&self, at: usize) {
        self.pieces[at].with_mut(|_| ());
    }

    /// Writes all memory, as the pool does with a page that has come back.
    fn reuse(&self) {
        self.pieces.iter().for_each(|piece| piece.with_mut(|_| ()));
    }

    /// Drops references. Returns the number of times that the page was freed.
    fn release(&self, count: usize) -> usize {
        let were_last = self.users.release(count);
        if were_last {
            self.reuse();
        }
        usize::from(were_last)
    }
}

#[test]
fn page_is_freed_once_after_the_writes_of_all_references() {
    check(|| {
        let page = Page::new();
        page.users.add();
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.write(1);
                page.release(1)
            })
        };
        page.write(0);
        let freed = page.release(1);
        assert_eq!(freed + other.join().unwrap(), 1);
    });
}

#[test]
fn page_that_is_cloned_is_not_freed_by_another_reference() {
    check(|| {
        let page = Page::new();
        page.users.add();
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.users.add();
                page.write(1);
                let freed = page.release(1);
                page.write(1);
                freed + page.release(1)
            })
        };
        page.write(0);
        let freed = page.release(1);
        assert_eq!(freed + other.join().unwrap(), 1);
    });
}

#[test]
fn page_is_freed_once_if_references_are_dropped_together() {
    check(|| {
        let page = Page::new();
        (0..3).for_each(|_| page.users.add());
        let others = [2, 1].map(|count| {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.write(count - 1);
                page.release(count)
            })
        });
        let freed = page.release(1);
        assert_eq!(freed + others.map(|other| other.join().unwrap()).into_iter().sum::<usize>(), 1);
    });
}

#[test]
fn page_with_one_reference_is_writable_as_a_whole() {
    check(|| {
        let page = Page::new();
        page.users.add();
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.write(1);
                page.release(1)
            })
        };
        while !page.users.is_one() {
            thread::yield_now();
        }
        page.reuse();
        let freed = page.release(1);
        assert_eq!(freed + other.join().unwrap(), 1);
    });
}
