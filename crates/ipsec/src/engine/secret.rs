//! Key schedules of libraries that return them by value, and removal of the copies that this leaves on the stack.

use std::mem::MaybeUninit;

use zeroize::Zeroize;

/// Bytes of stack that [`wipe_stack`] zeroes. The constructors of the libraries have frames of some kilobytes, also
/// without optimisation.
const WIPED: usize = 64 << 10;

/// Zeroes the stack below the caller's frame, with the copies that the caller's last call left there.
#[inline(never)]
pub(super) fn wipe_stack() {
    let mut below = [0_u64; WIPED / 8];
    below.zeroize();
}

/// A value without drop glue or pointers to memory of its own, whose bytes are zeroed when it goes.
///
/// Invariant: the box is initialised from `new` to `drop`.
pub(super) struct Secret<T>(Box<MaybeUninit<T>>);

impl<T> Secret<T> {
    pub(super) fn new(value: T) -> Self {
        const { assert!(!std::mem::needs_drop::<T>()) }
        Self(Box::new(MaybeUninit::new(value)))
    }

    #[inline]
    pub(super) fn get(&self) -> &T {
        // SAFETY: initialised, by the invariant.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: the box is valid for writes of a `T`; nothing reads it as one again, this being its drop, and it has
        // no drop glue that would.
        unsafe { zeroize::zeroize_flat_type(&raw mut *self.0) }
    }
}
