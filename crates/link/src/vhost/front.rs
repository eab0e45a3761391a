//! The front end of a virtio-net device (virtio-user): rings and buffers in memory of ours, which a back end fills and
//! empties. It connects this program to a switch in another process, or to another instance of itself, without
//! privileges.
//!
//! Frames are copied into the shared memory and out of it: the back end is another program, and may write there at any
//! moment.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::DropReason;
use driver::DriverKind;
use offload::Features;
use packet::{CopyReason, Cut, Memory, Packet};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use wire::MacAddr;
use wire::eth::EthHeader;

use super::driver_ring::BadUsed;
use super::features::{self, Bits, LONG_HEADER};
use super::frames::{Scatter, copy_in, header_for};
use super::guest::{GuestState, QueueState};
use super::handshake::{Handshake, Proposal, RX_BUFFER, Session, TX_BUFFER};
use super::queues::{BURST_BYTES, BURST_PACKETS, MAX_LOOKS, MAX_PAIRS};
use super::ring::WRITE;
use crate::error::failed;
use crate::flow_hash::FlowHash;
use crate::offloads::{BY_CONFIGURATION, Offloads};
use crate::pieces::{tagged, vlan_tag};
use crate::sys::aio;
use crate::sys::discard;
use crate::sys::guest_memory::GuestPiece;
use crate::virtio::{HEADER_LEN, Header};
use crate::{Common, Layer, Link, OpenError, Sent};

/// Tokens of the epoll instance.
const DONE: u64 = 0;
const SOCKET: u64 = 1;
const CALL: u64 = 2;
const AGAIN: u64 = 3;

/// Offset of a buffer relative to the previous one (cache colouring), so that small frames do not share the same cache
/// sets.
const STAGGER: u64 = 192;

/// Configuration of a link to a back end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FrontConfig {
    /// The link's name.
    pub name: String,
    /// Path of the socket that the back end listens at, now or later.
    pub socket: PathBuf,
    /// Number of queue pairs requested, from 1 to [`MAX_PAIRS`].
    pub pairs: u16,
    /// Descriptors of a ring, a power of two up to 1024.
    pub ring_size: u16,
    /// The link's own address.
    pub mac: MacAddr,
    /// The layer-3 MTU in bytes; `None` is 1500.
    pub mtu: Option<u16>,
    /// False negotiates no checksum and no segmentation offload.
    pub offloads: bool,
}

impl FrontConfig {
    /// One pair of queues of 256 descriptors, with offloads.
    pub fn new(name: &str, socket: &Path, mac: MacAddr) -> Self {
        let (name, socket) = (name.to_owned(), socket.to_owned());
        Self { name, socket, pairs: 1, ring_size: DriverKind::VIRTIO_RING, mac, mtu: None, offloads: true }
    }
}

/// A link to a back end.
#[derive(Debug)]
pub struct VhostFront {
    common: Common,
    config: FrontConfig,
    mac: MacAddr,
    /// The one descriptor that the link is polled by.
    waiting: Arc<OwnedFd>,
    done: OwnedFd,
    again: OwnedFd,
    handshake: Option<Handshake>,
    requested: Bits,
    running: Option<Running>,
    /// Negotiated features now.
    current: Features,
    pieces: Vec<GuestPiece>,
    flow_hash: FlowHash,
    connections: u64,
    violations: u64,
    copied: u64,
    owed: usize,
    /// Queue pair that the next burst begins with.
    next: usize,
}

/// A connected back end, with the shared rings.
#[derive(Debug)]
struct Running {
    session: Session,
    /// Negotiated bits with host and guest exchanged: our send offloads are the back end's receive offloads.
    view: Bits,
    /// Free transmit buffers of each pair.
    free: Vec<Vec<u16>>,
    queues: Vec<QueueState>,
    /// Pieces of the current buffer, reused from frame to frame.
    pieces: Vec<GuestPiece>,
}

/// Starts to connect. The link moves nothing until it is connected to a back end.
///
/// # Errors
/// The system has no descriptors or threads left, or the configuration is impossible.
pub fn open(config: &FrontConfig) -> Result<VhostFront, OpenError> {
    open_requesting(config, Bits::requested(config.offloads, config.pairs > 1))
}

