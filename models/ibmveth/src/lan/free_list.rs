//! Posted receive buffers of an adapter.

use crate::descriptor::BufDesc;

/// Posted buffers of one size, the latest on top.
#[derive(Debug)]
pub(super) struct FreeList {
    size: usize,
    posted: Vec<Posted>,
}

/// A posted buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) address: u32,
    pub(super) correlator: u64,
}

impl FreeList {
    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Adds a buffer to the list of its size.
    pub(super) fn post(lists: &mut Vec<Self>, desc: BufDesc, correlator: u64) {
        let at = lists.binary_search_by_key(&desc.len(), |list| list.size).unwrap_or_else(|at| {
            lists.insert(at, Self { size: desc.len(), posted: Vec::new() });
            at
        });
        lists[at].posted.push(Posted { address: desc.address(), correlator });
    }

    /// Takes the smallest buffer of at least `len` bytes.
    pub(super) fn take(lists: &mut [Self], len: usize) -> Option<(usize, Posted)> {
        let list = lists.iter_mut().find(|list| list.size >= len && !list.posted.is_empty())?;
        Some((list.size, list.posted.pop()?))
    }
}
