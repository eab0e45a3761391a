//! Descriptors of a link, for which most kinds take capabilities.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Descriptors that the links of all shards are [made from](crate::from_descriptors).
#[derive(Debug, Default)]
pub struct Acquired {
    /// - TUN and TAP: the queues, at least one for each shard.
    /// - UDP: a socket for each shard, then the socket that keeps others out of their group, if there is one.
    /// - Packet sockets: a socket for each shard, then the BPF link of an exclusive one.
    /// - AF_XDP: the map of sockets, the BPF link of the program, a packet socket for each shard with a queue, and a socket for each queue.
    /// - Guests: none for a new port, else the listening socket.
    /// - Front ends: none.
    pub descriptors: Vec<OwnedFd>,
    /// Reason why the program of AF_XDP does not run in the driver, if that was tried.
    pub why_generic: Option<String>,
}

/// Duplicates of the descriptors of one shard's link, its part of an [`Acquired`].
#[derive(Debug)]
pub struct Duplicates {
    /// Descriptors that the shard has alone.
    own: Vec<OwnedFd>,
    /// The descriptor that all shards share, if there is one.
    shared: Option<OwnedFd>,
}

impl Duplicates {
    /// Duplicates the descriptors of a link.
    ///
    /// # Errors
    /// Error of fcntl(2).
    pub(crate) fn of<'a>(
        own: impl IntoIterator<Item = BorrowedFd<'a>>,
        shared: Option<BorrowedFd<'_>>,
    ) -> io::Result<Self> {
        let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        Ok(Self {
            own: own.into_iter().map(duplicate).collect::<io::Result<_>>()?,
            shared: shared.map(duplicate).transpose()?,
        })
    }
}

impl Acquired {
    /// Descriptors of all shards' links, in the order of the shards.
    pub fn of_shards(shards: Vec<Duplicates>) -> Self {
        let (mut own, mut shared) = (Vec::new(), None);
        for shard in shards {
            own.push(shard.own.into_iter());
            shared = shared.or(shard.shared);
        }
        // Queues were dealt to the shards in turn.
        let mut descriptors = Vec::new();
        loop {
            let before = descriptors.len();
            own.iter_mut().for_each(|queues| descriptors.extend(queues.next()));
            if descriptors.len() == before {
                descriptors.extend(shared);
                return descriptors.into();
            }
        }
    }
}

impl From<Vec<OwnedFd>> for Acquired {
    fn from(descriptors: Vec<OwnedFd>) -> Self {
        Self { descriptors, why_generic: None }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn descriptors_of_shards_are_in_the_order_of_queues() {
        let file = |number: u32| eventfd(number, EventfdFlags::CLOEXEC).unwrap();
        let files: Vec<OwnedFd> = (1..=6).map(file).collect();
        let fd = |number: usize| files[number - 1].as_fd();
        let first = Duplicates::of([fd(1), fd(3), fd(5)], Some(fd(6))).unwrap();
        let second = Duplicates::of([fd(2), fd(4)], Some(fd(6))).unwrap();
        let all = Acquired::of_shards(vec![first, second]).descriptors;
        assert!(all.iter().all(|one| files.iter().all(|file| file.as_raw_fd() != one.as_raw_fd())), "duplicates");
        let number = |fd: &OwnedFd| {
            let mut count = [0; 8];
            rustix::io::read(fd, &mut count).unwrap();
            u64::from_ne_bytes(count)
        };
        assert_eq!(all.iter().map(number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert!(Acquired::of_shards(Vec::new()).descriptors.is_empty());
    }
}
