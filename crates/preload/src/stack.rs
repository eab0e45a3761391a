//! Lists on the stack, for functions that start programs: they must not allocate memory (signal-safety(7)).

use crate::errno::Errno;
use crate::program_memory::{List, Text};

/// Calls `then` with a list of `texts`, of which there are at most `count`.
///
/// # Errors
/// `E2BIG`: more than any program's arguments can be.
pub(crate) fn with_list<'a, T>(
    count: usize,
    texts: impl Iterator<Item = Text<'a>>,
    then: impl FnOnce(List<'_>) -> T,
) -> Result<T, Errno> {
    match count + 1 {
        0..=128 => Ok(room::<128, T>(texts, then)),
        129..=1024 => Ok(room::<1024, T>(texts, then)),
        1025..=8192 => Ok(room::<8192, T>(texts, then)),
        8193..=65_536 => Ok(room::<65_536, T>(texts, then)),
        _ => Err(Errno(libc::E2BIG)),
    }
}

/// Separate function, so that only as much of the stack is used as the list needs.
#[inline(never)]
fn room<'a, const N: usize, T>(texts: impl Iterator<Item = Text<'a>>, then: impl FnOnce(List<'_>) -> T) -> T {
    let mut room = [Text::NULL; N];
    room.iter_mut().zip(texts).for_each(|(to, text)| *to = text);
    then(List::new(&mut room))
}
