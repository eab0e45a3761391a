//! Pools: their limits, and the return of every page, by any thread and in any order.

use std::sync::Barrier;
use std::thread;

use packet::{Memory, Packet, Pool, PoolDry};

#[test]
fn a_bounded_pool_runs_dry_at_its_limit_and_counts_it() {
    let pool = Pool::bounded(512, 2);
    let (first, second) = (pool.take(0).unwrap(), pool.take(512).unwrap());
    assert_eq!((first.tailroom(), second.headroom(), second.tailroom()), (512, 512, 0));
    for dry in 1..=3 {
        assert_eq!(pool.take(0).map(|_| ()), Err(PoolDry));
        assert_eq!((pool.dry(), pool.in_use()), (dry, 2));
    }
    drop(first);
    assert_eq!(pool.in_use(), 1);
    let again = pool.take(0).unwrap();
    assert_eq!(pool.take(513).map(|_| ()), Err(PoolDry));
    assert_eq!(pool.dry(), 3, "headroom that no page has is not a dry pool");
    drop((second, again));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn the_page_that_came_home_last_goes_out_first() {
    let pool = Pool::heap(512);
    let addr = |buf: &packet::Buf| buf.bytes().as_ptr();
    let bufs: Vec<_> = (0..3).map(|_| pool.take(0).unwrap()).collect();
    let last = addr(&bufs[2]);
    drop(bufs);
    assert_eq!(addr(&pool.take(0).unwrap()), last);
}

#[test]
fn memory_is_taken_from_the_smallest_page_that_holds_it() {
    let mem = Memory::heap();
    let cases = [
        (0, 0, Some((1, 0))),
        (128, 1920, Some((1, 0))),
        (128, 1921, Some((0, 1))),
        (0, Memory::LARGE, Some((0, 1))),
        (1, Memory::LARGE, None),
        (usize::MAX, 1, None),
    ];
    for (headroom, room, want) in cases {
        let buf = mem.take(headroom, room);
        let in_use = buf.as_ref().ok().map(|buf| {
            assert!(buf.headroom() == headroom && buf.tailroom() >= room, "{buf:?}");
            (mem.small().in_use(), mem.large().in_use())
        });
        assert_eq!(in_use, want, "{headroom} and {room}");
    }
    assert_eq!((mem.small().dry(), mem.large().dry()), (0, 0));
}

#[test]
fn after_churn_every_page_is_home_and_none_was_made_beyond_need() {
    let mem = Memory::new(Pool::bounded(Memory::SMALL, 64), Pool::bounded(Memory::LARGE, 2));
    let mut alive = Vec::new();
    for round in 0..20_000usize {
        let len = if round % 5 == 0 { 30_000 } else { 100 + round % 1500 };
        if let Ok(packet) = Packet::with_data(&mem, &vec![1; len]) {
            alive.push(packet);
        }
        if let Some(clone) = alive.get_mut(round % 7).map(Packet::clone_shared) {
            alive.push(clone);
        }
        if alive.len() > 40 {
            alive.drain(..round % 40);
        }
    }
    assert!(mem.small().in_use() <= 64 && mem.large().in_use() <= 2);
    assert!(mem.large().dry() > 0, "never under pressure");
    drop(alive);
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
    let all: Vec<_> = (0..64).map(|_| mem.small().take(0)).collect();
    assert!(all.iter().all(Result::is_ok), "a page was lost");
}

#[test]
fn a_packet_may_end_on_another_thread() {
    let mem = Memory::new(Pool::bounded(Memory::SMALL, 8), Pool::heap(Memory::LARGE));
    for _ in 0..20 {
        let packets: Vec<_> = (0..8).map(|at| Packet::with_data(&mem, &[at; 100]).unwrap()).collect();
        assert!(Packet::with_data(&mem, &[0]).is_err());
        let read = thread::spawn(move || packets.iter().map(|packet| usize::from(packet.head()[99])).sum::<usize>());
        assert_eq!(read.join().unwrap(), 28);
        assert_eq!(mem.small().in_use(), 0);
    }
}

#[test]
fn page_dropped_by_two_threads_at_once_is_never_lost() {
    const ROUNDS: usize = 2_000;
    let mem = Memory::new(Pool::bounded(Memory::SMALL, 4), Pool::heap(Memory::LARGE));
    let barrier = Barrier::new(2);
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Packet>(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            for packet in receiver {
                barrier.wait();
                drop(packet);
                barrier.wait();
            }
        });
        for _ in 0..ROUNDS {
            let mut packet = Packet::with_data(&mem, b"both").expect("a page of four");
            sender.send(packet.clone_shared()).expect("the other thread");
            barrier.wait();
            drop(packet);
            barrier.wait();
            assert_eq!(mem.small().in_use(), 0);
        }
        drop(sender);
    });
    let all: Vec<_> = (0..4).map(|_| mem.small().take(0)).collect();
    assert!(all.iter().all(Result::is_ok), "a page was lost");
    assert_eq!(mem.small().dry(), 0);
}

#[test]
fn a_page_outlives_its_pool() {
    let mem = Memory::heap();
    let mut packet = Packet::with_data(&mem, b"still here").unwrap();
    let clone = packet.clone_shared();
    drop(mem);
    assert_eq!(packet.to_vec(), b"still here");
    drop(packet);
    assert_eq!(clone.to_vec(), b"still here");
    let other = Memory::heap();
    let mut clone = clone;
    clone.push(&other, 200).unwrap().fill(1);
    assert_eq!(clone.len(), 210);
}
