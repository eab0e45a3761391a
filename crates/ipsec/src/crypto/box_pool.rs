//! Pool of boxed jobs: a job's address is stable while it goes from thread to thread.

use std::ops::{Deref, DerefMut};

/// Box with a job. Only the pointer moves when the job changes hands, also from one thread to another.
#[derive(Debug)]
pub(crate) struct PooledBox<J>(Box<Option<J>>);

/// Boxes kept for the next jobs.
#[derive(Debug)]
pub(crate) struct BoxPool<J> {
    spare: Vec<Box<Option<J>>>,
}

impl<J> Default for BoxPool<J> {
    fn default() -> Self {
        Self { spare: Vec::new() }
    }
}

impl<J> BoxPool<J> {
    /// Puts a job into a box.
    pub(crate) fn put(&mut self, job: J) -> PooledBox<J> {
        let mut empty = self.spare.pop().unwrap_or_default();
        *empty = Some(job);
        PooledBox(empty)
    }

    /// Takes a job out of its box, which is kept.
    pub(crate) fn take(&mut self, full: PooledBox<J>) -> J {
        let PooledBox(mut emptied) = full;
        let job = emptied.take().expect(THERE);
        self.spare.push(emptied);
        job
    }
}

const THERE: &str = "a job is in its box until it is taken out";

impl<J> Deref for PooledBox<J> {
    type Target = J;

    #[inline]
    fn deref(&self) -> &J {
        (*self.0).as_ref().expect(THERE)
    }
}

impl<J> DerefMut for PooledBox<J> {
    #[inline]
    fn deref_mut(&mut self) -> &mut J {
        (*self.0).as_mut().expect(THERE)
    }
}
