//! The back end: a port for a guest, whose front end connects to a socket of ours.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::{DropReason, ShardCount};
use driver::DriverKind;
use offload::Features;
use packet::{Memory, Packet};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use wire::MacAddr;

use crate::error::failed;
use crate::offloads::{BY_CONFIGURATION, Offloads};
use crate::sys::aio;
use crate::sys::discard::{self, Discarded};
use crate::sys::inspection::Inspector;
use crate::{Common, Layer, Link, OpenError, Sent};

use super::connection::{CONNECTION, Closed, Connection};
use super::device::{Device, Vrings, is_running, lock};
use super::features::{self, Bits};
use super::guest::{GuestState, QueueState};
use super::pace::Pace;
use super::pairs::{Pairs, Shared, size_of_ring};
use super::queues::MAX_PAIRS;

/// Limit of messages that one call handles.
const MAX_MESSAGES: usize = 64;

/// Tokens of the epoll instance.
const LISTENER: u64 = 0;
const AGAIN: u64 = 1;
const TIMER: u64 = 4;

/// Configuration of a port for a guest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VhostConfig {
    /// The link's name.
    pub name: String,
    /// Path of the socket that the front end connects to; made here, and removed with the link.
    pub socket: PathBuf,
    /// Maximum of queue pairs of the guest, from 1 to [`MAX_PAIRS`].
    pub pairs: u16,
    /// Bytes of memory that the front end may share; each page that a frame lies in is charged to this process.
    pub memory: u64,
    /// The link's own address.
    pub mac: MacAddr,
    /// The layer-3 MTU in bytes; `None` is 1500.
    pub mtu: Option<u16>,
    /// False offers the guest no checksum and no segmentation offload.
    pub offloads: bool,
}

impl VhostConfig {
    /// One pair of queues, with offloads, and 64 GiB of memory.
    pub fn new(name: &str, socket: &Path, mac: MacAddr) -> Self {
        Self {
            name: name.to_owned(),
            socket: socket.to_owned(),
            pairs: 1,
            memory: DriverKind::VHOST_MEMORY,
            mac,
            mtu: None,
            offloads: true,
        }
    }
}

/// A port for a guest.
#[derive(Debug)]
pub struct VhostUser {
    common: Common,
    pub(super) socket: PathBuf,
    /// Device and inode of the socket's file.
    file: Option<(u64, u64)>,
    mac: MacAddr,
    listener: Discarded<UnixListener>,
    /// Whether the listener is registered in the epoll instance.
    is_listening: bool,
    inspector: Inspector,
    /// Listener, connection, kicks, `again` and the timer of `pace`: the one descriptor that the link is polled by.
    waiting: Arc<OwnedFd>,
    connection: Option<Connection>,
    /// Whether there may be messages for which epoll reports no new edge.
    has_messages: bool,
    /// Limit of messages and connections.
    pace: Pace,
    pub(super) device: Arc<Mutex<Device>>,
    /// Negotiated features now.
    current: Features,
    negotiated: Option<Bits>,
    offered: bool,
    pairs: Pairs,
    connections: u64,
    violations: u64,
}

/// Pairs of queues of a guest's port that another shard than the first serves. The first one has the connection.
#[derive(Debug)]
pub(super) struct VhostPairs {
    common: Common,
    mac: MacAddr,
    /// Kicks and `again`: the one descriptor that the link is polled by.
    waiting: Arc<OwnedFd>,
    vrings: Vrings,
    current: Features,
    negotiated: Option<Bits>,
    offered: bool,
    pairs: Pairs,
}

/// Makes the socket and waits for a front end.
///
/// # Errors
/// The path cannot be bound, or a program listens there.
pub fn open(config: &VhostConfig) -> Result<VhostUser, OpenError> {
    open_shards(config, ShardCount::ONE).map(|(first, _)| first)
}

/// As [`open`], with a link for each shard: pairs of queues are dealt to the shards in turn. No link for a shard without a pair. The first
/// has the connection; without it, the others have no guest.
///
/// # Errors
/// As [`open`].
pub fn open_queues(config: &VhostConfig, shards: ShardCount) -> Result<Vec<Box<dyn Link>>, OpenError> {
    let (first, others) = open_shards(config, shards)?;
    let others = others.into_iter().map(|pairs| Box::new(pairs) as Box<dyn Link>);
    Ok(std::iter::once(Box::new(first) as Box<dyn Link>).chain(others).collect())
}

