//! The end of the gateway that replaces another one.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Instant, ShardCount};
use client::{CliError, Client};
use ctl::{Reply, Request};
use link::vhost::{PassedConnection, start_closing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::guests;
use super::held::{self, PassedLink};
use super::message::{FORMAT, Message, receive, send};
use crate::node::since_boot;

/// Longest time between two messages of the gateway before, which may write a large state.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longest wait for the end of a gateway that was killed: the kernel closes its descriptors one after the other.
const END_LIMIT: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };

/// Beginning of the answer to a request that a gateway does not know.
const NOT_UNDERSTOOD: &str = "request not understood";

/// A running gateway that this one replaces.
#[derive(Debug)]
pub(crate) struct EarlierGateway {
    channel: OwnedFd,
    /// Control socket of that gateway.
    socket: PathBuf,
    /// Process of that gateway.
    pid: u32,
    /// Number of its workers.
    pub(crate) workers: ShardCount,
    /// File of its state.
    pub(crate) state: Option<PathBuf>,
}

/// Remains of a gateway that has stopped.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Process of that gateway.
    pub(crate) pid: u32,
    /// Memory with its SAs.
    pub(crate) sas: Option<OwnedFd>,
    /// Time at which it has stopped.
    pub(crate) stopped: Instant,
}

impl EarlierGateway {
    /// Connects to the gateway `instance` with the control socket `socket`, and receives its links and sockets. It goes on.
    ///
    /// # Errors
    /// It does not run, or refuses.
    pub(crate) fn connect(instance: &str, socket: &Path) -> Result<Self, CliError> {
        let system = |what: &'static str| move |err: io::Error| CliError::system(what, &err);
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (channel, theirs) = pair.map_err(|err| system("socketpair")(err.into()))?;
        set_socket_timeout(&channel, Timeout::Recv, Some(PATIENCE)).map_err(|err| system("SO_RCVTIMEO")(err.into()))?;
        let mut client = Client::connect_at(instance, socket.to_owned())?;
        let answer = client.ask_with(&Request::Replace { format: FORMAT }, &[theirs.as_fd()]);
        drop(theirs);
        let reply = answer.map_err(|err| match err.message.starts_with(NOT_UNDERSTOOD) {
            true => CliError::failed(format!(
                "{instance}: the running gateway is of an earlier version, which cannot be replaced while it runs; restart it"
            )),
            false => CliError::failed(format!("{instance}: not replaced: {}", err.message)),
        })?;
        let Reply::Replacing { pid, workers, state } = reply else { return Err(client.confused()) };
        let workers = ShardCount::new(workers)
            .ok_or_else(|| CliError::failed(format!("{instance}: not replaced: it has {workers} workers")))?;
        let earlier = Self { channel, socket: socket.to_owned(), pid, workers, state: state.map(PathBuf::from) };
        earlier.receive_all().map_err(|err| CliError::failed(format!("{instance}: not replaced: {err}")))?;
        Ok(earlier)
    }

