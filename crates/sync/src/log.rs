//! Operations and packets that wait for workers.
//!
//! Each worker, a shard, has a list of operations that it has yet to apply, and all lists are appended to under one lock: an
//! operation of all shards is at the same place in each list. A packet that one shard hands to another is in the other's
//! queue, behind all operations that the first has applied before.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::bursts::Bursts;
use crate::doorbell::{Doorbell, Notifier};
use crate::primitives::{ArrayQueue, Mutex, lock};

/// Number of pending operations at which a sender that does not wake the worker does so after all.
const MANY: usize = 512;

/// Room for operations that an empty list keeps. Without a packet [some hundreds](MANY) come before they are taken.
const KEPT_ROOM: usize = 64;

/// Operations of a shard that wait.
#[derive(Debug)]
struct Pending<O> {
    list: Vec<O>,
    /// Whether the worker has ended.
    is_closed: bool,
}

/// Lists and queues of all shards, with a doorbell each.
#[derive(Debug)]
pub struct Log<O, P, N> {
    lists: Mutex<Vec<Pending<O>>>,
    /// Packets that other shards have handed over to each shard. No shard waits for room.
    packets: Vec<ArrayQueue<P>>,
    doorbells: Vec<Doorbell<N>>,
    bursts: Bursts,
}

/// A worker's end of the log. Its drop closes the worker's list.
#[derive(Debug)]
pub struct Inbox<O, P, N> {
    log: Arc<Log<O, P, N>>,
    /// Number of the shard.
    shard: usize,
}

/// Error: a worker has ended, or cannot be woken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker has ended")
    }
}

impl std::error::Error for Closed {}

/// A log of a shard for each of `notifiers`, at most 64, with room for `room` packets each; and the inboxes of the shards.
#[expect(clippy::type_complexity, reason = "a pair of the log and its inboxes")]
pub fn log<O, P, N: Notifier>(notifiers: Vec<N>, room: usize) -> (Arc<Log<O, P, N>>, Vec<Inbox<O, P, N>>) {
    let count = notifiers.len();
    assert!(count <= u64::BITS as usize, "{count} shards");
    let lists = Mutex::new((0..count).map(|_| Pending { list: Vec::new(), is_closed: false }).collect());
    let packets = (0..count).map(|_| ArrayQueue::new(room)).collect();
    let doorbells = notifiers.into_iter().map(Doorbell::new).collect();
    let log = Arc::new(Log { lists, packets, doorbells, bursts: Bursts::new() });
    let inboxes = (0..count).map(|shard| Inbox { log: Arc::clone(&log), shard }).collect();
    (log, inboxes)
}