pub(super) fn open_shards(config: &VhostConfig, shards: ShardCount) -> Result<(VhostUser, Vec<VhostPairs>), OpenError> {
    let name = &config.name;
    let error = |call| move |err: io::Error| OpenError::new(name, call, err);
    if config.pairs == 0 || config.pairs > MAX_PAIRS {
        let text = format!("{} pairs of queues; from 1 to {MAX_PAIRS}", config.pairs);
        return Err(error("queues")(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    aio::context().map_err(error("io_setup"))?;
    discard::of_links();
    let listener = listen(&config.socket).map_err(|err| {
        let path = config.socket.display();
        let dir = config.socket.parent().unwrap_or(Path::new("/")).display().to_string();
        error("bind")(err)
            .with_hint(libc::ENOENT, format!("{path}: no directory; `install -d -m 700 {dir}` makes it"))
            .with_hint(libc::EACCES, format!("{path}: this user may not make a socket there"))
    })?;
    let shards = shards.get().min(config.pairs.into());
    let mut epolls = Vec::new();
    let mut events = Vec::new();
    for _ in 0..shards {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|err| error("epoll_create1")(err.into()))?;
        let again =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|err| error("eventfd")(err.into()))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&waiting, &again, epoll::EventData::new_u64(AGAIN), flags)
            .map_err(|err| error("epoll_ctl")(err.into()))?;
        epolls.push(Arc::new(waiting));
        events.push(again);
    }
    let wait = |fd: BorrowedFd<'_>, token, flags| {
        let added = epoll::add(&epolls[0], fd, epoll::EventData::new_u64(token), flags);
        added.map_err(|err| error("epoll_ctl")(err.into()))
    };
    wait(listener.as_fd(), LISTENER, epoll::EventFlags::IN)?;
    let pace = Pace::new().map_err(error("timerfd_create"))?;
    wait(pace.timer(), TIMER, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    let device = Device::new(Bits::offered(config.offloads), config.pairs.into(), config.memory, epolls.clone());
    let shared = Arc::new(Shared::new(events[0].try_clone().map_err(error("dup"))?));
    let of_shard = |(shard, again)| Pairs::new(&device.vrings, shard, shards, again, Arc::clone(&shared));
    let mut all = events.into_iter().enumerate().map(of_shard).collect::<Vec<_>>();
    let without_guest = || {
        let mut offloads = Offloads::EMPTY;
        let features = Bits::default().features(&mut offloads, NO_GUEST);
        (Common::new(name, config.mtu, offloads, features), features)
    };
    let others = all.drain(1..).zip(&epolls[1..]).map(|(pairs, waiting)| {
        let (common, current) = without_guest();
        VhostPairs {
            common,
            mac: config.mac,
            waiting: Arc::clone(waiting),
            vrings: Arc::clone(&device.vrings),
            current,
            negotiated: None,
            offered: config.offloads,
            pairs,
        }
    });
    let others = others.collect();
    let (common, current) = without_guest();
    let first = VhostUser {
        common,
        socket: config.socket.clone(),
        file: socket_file(&config.socket),
        mac: config.mac,
        listener: Discarded::new(listener),
        is_listening: true,
        inspector: Inspector::default(),
        waiting: Arc::clone(&epolls[0]),
        connection: None,
        has_messages: false,
        pace,
        device: Arc::new(Mutex::new(device)),
        current,
        negotiated: None,
        offered: config.offloads,
        pairs: all.remove(0),
        connections: 0,
        violations: 0,
    };
    Ok((first, others))
}

/// Reason that an offload is off without a front end.
const NO_GUEST: &str = "no guest";

/// Reason that an offload is off that the guest did not negotiate.
const NOT_NEGOTIATED: &str = "not negotiated by the guest";

