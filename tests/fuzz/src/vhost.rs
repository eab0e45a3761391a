//! Port for a guest, and a front end that sends plain messages, with a file as guest memory.

use std::cell::Cell;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use link::Link;
use link::vhost::{ConnectionState, PassedConnection, VhostConfig, VhostUser, open};
use packet::{Memory, Packet};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::Value;

pub(crate) const PAGE: u64 = 4096;

/// Bytes of guest memory: two regions of equal length from address 0 on.
pub(crate) const GUEST_LEN: u64 = 16 * PAGE;

/// Pairs of queues of the port.
pub(crate) const PAIRS: u16 = 2;

/// Front end's address of guest address 0.
pub(crate) const USER: u64 = 1 << 32;

/// Bytes of each part of a ring, and of all rings.
const RING_LEN: u64 = 0x800;
pub(crate) const RINGS_LEN: u64 = 2 * PAIRS as u64 * RING_LEN;

/// Bytes of the file in front of and behind guest memory.
const GUARD: [u8; 8] = *b"\xa5\x5aGUARD\xee";

/// Longest wait for a port.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest frame: an IP packet with the header and two tags of Ethernet.
const LONGEST: usize = 65_575 + 14 + 8;

pub(crate) fn avail_at(queue: u64) -> u64 {
    queue * RING_LEN + 0x200
}

pub(crate) fn used_at(queue: u64) -> u64 {
    queue * RING_LEN + 0x400
}

/// A port whose guest links are observed.
pub(crate) struct Port {
    back: VhostUser,
    mem: Memory,
    path: PathBuf,
    received: u64,
    /// Front ends that have connected to the socket.
    guests: Cell<u64>,
}

impl Port {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("fatpath-fuzz-vhost-{}.sock", std::process::id()));
        let back =
            open(&VhostConfig { pairs: PAIRS, ..VhostConfig::new("vm0", &path, wire::MacAddr([2, 0, 0, 0, 0, 9])) })
                .expect("a socket");
        Self { back, mem: Memory::heap(), path, received: 0, guests: Cell::new(0) }
    }

    /// Makes one call of each kind. A connection closes with at most one error. Returns the number of received frames.
    pub(crate) fn turn(&mut self, frames: &[usize]) -> usize {
        let mut got = Vec::new();
        if self.back.recv(&self.mem, &mut got).is_err() {
            self.check_closed();
        }
        for packet in &got {
            assert!(packet.len() <= LONGEST);
            packet.check_invariants();
            let bytes = packet.to_vec();
            assert!(!bytes.windows(GUARD.len()).any(|window| window == GUARD), "bytes from outside of guest memory");
        }
        self.received += got.len() as u64;
        let frame = |&len: &usize| Packet::with_data(&self.mem, &vec![1; len.clamp(14, 2000)]).expect("a heap");
        let mut burst = frames.iter().map(frame).collect();
        if self.back.send(&mut burst).is_err() {
            self.check_closed();
        }
        let stats = self.back.stats();
        assert_eq!(stats.rx_packets, self.received);
        got.len()
    }

    /// Makes a call of each kind, and waits a moment: connections and messages have a rate, and guest memory is inspected by
    /// another thread. Returns the number of received frames.
    fn wait(&mut self) -> usize {
        let frames = self.turn(&[]);
        if frames == 0 {
            thread::sleep(Duration::from_micros(50));
        }
        frames
    }

    /// Waits until a front end's guest can receive. False: the front end is closed.
    pub(crate) fn wait_for_guest(&mut self) -> bool {
        let since = Instant::now();
        let mut has_come = false;
        while since.elapsed() < PATIENCE {
            let guest = self.back.guest();
            if guest.queues.iter().all(|queue| queue.running && queue.enabled) {
                return true;
            }
            if has_come && !guest.connected {
                return false;
            }
            has_come |= guest.connected;
            self.wait();
        }
        panic!("a front end is neither served nor closed: {:?}", self.back.guest());
    }

    /// Leaves the port with its guest to another process.
    pub(crate) fn pass(&mut self) -> PassedConnection {
        let passed = self.back.pass().expect("a guest without a fault");
        let guest = self.back.guest();
        assert!(!guest.connected && guest.regions == 0);
        passed.expect("a guest")
    }

    /// Takes the port as the other process, with a state and descriptors.
    pub(crate) fn take(&mut self, state: Value, descriptors: Vec<OwnedFd>) {
        let state: Result<ConnectionState, _> = serde_json::from_value(state);
        let passed = state.ok().and_then(|state| PassedConnection::of_descriptors(state, descriptors));
        let is_passed = passed.is_some();
        let taken = self.back.take(passed);
        let guest = self.back.guest();
        assert_eq!(guest.connected, taken.is_ok() && is_passed);
        assert!(guest.connected || guest.regions == 0 && !guest.running, "{guest:?}");
    }

    fn check_closed(&mut self) {
        assert!(!self.back.guest().connected);
        let _ = self.back.send(&mut Vec::new()).expect("the error comes once");
        let guest = self.back.guest();
        assert_eq!((guest.regions, guest.running), (0, false));
    }

    /// Runs the port until it detects that a front end has disconnected.
    pub(crate) fn settle(&mut self) {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            let guest = self.back.guest();
            // Earlier front ends may still wait to be accepted.
            if guest.connections == self.guests.get() && !guest.connected {
                return;
            }
            self.wait();
        }
        panic!("a front end that is gone stays connected");
    }

    /// Checks that the next front end is served normally.
    pub(crate) fn check_serves(&mut self) {
        let guest = Guest::new(self);
        guest.set_up((1 << 30) | (1 << 32), 16);
        let since = Instant::now();
        let mut is_offered = false;
        while since.elapsed() < PATIENCE {
            // Frames of a queue that is not enabled have no effect.
            if !is_offered && self.back.guest().queues.iter().all(|queue| queue.enabled) {
                let desc = Desc { addr: 0x4000, len: 100, flags: 0, next: 0 };
                (0..2).for_each(|queue| guest.offer(queue, 0, desc));
                is_offered = true;
            }
            if self.wait() == 1 {
                drop(guest);
                return self.settle();
            }
        }
        panic!("a frame does not arrive: {:?}", self.back.guest());
    }
}

