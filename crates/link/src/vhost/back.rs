//! The back end: a port for a guest, whose front end connects to a socket of ours.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use base::DropReason;
use driver::DriverKind;
use offload::Features;
use packet::{CopyReason, Cut, Memory, Packet};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use wire::MacAddr;
use wire::eth::EthHeader;

use crate::error::failed;
use crate::flow_hash::FlowHash;
use crate::offloads::{BY_CONFIGURATION, Offloads};
use crate::sys::aio;
use crate::sys::discard::{self, Discarded};
use crate::sys::inspection::Inspector;
use crate::{Common, Layer, Link, OpenError, Sent};

use super::connection::{CONNECTION, Closed, Connection};
use super::device::{Device, Vring};
use super::features::{self, Bits};
use super::frames::{Delivered, Scratch};
use super::guest::{GuestState, QueueState};
use super::pace::Pace;
use super::queues::{BURST_BYTES, BURST_DESCRIPTORS, BURST_PACKETS, MAX_LOOKS, MAX_PAIRS};
use super::ring::{BadRing, Ring};

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
    /// Eventfd that is readable when a burst ended before the rings were empty.
    again: OwnedFd,
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
    scratch: Scratch,
    flow_hash: FlowHash,
    /// The queue pair to receive from next.
    next: usize,
    connections: u64,
    violations: u64,
    copied: u64,
    /// Bytes copied to the guest that are not in the ledger yet.
    owed: usize,
}

