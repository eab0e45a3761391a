//! The log of operations: calls from other threads to the workers, which run them before their next packets and never
//! wait for the callers; and queues of packets that one worker hands over to another.
//!
//! A worker with its node is a shard. Each shard has a list of operations that it has yet to apply, and all lists are
//! appended to under one lock: a change is at the same place in each of them, so nodes that begin alike stay alike.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{ShardCount, ShardId};
use crossbeam_queue::ArrayQueue;
use datapath::{HandOver, Update};
use netlink::rtnl::Delta;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::node::{Node, Shards};

/// Longest time that a caller waits for a worker that is busy with a burst.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Entry of a shard's list.
pub(crate) enum Operation {
    /// Change of routes or addresses. The sender neither wakes the worker nor waits for it.
    Delta(Delta),
    /// Change that a shard has learnt from the network, or has caused.
    Update(Update),
    /// A function to run, which also sends the reply.
    Call(Box<dyn FnOnce(&mut Node) + Send>),
    /// Ends the worker.
    Stop,
}

/// Number of pending operations at which a sender of changes wakes the worker.
const MANY_DELTAS: usize = 4096;

/// Limit of packets that wait for a shard which other shards have handed them to.
const MOST_HANDED_OVER: usize = 1024;

/// A shard's operations that wait.
#[derive(Debug, Default)]
struct Pending {
    list: Vec<Operation>,
    /// Whether the worker has ended.
    is_closed: bool,
}

/// Eventfd that wakes a worker. An awake worker checks for calls before it sleeps, so senders do not write to the
/// eventfd meanwhile.
#[derive(Debug)]
struct Doorbell {
    fd: OwnedFd,
    /// Whether the shard's list has an entry. Changed with the list's lock.
    has_any: AtomicBool,
    /// Whether the shard's list has an entry for which the worker wakes. Changed with the list's lock.
    has_calls: AtomicBool,
    /// Whether the shard's queue may have a packet.
    has_packets: AtomicBool,
    /// Whether the worker sleeps, or checks its inbox before it sleeps.
    asleep: AtomicBool,
}

/// Wake-ups by packets, of all workers.
#[derive(Debug, Default)]
struct Bursts {
    /// Number of times that packets have woken a worker; wraps.
    count: AtomicU32,
    /// Whether a thread sleeps until packets wake a worker.
    is_awaited: AtomicBool,
    /// Lock and wake-up of such threads.
    sleepers: (Mutex<()>, Condvar),
}

/// Lists of all shards, with a doorbell each.
#[derive(Debug)]
struct Log {
    lists: Mutex<Vec<Pending>>,
    /// Packets that other shards have handed over to each shard. No shard waits for room.
    packets: Vec<ArrayQueue<HandOver>>,
    doorbells: Vec<Doorbell>,
    bursts: Bursts,
}

/// Handle of other threads to the workers.
#[derive(Clone, Debug)]
pub(crate) struct Handle(Arc<Log>);

/// A worker's end of the log.
#[derive(Debug)]
pub(crate) struct Inbox {
    log: Arc<Log>,
    /// Number of the shard.
    shard: usize,
}

/// Error: a worker has ended, or does not reply.
#[derive(Debug)]
pub(crate) struct WorkerGone;

impl fmt::Display for WorkerGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker does not answer; is the gateway ending?")
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delta(delta) => f.debug_tuple("Delta").field(delta).finish(),
            Self::Update(updates) => f.debug_tuple("Update").field(updates).finish(),
            Self::Call(_) => f.write_str("Call"),
            Self::Stop => f.write_str("Stop"),
        }
    }
}

