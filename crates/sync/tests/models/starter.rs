use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use sync::{NotStarted, Starter};

use crate::check;

#[test]
fn one_thread_makes_the_descriptor_and_all_use_it() {
    check(|| {
        let starter = Arc::new(Starter::new());
        let made = Arc::new(AtomicUsize::new(0));
        let user = || {
            let (starter, made) = (Arc::clone(&starter), Arc::clone(&made));
            move || {
                let start = || {
                    made.fetch_add(1, Ordering::Relaxed);
                    Ok((5, 70))
                };
                starter.get(|fd| (fd == 5).then_some(70), start)
            }
        };
        let other = thread::spawn(user());
        assert_eq!([user()(), other.join().unwrap()], [Some(5); 2]);
        assert_eq!(made.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn descriptor_that_was_closed_is_made_again() {
    check(|| {
        let starter = Arc::new(Starter::new());
        // Inode number of the one descriptor; 0: closed.
        let open = Arc::new(Mutex::new(0));
        let user = || {
            let (starter, open) = (Arc::clone(&starter), Arc::clone(&open));
            move || {
                let inode_of = |_| Some(*open.lock().unwrap()).filter(|&inode| inode != 0);
                let start = || {
                    *open.lock().unwrap() = 70;
                    Ok((5, 70))
                };
                starter.get(inode_of, start)
            }
        };
        assert_eq!(user()(), Some(5));
        *open.lock().unwrap() = 0;
        let other = thread::spawn(user());
        assert_eq!([user()(), other.join().unwrap()], [Some(5); 2]);
    });
}

#[test]
fn thread_that_waits_is_told_of_a_failure() {
    check(|| {
        let starter = Arc::new(Starter::new());
        let user = |starter: Arc<Starter>| move || starter.get(|_| None, || Err(NotStarted::Ever));
        let other = thread::spawn(user(Arc::clone(&starter)));
        assert_eq!([user(starter)(), other.join().unwrap()], [None; 2]);
    });
}
