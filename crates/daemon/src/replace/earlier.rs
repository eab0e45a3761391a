//! The end of the gateway that replaces another one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Instant, ShardCount};
use client::{CliError, Client};
use ctl::{Reply, Request};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::held::{self, PassedLink};
use super::message::{FORMAT, Message, receive, send};

/// Longest time between two messages of the gateway before, which may write a large state.
const PATIENCE: Duration = Duration::from_secs(120);

/// Beginning of the answer to a request that a gateway does not know.
const NOT_UNDERSTOOD: &str = "request not understood";

/// A running gateway that this one replaces.
#[derive(Debug)]
pub(crate) struct EarlierGateway {
    channel: OwnedFd,
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
        let earlier = Self { channel, pid, workers, state: state.map(PathBuf::from) };
        earlier.receive_all().map_err(|err| CliError::failed(format!("{instance}: not replaced: {err}")))?;
        Ok(earlier)
    }

    fn receive_all(&self) -> io::Result<()> {
        let mut link: Option<PassedLink> = None;
        loop {
            let (message, descriptors) = self.next()?;
            match message {
                Message::Link { name, settings, resource, mtu, has_more } => {
                    let part = PassedLink { name, settings, resource, mtu, descriptors: Vec::new() };
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

    /// Asks the gateway before this one to stop, and takes its place.
    ///
    /// # Errors
    /// It goes on, or has failed.
    pub(crate) fn take_over(self) -> Result<Taken, CliError> {
        let taken = send(&self.channel, &Message::TakeOver, &[]).and_then(|()| self.next());
        let (message, descriptors) = taken.map_err(|err| CliError::failed(format!("not replaced: {err}")))?;
        match message {
            Message::Stopped { at } => {
                held::release();
                let (sas, stopped) = (descriptors.into_iter().next(), Instant::from_nanos(at));
                Ok(Taken { pid: self.pid, sas, stopped })
            }
            Message::GoesOn(why) => Err(CliError::failed(format!("not replaced, the gateway goes on: {why}"))),
            other => Err(CliError::failed(format!("not replaced: {}", unexpected(&other)))),
        }
    }

    fn next(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the running gateway has ended");
        receive(&self.channel)?.ok_or_else(ended)
    }
}

fn unexpected(message: &Message) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{message:?} of the running gateway does not fit"))
}