/// Inboxes of the workers of `count` shards, and the handle to them.
pub(crate) fn channel(count: ShardCount) -> std::io::Result<(Handle, Vec<Inbox>)> {
    let bell = |_| -> std::io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let [has_any, has_calls, has_packets, asleep] = [false; 4].map(AtomicBool::new);
        Ok(Doorbell { fd, has_any, has_calls, has_packets, asleep })
    };
    let doorbells = count.all().map(bell).collect::<Result<_, _>>()?;
    let lists = Mutex::new(count.all().map(|_| Pending::default()).collect());
    // A node of one shard has no other that hands packets over.
    let room = if count == ShardCount::ONE { 1 } else { MOST_HANDED_OVER };
    let packets = count.all().map(|_| ArrayQueue::new(room)).collect();
    let log = Arc::new(Log { lists, packets, doorbells, bursts: Bursts::default() });
    let inboxes = (0..count.get()).map(|shard| Inbox { log: Arc::clone(&log), shard }).collect();
    Ok((Handle(log), inboxes))
}

/// As [`channel`], for a test that names each inbox.
#[cfg(test)]
pub(crate) fn channels<const N: usize>() -> std::io::Result<(Handle, [Inbox; N])> {
    let count = ShardCount::new(N as u8).expect("a number of shards");
    let (handle, inboxes) = channel(count)?;
    Ok((handle, inboxes.try_into().expect("an inbox for each shard")))
}

/// Reply to a change that every shard makes alike: the first one, or the first refusal.
pub(crate) fn agreed<T, E>(first: Result<T, E>, other: Result<T, E>) -> Result<T, E> {
    match (first, other) {
        (Ok(first), Ok(_)) => Ok(first),
        (Err(refusal), _) | (Ok(_), Err(refusal)) => Err(refusal),
    }
}

