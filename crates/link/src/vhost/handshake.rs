//! The front end's half of the protocol: connects, negotiates, and announces our memory and rings to the back end.
//!
//! The crate `vhost` blocks for each reply, so the handshake runs on a thread of its own, which ends with the result.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

use super::driver_ring::{self, DriverRing};
use super::features::Bits;
use super::notify::Doorbell;
use crate::opener::opener;
use crate::sys::discard::Discarded;
use crate::sys::event::as_event_fd;
use crate::sys::guest_memory::{GuestMemory, PAGE, Region};

/// Address of our memory in messages to the back end; an arbitrary number.
pub(super) const BASE: u64 = 1 << 32;

/// Bytes of a receive buffer. A fat frame takes several.
pub(super) const RX_BUFFER: usize = 4096;

/// Bytes of a transmit buffer: a fat frame with its header.
pub(super) const TX_BUFFER: usize = 68 << 10;

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

/// A queue that is announced to the back end.
#[derive(Debug)]
pub(super) struct FrontQueue {
    pub(super) ring: DriverRing,
    pub(super) kick: Doorbell,
    pub(super) call: OwnedFd,
    /// Address of its first buffer.
    pub(super) buffers: u64,
}

/// Result of a handshake.
#[derive(Debug)]
pub(super) struct Session {
    /// Keeps the connection open.
    pub(super) socket: Discarded<UnixStream>,
    pub(super) features: Bits,
    pub(super) memory: GuestMemory,
    /// Queues by number: even ones receive, odd ones send.
    pub(super) queues: Vec<FrontQueue>,
}

/// Features and queues to request.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) features: Bits,
    pub(super) pairs: usize,
    pub(super) ring_size: u16,
}

/// A running handshake, cancelled when dropped.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) outcome: mpsc::Receiver<Result<Session, String>>,
    given_up: Arc<AtomicBool>,
    socket: Arc<Mutex<Option<UnixStream>>>,
}

