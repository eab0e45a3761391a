//! A front end's connection as data: a process that gets it with its descriptors goes on where this one has stopped.
//!
//! Between two bursts all chains that were taken are used, and each message that was read is answered; a message that was not is
//! in the socket. So a connection is its settings, one index of each ring, and descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown, sockopt};
use serde::{Deserialize, Serialize};

use super::ring::Place;
use crate::sys::discard::{self, Discarded};

/// State of a connection, without its descriptors. It is checked when a port [takes it](super::VhostUser::take).
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionState {
    /// Whether the front end has asked for the features.
    pub(super) has_asked: bool,
    /// Negotiated features; `None` before negotiation.
    pub(super) features: Option<u64>,
    /// Negotiated protocol features.
    pub(super) protocol: u64,
    pub(super) regions: Vec<RegionState>,
    /// Queues by number, up to the last one with a setting.
    pub(super) queues: Vec<VringState>,
}

/// A region of the guest's memory.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionState {
    pub(super) guest_addr: u64,
    pub(super) user_addr: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Offset in the file.
    pub(super) offset: u64,
    /// Number of the file: regions may share one.
    pub(super) file: u8,
}

/// A queue.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VringState {
    /// Descriptors; 0 before the front end has set the number.
    pub(super) size: u16,
    pub(super) place: Option<Place>,
    /// The next element of the available ring to be taken.
    pub(super) next: u16,
    /// The next element of the used ring to be filled, of a ring that runs.
    pub(super) used: Option<u16>,
    pub(super) is_enabled: bool,
    /// Whether the front end has started the ring.
    pub(super) is_started: bool,
    /// Whether there is a descriptor for kicks.
    pub(super) has_kick: bool,
    /// Whether there is a descriptor for calls.
    pub(super) has_call: bool,
}

impl ConnectionState {
    /// Number of files of memory.
    pub(super) fn files(&self) -> usize {
        self.regions.iter().map(|region| usize::from(region.file) + 1).max().unwrap_or(0)
    }

    /// Number of descriptors, with the socket.
    fn descriptors(&self) -> usize {
        let eventfds = self.queues.iter().map(|queue| usize::from(queue.has_kick) + usize::from(queue.has_call));
        1 + self.files() + eventfds.sum::<usize>()
    }
}

/// A front end's connection for another process. Its socket is closed by an exiting thread, as unread messages may have descriptors.
#[derive(Debug)]
pub struct PassedConnection {
    /// State of the connection.
    pub state: ConnectionState,
    pub(super) socket: Discarded<UnixStream>,
    /// Files of memory, then descriptors for kicks and calls of each queue that has them.
    pub(super) others: Vec<OwnedFd>,
}

impl PassedConnection {
    /// A connection of another process, with its [descriptors](Self::descriptors) in their order; `None` without any. A port
    /// that [takes](super::VhostUser::take) it checks the rest.
    pub fn of_descriptors(state: ConnectionState, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let socket = Discarded::new(UnixStream::from(descriptors.next()?));
        Some(Self { state, socket, others: descriptors.collect() })
    }

    /// Descriptors: the socket, the files of the guest's memory, and for each queue those for kicks and for calls, if there are any.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.socket.as_fd()).chain(self.others.iter().map(AsFd::as_fd))
    }

    /// Closes the connection, also for processes that have duplicates of its socket: the front end connects anew.
    pub fn close(self) {
        end(&self.socket);
    }

    /// As [`close`](Self::close), with one of the descriptors: the socket, or another one, which has no effect.
    pub fn end(descriptor: OwnedFd) {
        end(&Discarded::new(UnixStream::from(descriptor)));
    }

    /// Checks that there are as many descriptors as the state has, and that the first is a connected socket.
    ///
    /// # Errors
    /// The reason why it is none that can be taken.
    pub(super) fn check(&self) -> Result<(), String> {
        let (found, want) = (self.others.len() + 1, self.state.descriptors());
        if found != want {
            return Err(format!("{found} descriptors of {want}"));
        }
        if is_connected(&self.socket) { Ok(()) } else { Err("its first descriptor is no connection".to_owned()) }
    }
}

/// Starts the thread that closes the sockets of connections. Until then the last close of one may wait.
pub fn start_closing() {
    discard::of_links();
}

/// Ends a connection for all processes. A descriptor of another kind stays as it is.
fn end(socket: &UnixStream) {
    if is_connected(socket) {
        let _ = shutdown(socket, Shutdown::Both);
    }
}

/// Tells whether a descriptor is a Unix stream socket that is connected, or was.
fn is_connected(socket: &UnixStream) -> bool {
    let is_unix = sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX);
    let is_stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    is_unix && is_stream && sockopt::socket_acceptconn(socket) == Ok(false)
}