/// Number of open descriptors of this process, with those that the crate `link` keeps from the first guest on.
pub(crate) fn open_descriptors() -> usize {
    static FIRST_GUEST: Once = Once::new();
    FIRST_GUEST.call_once(|| Port::new().check_serves());
    descriptors()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Asserts that the process has as many open descriptors as `before`, once threads have closed those of messages.
pub(crate) fn check_descriptors(before: usize) {
    let since = Instant::now();
    while descriptors() != before && since.elapsed() < PATIENCE {
        thread::sleep(Duration::from_micros(50));
    }
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let files: Vec<PathBuf> = files.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    assert_eq!(descriptors(), before, "open descriptors: {files:?}");
}

/// A descriptor of a ring.
#[derive(Clone, Copy)]
pub(crate) struct Desc {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// A front end.
pub(crate) struct Guest {
    socket: UnixStream,
    /// Guest memory, with guards around it.
    pub(crate) file: OwnedFd,
}

impl Guest {
    pub(crate) fn new(port: &Port) -> Self {
        let socket = UnixStream::connect(&port.path).expect("a listener");
        port.guests.set(port.guests.get() + 1);
        socket.set_nonblocking(true).expect("a socket");
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, GUEST_LEN + 2 * PAGE).expect("a memfd");
        let guest = Self { socket, file };
        for at in guards() {
            pwrite(&guest.file, &GUARD.repeat(PAGE as usize / GUARD.len()), at).expect("a memfd");
        }
        guest
    }

    /// Sends bytes with descriptors. If the back end does not read, they are lost.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); 512];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags);
    }

    /// Sends a complete message.
    pub(crate) fn say(&self, request: u32, flags: u32, body: &[u64], fds: &[BorrowedFd<'_>]) {
        let body: Vec<u8> = body.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let header = [request, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
        self.send(&[header, body].concat(), fds);
    }

    /// Sends features, memory of two regions, and all rings.
    pub(crate) fn set_up(&self, features: u64, size: u32) {
        let pair = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
        let half = GUEST_LEN / 2;
        self.say(2, 1, &[features], &[]);
        let table = [2, 0, half, USER, PAGE, half, half, USER + half, PAGE + half];
        self.say(5, 1, &table, &[self.file.as_fd(), self.file.as_fd()]);
        for queue in 0..2 * u32::from(PAIRS) {
            let at = USER + u64::from(queue) * RING_LEN;
            let event = || eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
            self.say(8, 1, &[pair(queue, size)], &[]);
            self.say(10, 1, &[pair(queue, 0)], &[]);
            self.say(9, 1, &[pair(queue, 0), at, USER + used_at(queue.into()), USER + avail_at(queue.into()), 0], &[]);
            self.say(13, 1, &[queue.into()], &[event().as_fd()]);
            self.say(12, 1, &[queue.into()], &[event().as_fd()]);
            self.say(18, 1, &[pair(queue, 1)], &[]);
        }
    }

    /// Writes into guest memory.
    pub(crate) fn poke(&self, at: u64, bytes: &[u8]) {
        poke(&self.file, at, bytes);
    }

    /// Writes a descriptor of a ring.
    pub(crate) fn describe(&self, queue: u64, index: u64, desc: Desc) {
        let rest = u64::from(desc.len) | (u64::from(desc.flags) << 32) | (u64::from(desc.next) << 48);
        self.poke(queue * RING_LEN + 16 * index, &[desc.addr, rest].map(u64::to_le_bytes).concat());
    }

    /// Offers one descriptor as the first chain of a ring.
    fn offer(&self, queue: u64, index: u16, desc: Desc) {
        self.describe(queue, index.into(), Desc { flags: if queue.is_multiple_of(2) { 2 } else { 0 }, ..desc });
        self.poke(avail_at(queue), &[0, 1, index].map(u16::to_le_bytes).concat());
    }

    /// Asserts that nothing was written around guest memory; the file may have been truncated.
    pub(crate) fn check_guards(&self) {
        for at in guards() {
            let mut bytes = vec![0; PAGE as usize];
            let len = pread(&self.file, &mut bytes, at).expect("a memfd");
            assert!(bytes[..len].chunks_exact(GUARD.len()).all(|chunk| chunk == GUARD || chunk == [0; 8]));
        }
    }
}

/// Offsets of the guards.
fn guards() -> [u64; 2] {
    [0, PAGE + GUEST_LEN]
}

/// Writes into guest memory, at an address taken modulo its length.
pub(crate) fn poke(file: &OwnedFd, at: u64, bytes: &[u8]) {
    let at = at % GUEST_LEN;
    let len = bytes.len().min((GUEST_LEN - at) as usize);
    pwrite(file, &bytes[..len], PAGE + at).expect("a memfd");
}