/// Reply to a change that every shard makes alike, and that cannot be refused: the first one.
pub(crate) fn same<T>(first: T, _: T) -> T {
    first
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an operation to the list of a shard, whose worker wakes for it.
    fn push(&self, lists: &mut [Pending], shard: usize, operation: Operation) -> Result<(), WorkerGone> {
        let pending = lists.get_mut(shard).filter(|pending| !pending.is_closed).ok_or(WorkerGone)?;
        pending.list.push(operation);
        let bell = &self.doorbells[shard];
        bell.has_any.store(true, Ordering::Release);
        // Dekker pattern: with SeqCst this thread or the worker that is going to sleep sees the other's store.
        bell.has_calls.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl Doorbell {
    /// Wakes the worker, if it sleeps.
    fn ring(&self) -> Result<(), WorkerGone> {
        if !self.asleep.load(Ordering::SeqCst) {
            return Ok(());
        }
        match rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) {
            // A full counter means that the worker has not taken earlier operations; it takes this one with them.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(_) => Err(WorkerGone),
        }
    }
}

impl Handle {
    /// Number of shards.
    fn shards(&self) -> usize {
        self.0.doorbells.len()
    }

    /// Number of shards, for what opens a queue for each.
    pub(crate) fn count(&self) -> ShardCount {
        ShardCount::new(self.shards() as u8).unwrap_or(ShardCount::ONE)
    }

    /// All shards, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = ShardId> + use<> {
        self.count().all()
    }

    /// Ends all workers, after the operations before.
    ///
    /// # Errors
    /// A worker has ended already; the others end.
    pub(crate) fn stop(&self) -> Result<(), WorkerGone> {
        let pushed: Vec<Result<(), WorkerGone>> = {
            let mut lists = self.0.lock();
            (0..self.shards()).map(|shard| self.0.push(&mut lists, shard, Operation::Stop)).collect()
        };
        let rung = self.0.doorbells.iter().map(Doorbell::ring);
        pushed.into_iter().chain(rung.collect::<Vec<_>>()).collect()
    }

    /// Queues changes that every worker applies before it decides on the next packet that comes in.
    pub(crate) fn queue_deltas(&self, deltas: impl Iterator<Item = Delta>) {
        let mut lists = self.0.lock();
        for delta in deltas {
            // A worker that has ended needs no changes.
            let open = lists.iter_mut().filter(|pending| !pending.is_closed);
            let copies = std::iter::repeat_n(delta, self.shards());
            open.zip(copies).for_each(|(pending, delta)| pending.list.push(Operation::Delta(delta)));
        }
        for (pending, bell) in lists.iter().zip(&self.0.doorbells) {
            if pending.list.is_empty() {
                continue;
            }
            bell.has_any.store(true, Ordering::Release);
            if pending.list.len() >= MANY_DELTAS {
                // As above.
                let _ = bell.ring();
            }
        }
    }

    /// Number of times that packets have woken a worker; wraps. A worker may sleep between two bursts of a stream,
    /// and a thread that busy-polls meanwhile delays the stream.
    pub(crate) fn bursts(&self) -> u32 {
        self.0.bursts.count.load(Ordering::Relaxed)
    }

    /// Sleeps until the number of [bursts](Self::bursts) differs from `seen`. The caller is not woken meanwhile.
    pub(crate) fn wait_for_burst(&self, seen: u32) {
        let Bursts { count, is_awaited, sleepers: (lock, woken) } = &self.0.bursts;
        let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Dekker pattern: with SeqCst this thread sees the worker's new count, or the worker sees that it is awaited.
            is_awaited.store(true, Ordering::SeqCst);
            if count.load(Ordering::SeqCst) != seen {
                return;
            }
            guard = woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs a function on the first shard, and waits for the reply: for what all nodes have alike, and for what the first
    /// alone has.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.begin(what)?.recv_timeout(PATIENCE).map_err(|_| WorkerGone)
    }

    /// As [`call`](Self::call), on any shard.
    pub(crate) fn call_on<T: Send + 'static>(
        &self,
        shard: ShardId,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.begin_on(shard, what)?.recv_timeout(PATIENCE).map_err(|_| WorkerGone)
    }

    /// Sends a call to the first shard. The reply arrives on the receiver, which is disconnected if the worker ends.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<Receiver<T>, WorkerGone> {
        self.begin_on(ShardId::FIRST, what)
    }

    /// As [`begin`](Self::begin), to any shard.
    pub(crate) fn begin_on<T: Send + 'static>(
        &self,
        shard: ShardId,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<Receiver<T>, WorkerGone> {
        let shard = usize::from(shard.0);
        // Its place for the reply is allocated here, not on the worker.
        let (sender, receiver) = mpsc::sync_channel(1);
        // The send fails if the caller has timed out.
        let call = Operation::Call(Box::new(move |node| drop(sender.send(what(node)))));
        self.0.push(&mut self.0.lock(), shard, call)?;
        self.0.doorbells[shard].ring()?;
        Ok(receiver)
    }

    /// Runs a change on every shard, at one place of the log. Returns the reply that `reduce` makes of all replies, in the
    /// order of the shards.
    pub(crate) fn change<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Node) -> T + Clone + Send + 'static,
        reduce: fn(T, T) -> T,
    ) -> Result<T, WorkerGone> {
        let replies = self.on_all(std::iter::repeat_n(what, self.shards()), Some(PATIENCE))?;
        replies.into_iter().reduce(reduce).ok_or(WorkerGone)
    }

    /// Runs what changes nothing on every shard, and returns all replies, in the order of the shards.
    pub(crate) fn gather<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Node) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, WorkerGone> {
        self.on_all(std::iter::repeat_n(what, self.shards()), Some(PATIENCE))
    }

    /// Runs the parts of a change, one for each shard, at one place of the log. Returns the replies in the order of the shards; waits
    /// for them at most for `patience`.
    pub(crate) fn on_all<T: Send + 'static>(
        &self,
        parts: impl IntoIterator<Item = impl FnOnce(&mut Node) -> T + Send + 'static>,
        patience: Option<Duration>,
    ) -> Result<Vec<T>, WorkerGone> {
        let limit = patience.map(|patience| Instant::now() + patience);
        let (sender, replies) = mpsc::sync_channel(self.shards());
        let call = |(shard, what): (usize, _)| operation(shard, what, sender.clone());
        let calls: Vec<Operation> = parts.into_iter().enumerate().map(call).collect();
        drop(sender);
        {
            let mut lists = self.0.lock();
            // Either all shards make a change, or none.
            if lists.iter().any(|pending| pending.is_closed) {
                return Err(WorkerGone);
            }
            for (shard, call) in calls.into_iter().enumerate() {
                self.0.push(&mut lists, shard, call)?;
            }
        }
        self.0.doorbells.iter().try_for_each(Doorbell::ring)?;
        let reply = |_| match limit {
            Some(limit) => {
                replies.recv_timeout(limit.saturating_duration_since(Instant::now())).map_err(|_| WorkerGone)
            }
            None => replies.recv().map_err(|_| WorkerGone),
        };
        let mut replies = (0..self.shards()).map(reply).collect::<Result<Vec<(usize, T)>, _>>()?;
        replies.sort_unstable_by_key(|&(shard, _)| shard);
        Ok(replies.into_iter().map(|(_, reply)| reply).collect())
    }
}

