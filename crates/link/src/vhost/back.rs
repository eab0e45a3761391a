//! The back end: a port for a guest, whose front end connects to a socket of ours.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::{DropReason, ShardCount};
use driver::DriverKind;
use packet::{Memory, Packet};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with, sockopt,
};
use wire::MacAddr;

use crate::error::failed;
use crate::opener::opener;
use crate::sys::aio;
use crate::sys::discard::{self, Discarded};
use crate::sys::inspection::Inspector;
use crate::{Common, Duplicates, Layer, Link, OpenError, Sent};

use super::connection::{CONNECTION, Closed, Connection};
use super::device::{Device, lock};
use super::features::{self, Bits};
use super::guest::{GuestState, QueueState};
use super::pace::Pace;
use super::pairs::{Negotiation, Pairs, Shared};
use super::passed::PassedConnection;
use super::queues::MAX_PAIRS;
use super::ring::Ring;

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
    /// Whether another process has the listener, and the socket's file: no front end is accepted, and the file stays.
    is_shared: bool,
    inspector: Inspector,
    /// Listener, connection, kicks, `again` and the timer of `pace`: the one descriptor that the link is polled by.
    waiting: Arc<OwnedFd>,
    connection: Option<Connection>,
    /// Whether there may be messages for which epoll reports no new edge.
    has_messages: bool,
    /// Limit of messages and connections.
    pace: Pace,
    pub(super) device: Arc<Mutex<Device>>,
    negotiation: Negotiation,
    pairs: Pairs,
    /// Whether the pairs by which the guest can receive have changed.
    has_changed: bool,
    connections: u64,
    violations: u64,
}

/// Pairs of queues of a guest's port that another shard than the first serves. The first one has the connection: its link fails when the
/// guest violates the rules or is gone, and no link of the others does.
#[derive(Debug)]
pub(super) struct VhostPairs {
    common: Common,
    mac: MacAddr,
    /// Kicks and `again`: the one descriptor that the link is polled by.
    waiting: Arc<OwnedFd>,
    negotiation: Negotiation,
    pairs: Pairs,
}

/// Makes the socket and waits for a front end.
///
/// # Errors
/// The path cannot be bound, or a program listens there.
pub fn open(config: &VhostConfig) -> Result<VhostUser, OpenError> {
    open_shards(config, ShardCount::ONE, None).map(|(first, _)| first)
}

/// As [`open`], with a link for each shard: pairs of queues are dealt to the shards in turn. No link for a shard without a pair. The first
/// has the connection; without it, the others have no guest. `descriptors`: none, or the listening socket of another process, from
/// which the first link [takes](VhostUser::take) the port.
///
/// # Errors
/// As [`open`]; the descriptor is no socket that listens at the path.
pub fn open_queues(
    config: &VhostConfig,
    shards: ShardCount,
    descriptors: Vec<OwnedFd>,
) -> Result<Vec<Box<dyn Link>>, OpenError> {
    if descriptors.len() > 1 {
        return Err(OpenError::wrong_descriptors(&config.name, descriptors.len(), shards));
    }
    let (first, others) = open_shards(config, shards, descriptors.into_iter().next())?;
    let others = others.into_iter().map(|pairs| Box::new(pairs) as Box<dyn Link>);
    Ok(std::iter::once(Box::new(first) as Box<dyn Link>).chain(others).collect())
}