/// Device and inode of the socket at a path; `None` if there is none, or another kind of file.
fn socket_file(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

/// Listens at a path; a stale socket there, without a listener, is replaced. A file of another kind stays.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(err) if err.kind() == io::ErrorKind::AddrInUse => {
            // connect(2) to a file that is not a socket is refused as well.
            let is_stale = |err: io::Error| err.kind() == io::ErrorKind::ConnectionRefused;
            if socket_file(path).is_none() || !UnixStream::connect(path).is_err_and(is_stale) {
                return Err(err);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Features and offloads after a negotiation.
fn negotiated_features(negotiated: Option<Bits>, is_offered: bool, offloads: &mut Offloads) -> Features {
    let unless = match negotiated {
        _ if !is_offered => BY_CONFIGURATION,
        Some(_) => NOT_NEGOTIATED,
        None => NO_GUEST,
    };
    negotiated.unwrap_or_default().features(offloads, unless)
}

impl VhostUser {
    /// State of the guest.
    pub fn guest(&self) -> GuestState {
        let device = lock(&self.device);
        let mut copied = 0;
        let queues = device.vrings.iter().map(|vring| {
            let vring = lock(vring);
            copied += vring.stats.copied;
            QueueState {
                running: vring.ring.is_some(),
                enabled: vring.enabled,
                size: size_of_ring(&vring),
                chains: vring.stats.chains,
                calls: vring.stats.calls,
                full: vring.stats.full,
            }
        });
        let queues = queues.collect();
        GuestState {
            connected: self.connection.is_some(),
            running: device.is_running(),
            features: features::names(device.features.unwrap_or_default().0).collect(),
            regions: device.memory.count(),
            queues,
            connections: self.connections,
            violations: self.violations,
            copied,
        }
    }

    /// Accepts a waiting front end, and handles the messages of the connected one.
    fn attend(&mut self) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; 16];
        let found = match epoll::wait(&*self.waiting, &mut events[..], Some(&Timespec::default())) {
            Ok((found, _)) => found,
            Err(_) => &mut [],
        };
        let mut may_accept = false;
        for event in found {
            match event.data.u64() {
                LISTENER => may_accept = true,
                CONNECTION => self.has_messages = true,
                AGAIN => self.has_messages |= self.connection.as_ref().is_some_and(Connection::is_inspecting),
                TIMER => self.has_messages |= self.connection.is_some(),
                _ => {}
            }
        }
        self.listen_again();
        if may_accept && self.connection.is_none() {
            self.accept();
        }
        if self.has_messages { self.handle_messages() } else { Ok(()) }
    }

    /// Accepts the next front end. The others wait in the backlog until it disconnects.
    #[cold]
    fn accept(&mut self) {
        if !self.pace.is_ready() {
            self.stop_listening();
            return;
        }
        self.pace.spend();
        let Ok((socket, _)) = self.listener.accept() else { return };
        // A failure means that memory or descriptors are exhausted; the front end sees a closed socket.
        let connection = self.pairs.again().and_then(|inspected| {
            Connection::new(socket, &self.device, &self.waiting, self.inspector.clone(), inspected)
        });
        if let Ok(connection) = connection {
            self.stop_listening();
            self.connection = Some(connection);
            self.connections += 1;
            self.has_messages = true;
        }
    }

    #[cold]
    fn handle_messages(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        for _ in 0..MAX_MESSAGES {
            let Some(connection) = &mut self.connection else { break };
            if !self.pace.is_ready() {
                self.has_messages = false;
                break;
            }
            match connection.handle_one() {
                Ok(true) => self.pace.spend(),
                Ok(false) => {
                    self.has_messages = false;
                    break;
                }
                Err(closed) => {
                    let is_reported = connection.has_sent() || matches!(closed, Closed::Refused(_));
                    let error = self.close(&closed);
                    outcome = if is_reported { Err(error) } else { Ok(()) };
                    break;
                }
            }
        }
        if self.has_messages {
            self.pairs.come_again();
        }
        self.see_features();
        outcome
    }

    /// Ends a connection, and waits for another front end.
    #[cold]
    fn close(&mut self, why: &Closed) -> io::Error {
        if let Some(connection) = self.connection.take() {
            connection.forget(&self.waiting);
        }
        self.listen_again();
        self.has_messages = false;
        lock(&self.device).disconnect();
        // Of the connection that has ended: other shards find no ring any more.
        self.pairs.shared.take_fault();
        self.see_features();
        match why {
            Closed::Gone => {
                let gone = io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the guest has shut down, or its front end has disconnected",
                );
                failed(&self.common.name, "vhost-user", &gone)
            }
            Closed::Refused(text) => {
                self.violations += 1;
                self.common.stats.rx_drop(DropReason::RingDescriptor);
                let refused = io::Error::new(io::ErrorKind::InvalidData, text.as_str());
                failed(&self.common.name, "vhost-user: connection closed", &refused)
            }
        }
    }

    /// Leaves further front ends in the backlog.
    fn stop_listening(&mut self) {
        let _ = epoll::delete(&*self.waiting, &*self.listener);
        self.is_listening = false;
    }

    /// Accepts front ends again after the last one has disconnected, once no thread holds descriptors of that one: the number of
    /// such threads is limited in this way. So is the [rate](Pace) of connections.
    fn listen_again(&mut self) {
        if !self.is_listening && self.connection.is_none() && !self.inspector.is_busy() && self.pace.is_ready() {
            let listener = epoll::EventData::new_u64(LISTENER);
            self.is_listening = epoll::add(&*self.waiting, &*self.listener, listener, epoll::EventFlags::IN).is_ok();
        }
    }

    /// Closes the connection if a shard has found a violation of the rules, or the guest's memory has gone away.
    fn look_for_faults(&mut self) -> io::Result<()> {
        match self.pairs.shared.take_fault() {
            Some(why) if self.connection.is_some() => Err(self.close(&Closed::Refused(why))),
            _ => Ok(()),
        }
    }

    /// Updates features and offloads after a negotiation.
    fn see_features(&mut self) {
        let negotiated = lock(&self.device).features;
        if negotiated == self.negotiated {
            return;
        }
        self.negotiated = negotiated;
        self.pairs.shared.set_features(negotiated);
        self.current = negotiated_features(negotiated, self.offered, &mut self.common.offloads);
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        // Links of other shards have the queues too.
        lock(&self.device).disconnect();
        self.pairs.shared.set_features(None);
        // Another program may have put a socket of its own there.
        if self.file.is_some() && socket_file(&self.socket) == self.file {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

impl Link for VhostUser {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        self.mac = mac;
        Ok(())
    }

    fn layer(&self) -> Layer {
        Layer::Ethernet(self.mac)
    }

    fn has_carrier(&self) -> bool {
        lock(&self.device).is_running()
    }

    fn guest(&self) -> Option<GuestState> {
        Some(Self::guest(self))
    }

    fn settle(&mut self, mem: &Memory) -> bool {
        self.pairs.settle(mem);
        false
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.waiting.as_fd()]
    }

    /// None: a guest that makes buffers available kicks, and [`poll_fds`](Link::poll_fds) includes the kicks.
    fn room_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        self.attend()?;
        if self.connection.is_none() {
            return Ok(());
        }
        self.pairs.receive(&mut self.common.stats, mem, out);
        self.look_for_faults()
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        if self.common.features != self.current {
            self.common.features = self.current;
            return Ok(Sent::Refit);
        }
        let sent = self.pairs.deliver(&mut self.common.stats, &self.current, burst);
        self.look_for_faults()?;
        Ok(sent)
    }
}