impl Shards for Handle {
    fn count(&self) -> ShardCount {
        Self::count(self)
    }

    fn queued(&self, shard: ShardId) -> usize {
        self.0.packets.get(usize::from(shard.0)).map_or(0, ArrayQueue::len)
    }

    fn run_on(&self, shard: ShardId, what: Box<dyn FnOnce(&mut Node) + Send>) {
        // A worker that has ended needs nothing.
        let _ = self.begin_on(shard, what);
    }
}

/// Operation that runs `what` on a shard, and sends the reply with the shard's number.
fn operation<T: Send + 'static>(
    shard: usize,
    what: impl FnOnce(&mut Node) -> T + Send + 'static,
    sender: mpsc::SyncSender<(usize, T)>,
) -> Operation {
    // The send fails if the caller has timed out.
    Operation::Call(Box::new(move |node| drop(sender.send((shard, what(node))))))
}

impl Inbox {
    fn doorbell(&self) -> &Doorbell {
        &self.log.doorbells[self.shard]
    }

    /// Descriptor that the worker polls in addition to the links.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.doorbell().fd
    }

    /// Makes senders write to the eventfd from now on; false if calls or packets of other shards are queued already.
    /// [`wake_up`](Self::wake_up) ends this state.
    pub(crate) fn may_sleep(&self) -> bool {
        let bell = self.doorbell();
        bell.asleep.store(true, Ordering::SeqCst);
        !bell.has_calls.load(Ordering::SeqCst) && !bell.has_packets.load(Ordering::SeqCst)
    }

    /// Packets that other shards have handed over so far, in the order of each.
    pub(crate) fn packets(&self) -> impl Iterator<Item = HandOver> + '_ {
        let bell = self.doorbell();
        // Cleared before the queue is read: a packet that comes later sets it again.
        let has_any = bell.has_packets.load(Ordering::Relaxed) && bell.has_packets.swap(false, Ordering::SeqCst);
        let queue = &self.log.packets[self.shard];
        let most = if has_any { queue.len() } else { 0 };
        (0..most).map_while(|_| queue.pop())
    }

    /// Hands packets over to their owners, and calls `refuse` with those that an owner has no room for. Wakes workers that sleep.
    pub(crate) fn hand_over(&self, packets: impl Iterator<Item = HandOver>, mut refuse: impl FnMut(HandOver)) {
        let mut to_ring = 0_u64;
        for packet in packets {
            let to = usize::from(packet.to().0);
            match self.log.packets[to].push(packet) {
                Ok(()) => to_ring |= 1 << to,
                Err(packet) => refuse(packet),
            }
        }
        let bells = self.log.doorbells.iter().enumerate().filter(|(shard, _)| to_ring & 1 << shard != 0);
        for (_, bell) in bells {
            // Dekker pattern, as for calls.
            bell.has_packets.store(true, Ordering::SeqCst);
            // A worker that has ended receives nothing, and the node ends with it.
            let _ = bell.ring();
        }
    }

    /// Tells all other shards what this one has learnt, and itself what all make at one place of the log: each applies it before its
    /// next packet, like a change.
    pub(crate) fn tell(&self, updates: &[Update]) {
        {
            let mut lists = self.log.lock();
            for shard in 0..lists.len() {
                for &updates in updates.iter().filter(|update| shard != self.shard || update.is_for_all()) {
                    // As above.
                    let _ = self.log.push(&mut lists, shard, Operation::Update(updates));
                }
            }
        }
        let others = self.log.doorbells.iter().enumerate().filter(|(shard, _)| *shard != self.shard);
        others.for_each(|(_, bell)| drop(bell.ring()));
    }

    /// Makes senders stop writing to the eventfd; `woken`: a sender has written to it; `packets`: there are packets to
    /// process.
    pub(crate) fn wake_up(&self, woken: bool, packets: bool) {
        if packets {
            self.log.bursts.count.fetch_add(1, Ordering::SeqCst);
            if self.log.bursts.is_awaited.load(Ordering::SeqCst) {
                self.log.bursts.wake_sleepers();
            }
        }
        self.doorbell().asleep.store(false, Ordering::SeqCst);
        if woken {
            let mut count = [0; 8];
            // A failed read means that no sender wrote to the eventfd.
            let _ = rustix::io::read(&self.doorbell().fd, &mut count);
        }
    }

    /// Waits until a sender has sent a call, or queued many changes. Packets of other shards may wait.
    pub(crate) fn wait(&self) -> std::io::Result<()> {
        let bell = self.doorbell();
        bell.asleep.store(true, Ordering::SeqCst);
        let waited = match !bell.has_calls.load(Ordering::SeqCst) {
            true => rustix::event::poll(&mut [PollFd::new(&self.doorbell().fd, PollFlags::IN)], None),
            false => Ok(0),
        };
        self.wake_up(matches!(waited, Ok(1..)), false);
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether operations are queued.
    pub(crate) fn has_operations(&self) -> bool {
        self.doorbell().has_any.load(Ordering::Acquire)
    }

    /// Exchanges the queued operations for `into`, which is empty. Returns whether there were any.
    pub(crate) fn take(&self, into: &mut Vec<Operation>) -> bool {
        if !self.has_operations() {
            return false;
        }
        let mut lists = self.log.lock();
        self.doorbell().has_any.store(false, Ordering::Relaxed);
        self.doorbell().has_calls.store(false, Ordering::SeqCst);
        std::mem::swap(&mut lists[self.shard].list, into);
        true
    }
}

