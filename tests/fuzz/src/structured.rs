//! Values of plain types from the bytes of a fuzzer.

use arbitrary::{Arbitrary, Unstructured};

/// Value of a type that the bytes stand for, `None` if there are too few of them.
pub(crate) fn structured<'a, T: Arbitrary<'a>>(input: &'a [u8]) -> Option<T> {
    T::arbitrary_take_rest(Unstructured::new(input)).ok()
}
