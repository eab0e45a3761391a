//! Parts of a dump.

use crate::session::{Part, Progress};

/// Writes messages until one does not fit into the part, and sets `last` to the key of the last one written.
pub(super) fn write_each<K: Copy, T>(
    part: &mut Part<'_>,
    last: &mut Option<K>,
    mut items: impl Iterator<Item = (K, T)>,
    mut write: impl FnMut(&mut Part<'_>, K, T) -> bool,
) -> Progress {
    let full = items.any(|(key, item)| {
        let written = write(part, key, item);
        if written {
            *last = Some(key);
        }
        !written
    });
    if full { Progress::More } else { Progress::Done }
}