impl Drop for Inbox {
    /// Drops the operations that wait, whose callers then get no reply, and refuses further ones.
    fn drop(&mut self) {
        let left = {
            let pending = &mut self.log.lock()[self.shard];
            pending.is_closed = true;
            std::mem::take(&mut pending.list)
        };
        // Dropped without the lock: an operation may own a link.
        drop(left);
    }
}

impl Bursts {
    /// Wakes the threads that sleep until packets wake a worker.
    #[cold]
    fn wake_sleepers(&self) {
        let (lock, woken) = &self.sleepers;
        // A thread that holds the lock has yet to compare the counter, or is asleep when the lock is free.
        drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.is_awaited.store(false, Ordering::SeqCst);
        woken.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use base::{Domain, PortId};
    use datapath::{Datapath, PortConfig};
    use offload::Features;
    use packet::{Memory, Packet};
    use wire::MacAddr;

    use super::super::poller::Poller;
    use super::*;

    /// Applies operations until the stop operation; returns the number of calls.
    fn serve(inbox: &Inbox) -> usize {
        let mut node = Node::new(Poller::new(inbox.wake_fd()).unwrap());
        let (mut taken, mut operations) = (0, Vec::new());
        loop {
            inbox.wait().unwrap();
            while inbox.take(&mut operations) {
                for operation in operations.drain(..) {
                    match operation {
                        Operation::Call(call) => call(&mut node),
                        Operation::Delta(_) | Operation::Update(_) => continue,
                        Operation::Stop => return taken,
                    }
                    taken += 1;
                }
            }
        }
    }

    #[test]
    fn sleeping_worker_gets_all_calls() {
        const COUNT: usize = 20_000;
        let (handle, [inbox]) = channels().unwrap();
        let worker = thread::spawn(move || serve(&inbox));
        for _ in 0..COUNT {
            assert!(handle.call(|_| ()).is_ok());
        }
        handle.stop().unwrap();
        assert_eq!(worker.join().unwrap(), COUNT);
    }

    /// Packets that the second of two shards hands to the first: ARP of a link.
    fn handed_over(count: usize) -> Vec<HandOver> {
        let (mem, link) = (Memory::heap(), PortId(2));
        let mut node = Datapath::shards(ShardCount::new(2).unwrap()).pop().unwrap();
        let (name, mac) = ("eth0".to_owned(), Some(MacAddr([2, 0, 0, 0, 0, 1])));
        node.set_port(link, PortConfig { name, mac, mtu: 1500, features: Features::NONE, gro: false, esp_gro: false });
        let mut frame = [0xff; 42];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        frame[12..14].copy_from_slice(&[8, 6]);
        let mut burst = (0..count).map(|_| Packet::with_data(&mem, &frame).unwrap()).collect();
        node.handle_rx(base::Instant::ZERO, &mem, link, &mut burst);
        node.take_handed_over().collect()
    }

    #[test]
    fn sleeping_worker_gets_all_packets_of_others() {
        const COUNT: usize = 2000;
        let (_handle, [first, second]) = channels().unwrap();
        let taken = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&taken);
        let worker = thread::spawn(move || {
            while counted.load(Ordering::SeqCst) < COUNT as u32 {
                first.wait().unwrap();
                let packets = first.packets().count() as u32;
                counted.fetch_add(packets, Ordering::SeqCst);
            }
        });
        let limit = Instant::now() + Duration::from_secs(20);
        for (sent, packet) in handed_over(COUNT).into_iter().enumerate() {
            second.hand_over(std::iter::once(packet), |_| panic!("there is room"));
            // Half of the packets meet a worker that has gone to sleep.
            while sent % 2 == 0 && taken.load(Ordering::SeqCst) <= sent as u32 {
                assert!(Instant::now() < limit, "packet {sent} was not taken");
                thread::yield_now();
            }
        }
        worker.join().unwrap();
        assert_eq!(taken.load(Ordering::SeqCst), COUNT as u32);
    }