/// As [`open`], with explicit features.
pub(super) fn open_requesting(config: &FrontConfig, requested: Bits) -> Result<VhostFront, OpenError> {
    let name = &config.name;
    let error = |call| move |err: io::Error| OpenError::new(name, call, err);
    let is_size = config.ring_size.is_power_of_two() && config.ring_size <= DriverKind::MAX_VIRTIO_RING;
    if config.pairs == 0 || config.pairs > MAX_PAIRS || !is_size {
        let text = format!("{} pairs of queues of {} descriptors", config.pairs, config.ring_size);
        return Err(error("queues")(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    aio::context().map_err(error("io_setup"))?;
    discard::of_links();
    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|err| error("epoll_create1")(err.into()))?;
    let (done, again) = (event().map_err(error("eventfd"))?, event().map_err(error("eventfd"))?);
    for (fd, token) in [(&done, DONE), (&again, AGAIN)] {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let added = epoll::add(&waiting, fd, epoll::EventData::new_u64(token), flags);
        added.map_err(|err| error("epoll_ctl")(err.into()))?;
    }
    let mut offloads = Offloads::EMPTY;
    let features = Bits::default().features(&mut offloads, NO_BACK_END);
    let mut link = VhostFront {
        common: Common::new(name, config.mtu, offloads, features),
        mac: config.mac,
        config: config.clone(),
        waiting: Arc::new(waiting),
        done,
        again,
        handshake: None,
        requested,
        running: None,
        current: features,
        pieces: Vec::new(),
        flow_hash: FlowHash::default(),
        connections: 0,
        violations: 0,
        copied: 0,
        owed: 0,
        next: 0,
    };
    link.connect().map_err(error("thread"))?;
    Ok(link)
}

/// Reason that an offload is off without a back end.
const NO_BACK_END: &str = "no back end";

/// Reason that an offload is off that the back end did not offer.
const NOT_OFFERED: &str = "not offered by the back end";

impl VhostFront {
    /// State of the back end. The queues are ours.
    pub fn guest(&self) -> GuestState {
        let running = self.running.as_ref();
        GuestState {
            connected: running.is_some(),
            running: running.is_some(),
            features: running.map(|running| features::names(running.session.features.0).collect()).unwrap_or_default(),
            regions: usize::from(running.is_some()),
            queues: running.map(|running| running.queues.clone()).unwrap_or_default(),
            connections: self.connections,
            violations: self.violations,
            copied: self.copied,
        }
    }

    fn connect(&mut self) -> io::Result<()> {
        let requested =
            Proposal { features: self.requested, pairs: self.config.pairs.into(), ring_size: self.config.ring_size };
        self.handshake = Some(Handshake::begin(&self.config.socket, requested, self.done.try_clone()?)?);
        Ok(())
    }

    /// Takes the result of a handshake, and detects that the back end has disconnected.
    fn attend(&mut self) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; 16];
        let found = match epoll::wait(&*self.waiting, &mut events[..], Some(&Timespec::default())) {
            Ok((found, _)) => found,
            Err(_) => &mut [],
        };
        let (mut is_done, mut may_be_gone) = (false, false);
        for event in found {
            is_done |= event.data.u64() == DONE;
            may_be_gone |= event.data.u64() == SOCKET;
        }
        if may_be_gone && let Some(running) = &self.running {
            match recv(&*running.session.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(_) | Err(_) => {
                    let gone = io::Error::new(io::ErrorKind::ConnectionReset, "the back end is gone");
                    return Err(self.disconnect("vhost-user", &gone));
                }
            }
        }
        if is_done { self.take_outcome() } else { Ok(()) }
    }

    #[cold]
    fn take_outcome(&mut self) -> io::Result<()> {
        let Some(outcome) = self.handshake.as_ref().and_then(|handshake| handshake.outcome.try_recv().ok()) else {
            return Ok(());
        };
        self.handshake = None;
        match outcome.map_err(io::Error::other).and_then(|session| self.run(session)) {
            Ok(()) => Ok(()),
            Err(err) => Err(self.disconnect("vhost-user", &err)),
        }
    }

    /// Lends the back end all receive buffers.
    fn run(&mut self, mut session: Session) -> io::Result<()> {
        let size = self.config.ring_size;
        let wait = |fd: BorrowedFd<'_>, token, flags| {
            epoll::add(&*self.waiting, fd, epoll::EventData::new_u64(token), flags | epoll::EventFlags::ET)
        };
        wait(session.socket.as_fd(), SOCKET, epoll::EventFlags::IN | epoll::EventFlags::RDHUP)?;
        for (number, queue) in session.queues.iter_mut().enumerate() {
            wait(queue.call.as_fd(), CALL, epoll::EventFlags::IN)?;
            if number % 2 == 0 {
                for head in 0..size {
                    let addr = queue.buffers + u64::from(head) * RX_BUFFER as u64;
                    queue.ring.describe(head, addr, RX_BUFFER as u32, WRITE, 0);
                    queue.ring.offer(head, RX_BUFFER as u32);
                }
                queue.ring.publish();
                queue.kick.ring();
            } else {
                queue.ring.want_calls(false);
            }
        }
        let view = session.features.swapped();
        let unless = if self.config.offloads { NOT_OFFERED } else { BY_CONFIGURATION };
        self.current = view.features(&mut self.common.offloads, unless);
        let pairs = session.queues.len() / 2;
        let queues = vec![QueueState { running: true, enabled: true, size, ..QueueState::default() }; 2 * pairs];
        self.running =
            Some(Running { session, view, free: vec![(0..size).collect(); pairs], queues, pieces: Vec::new() });
        self.connections += 1;
        Ok(())
    }

    /// Disconnects from a back end, and starts to reconnect.
    #[cold]
    fn disconnect(&mut self, call: &'static str, why: &io::Error) -> io::Error {
        if let Some(Running { session, .. }) = self.running.take() {
            let _ = epoll::delete(&*self.waiting, &*session.socket);
            for queue in &session.queues {
                // The back end may keep the eventfd open, so closing our descriptor would not remove it from the epoll
                // instance.
                let _ = epoll::delete(&*self.waiting, &queue.call);
            }
        }
        self.current = Bits::default().features(&mut self.common.offloads, NO_BACK_END);
        match self.connect() {
            Ok(()) => failed(&self.common.name, call, why),
            Err(err) => failed(&self.common.name, "thread", &err),
        }
    }

    #[cold]
    fn close_for(&mut self, bad: BadUsed) -> io::Error {
        self.violations += 1;
        self.common.stats.rx_drop(DropReason::RingDescriptor);
        let bad = io::Error::new(io::ErrorKind::InvalidData, bad.to_string());
        self.disconnect("vhost-user: connection closed", &bad)
    }

    fn come_again(&self) {
        // Cannot fail: the counter never reaches its maximum.
        let _ = rustix::io::write(&self.again, &1_u64.to_ne_bytes());
    }

    /// Receives one burst. Tells whether the rings may hold more.
    fn receive(&mut self, running: &mut Running, mem: &Memory, out: &mut Vec<Packet>) -> Result<bool, BadUsed> {
        let mut packets = 0;
        let mut bytes = 0;
        let mut looks = 0;
        let before = out.len();
        let mut is_more = false;
        let (first, pairs) = (self.next, running.free.len());
        for turn in 0..pairs {
            let pair = (first + turn) % pairs;
            loop {
                if packets >= BURST_PACKETS || bytes >= BURST_BYTES || looks >= MAX_LOOKS {
                    // The next burst begins with another pair, so that a busy one does not starve the others.
                    if !is_more {
                        self.next = (pair + 1) % pairs;
                    }
                    is_more = true;
                    break;
                }
                match self.receive_one(running, pair, mem)? {
                    Some(received) => {
                        packets += 1;
                        match received {
                            Ok(packet) => {
                                bytes += packet.len();
                                self.common.stats.received(&packet);
                                out.push(packet);
                            }
                            Err(reason) => self.common.stats.rx_drop(reason),
                        }
                    }
                    None if running.session.queues[2 * pair].ring.want_calls(true) => looks += 1,
                    None => break,
                }
            }
            let queue = &mut running.session.queues[2 * pair];
            if queue.ring.publish() {
                running.queues[2 * pair].calls += 1;
                queue.kick.ring();
            }
        }
        self.common.stats.rx_calls += u64::from(out.len() > before);
        mem.copied(CopyReason::Guest, bytes);
        self.copied += bytes as u64;
        Ok(is_more)
    }

    /// Receives one frame, and lends its buffers again.
    fn receive_one(
        &mut self,
        running: &mut Running,
        pair: usize,
        mem: &Memory,
    ) -> Result<Option<Result<Packet, DropReason>>, BadUsed> {
        let Running { session: Session { memory, queues, features, .. }, view, queues: states, .. } = running;
        let queue = &mut queues[2 * pair];
        let Some((head, len)) = queue.ring.take_back()? else { return Ok(None) };
        let addr = |head: u16| queue.buffers + u64::from(head) * RX_BUFFER as u64;
        self.pieces.clear();
        let found = memory.locate(addr(head), len, &mut self.pieces);
        debug_assert!(found, "a buffer of ours is in our memory");
        queue.ring.offer(head, RX_BUFFER as u32);
        queue.ring.want_calls(false);
        states[2 * pair].chains += 1;
        let mut total = u64::from(len);
        let mut count = 1;
        if features.mergeable()
            && let Some(&first) = self.pieces.first()
            && len as usize >= LONG_HEADER
        {
            let mut num_buffers = [0; 2];
            memory.read(first, HEADER_LEN as u32, &mut num_buffers);
            count = u16::from_le_bytes(num_buffers).max(1);
        }
        let mut is_short = false;
        for _ in 1..count {
            let Some((head, len)) = queue.ring.take_back()? else {
                is_short = true;
                break;
            };
            let found = memory.locate(addr(head), len, &mut self.pieces);
            debug_assert!(found, "a buffer of ours is in our memory");
            // The device sees the buffer only after the burst is published, and the frame is copied by then.
            queue.ring.offer(head, RX_BUFFER as u32);
            states[2 * pair].chains += 1;
            total += u64::from(len);
        }
        if is_short {
            return Ok(Some(Err(DropReason::RingDescriptor)));
        }
        Ok(Some(copy_in(&self.pieces, total, memory, *view, mem)))
    }

    /// Sends packets from the front of a burst. Returns the number of packets that are sent or dropped.
    fn transmit(&mut self, running: &mut Running, burst: &mut [Packet]) -> (usize, Result<Sent, BadUsed>) {
        let mut gone = 0;
        let mut outcome = Ok(Sent::All);
        let copied = self.copied;
        let mut looks = 0;
        // Buffers used last are the most likely to be in the cache.
        for pair in 0..running.free.len() {
            if let Err(bad) = running.reclaim(pair) {
                return (0, Err(bad));
            }
        }
        while let Some(packet) = burst.get_mut(gone) {
            let pair = self.flow_hash.queue(packet, EthHeader::LEN, running.free.len());
            if running.free[pair].is_empty()
                && let Err(bad) = running.reclaim(pair)
            {
                outcome = Err(bad);
                break;
            }
            let Some(head) = running.free[pair].pop() else {
                let queue = &mut running.session.queues[2 * pair + 1];
                if queue.ring.publish() {
                    running.queues[2 * pair + 1].calls += 1;
                    queue.kick.ring();
                }
                looks += 1;
                if queue.ring.want_calls(true) {
                    if looks < MAX_LOOKS {
                        continue;
                    }
                    self.come_again();
                }
                running.queues[2 * pair + 1].full += 1;
                outcome = Ok(Sent::Busy);
                break;
            };
            let is_one = packet.meta.cut.packets() <= 1;
            match running.fill(pair, head, &self.current, packet) {
                Ok(bytes) => {
                    self.copied += bytes as u64;
                    running.queues[2 * pair + 1].chains += 1;
                    match packet.meta.cut {
                        Cut::Frames(_) => self.common.stats.sent_first_frame(packet),
                        Cut::Whole | Cut::Gso(_) | Cut::Fragment => self.common.stats.sent(packet),
                    }
                }
                Err(reason) => {
                    running.free[pair].push(head);
                    self.common.stats.tx_drop(reason);
                }
            }
            if is_one { gone += 1 } else { packet.skip_frames(1) }
        }
        for pair in 0..running.free.len() {
            let queue = &mut running.session.queues[2 * pair + 1];
            if queue.ring.publish() {
                running.queues[2 * pair + 1].calls += 1;
                queue.kick.ring();
            }
        }
        self.common.stats.tx_calls += u64::from(gone > 0);
        self.owed += (self.copied - copied) as usize;
        (gone, outcome)
    }
}

