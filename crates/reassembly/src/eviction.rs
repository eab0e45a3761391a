//! Lists of datagrams in the order of eviction and of timeout.

use crate::key::Key;
use crate::slab_map::{SlabId, SlabMap};

/// A queue's neighbours in a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListLinks {
    older: Option<SlabId>,
    pub(crate) younger: Option<SlabId>,
}

/// An entry of lists, which holds its neighbours in each of them.
pub(crate) trait Linked {
    /// Neighbours in one list.
    fn links(&mut self, of: ListKind) -> &mut ListLinks;
}

/// The lists that a queue is in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListKind {
    /// All, by when they time out.
    Age,
    /// All of one progress, by the time of the last one.
    All,
    /// Those of one source and progress, by the time of the last one.
    Source,
}

impl ListKind {
    /// Number of lists.
    pub(crate) const COUNT: usize = 3;
}

/// A list of queues. What is added is the youngest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    pub(crate) oldest: Option<SlabId>,
    youngest: Option<SlabId>,
}

impl List {
    /// Adds a queue.
    pub(crate) fn push(&mut self, queues: &mut SlabMap<Key, impl Linked>, of: ListKind, id: SlabId) {
        let older = self.youngest.replace(id);
        match older {
            Some(older) => queues[older].links(of).younger = Some(id),
            None => self.oldest = Some(id),
        }
        *queues[id].links(of) = ListLinks { older, younger: None };
    }

    /// Takes a queue out that is in the list.
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

    /// Makes a queue the youngest that is in the list.
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
    /// One fragment has come, and none since that made it much longer.
    #[default]
    New,
    /// More have come.
    Growing,
}

/// Queues that share memory: all, or those of one source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EvictionLists {
    lists: [List; 2],
    charged: [usize; 2],
}

impl EvictionLists {
    /// The list of one standing.
    pub(crate) fn list(&mut self, standing: Progress) -> &mut List {
        &mut self.lists[standing as usize]
    }

    /// The memory charged to queues of one standing.
    pub(crate) fn charged_mut(&mut self, standing: Progress) -> &mut usize {
        &mut self.charged[standing as usize]
    }

    /// The memory charged to all.
    pub(crate) fn charged(&self) -> usize {
        self.charged[0] + self.charged[1]
    }

    /// The memory charged to queues of one standing.
    pub(crate) fn charged_to(&self, standing: Progress) -> usize {
        self.charged[standing as usize]
    }

    /// The queue of one standing whose last progress is longest ago.
    pub(crate) fn oldest(&self, standing: Progress) -> Option<SlabId> {
        self.lists[standing as usize].oldest
    }
}
