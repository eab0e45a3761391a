use loom::sync::{Arc, Mutex};
use loom::thread;
use sync::{Connection, HasConnection};

use crate::check;

/// Slot with the connection alone.
#[derive(Debug)]
struct Slot(Connection);

impl HasConnection for Slot {
    fn connection(&self) -> &Connection {
        &self.0
    }
}

/// Process with two descriptors, and a table of `N` slots.
#[derive(Debug)]
struct Process<const N: usize> {
    table: sync::Table<Slot, 2, N>,
    /// Inode number of each open descriptor.
    kernel: Mutex<[Option<u64>; 2]>,
}

impl<const N: usize> Process<N> {
    fn new() -> Arc<Self> {
        let table = sync::Table::new(std::array::from_fn(|_| Slot(Connection::none())));
        Arc::new(Self { table, kernel: Mutex::new([None; 2]) })
    }

    fn inode_of(&self) -> impl Fn(i32) -> Option<u64> {
        |fd| self.kernel.lock().unwrap()[fd as usize]
    }

    fn set(&self, fd: i32, inode: Option<u64>) {
        self.kernel.lock().unwrap()[fd as usize] = inode;
    }

    /// Opens a connection and enters it. Returns its value; 0: the table is full.
    fn open(&self, fd: i32, inode: u64) -> u64 {
        self.set(fd, Some(inode));
        self.table.enter(fd, inode, self.inode_of(), |_| ()).map_or(0, |slot| slot.0.value())
    }

    /// Value of the connection that the table has for a descriptor.
    fn found(&self, fd: i32) -> Option<u64> {
        self.table.find(fd, self.inode_of()).map(|slot| slot.0.value())
    }

    fn sweep(&self) {
        self.table.sweep(self.inode_of());
    }

    /// Moves a connection to another descriptor.
    fn move_to(&self, from: i32, to: i32, inode: u64) {
        self.set(to, Some(inode));
        self.table.duplicated(from, to);
        self.set(from, None);
    }
}

/// Runs `first` on a thread beside `second`, on one process.
fn beside<const N: usize>(
    process: &Arc<Process<N>>,
    first: impl FnOnce(&Process<N>) + Send + 'static,
    second: impl FnOnce(&Process<N>),
) {
    let other = Arc::clone(process);
    let thread = thread::spawn(move || first(&other));
    second(process);
    thread.join().unwrap();
}

#[test]
fn connection_that_moves_during_a_sweep_stays() {
    for [from, to] in [[0, 1], [1, 0]] {
        check(move || {
            let process = Process::<1>::new();
            let value = process.open(from, 70);
            beside(&process, move |process| process.move_to(from, to, 70), Process::sweep);
            assert_eq!((process.found(from), process.found(to)), (None, Some(value)));
        });
    }
}

#[test]
fn connection_that_is_entered_during_a_sweep_stays() {
    check(|| {
        let process = Process::<1>::new();
        beside(&process, |process| assert_ne!(process.open(1, 70), 0), Process::sweep);
        assert!(process.found(1).is_some());
    });
}

#[test]
fn connections_of_two_threads_have_a_slot_each() {
    check(|| {
        let process = Process::<2>::new();
        beside(&process, |process| assert_ne!(process.open(0, 70), 0), |process| assert_ne!(process.open(1, 71), 0));
        let found = [0, 1].map(|fd| process.found(fd).expect("a slot"));
        assert!(found[0] != found[1], "{found:?}");
    });
}

#[test]
fn slot_that_is_reused_during_a_sweep_stays() {
    check(|| {
        let process = Process::<1>::new();
        let closed = process.open(0, 70);
        process.set(0, None);
        // The inode number recurs in the slot.
        beside(&process, |process| assert_ne!(process.open(1, 70), 0), Process::sweep);
        assert!(process.found(1).is_some_and(|value| value != closed));
    });
}

#[test]
fn slot_of_a_closed_connection_is_free_after_a_sweep() {
    check(|| {
        let process = Process::<1>::new();
        process.open(0, 70);
        beside(&process, |process| process.set(0, None), Process::sweep);
        process.sweep();
        assert_ne!(process.open(1, 71), 0);
    });
}