impl Running {
    /// Takes back used transmit buffers.
    fn reclaim(&mut self, pair: usize) -> Result<(), BadUsed> {
        while let Some((head, _)) = self.session.queues[2 * pair + 1].ring.take_back()? {
            self.free[pair].push(head);
        }
        Ok(())
    }

    /// Copies a packet, or the first frame of a packet with several, to a buffer, and lends it. Returns the bytes
    /// copied.
    fn fill(&mut self, pair: usize, head: u16, features: &Features, packet: &Packet) -> Result<usize, DropReason> {
        if let Cut::Frames(_) = packet.meta.cut {
            let frame = packet.frames().next().ok_or(DropReason::TxError)?;
            return self.put(pair, head, Header::default(), frame.len(), std::iter::once(frame));
        }
        let tag = vlan_tag(packet);
        let tag_len = tag.map_or(0, |tag| tag.len());
        // A driver does not set `DATA_VALID` (virtio 1.2 §5.1.6.2.1).
        let header = header_for(Bits::default(), features, packet, tag_len as u16).ok_or(DropReason::TxError)?;
        self.put(pair, head, header, packet.len() + tag_len, tagged(packet, tag.as_ref()))
    }

    fn put<'a>(
        &mut self,
        pair: usize,
        head: u16,
        header: Header,
        len: usize,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Result<usize, DropReason> {
        let Self { session: Session { memory, queues, features, .. }, pieces, .. } = self;
        let queue = &mut queues[2 * pair + 1];
        let total = features.header_len() + len;
        let slack = TX_BUFFER.checked_sub(total).ok_or(DropReason::PacketTooBig)? as u64;
        let addr = queue.buffers + u64::from(head) * TX_BUFFER as u64 + (u64::from(head % 16) * STAGGER).min(slack);
        pieces.clear();
        if !memory.locate(addr, total as u32, pieces) {
            return Err(DropReason::TxError);
        }
        let mut front = [0; LONG_HEADER];
        front[..HEADER_LEN].copy_from_slice(&header.to_le_bytes());
        let mut to = Scatter::new(memory, pieces);
        to.write(&front[..features.header_len()]);
        bytes.for_each(|bytes| to.write(bytes));
        queue.ring.describe(head, addr, total as u32, 0, 0);
        // Drivers ignore the used length of a transmit chain, which many devices set wrongly (virtio 1.2 §2.7.8.1).
        queue.ring.offer(head, u32::MAX);
        Ok(len)
    }
}

impl Link for VhostFront {
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
        self.running.is_some()
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

    /// None: a back end that has emptied buffers sends an interrupt, which [`poll_fds`](Link::poll_fds) includes.
    fn room_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        self.attend()?;
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let received = self.receive(&mut running, mem, out);
        self.running = Some(running);
        match received {
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
        let Some(mut running) = self.running.take() else {
            burst.drain(..).for_each(|_| self.common.stats.tx_drop(DropReason::LinkDown));
            return Ok(Sent::All);
        };
        let (gone, outcome) = self.transmit(&mut running, burst);
        self.running = Some(running);
        burst.drain(..gone);
        outcome.map_err(|bad| self.close_for(bad))
    }
}

#[cfg(test)]
impl VhostFront {
    /// A queue's ring, for tests to write what a back end may.
    pub(super) fn queue_for_test(&self, number: usize) -> &super::driver_ring::DriverRing {
        &self.running.as_ref().expect("it runs").session.queues[number].ring
    }
}