    #[test]
    fn full_queue_refuses_further_packets_and_keeps_their_order() {
        let (handle, [first, second]) = channels().unwrap();
        let mut refused = 0;
        second.hand_over(handed_over(MOST_HANDED_OVER + 6).into_iter(), |_| refused += 1);
        assert_eq!((refused, handle.queued(ShardId::FIRST)), (6, MOST_HANDED_OVER));
        assert_eq!(first.packets().count(), MOST_HANDED_OVER);
        assert_eq!((first.packets().count(), handle.queued(ShardId::FIRST)), (0, 0));
    }

    #[test]
    fn updates_are_in_the_lists_of_all_others() {
        let (_handle, [first, second, third]) = channels().unwrap();
        let updates = Update::PathMtu { domain: Domain::DEFAULT, dst: [192, 0, 2, 1].into(), mtu: 1400 };
        second.tell(&[updates]);
        let heard = |inbox: &Inbox| {
            let mut operations = Vec::new();
            inbox.take(&mut operations);
            operations.iter().filter(|it| matches!(it, Operation::Update(heard) if *heard == updates)).count()
        };
        assert_eq!([&first, &second, &third].map(heard), [1, 0, 1]);
    }

    #[test]
    fn call_runs_on_the_first_shard_and_change_on_all() {
        let (handle, inboxes) = channels::<3>().unwrap();
        let workers = inboxes.map(|inbox| thread::spawn(move || serve(&inbox)));
        let threads = workers.each_ref().map(|worker| worker.thread().id());
        let here = |_: &mut Node| vec![thread::current().id()];
        let all = |mut some: Vec<_>, others| {
            some.extend(others);
            some
        };
        assert_eq!(handle.call(here).unwrap(), threads[..1]);
        assert_eq!(handle.change(here, all).unwrap(), threads);
        handle.stop().unwrap();
        assert_eq!(workers.map(|worker| worker.join().unwrap()), [2, 1, 1]);
    }

