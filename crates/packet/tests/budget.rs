//! The limit of a process's memory, in a program with the allocator that counts. One test, as the limit is the process's.

use std::cell::RefCell;
use std::thread;

use packet::{Allocations, Budget, Pool};

#[global_allocator]
static ALLOCATOR: Allocations = Allocations;

const MIB: u64 = 1 << 20;

/// Sets that `room` MiB are left.
fn leave(room: i64) {
    Budget::set(Allocations::live(), room << 20, format!("{room} MiB"));
}

fn refusal() -> Option<String> {
    Budget::admit().err().map(|refused| refused.to_string())
}

thread_local! {
    static OF_THREAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs threads to their ends, and frees what they have made.
fn threads_end(count: usize) {
    for _ in 0..count {
        let passed = [7_u8; 700];
        let made = thread::spawn(move || {
            OF_THREAD.set(vec![0; 900]);
            vec![passed[0]; 50_000]
        });
        drop(made.join().unwrap());
    }
    Allocations::settle();
}

#[test]
fn memory_above_the_limit_is_refused() {
    assert_eq!(refusal(), None, "there is no limit yet");

    // Requests leave the reserve, pools take it.
    leave(20);
    assert_eq!((refusal(), Budget::has_room_for(3 * MIB), Budget::has_room_for(5 * MIB)), (None, true, false));
    let small = vec![0_u8; 5 << 20];
    assert_eq!(refusal(), Some("20 MiB".to_owned()));
    drop(small);
    assert_eq!(refusal(), None);
    leave(15);
    assert_eq!(refusal(), Some("15 MiB".to_owned()));

    let pool = Pool::heap(64 << 10);
    let first = pool.take(0).expect("there is room for a page");
    let second = pool.take(0).expect("there is room for a page");
    drop(second);
    leave(0);
    let again = pool.take(0).expect("a page that was made before");
    assert!(pool.take(0).is_err(), "the limit is reached");
    assert_eq!((pool.dry(), pool.in_use()), (1, 2));
    let live = Allocations::live();
    drop((first, again));
    assert_eq!(pool.in_use(), 0);
    assert!(Allocations::live() + 64 * 1024 <= live, "pages that come back are freed");
    leave(100);
    let kept = pool.take(0).expect("there is room again");
    let live = Allocations::live();
    drop(kept);
    assert_eq!(Allocations::live(), live, "the page is kept for reuse");

    // A table of 10 MiB may grow to one of 20 beside it.
    leave(60);
    let table = vec![0_u8; 10 << 20];
    assert_eq!(Budget::for_growth(), 24 * MIB);
    assert!(Budget::has_room_for(8 * MIB) && !Budget::has_room_for(11 * MIB));
    drop(table);
    assert!(Budget::for_growth() == 0 && Budget::has_room_for(40 * MIB));

    // A thread that ends adds its remainder, with what is freed as it ends: its closure, and what its thread-local variables have.
    threads_end(1);
    let before = Allocations::live();
    threads_end(1000);
    let drift = Allocations::live().abs_diff(before);
    assert!(drift < 4096, "{drift} bytes");

    // The allocation that fails uses the address space in reserve, and requests are refused at once.
    leave(1000);
    assert!(Budget::keep_reserve());
    let none = Vec::<u8>::new().try_reserve(isize::MAX as usize);
    assert!(none.is_err());
    assert_eq!(refusal(), Some("1000 MiB".to_owned()));
    leave(1000);
    assert_eq!(refusal(), None);
    assert!(Budget::keep_reserve() && Budget::keep_reserve());
}
