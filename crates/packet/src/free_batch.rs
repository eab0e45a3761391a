//! Buffers that are freed in batches.

use crate::buf::Buf;

/// Batch of buffers that are freed together: pages of one pool return to it under one lock.
#[derive(Debug, Default)]
pub struct FreeBatch(Vec<Buf>);

impl FreeBatch {
    /// Maximum number of buffers in a batch.
    const MOST: usize = 32;

    /// Frees a buffer, no later than the next [`settle`](Self::settle).
    #[inline]
    pub fn add(&mut self, buf: Buf) {
        self.0.push(buf);
        if self.0.len() == Self::MOST {
            self.settle();
        }
    }

    /// Frees all buffers of the batch.
    #[inline]
    pub fn settle(&mut self) {
        if !self.0.is_empty() {
            Buf::drop_all(self.0.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Pool};

    #[test]
    fn pages_are_freed_in_batches_and_on_flush() {
        let (mem, other) = (Memory::heap(), Pool::heap(512));
        let mut batch = FreeBatch::default();
        for n in 1..=100 {
            batch.add(if n % 3 == 0 { other.take(0) } else { mem.small().take(0) }.unwrap());
            assert_eq!(mem.small().in_use() + other.in_use(), n % FreeBatch::MOST);
        }
        batch.settle();
        assert_eq!((mem.small().in_use(), other.in_use()), (0, 0));
    }
}
