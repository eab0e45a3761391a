//! The log of operations: calls from other threads to the workers, which run them before their next packets and never
//! wait for the callers; and queues of packets that one worker hands over to another.
//!
//! A worker with its node is a shard. A change is at the same place in the lists of all shards ([`sync::Log`]), so nodes
//! that begin alike stay alike.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::{ShardCount, ShardId};
use datapath::{HandOver, Update};
use ila::MappingChange;
use netlink::rtnl::Delta;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use sync::{Closed, Notifier};

use super::node::{Node, Shards};

/// Longest time that a caller waits for a worker that is busy with a burst.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Entry of a shard's list.
pub(crate) enum Operation {
    /// Change of routes or addresses. The sender neither wakes the worker nor waits for it.
    Delta(Delta),
    /// Change of ILA mappings, in the same way.
    Mapping(MappingChange),
    /// Change that a shard has learnt from the network, or has caused.
    Update(Update),
    /// A function to run, which also sends the reply.
    Call(Box<dyn FnOnce(&mut Node) + Send>),
    /// Ends the worker.
    Stop,
}

/// Limit of packets that wait for a shard which other shards have handed them to.
const MOST_HANDED_OVER: usize = 1024;

/// Eventfd on which a worker sleeps.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

/// A worker's end of the log.
pub(crate) type Inbox = sync::Inbox<Operation, HandOver, EventFd>;

/// Handle of other threads to the workers.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    log: Arc<sync::Log<Operation, HandOver, EventFd>>,
    sleepers: Arc<OnceLock<Box<dyn Sleepers>>>,
}

/// Workers, as a thread that has an operation for them sees them.
pub(crate) trait Sleepers: fmt::Debug + Send + Sync {
    /// Does a turn of a worker that sleeps, on this thread; false if it does not sleep.
    fn serve(&self, shard: usize) -> bool;
}

/// Error: a worker has ended, or does not reply.
#[derive(Debug)]
pub(crate) struct WorkerGone;

impl fmt::Display for WorkerGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker does not answer; is the gateway ending?")
    }
}

impl From<Closed> for WorkerGone {
    fn from(_: Closed) -> Self {
        Self
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delta(delta) => f.debug_tuple("Delta").field(delta).finish(),
            Self::Mapping(change) => f.debug_tuple("Mapping").field(change).finish(),
            Self::Update(updates) => f.debug_tuple("Update").field(updates).finish(),
            Self::Call(_) => f.write_str("Call"),
            Self::Stop => f.write_str("Stop"),
        }
    }
}

/// Inboxes of the workers of `count` shards, and the handle to them.
pub(crate) fn channel(count: ShardCount) -> std::io::Result<(Handle, Vec<Inbox>)> {
    let notifiers = count.all().map(|_| EventFd::new()).collect::<Result<_, _>>()?;
    // A node of one shard has no other that hands packets over.
    let room = if count == ShardCount::ONE { 1 } else { MOST_HANDED_OVER };
    let (log, inboxes) = sync::log(notifiers, room);
    Ok((Handle { log, sleepers: Arc::default() }, inboxes))
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

impl EventFd {
    fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Notifier for EventFd {
    fn notify(&self) -> std::io::Result<()> {
        match rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
            // A full counter means that the worker has not taken earlier operations; it takes this one with them.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn wait(&self) -> std::io::Result<bool> {
        match rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn clear(&self) {
        let mut count = [0; 8];
        // A failed read means that no sender wrote to the eventfd.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl Handle {
    /// Number of shards.
    fn shards(&self) -> usize {
        self.log.shards()
    }

    /// Number of shards, for what opens a queue for each.
    pub(crate) fn count(&self) -> ShardCount {
        ShardCount::new(self.shards() as u8).unwrap_or(ShardCount::ONE)
    }

    /// All shards, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = ShardId> + use<> {
        self.count().all()
    }

    /// Whether packets wait that a shard has handed to another one.
    pub(crate) fn has_handed_over(&self) -> bool {
        (0..self.shards()).any(|shard| self.log.queued(shard) > 0)
    }

    /// Ends all workers, after the operations before.
    ///
    /// # Errors
    /// A worker has ended already; the others end.
    pub(crate) fn stop(&self) -> Result<(), WorkerGone> {
        Ok(self.log.append_last(|| Operation::Stop)?)
    }

    /// Queues changes that every worker applies before it decides on the next packet that comes in.
    pub(crate) fn queue_deltas(&self, deltas: impl Iterator<Item = Delta>) {
        self.log.append_quietly(deltas, Operation::Delta);
    }

    /// Queues a change of the ILA mappings, in the same way.
    pub(crate) fn queue_mapping(&self, change: MappingChange) {
        self.log.append_quietly(std::iter::once(change), Operation::Mapping);
    }

    /// Number of times that packets have woken a worker; wraps. A worker may sleep between two bursts of a stream,
    /// and a thread that busy-polls meanwhile delays the stream.
    pub(crate) fn bursts(&self) -> u32 {
        self.log.bursts()
    }

    /// Sleeps until the number of [bursts](Self::bursts) differs from `seen`. The caller is not woken meanwhile.
    pub(crate) fn wait_for_burst(&self, seen: u32) {
        self.log.wait_for_burst(seen);
    }

    /// Names the workers, of which callers serve those that sleep: a change costs no thread switch then.
    pub(crate) fn set_sleepers(&self, sleepers: Box<dyn Sleepers>) {
        let is_first = self.sleepers.set(sleepers).is_ok();
        debug_assert!(is_first, "the workers are named once");
    }

    /// Does a turn of a worker that sleeps.
    fn serve(&self, shard: usize) -> bool {
        self.sleepers.get().is_some_and(|sleepers| sleepers.serve(shard))
    }

    /// Runs a function on the first shard, and waits for the reply: for what all nodes have alike, and for what the first
    /// alone has.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.call_on(ShardId::FIRST, what)
    }

    /// As [`call`](Self::call), on any shard.
    pub(crate) fn call_on<T: Send + 'static>(
        &self,
        shard: ShardId,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        let (call, reply) = call(what);
        self.log.append_served(usize::from(shard.0), call, |shard| self.serve(shard))?;
        reply.recv_timeout(PATIENCE).map_err(|_| WorkerGone)
    }

    /// Sends a call to the first shard, whose worker wakes for it. The reply arrives on the receiver, which is disconnected if the worker ends.
    #[cfg(test)]
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
        let (call, reply) = call(what);
        self.log.append(usize::from(shard.0), call)?;
        Ok(reply)
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
        self.on_each(parts, patience, |shard| self.serve(shard))
    }

    /// As [`on_all`](Self::on_all). Workers that sleep wake, but those that `serve` has served: long changes are made by all at the same
    /// time.
    pub(crate) fn on_each<T: Send + 'static>(
        &self,
        parts: impl IntoIterator<Item = impl FnOnce(&mut Node) -> T + Send + 'static>,
        patience: Option<Duration>,
        serve: impl Fn(usize) -> bool,
    ) -> Result<Vec<T>, WorkerGone> {
        let limit = patience.map(|patience| Instant::now() + patience);
        let (sender, replies) = mpsc::sync_channel(self.shards());
        let call = |(shard, what): (usize, _)| operation(shard, what, sender.clone());
        let calls: Vec<Operation> = parts.into_iter().enumerate().map(call).collect();
        drop(sender);
        // Either all shards make a change, or none.
        self.log.append_all(calls, serve)?;
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
        self.log.queued(usize::from(shard.0))
    }

    fn run_on(&self, shard: ShardId, what: Box<dyn FnOnce(&mut Node) + Send>) {
        // A worker that has ended needs nothing.
        let _ = self.begin_on(shard, what);
    }
}

