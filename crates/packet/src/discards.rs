//! Buffers that are freed in batches.

use crate::buf::Buf;

/// Buffers that are let go of together: pages that go home to one pool do so under one lock.
#[derive(Debug, Default)]
pub struct Discards(Vec<Buf>);

impl Discards {
    /// Buffers that are collected before they are freed, at most.
    const MOST: usize = 32;

    /// Lets go of a buffer, at the latest when [`settle`](Self::settle) is called.
    #[inline]
    pub fn add(&mut self, buf: Buf) {
        self.0.push(buf);
        if self.0.len() == Self::MOST {
            self.settle();
        }
    }

    /// Lets go of all that waits.
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
    fn pages_go_home_in_batches_and_when_asked() {
        let (mem, other) = (Memory::heap(), Pool::heap(512));
        let mut discards = Discards::default();
        for n in 1..=100 {
            discards.add(if n % 3 == 0 { other.take(0) } else { mem.small().take(0) }.unwrap());
            assert_eq!(mem.small().in_use() + other.in_use(), n % Discards::MOST);
        }
        discards.settle();
        assert_eq!((mem.small().in_use(), other.in_use()), (0, 0));
    }
}