impl<O, P, N: Notifier> Log<O, P, N> {
    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.doorbells.len()
    }

    /// Number of packets that wait for a shard; 0 for a shard that does not exist.
    pub fn queued(&self, shard: usize) -> usize {
        self.packets.get(shard).map_or(0, ArrayQueue::len)
    }

    /// Appends an operation to the list of a shard, whose worker wakes for it.
    ///
    /// # Errors
    /// The shard's worker has ended, or there is no such shard.
    pub fn append(&self, shard: usize, operation: O) -> Result<(), Closed> {
        self.append_served(shard, operation, |_| false)
    }

    /// As [`append`](Self::append). `serve` may [take](Inbox::take) the list of a shard in its sleeping worker's place; if it returns false,
    /// the worker wakes.
    ///
    /// # Errors
    /// As those of [`append`](Self::append).
    pub fn append_served(&self, shard: usize, operation: O, serve: impl Fn(usize) -> bool) -> Result<(), Closed> {
        self.push(&mut lock(&self.lists), shard, operation)?;
        if serve(shard) { Ok(()) } else { self.ring(shard) }
    }

    /// Appends an operation for each shard, in their order, at one place of the log. Workers wake for it, but those that `serve` has
    /// [served](Self::append_served).
    ///
    /// # Errors
    /// A worker has ended. Then no shard has its operation.
    pub fn append_all(
        &self,
        operations: impl IntoIterator<Item = O>,
        serve: impl Fn(usize) -> bool,
    ) -> Result<(), Closed> {
        {
            let mut lists = lock(&self.lists);
            if lists.iter().any(|pending| pending.is_closed) {
                return Err(Closed);
            }
            operations.into_iter().enumerate().try_for_each(|(shard, it)| self.push(&mut lists, shard, it))?;
        }
        (0..self.shards()).filter(|&shard| !serve(shard)).try_for_each(|shard| self.ring(shard))
    }

    /// Appends the last operation of each shard, by which its worker ends.
    ///
    /// # Errors
    /// A worker has ended already. The others get the operation.
    pub fn append_last(&self, operation: impl Fn() -> O) -> Result<(), Closed> {
        let pushed: Vec<Result<(), Closed>> = {
            let mut lists = lock(&self.lists);
            (0..self.shards()).map(|shard| self.push(&mut lists, shard, operation())).collect()
        };
        let rung: Vec<Result<(), Closed>> = (0..self.shards()).map(|shard| self.ring(shard)).collect();
        pushed.into_iter().chain(rung).collect()
    }

    /// Appends operations, made of `items`, to all lists, at one place of the log. No worker wakes for them: each applies
    /// them before it decides on the next packet. A worker with many of them is woken.
    pub fn append_quietly<T: Clone>(&self, items: impl Iterator<Item = T>, operation: impl Fn(T) -> O) {
        let mut lists = lock(&self.lists);
        for item in items {
            // A worker that has ended needs no changes.
            let open = lists.iter_mut().filter(|pending| !pending.is_closed);
            let copies = std::iter::repeat_n(item, self.shards());
            open.zip(copies).for_each(|(pending, item)| pending.list.push(operation(item)));
        }
        for (pending, doorbell) in lists.iter().zip(&self.doorbells) {
            if pending.list.is_empty() {
                continue;
            }
            doorbell.note_entry();
            if pending.list.len() >= MANY {
                // As above.
                let _ = doorbell.ring();
            }
        }
    }

    /// Number of times that packets have woken a worker; wraps.
    pub fn bursts(&self) -> u32 {
        self.bursts.count()
    }

    /// Sleeps until the number of [bursts](Self::bursts) differs from `seen`. The caller is not woken meanwhile.
    pub fn wait_for_burst(&self, seen: u32) {
        self.bursts.wait(seen);
    }

    /// Tells whether a thread [waits for a burst](Self::wait_for_burst), or is about to.
    pub fn is_burst_awaited(&self) -> bool {
        self.bursts.is_awaited()
    }

    /// Appends an operation to the list of a shard. The caller rings, without the lock.
    fn push(&self, lists: &mut [Pending<O>], shard: usize, operation: O) -> Result<(), Closed> {
        let pending = lists.get_mut(shard).filter(|pending| !pending.is_closed).ok_or(Closed)?;
        pending.list.push(operation);
        self.doorbells[shard].note_call();
        Ok(())
    }

    fn ring(&self, shard: usize) -> Result<(), Closed> {
        self.doorbells[shard].ring().map_err(|_| Closed)
    }
}

impl<O, P, N: Notifier> Inbox<O, P, N> {
    fn doorbell(&self) -> &Doorbell<N> {
        &self.log.doorbells[self.shard]
    }

    /// Notifier on which the worker sleeps.
    pub fn notifier(&self) -> &N {
        &self.doorbell().notifier
    }

    /// Makes senders ring from now on; false if operations to wake for, or packets of other shards, are queued already.
    /// [`wake_up`](Self::wake_up) ends this state.
    pub fn may_sleep(&self) -> bool {
        self.doorbell().may_sleep()
    }

