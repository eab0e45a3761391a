//! What is closed on threads of its own, as its sender says how long that takes: a socket with `SO_LINGER`, or a connection with
//! one in a datagram that nobody has read.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// How many closings of each user's are not through.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing(Arc<Mutex<HashMap<u32, usize>>>);

impl Closing {
    fn counts(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of a user's are not through.
    pub(super) fn of(&self, uid: u32) -> usize {
        self.counts().get(&uid).copied().unwrap_or_default()
    }

    /// How many are not through.
    pub(super) fn all(&self) -> usize {
        self.counts().values().sum()
    }

    /// Closes what a user has sent, or its connection.
    pub(super) fn close(&self, uid: u32, fds: Vec<OwnedFd>) {
        *self.counts().entry(uid).or_default() += 1;
        let fds = Arc::new(Mutex::new(fds));
        let (closing, closes) = (self.clone(), Arc::clone(&fds));
        let thread = thread::Builder::new().name("close".to_owned()).spawn(move || {
            drop(std::mem::take(&mut *closes.lock().unwrap_or_else(PoisonError::into_inner)));
            closing.end(uid);
        });
        if let Err(err) = thread {
            // They stay open, and count, rather than that everybody waits.
            tracing::warn!(uid, "netlink: cannot start a thread that closes what was sent: {err}");
            std::mem::forget(fds);
        }
    }

    fn end(&self, uid: u32) {
        let mut counts = self.counts();
        if let Some(count) = counts.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&uid);
            }
        }
    }
}
