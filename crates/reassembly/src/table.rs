//! The queues: found by key, and in the order in which they time out.

use base::Instant;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use wire::Version;

use crate::part::Key;
use crate::queue::Queue;

/// Where a queue is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueId(u32);

/// All queues. Each family's are in a list by age, which is also the order of their deadlines.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_key: HashMap<Key, QueueId, RandomState>,
    slots: Vec<Option<Slot>>,
    free: Vec<QueueId>,
    v4: Ages,
    v6: Ages,
}

#[derive(Debug)]
struct Slot {
    key: Key,
    deadline: Instant,
    older: Option<QueueId>,
    younger: Option<QueueId>,
    queue: Queue,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ages {
    oldest: Option<QueueId>,
    youngest: Option<QueueId>,
}

impl Table {
    /// Memory charged for a queue besides its fragments.
    pub(crate) const QUEUE_SIZE: usize = size_of::<Option<Slot>>() + size_of::<(Key, QueueId)>();

    /// How many queues there are.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The queue of `key`.
    pub(crate) fn find(&self, key: &Key) -> Option<QueueId> {
        self.by_key.get(key).copied()
    }

    /// A new queue, for a key that has none.
    pub(crate) fn insert(&mut self, key: Key, deadline: Instant) -> QueueId {
        let slot = Slot { key: key.clone(), deadline, older: None, younger: None, queue: Queue::default() };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id.0 as usize] = Some(slot);
                id
            }
            None => {
                self.slots.push(Some(slot));
                QueueId(self.slots.len() as u32 - 1)
            }
        };
        self.by_key.insert(key, id);
        self.link(id);
        id
    }

    /// Takes a queue out.
    pub(crate) fn remove(&mut self, id: QueueId) -> (Key, Queue) {
        self.unlink(id);
        let slot = self.slots[id.0 as usize].take().expect("an id is of a live queue");
        self.by_key.remove(&slot.key);
        self.free.push(id);
        (slot.key, slot.queue)
    }

    /// A queue.
    pub(crate) fn queue_mut(&mut self, id: QueueId) -> &mut Queue {
        &mut self.slot_mut(id).queue
    }

    /// Gives a queue another deadline, behind all others of its family.
    pub(crate) fn postpone(&mut self, id: QueueId, deadline: Instant) {
        self.unlink(id);
        self.slot_mut(id).deadline = deadline;
        self.link(id);
    }

    /// The queue that times out next, with its deadline.
    pub(crate) fn next(&self) -> Option<(QueueId, Instant)> {
        let oldest = [self.v4.oldest, self.v6.oldest].into_iter().flatten();
        oldest.map(|id| (id, self.slot(id).deadline)).min_by_key(|&(_, deadline)| deadline)
    }

    /// All queues, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.slots.iter().flatten().map(|slot| &slot.queue)
    }

    fn slot(&self, id: QueueId) -> &Slot {
        self.slots[id.0 as usize].as_ref().expect("an id is of a live queue")
    }

    fn slot_mut(&mut self, id: QueueId) -> &mut Slot {
        self.slots[id.0 as usize].as_mut().expect("an id is of a live queue")
    }

    /// A queue's family.
    pub(crate) fn version(&self, id: QueueId) -> Version {
        Version::of_addr(self.slot(id).key.src)
    }

    fn ages(&mut self, id: QueueId) -> &mut Ages {
        match self.version(id) {
            Version::V4 => &mut self.v4,
            Version::V6 => &mut self.v6,
        }
    }

    /// Makes a queue its family's youngest.
    fn link(&mut self, id: QueueId) {
        let ages = self.ages(id);
        let older = ages.youngest.replace(id);
        match older {
            Some(older) => self.slot_mut(older).younger = Some(id),
            None => ages.oldest = Some(id),
        }
        let slot = self.slot_mut(id);
        (slot.older, slot.younger) = (older, None);
    }

    fn unlink(&mut self, id: QueueId) {
        let Slot { older, younger, .. } = *self.slot(id);
        match older {
            Some(older) => self.slot_mut(older).younger = younger,
            None => self.ages(id).oldest = younger,
        }
        match younger {
            Some(younger) => self.slot_mut(younger).older = older,
            None => self.ages(id).youngest = older,
        }
    }
}