    fn receive_all(&self) -> io::Result<()> {
        let mut link: Option<PassedLink> = None;
        loop {
            let (message, descriptors) = self.next()?;
            match message {
                Message::Link { name, settings, resource, mtu, station, has_more } => {
                    let part = PassedLink { name, settings, resource, mtu, station, descriptors: Vec::new() };
                    let whole = link.get_or_insert(part);
                    whole.descriptors.extend(descriptors);
                    if !has_more && let Some(whole) = link.take() {
                        held::add_link(whole);
                    }
                }
                Message::Socket(socket) => {
                    descriptors.into_iter().take(1).for_each(|descriptor| held::add_socket(socket, descriptor));
                }
                Message::Passed => return Ok(()),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Asks the gateway before this one to stop, and takes its place. So it does if that one is killed: state and journal have all but
    /// SAs with a time limit. That gateway ends its host side unless the configuration of this one `has_host_side`.
    ///
    /// # Errors
    /// It goes on, or has failed.
    pub(crate) fn take_over(self, has_host_side: bool) -> Result<Taken, CliError> {
        let mut of_guests = Vec::new();
        let taken = send(&self.channel, &Message::TakeOver { has_host_side }, &[]);
        let taken = taken.and_then(|()| self.next_but_guests(&mut of_guests));
        let (message, descriptors) = match taken {
            Ok(taken) => taken,
            Err(err) => {
                // The numbers of the rings are not certain.
                of_guests.into_iter().for_each(PassedConnection::end);
                if self.was_killed(&err) {
                    tracing::warn!("process {} was killed before it handed over", self.pid);
                    held::release();
                    return Ok(Taken { pid: self.pid, sas: None, stopped: since_boot() });
                }
                return Err(CliError::failed(format!("not replaced: {err}")));
            }
        };
        match message {
            Message::Stopped { at } => {
                held::release();
                take_guests(of_guests);
                let (sas, stopped) = (descriptors.into_iter().next(), Instant::from_nanos(at));
                Ok(Taken { pid: self.pid, sas, stopped })
            }
            other => {
                of_guests.into_iter().for_each(PassedConnection::end);
                Err(CliError::failed(match other {
                    Message::GoesOn(why) => format!("not replaced, the gateway goes on: {why}"),
                    other => format!("not replaced: {}", unexpected(&other)),
                }))
            }
        }
    }

    /// The next message but for those of guests, whose descriptors are collected. If one of those cannot be received, such as for the limit
    /// of descriptors, all guests reconnect.
    fn next_but_guests(&self, of_guests: &mut Vec<OwnedFd>) -> io::Result<(Message, Vec<OwnedFd>)> {
        let mut are_lost = false;
        loop {
            match self.next() {
                Ok((Message::Guests, descriptors)) => {
                    start_closing();
                    of_guests.extend(descriptors);
                }
                // The gateway before has stopped, so the next one has to go on.
                Err(err) if err.kind() == ErrorKind::InvalidData => {
                    if !are_lost {
                        tracing::warn!("guests reconnect: their descriptors are not received: {err}");
                    }
                    are_lost = true;
                }
                other => return other,
            }
            if are_lost {
                of_guests.drain(..).for_each(PassedConnection::end);
            }
        }
    }

    /// Whether the gateway is over, and has left its control socket: it did not end in order. `err` is the error of the channel.
    fn was_killed(&self, err: &io::Error) -> bool {
        let is_closed =
            matches!(err.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        is_closed && has_ended(self.pid) && self.socket.exists()
    }

    fn next(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the running gateway has ended");
        receive(&self.channel)?.ok_or_else(ended)
    }
}

/// Keeps the connections of guests of these descriptors, of which the first is their table.
fn take_guests(descriptors: Vec<OwnedFd>) {
    match guests::with_all(descriptors) {
        Ok(guests) => guests.into_iter().for_each(held::add_guest),
        Err(why) => tracing::warn!("guests reconnect: {why}"),
    }
}

/// Waits for the end of a process. False: it has not ended within a moment.
fn has_ended(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&END_LIMIT)).is_ok_and(|ready| ready > 0),
        Err(err) => err == Errno::SRCH,
    }
}

fn unexpected(message: &Message) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{message:?} of the running gateway does not fit"))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn guests_not_received_are_closed_and_the_rest_is_read() {
        let (channel, before) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let workers = ShardCount::ONE;
        let earlier = EarlierGateway { channel, socket: PathBuf::new(), pid: 0, workers, state: None };
        let (guest, port) = UnixStream::pair().unwrap();
        let stopped = Message::Stopped { at: 7 };
        let sas = || [before.as_fd()];
        // All are received.
        send(&before, &Message::Guests, &[port.as_fd()]).unwrap();
        send(&before, &stopped, &sas()).unwrap();
        let mut of_guests = Vec::new();
        let (message, descriptors) = earlier.next_but_guests(&mut of_guests).unwrap();
        assert_eq!((message, descriptors.len(), of_guests.len()), (stopped.clone(), 1, 1));
        // Without a port there is a thread that closes them, so that no close waits.
        let is_there = || {
            let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
            names.any(|name| name == "discard-links\n")
        };
        // It names itself once it runs.
        assert!((0..1000).any(|_| is_there() || {
            std::thread::sleep(Duration::from_millis(5));
            false
        }));
        // The second message has more than its receiver has room for, as at the limit of descriptors.
        send(&before, &Message::Guests, &[port.as_fd()]).unwrap();
        let many = [port.as_fd(); 24];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(24))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = serde_json::to_vec(&Message::Guests).unwrap();
        sendmsg(&before, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
        send(&before, &Message::Guests, &[port.as_fd()]).unwrap();
        send(&before, &stopped, &sas()).unwrap();
        let mut of_guests = Vec::new();
        let (message, descriptors) = earlier.next_but_guests(&mut of_guests).unwrap();
        assert_eq!((message, descriptors.len(), of_guests.len()), (stopped, 1, 0));
        guest.set_nonblocking(true).unwrap();
        assert_eq!(io::Read::read(&mut &guest, &mut [0]).unwrap(), 0, "the guest's connection is closed");
    }
}
