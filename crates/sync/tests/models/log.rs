use std::io;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sync::{Inbox, Notifier, log};

use crate::check;

/// Eventfd of a model.
#[derive(Debug, Default)]
struct Counter {
    count: Mutex<u64>,
    notified: Condvar,
}

impl Notifier for Counter {
    fn notify(&self) -> io::Result<()> {
        *self.count.lock().unwrap() += 1;
        self.notified.notify_one();
        Ok(())
    }

    fn wait(&self) -> io::Result<bool> {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.notified.wait(count).unwrap();
        }
        Ok(true)
    }

    fn clear(&self) {
        *self.count.lock().unwrap() = 0;
    }
}

type Log = std::sync::Arc<sync::Log<u32, u32, Counter>>;
type End = Inbox<u32, u32, Counter>;

/// Operation that owns a place for its reply.
type Reply = std::sync::Arc<()>;

fn shards<const N: usize>(room: usize) -> (Log, [End; N]) {
    let notifiers = (0..N).map(|_| Counter::default()).collect();
    let (log, inboxes) = log(notifiers, room);
    (log, inboxes.try_into().unwrap())
}

/// Sleep of a worker in its poll, as in `daemon::worker`: with no link that could wake it.
fn sleep(inbox: &End) {
    let woken = inbox.may_sleep() && inbox.notifier().wait().unwrap();
    inbox.wake_up(woken, false);
}

/// Operations that wait for a worker.
fn taken(inbox: &End) -> Vec<u32> {
    let (mut all, mut some) = (Vec::new(), Vec::new());
    while inbox.take(&mut some) {
        all.append(&mut some);
    }
    all
}

#[test]
fn worker_that_goes_to_sleep_gets_each_operation() {
    check(|| {
        let (log, [inbox]) = shards(1);
        let sender = thread::spawn(move || (1..3).for_each(|it| log.append(0, it).unwrap()));
        let mut got = Vec::new();
        while got.len() < 2 {
            sleep(&inbox);
            got.extend(taken(&inbox));
        }
        assert_eq!(got, [1, 2]);
        sender.join().unwrap();
    });
}

/// A caller that does not get the lock of a worker wakes it; one that gets it needs no worker.
#[test]
fn operation_is_taken_by_its_caller_or_by_the_worker() {
    const LAST: u32 = 9;
    check(|| {
        let (log, [inbox]) = shards(1);
        let worker = std::sync::Arc::new((Mutex::new(Vec::new()), inbox));
        let asleep = worker.clone();
        let caller = thread::spawn(move || {
            let (done, inbox) = &*asleep;
            let is_served = std::cell::Cell::new(false);
            let serve = |_| {
                let Ok(mut done) = done.try_lock() else { return false };
                done.extend(taken(inbox));
                is_served.set(true);
                true
            };
            log.append_served(0, 1, serve).unwrap();
            if is_served.get() {
                log.append(0, LAST).unwrap();
            }
        });
        let (done, inbox) = &*worker;
        let mut woken = false;
        loop {
            let mut all = done.lock().unwrap();
            inbox.wake_up(woken, false);
            let before = all.len();
            all.extend(taken(inbox));
            if all[before..] == [1] || all.contains(&LAST) {
                break;
            }
            let sleeps = inbox.may_sleep();
            drop(all);
            if sleeps {
                woken = inbox.notifier().wait().unwrap();
            } else {
                woken = false;
                thread::yield_now();
            }
        }
        caller.join().unwrap();
        assert!(matches!(done.lock().unwrap()[..], [1] | [1, LAST]));
    });
}

#[test]
fn worker_that_pauses_gets_each_operation() {
    check(|| {
        let (log, [inbox]) = shards(1);
        let senders = [1, 2].map(|it| {
            let log = log.clone();
            thread::spawn(move || log.append(0, it).unwrap())
        });
        let mut got = Vec::new();
        while got.len() < 2 {
            inbox.wait().unwrap();
            got.extend(taken(&inbox));
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn worker_that_goes_to_sleep_gets_packets_of_two_shards() {
    check(|| {
        let (_, [first, second, third]) = shards(2);
        let senders = [second, third].map(|sender| {
            thread::spawn(move || sender.hand_over(std::iter::once((0, 7)), |_| panic!("there is room")))
        });
        let mut got = 0;
        while got < 2 {
            sleep(&first);
            got += first.packets().count();
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn packet_is_taken_or_refused_if_the_queue_is_full() {
    check(|| {
        let (_, [first, second, third]) = shards(1);
        let senders = [second, third].map(|sender| {
            thread::spawn(move || {
                let mut refused = 0;
                sender.hand_over([(0, 7), (0, 8)].into_iter(), |_| refused += 1);
                refused
            })
        });
        let mut taken = first.packets().count();
        let refused: usize = senders.map(|sender| sender.join().unwrap()).into_iter().sum();
        taken += first.packets().count();
        assert_eq!(taken + refused, 4, "{refused} refused");
    });
}

#[test]
fn acknowledged_operation_comes_before_the_next_packet() {
    check(|| {
        let (log, [inbox]) = shards(1);
        let wire = Arc::new(AtomicBool::new(false));
        let received = Arc::clone(&wire);
        let client = thread::spawn(move || {
            log.append_quietly(std::iter::once(1), |it| it);
            // The client has its answer, and sends a packet.
            wire.store(true, Ordering::Release);
        });
        if received.load(Ordering::Acquire) {
            assert_eq!(taken(&inbox), [1]);
        }
        client.join().unwrap();
    });
}

#[test]
fn operation_of_a_shard_comes_before_packets_that_it_hands_over() {
    check(|| {
        let (log, [first, second]) = shards(1);
        let client = thread::spawn(move || log.append_all([1, 1], |_| false).unwrap());
        let sender = thread::spawn(move || {
            let has_applied = !taken(&second).is_empty();
            second.hand_over(std::iter::once((0, u32::from(has_applied))), |_| panic!("there is room"));
            // Its list stays open.
            second
        });
        let packet = first.packets().next();
        let operations = taken(&first);
        if packet == Some(1) {
            assert_eq!(operations, [1]);
        }
        client.join().unwrap();
        drop(sender.join().unwrap());
    });
}

#[test]
fn update_of_a_shard_comes_before_packets_that_follow_it() {
    check(|| {
        let (_, [first, second]) = shards(1);
        let sender = thread::spawn(move || {
            second.tell(&[5], |&it| it, |_| false);
            second.hand_over(std::iter::once((0, 7)), |_| panic!("there is room"));
        });
        let mut got = Vec::new();
        loop {
            sleep(&first);
            let packet = first.packets().next();
            got.extend(taken(&first));
            if packet.is_some() {
                break;
            }
        }
        assert_eq!(got, [5]);
        sender.join().unwrap();
    });
}

#[test]
fn operation_for_a_worker_that_ends_is_dropped_or_refused() {
    check(|| {
        let (log, inboxes) = log::<Reply, u32, _>(vec![Counter::default()], 1);
        let ending = thread::spawn(move || drop(inboxes));
        let reply = Reply::default();
        let appended = log.append(0, reply.clone());
        ending.join().unwrap();
        // The caller waits until the operation has replied or is dropped.
        assert_eq!(std::sync::Arc::strong_count(&reply), 1, "{appended:?}");
        assert!(log.append(0, reply).is_err());
    });
}

#[test]
fn thread_that_awaits_a_burst_is_woken_by_it() {
    check(|| {
        let (log, [inbox]) = shards(1);
        let waiting = thread::spawn(move || log.wait_for_burst(0));
        inbox.wake_up(false, true);
        waiting.join().unwrap();
    });
}
