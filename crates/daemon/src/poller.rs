//! Epoll of the worker: readiness of its links and of its inbox.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use base::PortId;
use link::{HostLinks, Link};
use rustix::event::{Timespec, epoll};

/// The token of the inbox. A link's token is the link's number, and no link has number 0.
const INBOX: u64 = 0;

/// Bit that tokens of the host side's devices have in addition to the numbers of their links.
const HOST_DEVICE: u64 = 1 << 32;

/// The token of the key manager's socket. Links are numbered by 32 bits.
const IKE: u64 = u64::MAX;

/// The token of events of the host's interfaces.
const HOST: u64 = u64::MAX - 1;

/// Largest number of descriptors that one wait returns; the next wait returns others.
const MAX_READY: usize = 64;

/// A ready descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ready {
    /// A command is queued.
    Inbox,
    /// A message of a key manager is queued.
    Ike,
    /// An interface of the host has changed.
    Host,
    /// A link has packets or an error (`input`), or has room again (`room`).
    Link { id: PortId, input: bool, room: bool },
    /// The host side's device of a link is ready in the same ways.
    HostDevice { id: PortId, input: bool, room: bool },
}

impl From<epoll::Event> for Ready {
    fn from(epoll::Event { flags, data }: epoll::Event) -> Self {
        let error = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        let input = flags.intersects(epoll::EventFlags::IN | error);
        let room = flags.intersects(epoll::EventFlags::OUT | error);
        match data.u64() {
            INBOX => Self::Inbox,
            IKE => Self::Ike,
            HOST => Self::Host,
            token if token & HOST_DEVICE != 0 => Self::HostDevice { id: PortId(token as u32), input, room },
            token => Self::Link { id: PortId(token as u32), input, room },
        }
    }
}

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Arc<OwnedFd>,
    /// Results of the last wait.
    ready: Vec<Ready>,
}

impl Poller {
    /// An epoll instance with the descriptor `inbox`.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::Unsupported`] if it has no `epoll_pwait2`.
    pub(crate) fn new(inbox: impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inbox, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)?;
        let mut poller = Self { epoll: Arc::new(epoll), ready: Vec::with_capacity(MAX_READY) };
        poller.wait(Some(Duration::ZERO)).map_err(name_missing_call)?;
        Ok(poller)
    }

    /// Waits as [`Waiter::wait`] does.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let mut waiter = self.waiter();
        waiter.wait(limit)?;
        self.set_ready(&waiter);
        Ok(())
    }

    /// Part of the poller that waits, while other threads may have the rest.
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter { epoll: Arc::clone(&self.epoll), found: Vec::with_capacity(MAX_READY) }
    }

    /// Takes over the results of a wait.
    pub(crate) fn set_ready(&mut self, waited: &Waiter) {
        self.ready.clear();
        self.ready.extend(&waited.found);
    }

    /// Results of the last wait.
    pub(crate) fn ready(&self) -> impl Iterator<Item = Ready> + '_ {
        self.ready.iter().copied()
    }

    /// Adds a link.
    pub(crate) fn add(&self, id: PortId, link: &dyn Link) {
        self.add_token(id.0.into(), link);
    }

    /// Adds the host side's device of a link.
    pub(crate) fn add_host_device(&self, id: PortId, device: &dyn Link) {
        self.add_token(HOST_DEVICE | u64::from(id.0), device);
    }

    fn add_token(&self, token: u64, link: &dyn Link) {
        let data = epoll::EventData::new_u64(token);
        for fd in link.poll_fds() {
            log_failure(link, epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN));
        }
    }

    /// Adds the key manager's socket.
    pub(crate) fn add_ike(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(IKE), epoll::EventFlags::IN)?)
    }

    /// Adds the socket for events of the host's interfaces.
    pub(crate) fn add_host(&self, links: &HostLinks) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, links, epoll::EventData::new_u64(HOST), epoll::EventFlags::IN)?)
    }

    /// Sets whether to poll for room in the link.
    pub(crate) fn watch_room(&self, id: PortId, link: &dyn Link, watch: bool) {
        self.watch_room_of_token(id.0.into(), link, watch);
    }

    /// Sets whether to poll for room in the host side's device of a link.
    pub(crate) fn watch_room_of_host_device(&self, id: PortId, device: &dyn Link, watch: bool) {
        self.watch_room_of_token(HOST_DEVICE | u64::from(id.0), device, watch);
    }

    fn watch_room_of_token(&self, token: u64, link: &dyn Link, watch: bool) {
        let data = epoll::EventData::new_u64(token);
        let flags = if watch { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        for fd in link.room_fds() {
            log_failure(link, epoll::modify(&self.epoll, fd, data, flags));
        }
    }

    /// Removes a link.
    pub(crate) fn remove(&self, link: &dyn Link) {
        for fd in link.poll_fds() {
            log_failure(link, epoll::delete(&self.epoll, fd));
        }
    }
}

