//! Descriptor that the first of several threads makes.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::primitives::{AtomicI32, AtomicU64, yield_now};

/// Values in place of a descriptor: none yet; one thread makes it; it cannot be made.
const NONE: i32 = -1;
const STARTING: i32 = -2;
const IMPOSSIBLE: i32 = -3;

/// Descriptor that is made at its first use, and made again if something else has closed it.
#[derive(Debug)]
pub struct Starter {
    fd: AtomicI32,
    /// Inode number of what the descriptor was made for.
    inode: AtomicU64,
}

/// Reasons for which there is no descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotStarted {
    /// The next use tries again.
    Yet,
    /// No use tries again.
    Ever,
}

impl Starter {
    /// A starter without a descriptor.
    #[cfg(not(feature = "loom"))]
    pub const fn new() -> Self {
        Self { fd: AtomicI32::new(NONE), inode: AtomicU64::new(0) }
    }

    /// A starter without a descriptor.
    #[cfg(feature = "loom")]
    pub fn new() -> Self {
        Self { fd: AtomicI32::new(NONE), inode: AtomicU64::new(0) }
    }

    /// The descriptor. If there is none, or its inode number is not the one that it was made with, one of the threads
    /// makes another by `start`, which returns it with its inode number; the others wait.
    pub fn get(
        &self,
        inode_of: impl Fn(i32) -> Option<u64>,
        start: impl Fn() -> Result<(i32, u64), NotStarted>,
    ) -> Option<i32> {
        loop {
            match self.fd.load(Acquire) {
                IMPOSSIBLE => return None,
                STARTING => yield_now(),
                fd if fd >= 0 && self.is_made(fd, &inode_of) => return Some(fd),
                none => {
                    if self.fd.compare_exchange(none, STARTING, AcqRel, Relaxed).is_ok() {
                        return self.make(start);
                    }
                }
            }
        }
    }

    /// Takes the descriptor, if it is still the one that was made.
    pub fn take(&self, inode_of: impl Fn(i32) -> Option<u64>) -> Option<i32> {
        let fd = self.fd.swap(NONE, AcqRel);
        (fd >= 0 && self.is_made(fd, inode_of)).then_some(fd)
    }

    /// Makes a descriptor, as the only thread that does.
    fn make(&self, start: impl Fn() -> Result<(i32, u64), NotStarted>) -> Option<i32> {
        let started = start();
        let fd = match started {
            Ok((fd, inode)) => {
                // Before the descriptor, which other threads compare it with.
                self.inode.store(inode, Relaxed);
                fd
            }
            Err(NotStarted::Yet) => NONE,
            Err(NotStarted::Ever) => IMPOSSIBLE,
        };
        self.fd.store(fd, Release);
        started.is_ok().then_some(fd)
    }

    fn is_made(&self, fd: i32, inode_of: impl Fn(i32) -> Option<u64>) -> bool {
        inode_of(fd) == Some(self.inode.load(Relaxed))
    }
}

impl Default for Starter {
    fn default() -> Self {
        Self::new()
    }
}