/// Operation that runs `what`, and the receiver of its reply.
fn call<T: Send + 'static>(what: impl FnOnce(&mut Node) -> T + Send + 'static) -> (Operation, Receiver<T>) {
    // Its place for the reply is allocated here, not on the worker.
    let (sender, receiver) = mpsc::sync_channel(1);
    // The send fails if the caller has timed out.
    (Operation::Call(Box::new(move |node| drop(sender.send(what(node))))), receiver)
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
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
        let mut node = Node::new(Poller::new(inbox.notifier()).unwrap());
        let (mut taken, mut operations) = (0, Vec::new());
        loop {
            inbox.wait().unwrap();
            while inbox.take(&mut operations) {
                for operation in operations.drain(..) {
                    match operation {
                        Operation::Call(call) => call(&mut node),
                        Operation::Delta(_) | Operation::Mapping(_) | Operation::Update(_) => continue,
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
                // As the worker's loop does: `wait` alone does not look for packets.
                match first.may_sleep() {
                    true => first.wait().unwrap(),
                    false => first.wake_up(false, false),
                }
                let packets = first.packets().count() as u32;
                counted.fetch_add(packets, Ordering::SeqCst);
            }
        });
        for (sent, packet) in handed_over(COUNT).into_iter().enumerate() {
            // For each packet: on a busy machine a wake-up takes a few milliseconds.
            let limit = Instant::now() + Duration::from_secs(20);
            second.hand_over(std::iter::once((0, packet)), |_| panic!("there is room"));
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
        let packets = handed_over(MOST_HANDED_OVER + 6).into_iter().map(|packet| (0, packet));
        second.hand_over(packets, |_| refused += 1);
        assert_eq!((refused, handle.queued(ShardId::FIRST)), (6, MOST_HANDED_OVER));
        assert_eq!(first.packets().count(), MOST_HANDED_OVER);
        assert_eq!((first.packets().count(), handle.queued(ShardId::FIRST)), (0, 0));
    }

    #[test]
    fn updates_are_in_the_lists_of_all_others_or_of_all() {
        let (_handle, [first, second, third]) = channels().unwrap();
        let path_mtu = Update::PathMtu { domain: Domain::DEFAULT, dst: [192, 0, 2, 1].into(), mtu: 1400 };
        let of_ipsec = Update::Ipsec(ipsec::SharedChange::LarvalEnded { seq: 1, is_reported: false });
        for (update, want) in [(path_mtu, [1, 0, 1]), (of_ipsec, [1, 1, 1])] {
            second.tell(&[update], |&update| Operation::Update(update), Update::is_for_all);
            let heard = |inbox: &Inbox| {
                let mut operations = Vec::new();
                inbox.take(&mut operations);
                operations.iter().filter(|it| matches!(it, Operation::Update(heard) if *heard == update)).count()
            };
            assert_eq!([&first, &second, &third].map(heard), want);
        }
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
        let is_rung = || rustix::event::poll(&mut [PollFd::new(inbox.notifier(), PollFlags::IN)], Some(&NOW)) == Ok(1);
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
        let is_rung = rustix::event::poll(&mut [PollFd::new(inbox.notifier(), PollFlags::IN)], Some(&NOW)) == Ok(1);
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
                while !handle.log.is_burst_awaited() {
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