    #[test]
    fn change_is_made_by_no_shard_if_one_has_ended() {
        let (handle, [first, second, third]) = channels().unwrap();
        let pending = handle.begin(|_| ()).unwrap();
        drop(first);
        assert!(pending.recv().is_err(), "the caller of a worker that ends is told");
        assert!(handle.change(|_| (), same).is_err() && handle.call(|_| ()).is_err());
        assert!(!second.has_operations() && !third.has_operations());
        assert!(handle.stop().is_err());
        assert!(second.has_operations() && third.has_operations(), "the others end");
    }

    #[test]
    fn agreed_reply_is_the_first_or_the_first_refusal() {
        let cases =
            [([Ok(1), Ok(2)], Ok(1)), ([Ok(1), Err(4)], Err(4)), ([Err(3), Ok(2)], Err(3)), ([Err(3), Err(4)], Err(3))];
        for ([first, other], want) in cases {
            assert_eq!(agreed(first, other), want);
        }
    }

    #[test]
    fn awake_worker_is_not_woken() {
        let (handle, [inbox]) = channels().unwrap();
        let is_rung = || rustix::event::poll(&mut [PollFd::new(inbox.wake_fd(), PollFlags::IN)], Some(&NOW)) == Ok(1);
        let taken = || {
            let mut operations = Vec::new();
            inbox.take(&mut operations) && matches!(operations[..], [Operation::Stop])
        };
        handle.stop().unwrap();
        assert!(!is_rung() && !inbox.may_sleep() && taken());
        inbox.wake_up(false, false);
        assert!(!taken() && inbox.may_sleep());
        handle.stop().unwrap();
        assert!(is_rung());
        inbox.wake_up(true, false);
        assert!(!is_rung() && taken());
    }

    #[test]
    fn changes_of_routes_wait_for_packets() {
        let (handle, [inbox]) = channels().unwrap();
        assert!(inbox.may_sleep());
        handle.queue_deltas([Delta::Domain(base::PortId(1), base::Domain::DEFAULT)].into_iter());
        let is_rung = rustix::event::poll(&mut [PollFd::new(inbox.wake_fd(), PollFlags::IN)], Some(&NOW)) == Ok(1);
        assert!(!is_rung && inbox.may_sleep() && inbox.has_operations());
    }

    #[test]
    fn only_packets_are_bursts() {
        let (handle, [inbox]) = channels().unwrap();
        for (woken, packets, bursts) in [(false, false, 0), (false, true, 1), (true, true, 2), (true, false, 2)] {
            assert!(inbox.may_sleep());
            inbox.wake_up(woken, packets);
            assert_eq!(handle.bursts(), bursts);
        }
    }

    #[test]
    fn thread_that_awaits_packets_sleeps_until_they_come() {
        let (handle, [inbox]) = channels().unwrap();
        let wakeups = AtomicU32::new(0);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                for seen in 0..3 {
                    handle.wait_for_burst(seen);
                    wakeups.fetch_add(1, Ordering::SeqCst);
                }
            });
            for burst in 0..3 {
                while !inbox.log.bursts.is_awaited.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                // Calls are no packets.
                inbox.wake_up(false, false);
                thread::sleep(Duration::from_millis(20));
                assert_eq!(wakeups.load(Ordering::SeqCst), burst);
                inbox.wake_up(false, true);
                while wakeups.load(Ordering::SeqCst) == burst {
                    thread::yield_now();
                }
            }
            sleeper.join().unwrap();
        });
        handle.wait_for_burst(2);
    }

    const NOW: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
}