impl Handshake {
    /// Starts a handshake with the back end at `path`, as soon as one listens there. `done` is written when there is a
    /// result.
    pub(super) fn begin(path: &Path, proposal: Proposal, done: OwnedFd) -> io::Result<Self> {
        let (sender, outcome) = mpsc::channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let socket = Arc::new(Mutex::new(None));
        let handshake = Self { outcome, given_up: Arc::clone(&given_up), socket: Arc::clone(&socket) };
        let path = path.to_owned();
        let work = move || {
            while !given_up.load(Ordering::Relaxed) {
                let Ok(stream) = connect(&path) else {
                    std::thread::sleep(RETRY);
                    continue;
                };
                *socket.lock().unwrap_or_else(PoisonError::into_inner) = stream.try_clone().ok();
                if given_up.load(Ordering::Relaxed) {
                    break;
                }
                // The receiver is gone if the handshake was cancelled.
                let _ = sender.send(negotiate(stream, &proposal));
                *socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
                let _ = rustix::io::write(&done, &1_u64.to_ne_bytes());
                break;
            }
        };
        std::thread::Builder::new().name("vhost-user".to_owned()).spawn(work)?;
        Ok(handshake)
    }
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    match opener() {
        Some(opener) => opener.connect(path).map(UnixStream::from),
        None => UnixStream::connect(path),
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        if let Some(socket) = &*self.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            // Ends the thread's wait for a reply.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Negotiates over a newly connected socket.
pub(super) fn negotiate(socket: UnixStream, proposal: &Proposal) -> Result<Session, String> {
    let failed = |what: &'static str| move |err: vhost::Error| format!("{what}: {err}");
    let system = |what: &'static str| move |err: io::Error| format!("{what}: {err}");
    let kept = socket.try_clone().map_err(system("dup"))?;
    let pairs = match proposal.pairs {
        1 => 1,
        several => queue_pairs(kept.try_clone().map_err(system("dup"))?)?.min(several).max(1),
    };
    let mut frontend = Frontend::from_stream(socket, 2 * pairs as u64);
    let offered = Bits(frontend.get_features().map_err(failed("GET_FEATURES"))?);
    let features = proposal.features.among(offered);
    if features.protocol_features() {
        let protocol = frontend.get_protocol_features().map_err(failed("GET_PROTOCOL_FEATURES"))?;
        let used = protocol & (VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK);
        frontend.set_protocol_features(used).map_err(failed("SET_PROTOCOL_FEATURES"))?;
        if used.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
    }
    frontend.set_owner().map_err(failed("SET_OWNER"))?;
    frontend.set_features(features.0).map_err(failed("SET_FEATURES"))?;

    let layout = Layout { ring_size: proposal.ring_size };
    let len = layout.pair() * pairs as u64;
    let file = memfd_create("fatpath-vhost", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|file| ftruncate(&file, len).map(|()| file))
        .and_then(|file| fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map(|()| file))
        .map_err(|err| system("memfd")(err.into()))?;
    let file = Arc::new(file);
    let region = Region::map(BASE, BASE, len, 0, Arc::clone(&file)).map_err(system("mmap"))?;
    let window = region.window.clone();
    let mut memory = GuestMemory::default();
    memory.add(region).ok_or("memory: not of whole pages")?;
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: BASE,
        memory_size: len,
        userspace_addr: BASE,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    };
    frontend.set_mem_table(&[region]).map_err(failed("SET_MEM_TABLE"))?;

    let mut queues = Vec::new();
    for number in 0..2 * pairs {
        let at = layout.queue(number);
        let part = window.part(at, driver_ring::len_of(proposal.ring_size), 16).ok_or("memory: too little")?;
        let ring = DriverRing::new(part, proposal.ring_size, features.event_index());
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let theirs = |fd: &OwnedFd| fd.try_clone().map(as_event_fd).map_err(system("dup"));
        let kick = event().map_err(system("eventfd"))?;
        let call = event().map_err(system("eventfd"))?;
        let size = proposal.ring_size;
        frontend.set_vring_num(number, size).map_err(failed("SET_VRING_NUM"))?;
        frontend.set_vring_base(number, 0).map_err(failed("SET_VRING_BASE"))?;
        let place = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: BASE + at,
            used_ring_addr: BASE + at + driver_ring::used_at(size) as u64,
            avail_ring_addr: BASE + at + driver_ring::available_at(size) as u64,
            log_addr: None,
        };
        frontend.set_vring_addr(number, &place).map_err(failed("SET_VRING_ADDR"))?;
        frontend.set_vring_call(number, &theirs(&call)?).map_err(failed("SET_VRING_CALL"))?;
        frontend.set_vring_kick(number, &theirs(&kick)?).map_err(failed("SET_VRING_KICK"))?;
        if features.protocol_features() {
            frontend.set_vring_enable(number, true).map_err(failed("SET_VRING_ENABLE"))?;
        }
        let buffers = BASE + at + layout.ring();
        let kick = Doorbell::new(kick).map_err(system("io_setup"))?;
        queues.push(FrontQueue { ring, kick, call, buffers });
    }
    Ok(Session { socket: Discarded::new(kept), features, memory, queues })
}

/// Number of queue pairs of the back end. The crate `vhost` treats the reply as the number of rings, so the request is
/// made by an endpoint that is used for nothing else.
fn queue_pairs(socket: UnixStream) -> Result<usize, String> {
    let failed = |what: &'static str| move |err: vhost::Error| format!("{what}: {err}");
    let mut frontend = Frontend::from_stream(socket, 2);
    if !Bits(frontend.get_features().map_err(failed("GET_FEATURES"))?).protocol_features() {
        return Ok(1);
    }
    let protocol = frontend.get_protocol_features().map_err(failed("GET_PROTOCOL_FEATURES"))?;
    if !protocol.contains(VhostUserProtocolFeatures::MQ) {
        return Ok(1);
    }
    frontend.set_protocol_features(VhostUserProtocolFeatures::MQ).map_err(failed("SET_PROTOCOL_FEATURES"))?;
    Ok(frontend.get_queue_num().map_err(failed("GET_QUEUE_NUM"))? as usize)
}

/// Offsets in the shared memory.
struct Layout {
    ring_size: u16,
}

impl Layout {
    /// Bytes of a ring, in whole pages.
    fn ring(&self) -> u64 {
        (driver_ring::len_of(self.ring_size) as u64).next_multiple_of(PAGE)
    }

    /// Bytes of a queue with its buffers.
    fn queue_len(&self, sends: bool) -> u64 {
        let buffer = if sends { TX_BUFFER } else { RX_BUFFER };
        self.ring() + u64::from(self.ring_size) * buffer as u64
    }

    fn pair(&self) -> u64 {
        self.queue_len(false) + self.queue_len(true)
    }

    /// Offset of a queue.
    fn queue(&self, number: usize) -> u64 {
        let before = self.pair() * (number as u64 / 2);
        before + if number % 2 == 1 { self.queue_len(false) } else { 0 }
    }
}
