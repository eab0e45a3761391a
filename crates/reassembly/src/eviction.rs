//! Intrusive lists of datagrams in the order of eviction and of timeout.

use crate::key::Key;
use crate::slab_map::{SlabId, SlabMap};

/// A queue's neighbours in a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListLinks {
    older: Option<SlabId>,
    pub(crate) younger: Option<SlabId>,
}

/// An entry of lists, which holds its neighbours in each list.
pub(crate) trait Linked {
    /// Neighbours in one list.
    fn links(&mut self, of: ListKind) -> &mut ListLinks;
}

/// List of queues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListKind {
    /// All queues, by timeout.
    Age,
    /// All queues of one progress, by the time of their last growth.
    All,
    /// The queues of one source and progress, by the time of their last growth.
    Source,
}

impl ListKind {
    /// Number of lists.
    pub(crate) const COUNT: usize = 3;
}

/// A list of queues, the oldest first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    pub(crate) oldest: Option<SlabId>,
    youngest: Option<SlabId>,
}

impl List {
    /// Appends a queue.
    pub(crate) fn push(&mut self, queues: &mut SlabMap<Key, impl Linked>, of: ListKind, id: SlabId) {
        let older = self.youngest.replace(id);
        match older {
            Some(older) => queues[older].links(of).younger = Some(id),
            None => self.oldest = Some(id),
        }
        *queues[id].links(of) = ListLinks { older, younger: None };
    }

    /// Removes a queue from the list.
    pub(crate) fn unlink(&mut self, queues: &mut SlabMap<Key, impl Linked>, of: ListKind, id: SlabId) {
        let ListLinks { older, younger } = *queues[id].links(of);
        match older {
            Some(older) => queues[older].links(of).younger = younger,
            None => self.oldest = younger,
        }
        match younger {
            Some(younger) => queues[younger].links(of).older = older,
            None => self.youngest = older,
        }
    }

    /// Moves a queue of the list to its end.
    pub(crate) fn refresh(&mut self, queues: &mut SlabMap<Key, impl Linked>, of: ListKind, id: SlabId) {
        if self.youngest != Some(id) {
            self.unlink(queues, of, id);
            self.push(queues, of, id);
        }
    }
}

/// Progress of a datagram.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Progress {
    /// One fragment has arrived, or later ones that added little length.
    #[default]
    New,
    /// Later fragments added much length.
    Growing,
}

/// Queues that share memory: all, or those of one source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EvictionLists {
    lists: [List; 2],
    charged: [usize; 2],
}

impl EvictionLists {
    /// The list of one progress.
    pub(crate) fn list(&mut self, progress: Progress) -> &mut List {
        &mut self.lists[progress as usize]
    }

    /// Memory charged to queues of one progress.
    pub(crate) fn charged_mut(&mut self, progress: Progress) -> &mut usize {
        &mut self.charged[progress as usize]
    }

    /// Memory charged to all queues.
    pub(crate) fn charged(&self) -> usize {
        self.charged[0] + self.charged[1]
    }

    /// Memory charged to queues of one progress.
    pub(crate) fn charged_to(&self, progress: Progress) -> usize {
        self.charged[progress as usize]
    }

    /// The queue of one progress that grew least recently.
    pub(crate) fn oldest(&self, progress: Progress) -> Option<SlabId> {
        self.lists[progress as usize].oldest
    }
}
