//! ClientPlaces of clients, such as connections and streams: a number in total, and of one user.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Limits of places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceLimits {
    /// Limit of all users together.
    pub(crate) all: usize,
    /// Limit of one user, which keeps users of the machine apart. A member of the socket's group may have further uids in a user
    /// namespace, so nothing but `all` bounds the gateway's costs.
    pub(crate) of_user: usize,
}

/// ClientPlaces of one kind.
#[derive(Debug)]
pub(crate) struct ClientPlaces {
    limits: PlaceLimits,
    /// Users of the places that are taken.
    taken: Mutex<Vec<u32>>,
    freed: Condvar,
}

/// A place that is taken. Drop frees it.
#[derive(Debug)]
pub(crate) struct TakenPlace {
    places: Arc<ClientPlaces>,
    user: u32,
}

/// Limit that leaves no place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NoPlace {
    /// So many places are taken by all users.
    OfAll(usize),
    /// So many places are taken by this user.
    OfUser(usize),
}

impl ClientPlaces {
    /// Free places.
    pub(crate) fn new(limits: PlaceLimits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default(), freed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_one(&self, taken: &[u32], user: u32) -> Result<(), NoPlace> {
        let PlaceLimits { all, of_user } = self.limits;
        if taken.iter().filter(|&&other| other == user).count() >= of_user {
            return Err(NoPlace::OfUser(of_user));
        }
        if taken.len() < all { Ok(()) } else { Err(NoPlace::OfAll(all)) }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn take(self: &Arc<Self>, user: u32) -> Result<TakenPlace, NoPlace> {
        let mut taken = self.lock();
        self.has_one(&taken, user)?;
        taken.push(user);
        Ok(TakenPlace { places: Arc::clone(self), user })
    }

    /// Waits for a place and takes it.
    pub(crate) fn wait(self: &Arc<Self>, user: u32) -> TakenPlace {
        let is_full = |taken: &mut Vec<u32>| self.has_one(taken, user).is_err();
        let mut taken = self.freed.wait_while(self.lock(), is_full).unwrap_or_else(PoisonError::into_inner);
        taken.push(user);
        TakenPlace { places: Arc::clone(self), user }
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(at) = taken.iter().position(|&user| user == self.user) {
            taken.swap_remove(at);
        }
        drop(taken);
        self.places.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn places_are_limited_in_total_and_by_user() {
        let places = ClientPlaces::new(PlaceLimits { all: 3, of_user: 2 });
        let [first, second] = [(), ()].map(|()| places.take(1).unwrap());
        assert_eq!(places.take(1).unwrap_err(), NoPlace::OfUser(2));
        let other = places.take(2).unwrap();
        assert_eq!(places.take(2).unwrap_err(), NoPlace::OfAll(3));
        drop(first);
        drop(places.take(1).unwrap());
        drop((second, other));
        assert!(places.lock().is_empty());
    }

    #[test]
    fn caller_waits_for_a_place_of_its_user() {
        let places = ClientPlaces::new(PlaceLimits { all: 2, of_user: 1 });
        let first = places.wait(1);
        let other = places.wait(2);
        thread::scope(|scope| {
            let waits = scope.spawn(|| drop(places.wait(1)));
            drop(other);
            drop(places.wait(2));
            assert!(!waits.is_finished());
            drop(first);
            waits.join().unwrap();
        });
    }
}