/// Makes the socket and waits for a front end.
///
/// # Errors
/// The path cannot be bound, or a program listens there.
pub fn open(config: &VhostConfig) -> Result<VhostUser, OpenError> {
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
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|err| error("epoll_create1")(err.into()))?;
    let again =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|err| error("eventfd")(err.into()))?;
    let wait = |fd: BorrowedFd<'_>, token, flags| {
        let added = epoll::add(&waiting, fd, epoll::EventData::new_u64(token), flags);
        added.map_err(|err| error("epoll_ctl")(err.into()))
    };
    wait(listener.as_fd(), LISTENER, epoll::EventFlags::IN)?;
    wait(again.as_fd(), AGAIN, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    let pace = Pace::new().map_err(error("timerfd_create"))?;
    wait(pace.timer(), TIMER, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    let waiting = Arc::new(waiting);
    let device = Device::new(Bits::offered(config.offloads), config.pairs.into(), config.memory, Arc::clone(&waiting));
    let mut offloads = Offloads::EMPTY;
    let features = Bits::default().features(&mut offloads, NO_GUEST);
    Ok(VhostUser {
        common: Common::new(name, config.mtu, offloads, features),
        socket: config.socket.clone(),
        file: socket_file(&config.socket),
        mac: config.mac,
        listener: Discarded::new(listener),
        is_listening: true,
        inspector: Inspector::default(),
        waiting,
        again,
        connection: None,
        has_messages: false,
        pace,
        device: Arc::new(Mutex::new(device)),
        current: features,
        negotiated: None,
        offered: config.offloads,
        scratch: Scratch::default(),
        flow_hash: FlowHash::default(),
        next: 0,
        connections: 0,
        violations: 0,
        copied: 0,
        owed: 0,
    })
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

pub(super) fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VhostUser {
    /// State of the guest.
    pub fn guest(&self) -> GuestState {
        let device = lock(&self.device);
        let queues = device.vrings.iter().map(|vring| QueueState {
            running: vring.ring.is_some(),
            enabled: vring.enabled,
            size: vring.ring.as_ref().map_or(0, Ring::size),
            chains: vring.stats.chains,
            calls: vring.stats.calls,
            full: vring.stats.full,
        });
        GuestState {
            connected: self.connection.is_some(),
            running: device.is_running(),
            features: features::names(device.features.unwrap_or_default().0).collect(),
            regions: device.memory.count(),
            queues: queues.collect(),
            connections: self.connections,
            violations: self.violations,
            copied: self.copied,
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
        let connection = self.again.try_clone().and_then(|inspected| {
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
            self.come_again();
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

    #[cold]
    fn close_for(&mut self, bad: BadRing) -> io::Error {
        self.close(&Closed::Refused(bad.to_string()))
    }

    /// Updates features and offloads after a negotiation.
    fn see_features(&mut self) {
        let negotiated = lock(&self.device).features;
        if negotiated == self.negotiated {
            return;
        }
        self.negotiated = negotiated;
        let unless = match negotiated {
            _ if !self.offered => BY_CONFIGURATION,
            Some(_) => NOT_NEGOTIATED,
            None => NO_GUEST,
        };
        self.current = negotiated.unwrap_or_default().features(&mut self.common.offloads, unless);
    }

    /// Makes the link's descriptor readable again.
    fn come_again(&self) {
        // Cannot fail: the counter never reaches its maximum.
        let _ = rustix::io::write(&self.again, &1_u64.to_ne_bytes());
    }

    /// Receives one burst from the guest's transmit rings. Tells whether they may hold more.
    fn receive(&mut self, device: &mut Device, mem: &Memory, out: &mut Vec<Packet>) -> Result<bool, BadRing> {
        let Device { vrings, memory, features, .. } = device;
        let features = features.unwrap_or_default();
        let pairs = vrings.len() / 2;
        let mut packets = 0;
        let mut bytes = 0;
        let mut descriptors = 0;
        let mut outcome = Ok(false);
        let before = out.len();
        'all: for turn in 0..pairs {
            let pair = (self.next + turn) % pairs;
            let vring = &mut vrings[2 * pair + 1];
            let Some(ring) = &mut vring.ring else { continue };
            loop {
                if packets >= BURST_PACKETS || bytes >= BURST_BYTES || descriptors >= BURST_DESCRIPTORS {
                    self.next = (pair + 1) % pairs;
                    outcome = Ok(true);
                    break 'all;
                }
                match self.scratch.receive(ring, memory, features, mem) {
                    // A guest that moves its index back and forth reaches the burst's end, too.
                    Ok(None) if ring.want_kicks(true) => descriptors += 1,
                    Ok(None) => break,
                    Ok(Some(received)) => {
                        ring.want_kicks(false);
                        vring.stats.chains += 1;
                        packets += 1;
                        descriptors += received.descriptors;
                        match received.packet {
                            // Frames of a queue that is not enabled have no effect.
                            _ if !vring.enabled => self.common.stats.rx_drop(DropReason::LinkDown),
                            Ok(packet) => {
                                bytes += packet.len();
                                self.common.stats.received(&packet);
                                out.push(packet);
                            }
                            Err(reason) => self.common.stats.rx_drop(reason),
                        }
                    }
                    Err(bad) => {
                        outcome = Err(bad);
                        break 'all;
                    }
                }
            }
        }
        vrings.iter_mut().skip(1).step_by(2).for_each(Vring::publish);
        self.common.stats.rx_calls += u64::from(out.len() > before);
        mem.copied(CopyReason::Guest, bytes);
        self.copied += bytes as u64;
        outcome
    }

    /// Sends packets from the front of a burst. Returns the number of packets that are sent or dropped.
    fn deliver(&mut self, device: &mut Device, burst: &mut [Packet]) -> (usize, Result<Sent, BadRing>) {
        let Device { vrings, memory, features, .. } = device;
        let features = features.unwrap_or_default();
        let is_ready = |&queue: &usize| vrings[queue].enabled && vrings[queue].ring.is_some();
        let ready: ArrayVec<usize, { MAX_PAIRS as usize }> = (0..vrings.len()).step_by(2).filter(is_ready).collect();
        let mut gone = 0;
        let mut looks = 0;
        let mut outcome = Ok(Sent::All);
        let copied = self.copied;
        while let Some(packet) = burst.get_mut(gone) {
            let pair = self.flow_hash.queue(packet, EthHeader::LEN, ready.len());
            let vring = ready.get(pair).map(|&queue| &mut vrings[queue]);
            let Some((vring, ring)) = vring.and_then(Vring::running) else {
                self.common.stats.tx_drop(DropReason::LinkDown);
                gone += 1;
                continue;
            };
            let is_one = packet.meta.cut.packets() <= 1;
            match self.scratch.deliver(ring, memory, features, &self.current, packet) {
                Ok(Delivered::Sent { bytes, chains }) => {
                    self.copied += bytes as u64;
                    vring.chains += u64::from(chains);
                    match packet.meta.cut {
                        Cut::Frames(_) => self.common.stats.sent_first_frame(packet),
                        Cut::Whole | Cut::Gso(_) | Cut::Fragment => self.common.stats.sent(packet),
                    }
                }
                Ok(Delivered::Full) => {
                    looks += 1;
                    if ring.want_kicks(true) {
                        if looks < MAX_LOOKS {
                            continue;
                        }
                        self.come_again();
                    }
                    vring.full += 1;
                    outcome = Ok(Sent::Busy);
                    break;
                }
                Ok(Delivered::Dropped(reason)) => self.common.stats.tx_drop(reason),
                Err(bad) => {
                    outcome = Err(bad);
                    break;
                }
            }
            ring.want_kicks(false);
            if is_one { gone += 1 } else { packet.skip_frames(1) }
        }
        vrings.iter_mut().step_by(2).for_each(Vring::publish);
        self.common.stats.tx_calls += u64::from(gone > 0);
        self.owed += (self.copied - copied) as usize;
        (gone, outcome)
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
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
        if self.owed > 0 {
            mem.copied(CopyReason::Guest, std::mem::take(&mut self.owed));
        }
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
        let device = Arc::clone(&self.device);
        let mut device = lock(&device);
        let received = self.receive(&mut device, mem, out);
        let is_lost = device.memory.is_lost();
        drop(device);
        match received {
            // Rings that turn to zeros may look like a violation of the rules as well.
            _ if is_lost => Err(self.lost()),
            Ok(true) => {
                self.come_again();
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(bad) => Err(self.close_for(bad)),
        }
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        if self.common.features != self.current {
            self.common.features = self.current;
            return Ok(Sent::Refit);
        }
        let device = Arc::clone(&self.device);
        let mut device = lock(&device);
        let (gone, outcome) = self.deliver(&mut device, burst);
        burst.drain(..gone);
        let is_lost = device.memory.is_lost();
        drop(device);
        match outcome {
            _ if is_lost => Err(self.lost()),
            Ok(sent) => Ok(sent),
            Err(bad) => Err(self.close_for(bad)),
        }
    }
}

impl VhostUser {
    #[cold]
    fn lost(&mut self) -> io::Error {
        self.close(&Closed::Refused("the guest's memory went away".to_owned()))
    }
}
