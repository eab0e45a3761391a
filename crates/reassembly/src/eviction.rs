//! Lists of queues by how long ago something happened to each.

use crate::cache::Waiting;
use crate::key::Key;
use crate::slab_map::{Id, Keyed};

/// A queue's neighbours in a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    older: Option<Id>,
    pub(crate) younger: Option<Id>,
}

/// The lists that a queue is in: each a place in its [`Waiting::links`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    /// All, by when they time out.
    Age,
    /// All of one standing, by progress.
    All,
    /// Those of one source and standing, by progress.
    Source,
}

impl Of {
    /// How many they are.
    pub(crate) const COUNT: usize = 3;
}

/// A list of queues. What is added is the youngest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    pub(crate) oldest: Option<Id>,
    youngest: Option<Id>,
}

impl List {
    /// Adds a queue.
    pub(crate) fn push(&mut self, queues: &mut Keyed<Key, Waiting>, of: Of, id: Id) {
        let older = self.youngest.replace(id);
        match older {
            Some(older) => queues[older].links[of as usize].younger = Some(id),
            None => self.oldest = Some(id),
        }
        queues[id].links[of as usize] = Links { older, younger: None };
    }

    /// Takes a queue out that is in the list.
    pub(crate) fn unlink(&mut self, queues: &mut Keyed<Key, Waiting>, of: Of, id: Id) {
        let Links { older, younger } = queues[id].links[of as usize];
        match older {
            Some(older) => queues[older].links[of as usize].younger = younger,
            None => self.oldest = younger,
        }
        match younger {
            Some(younger) => queues[younger].links[of as usize].older = older,
            None => self.youngest = older,
        }
    }

    /// Makes a queue the youngest that is in the list.
    pub(crate) fn refresh(&mut self, queues: &mut Keyed<Key, Waiting>, of: Of, id: Id) {
        if self.youngest != Some(id) {
            self.unlink(queues, of, id);
            self.push(queues, of, id);
        }
    }
}

/// How far a datagram has come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Standing {
    /// One fragment has come, and none since that made it much longer.
    #[default]
    New,
    /// More have come.
    Growing,
}

/// Queues that share memory: all, or those of one source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    lists: [List; 2],
    charged: [usize; 2],
}

impl Group {
    /// The list of one standing.
    pub(crate) fn list(&mut self, standing: Standing) -> &mut List {
        &mut self.lists[standing as usize]
    }

    /// The memory charged to queues of one standing.
    pub(crate) fn charged_mut(&mut self, standing: Standing) -> &mut usize {
        &mut self.charged[standing as usize]
    }

    /// The memory charged to all.
    pub(crate) fn charged(&self) -> usize {
        self.charged[0] + self.charged[1]
    }

    /// The memory charged to queues of one standing.
    pub(crate) fn charged_to(&self, standing: Standing) -> usize {
        self.charged[standing as usize]
    }

    /// The queue of one standing whose last progress is longest ago.
    pub(crate) fn oldest(&self, standing: Standing) -> Option<Id> {
        self.lists[standing as usize].oldest
    }
}