/// The waiting end of a [`Poller`].
#[derive(Debug)]
pub(crate) struct Waiter {
    epoll: Arc<OwnedFd>,
    found: Vec<Ready>,
}

impl Waiter {
    /// Waits until a descriptor is ready, at most for `limit`, which is not rounded: the deadline of a small token
    /// bucket is some microseconds away. A signal may end the wait earlier.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut events = [const { MaybeUninit::uninit() }; MAX_READY];
        self.found.clear();
        match epoll::wait(&self.epoll, &mut events[..], limit.as_ref()) {
            Ok((found, _)) => self.found.extend(found.iter().map(|event| Ready::from(*event))),
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
        Ok(())
    }
}

/// Names the call and the release that has it in the error of a system without the call, or with a filter that refuses it.
fn name_missing_call(err: io::Error) -> io::Error {
    match err.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            let text =
                format!("epoll_pwait2: {err}; needs Linux 5.11 and a container's filter that lets the call through");
            io::Error::new(io::ErrorKind::Unsupported, text)
        }
        _ => err,
    }
}

/// Logs a failure, which happens only when the system is out of memory; the link then moves no packets.
fn log_failure(link: &dyn Link, result: rustix::io::Result<()>) {
    if let Err(err) = result {
        let name = link.name();
        tracing::error!(link = name, reason = %err, "{name}: epoll: {err}");
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn wait_below_a_millisecond_is_not_rounded_up() {
        let inbox = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut poller = Poller::new(&inbox).unwrap();
        let waited = |poller: &mut Poller| {
            let start = std::time::Instant::now();
            poller.wait(Some(Duration::from_micros(100))).unwrap();
            start.elapsed()
        };
        // A busy machine delays some waits, and a rounded wait lasts a millisecond at least.
        let shortest = (0..100).map(|_| waited(&mut poller)).min().unwrap();
        assert!((Duration::from_micros(100)..Duration::from_millis(1)).contains(&shortest), "{shortest:?}");
    }

    #[test]
    fn missing_call_is_an_error_that_names_it() {
        let err = name_missing_call(rustix::io::Errno::NOSYS.into());
        assert!(err.to_string().starts_with("epoll_pwait2: ") && err.to_string().contains("Linux 5.11"), "{err}");
        assert_eq!(name_missing_call(rustix::io::Errno::NOMEM.into()).kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn a_link_is_waited_for_until_it_is_removed() {
        let inbox = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut poller = Poller::new(&inbox).unwrap();
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let kind = driver::DriverKind::Udp { bind: port };
        let config = link::Config { name: "wan".to_owned(), kind, mac: None, mtu: None, offloads: false, index: None };
        let wan = link::open(&config).unwrap();
        let found = |poller: &mut Poller| {
            poller.wait(Some(Duration::from_millis(20))).unwrap();
            poller.ready().collect::<Vec<_>>()
        };
        poller.add(PortId(7), &*wan);
        assert_eq!(found(&mut poller), []);
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", port).unwrap();
        assert_eq!(found(&mut poller), [Ready::Link { id: PortId(7), input: true, room: false }]);
        poller.watch_room(PortId(7), &*wan, true);
        assert_eq!(found(&mut poller), [Ready::Link { id: PortId(7), input: true, room: true }]);
        poller.watch_room(PortId(7), &*wan, false);
        poller.remove(&*wan);
        assert_eq!(found(&mut poller), []);
        rustix::io::write(&inbox, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(found(&mut poller), [Ready::Inbox]);
    }
}