impl VhostPairs {
    /// Updates features and offloads after a negotiation.
    fn see_features(&mut self) {
        let negotiated = self.pairs.shared.features();
        if negotiated != self.negotiated {
            self.negotiated = negotiated;
            self.current = negotiated_features(negotiated, self.offered, &mut self.common.offloads);
        }
    }
}

impl Link for VhostPairs {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        self.mac = mac;
        Ok(())
    }

    fn layer(&self) -> Layer {
        Layer::Ethernet(self.mac)
    }

    fn has_carrier(&self) -> bool {
        is_running(&self.vrings)
    }

    fn settle(&mut self, mem: &Memory) -> bool {
        self.pairs.settle(mem);
        false
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.waiting.as_fd()]
    }

    /// None, as for the first shard.
    fn room_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Never fails: the first shard's link reports that the guest is gone.
    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        // Only takes the events, so that the next kick makes the descriptor readable again.
        let mut events = [const { MaybeUninit::uninit() }; 16];
        let _ = epoll::wait(&*self.waiting, &mut events[..], Some(&Timespec::default()));
        self.see_features();
        self.pairs.receive(&mut self.common.stats, mem, out);
        Ok(())
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        self.see_features();
        if self.common.features != self.current {
            self.common.features = self.current;
            return Ok(Sent::Refit);
        }
        Ok(self.pairs.deliver(&mut self.common.stats, &self.current, burst))
    }
}
