//! What is closed on another thread, as who has sent it says how long that takes: a socket with `SO_LINGER`, or a connection with
//! one in a datagram that nobody has read.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What is to be closed, by whose it is: each user waits for nobody else.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing(Arc<Mutex<HashMap<u32, Queue>>>);

/// What of one user is not closed yet.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    /// Whether a thread closes them, and is at one that is no longer here.
    is_served: bool,
}

impl Queue {
    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.is_served)
    }
}

impl Closing {
    fn queues(&self) -> MutexGuard<'_, HashMap<u32, Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of a user's are not closed yet.
    pub(super) fn of(&self, uid: u32) -> usize {
        self.queues().get(&uid).map_or(0, Queue::len)
    }

    /// How many are not closed yet; of each user no more than `most` count.
    pub(super) fn all(&self, most: usize) -> usize {
        self.queues().values().map(|queue| queue.len().min(most)).sum()
    }

    /// Has closed what a user has sent, or its connection. Where no thread can be started it stays open until the next.
    pub(super) fn close(&self, uid: u32, fds: impl IntoIterator<Item = OwnedFd>) {
        let mut queues = self.queues();
        let queue = queues.entry(uid).or_default();
        queue.waiting.extend(fds);
        if queue.is_served {
            return;
        }
        let closing = self.clone();
        match thread::Builder::new().name("close".to_owned()).spawn(move || closing.serve(uid)) {
            Ok(_) => queue.is_served = true,
            Err(err) => tracing::warn!(uid, "netlink: cannot start a thread that closes what was sent: {err}"),
        }
    }

    /// Closes a user's, one after the other, until there are no more.
    fn serve(&self, uid: u32) {
        loop {
            let mut queues = self.queues();
            let Some(fd) = queues.get_mut(&uid).and_then(|queue| queue.waiting.pop_front()) else {
                queues.remove(&uid);
                return;
            };
            drop(queues);
            drop(fd);
        }
    }
}