pub(super) fn open_shards(
    config: &VhostConfig,
    shards: ShardCount,
    listener: Option<OwnedFd>,
) -> Result<(VhostUser, Vec<VhostPairs>), OpenError> {
    let name = &config.name;
    let error = |call| move |err: io::Error| OpenError::new(name, call, err);
    if config.pairs == 0 || config.pairs > MAX_PAIRS {
        let text = format!("{} pairs of queues; from 1 to {MAX_PAIRS}", config.pairs);
        return Err(error("queues")(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    aio::context().map_err(error("io_setup"))?;
    discard::of_links();
    let is_shared = listener.is_some();
    let listening = listener.map_or_else(|| listen(&config.socket), |passed| listener_at(passed, &config.socket));
    let (listener, file) = listening.map_err(|err| {
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
    if !is_shared {
        wait(listener.as_fd(), LISTENER, epoll::EventFlags::IN)?;
    }
    let pace = Pace::new().map_err(error("timerfd_create"))?;
    wait(pace.timer(), TIMER, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    let device = Device::new(Bits::offered(config.offloads), config.pairs.into(), config.memory, epolls.clone());
    let wakes = events.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>().map_err(error("dup"))?;
    let shared = Arc::new(Shared::new(wakes, config.pairs));
    let of_shard = |(shard, again)| Pairs::new(&device.vrings, shard, shards, again, Arc::clone(&shared));
    let mut all = events.into_iter().enumerate().map(of_shard).collect::<Vec<_>>();
    let without_guest = || {
        let (negotiation, offloads) = Negotiation::without_guest(config.offloads);
        (Common::new(name, config.mtu, offloads, negotiation.features()), negotiation)
    };
    let others = all.drain(1..).zip(&epolls[1..]).map(|(pairs, waiting)| {
        let (common, negotiation) = without_guest();
        VhostPairs { common, mac: config.mac, waiting: Arc::clone(waiting), negotiation, pairs }
    });
    let others = others.collect();
    let (common, negotiation) = without_guest();
    let first = VhostUser {
        common,
        socket: config.socket.clone(),
        file,
        mac: config.mac,
        listener: Discarded::new(listener),
        is_listening: !is_shared,
        is_shared,
        inspector: Inspector::default(),
        waiting: Arc::clone(&epolls[0]),
        connection: None,
        has_messages: false,
        pace,
        device: Arc::new(Mutex::new(device)),
        negotiation,
        pairs: all.remove(0),
        has_changed: false,
        connections: 0,
        violations: 0,
    };
    Ok((first, others))
}

/// Device and inode of the socket at a path; `None` if there is none, or another kind of file.
fn socket_file(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

/// Tells whether there is a socket at a path that no program listens at.
fn is_stale(path: &Path) -> bool {
    let probed = || {
        // A full queue of a listener is not waited for.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&probe, &SocketAddrUnix::new(path)?)
    };
    // connect(2) to a file that is not a socket is refused as well.
    socket_file(path).is_some() && probed() == Err(Errno::CONNREFUSED)
}

/// Listens at a path; a stale socket there, without a listener, is replaced. A file of another kind stays. Returns also the device and
/// inode of the socket's file.
fn listen(path: &Path) -> io::Result<(UnixListener, Option<(u64, u64)>)> {
    if let Some(opener) = opener() {
        let (listener, file) = opener.listen(path)?;
        let listener = UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        return Ok((listener, Some(file)));
    }
    let listener = match UnixListener::bind(path) {
        Err(err) if err.kind() == io::ErrorKind::AddrInUse => {
            if !is_stale(path) {
                return Err(err);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    Ok((listener, socket_file(path)))
}

/// Removes the socket's file with this device and inode, unless another program has put a socket of its own there.
fn remove_socket(path: &Path, file: (u64, u64)) -> io::Result<()> {
    match opener() {
        Some(opener) => opener.remove(path, file),
        None if socket_file(path) == Some(file) && is_stale(path) => std::fs::remove_file(path),
        None => Ok(()),
    }
}

/// The listening socket of another process, if it is one that listens at `path`, where its file still is. Returns also the device and
/// inode of that file.
fn listener_at(passed: OwnedFd, path: &Path) -> io::Result<(UnixListener, Option<(u64, u64)>)> {
    let is_listening = sockopt::socket_acceptconn(&passed)?;
    let listener = UnixListener::from(passed);
    let address = listener.local_addr()?;
    if !is_listening || address.as_pathname() != Some(path) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket of another process listens elsewhere"));
    }
    let Some(file) = adopted(path)? else {
        let text = "the file of the socket that another process has is gone";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    };
    listener.set_nonblocking(true)?;
    Ok((listener, Some(file)))
}

/// Device and inode of the socket at a path, which another process has made; `None` if there is none, or another kind of file.
fn adopted(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let Some(opener) = opener() else { return Ok(socket_file(path)) };
    match opener.adopt(path).map(Some) {
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTSOCK)) => Ok(None),
        adopted => adopted,
    }
}

/// Path at which a descriptor listens for connections; `None` for another kind of descriptor.
pub fn listening_path(descriptor: &OwnedFd) -> Option<PathBuf> {
    let is_unix = sockopt::socket_domain(descriptor) == Ok(AddressFamily::UNIX);
    if !is_unix || sockopt::socket_acceptconn(descriptor) != Ok(true) {
        return None;
    }
    // The close of a duplicate is not the last one.
    let address = UnixListener::from(descriptor.try_clone().ok()?).local_addr().ok()?;
    address.as_pathname().map(Path::to_owned)
}

/// A socket for guests that no process listens at any more. Its file is there still.
#[derive(Debug)]
pub struct EndedListener {
    listener: Discarded<UnixListener>,
}

/// Ends the listening of a socket, also in processes that have duplicates of it. Another kind of descriptor is closed. Starts no thread.
pub fn end_listening(descriptor: OwnedFd) -> Option<EndedListener> {
    let is_unix = sockopt::socket_domain(&descriptor) == Ok(AddressFamily::UNIX);
    if !is_unix || sockopt::socket_acceptconn(&descriptor) != Ok(true) {
        return None;
    }
    let listener = Discarded::new(UnixListener::from(descriptor));
    let _ = shutdown(&*listener, Shutdown::Both);
    Some(EndedListener { listener })
}

impl EndedListener {
    /// Path of the file; `None` for a socket without one.
    pub fn path(&self) -> Option<PathBuf> {
        self.listener.local_addr().ok()?.as_pathname().map(Path::to_owned)
    }

    /// Removes the file, unless another program has put a socket of its own there.
    ///
    /// # Errors
    /// The system's, or the opener's.
    pub fn remove_file(self) -> io::Result<()> {
        // The thread that closes the socket.
        discard::of_links();
        let Some(path) = self.path() else { return Ok(()) };
        let Some(file) = adopted(&path)? else { return Ok(()) };
        remove_socket(&path, file)
    }
}

impl VhostUser {
    /// Takes the port of another process, which does not use it any more, and goes on with its connection, if there was one.
    ///
    /// # Errors
    /// The reason why the connection is closed instead. The port is taken.
    pub fn take(&mut self, passed: Option<PassedConnection>) -> Result<(), String> {
        self.is_shared = false;
        let taken = passed.map_or(Ok(()), |passed| self.go_on(passed));
        self.listen_again();
        self.see_device();
        taken
    }

    fn go_on(&mut self, passed: PassedConnection) -> Result<(), String> {
        if self.connection.is_some() {
            passed.close();
            return Err("another front end has connected".to_owned());
        }
        let inspected = match self.pairs.again() {
            Ok(inspected) => inspected,
            Err(err) => {
                passed.close();
                return Err(format!("dup: {err}"));
            }
        };
        match Connection::take(passed, &self.device, &self.waiting, self.inspector.clone(), inspected) {
            Ok(connection) => {
                self.stop_listening();
                self.connection = Some(connection);
                self.has_messages = true;
                // A kick may have come to the process before, and kicks are off in a ring that was read lately.
                self.pairs.shared.wake_all();
                Ok(())
            }
            Err(why) => {
                lock(&self.device).disconnect();
                Err(why)
            }
        }
    }

    /// Leaves the port to another process, which has a [duplicate](Link::duplicate) of the listener, with the connection, unless the front
    /// end has closed it before its first message. No link of the port receives or sends from then on.
    ///
    /// # Errors
    /// The reason why the connection is closed instead. The port is left.
    pub fn pass(&mut self) -> Result<Option<PassedConnection>, String> {
        self.is_shared = true;
        self.stop_listening();
        let Some(connection) = self.connection.take() else { return Ok(None) };
        connection.forget(&self.waiting);
        let passed = lock(&self.device).pass();
        self.see_device();
        if !connection.has_sent() && connection.has_hung_up() {
            return Ok(None);
        }
        let (state, others) = passed?;
        Ok(Some(PassedConnection { state, socket: connection.into_socket(), others }))
    }

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
                size: vring.ring.as_ref().map_or(0, Ring::size),
                chains: vring.stats.chains,
                calls: vring.stats.calls,
                full: vring.stats.full,
            }
        });
        let queues = queues.collect();
        GuestState {
            connected: self.connection.is_some(),
            running: self.pairs.shared.are_of_first(device.ready_pairs()),
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
        self.see_device();
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
        self.see_device();
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
        let is_free = !self.is_shared && self.connection.is_none() && !self.inspector.is_busy();
        if !self.is_listening && is_free && self.pace.is_ready() {
            let listener = epoll::EventData::new_u64(LISTENER);
            self.is_listening = epoll::add(&*self.waiting, &*self.listener, listener, epoll::EventFlags::IN).is_ok();
        }
    }

    /// Closes the connection if a shard has found a violation of the rules, or the guest's memory has gone away.
    fn look_for_faults(&mut self) -> io::Result<()> {
        if !self.pairs.shared.take_fault() {
            return Ok(());
        }
        // None, if the connection has ended meanwhile.
        let fault = lock(&self.device).fault();
        fault.map_or(Ok(()), |why| Err(self.close(&Closed::Refused(why))))
    }

    /// Follows what messages have changed: features with offloads, and the pairs by which the guest can receive.
    fn see_device(&mut self) {
        let device = lock(&self.device);
        self.negotiation.follow(device.features, &mut self.common.offloads);
        self.has_changed |= self.pairs.shared.set_ready(device.ready_pairs());
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        // Links of other shards have the queues too.
        lock(&self.device).disconnect();
        self.pairs.shared.set_ready(0);
        if !self.is_shared
            && let Some(file) = self.file
        {
            // A socket that a program still listens at is another one's.
            let _ = shutdown(&*self.listener, Shutdown::Both);
            // Without its file there is nothing to remove.
            let _ = remove_socket(&self.socket, file);
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

    /// The listener. The connection is [passed](VhostUser::pass) later, when no link of the port uses it any more.
    fn duplicate(&self) -> io::Result<Option<Duplicates>> {
        Duplicates::of([], Some(self.listener.as_fd())).map(Some)
    }

    fn pass_guest(&mut self) -> Result<Option<PassedConnection>, String> {
        Self::pass(self)
    }

    fn take_guest(&mut self, passed: Option<PassedConnection>) -> Result<(), String> {
        Self::take(self, passed)
    }

    fn has_carrier(&self) -> bool {
        self.pairs.shared.has_carrier()
    }

    fn take_shared_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
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
        let sent = self.pairs.deliver(&mut self.common, &mut self.negotiation, burst);
        self.look_for_faults()?;
        Ok(sent)
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

    /// None of its own.
    fn duplicate(&self) -> io::Result<Option<Duplicates>> {
        Duplicates::of([], None).map(Some)
    }

    fn has_carrier(&self) -> bool {
        self.pairs.shared.has_carrier()
    }

    /// True while the guest has enabled no pair of this shard.
    fn is_elsewhere(&self) -> bool {
        !self.pairs.is_ready()
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

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        // Only takes the events, so that the next kick makes the descriptor readable again.
        let mut events = [const { MaybeUninit::uninit() }; 16];
        let _ = epoll::wait(&*self.waiting, &mut events[..], Some(&Timespec::default()));
        self.pairs.receive(&mut self.common.stats, mem, out);
        Ok(())
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        loop {
            match self.pairs.deliver(&mut self.common, &mut self.negotiation, burst) {
                // A ring was stopped. The packets that are left have no pair any more.
                Sent::All if !burst.is_empty() => {}
                sent => return Ok(sent),
            }
        }
    }
}