    /// Packets that other shards have handed over so far, in the order of each. Operations that the senders had applied
    /// are in this shard's list by then: the worker [takes](Self::take) these before it decides on the packets.
    pub fn packets(&self) -> impl Iterator<Item = P> + '_ {
        let queue = &self.log.packets[self.shard];
        let most = if self.doorbell().take_packets() { queue.len() } else { 0 };
        (0..most).map_while(|_| queue.pop())
    }

    /// Hands packets over to shards, and calls `refuse` with those that a shard has no room for. Wakes workers that
    /// sleep.
    pub fn hand_over(&self, packets: impl Iterator<Item = (usize, P)>, mut refuse: impl FnMut(P)) {
        let mut to_ring = 0_u64;
        for (to, packet) in packets {
            match self.log.packets[to].push(packet) {
                Ok(()) => to_ring |= 1 << to,
                Err(packet) => refuse(packet),
            }
        }
        let doorbells = self.log.doorbells.iter().enumerate().filter(|(shard, _)| to_ring & 1 << shard != 0);
        for (_, doorbell) in doorbells {
            doorbell.note_packets();
            // A worker that has ended receives nothing, and the node ends with it.
            let _ = doorbell.ring();
        }
    }

    /// Appends operations to the lists of all other shards, which are made of `items`, and to this shard's own list those
    /// of items that are `for_all`. The others' workers wake for them.
    pub fn tell<T>(&self, items: &[T], operation: impl Fn(&T) -> O, for_all: impl Fn(&T) -> bool) {
        {
            let mut lists = lock(&self.log.lists);
            for shard in 0..self.log.shards() {
                for item in items.iter().filter(|item| shard != self.shard || for_all(item)) {
                    // A worker that has ended needs no changes.
                    let _ = self.log.push(&mut lists, shard, operation(item));
                }
            }
        }
        for shard in (0..self.log.shards()).filter(|&shard| shard != self.shard) {
            let _ = self.log.ring(shard);
        }
    }

    /// Makes senders stop ringing; `woken`: a sender has notified it; `packets`: there are packets to process.
    pub fn wake_up(&self, woken: bool, packets: bool) {
        if packets {
            self.log.bursts.add();
        }
        self.doorbell().wake_up();
        if woken {
            self.notifier().clear();
        }
    }

    /// Sleeps until there is an operation to wake for, or a sender has queued many others. Packets of other shards may
    /// wait.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&self) -> io::Result<()> {
        let woken = if self.doorbell().is_without_calls() { self.notifier().wait() } else { Ok(false) };
        self.wake_up(matches!(woken, Ok(true)), false);
        woken.map(drop)
    }

    /// Tells whether operations are queued.
    pub fn has_operations(&self) -> bool {
        self.doorbell().has_entry()
    }

    /// Exchanges the queued operations for `into`, which is empty and whose room is kept up to a limit. Returns whether there were any.
    pub fn take(&self, into: &mut Vec<O>) -> bool {
        if !self.has_operations() {
            return false;
        }
        into.shrink_to(KEPT_ROOM);
        let mut lists = lock(&self.log.lists);
        self.doorbell().note_empty();
        std::mem::swap(&mut lists[self.shard].list, into);
        true
    }
}

impl<O, P, N> Drop for Inbox<O, P, N> {
    /// Drops the operations that wait, whose callers then get no reply, and refuses further ones.
    fn drop(&mut self) {
        let left = {
            let pending = &mut lock(&self.log.lists)[self.shard];
            pending.is_closed = true;
            std::mem::take(&mut pending.list)
        };
        // Dropped without the lock: an operation may own a link.
        drop(left);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Silent;

    impl Notifier for Silent {
        fn notify(&self) -> io::Result<()> {
            Ok(())
        }

        fn wait(&self) -> io::Result<bool> {
            Ok(true)
        }

        fn clear(&self) {}
    }

    #[test]
    fn room_of_many_operations_is_given_back() {
        let (log, inboxes) = log::<u64, (), _>(vec![Silent], 1);
        let mut taken = Vec::new();
        for _ in 0..3 {
            log.append_quietly(0..5000, |item| item);
            assert!(inboxes[0].take(&mut taken));
            assert_eq!(taken.drain(..).count(), 5000);
        }
        log.append_quietly(0..1, |item| item);
        assert!(inboxes[0].take(&mut taken));
        let kept = lock(&log.lists)[0].list.capacity();
        assert!(taken.capacity() <= KEPT_ROOM && kept <= KEPT_ROOM, "{} and {kept}", taken.capacity());
    }
}
