//! Choices drawn from the bytes of a fuzzer or a seed.

/// Reader of bytes as choices; zeros after the end.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// Choices from `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Tells whether all bytes were read.
    pub const fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub const fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// The next two bytes.
    pub const fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// The next `n` bytes, or all remaining ones.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::from(self.byte()) % items.len()]
    }

    /// True with a chance of one in `n`.
    pub const fn once_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }
}
