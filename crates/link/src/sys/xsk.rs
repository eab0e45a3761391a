//! AF_XDP sockets (Linux `Documentation/networking/af_xdp.rst`): one queue of an interface, whose frames the kernel and
//! this program pass to each other.
//!
//! The kernel gets the addresses of frames that [`Frames`] has lent it, and no others.
//!
//! Invariant: the socket and the mappings that keep it alive are dropped before the frames.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use base::DropReason;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::frames::{FramePiece, Frames};
use super::ring::{Consumer, Desc, Mapping, Parts, Producer};
use super::socket::{bind, get_bytes, set_buffer, set_bytes, set_option};
use super::{check, errno, sockaddr};

/// A failed call, and its error.
pub(crate) type Failed = (&'static str, io::Error);

/// Interface queue that a socket is bound to, and the parameters of the binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XskQueue {
    /// The interface's number.
    pub(crate) index: i32,
    /// The number of its queue.
    pub(crate) queue: u32,
    /// Number of receive frames, and of transmit frames; a power of two.
    pub(crate) ring: NonZeroU32,
    /// Bytes of a frame, a power of two up to a page.
    pub(crate) frame_size: u32,
}

/// The kernel's own counters of a socket: `struct xdp_statistics`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct XdpStats {
    /// Packets dropped for another reason than descriptors, such as a lack of frames.
    pub rx_dropped: u64,
    /// Frames dropped because their descriptor in the fill ring was wrong.
    pub rx_invalid_descs: u64,
    /// Packets that were not sent because their descriptor was wrong.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the kernel found the fill ring empty.
    pub rx_fill_ring_empty_descs: u64,
    /// Times that the kernel found the transmit ring empty.
    pub tx_ring_empty_descs: u64,
}

impl XdpStats {
    /// Adds another socket's counters.
    pub(crate) fn add(&mut self, other: &Self) {
        self.rx_dropped += other.rx_dropped;
        self.rx_invalid_descs += other.rx_invalid_descs;
        self.tx_invalid_descs += other.tx_invalid_descs;
        self.rx_ring_full += other.rx_ring_full;
        self.rx_fill_ring_empty_descs += other.rx_fill_ring_empty_descs;
        self.tx_ring_empty_descs += other.tx_ring_empty_descs;
    }
}

/// Packets that one call copies at most (`TX_BATCH_SIZE`).
const TX_BATCH: u32 = 32;

/// Makes a socket, not bound to a queue. In copy mode, packets queued in the device are charged to its send buffer, which has
/// this many bytes.
pub(crate) fn socket(send_buffer: u32) -> Result<OwnedFd, Failed> {
    let failed = |call| move |err: io::Error| (call, err);
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(|err| failed("socket AF_XDP")(err.into()))?;
    let charged = i32::try_from(send_buffer).unwrap_or(i32::MAX);
    set_buffer(socket.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, charged).map_err(failed("SO_SNDBUF"))?;
    Ok(socket)
}

/// A socket of one queue. Its fields are dropped in the order of their declaration.
#[derive(Debug)]
pub(crate) struct Xsk {
    socket: OwnedFd,
    rx: Consumer<Desc>,
    tx: Producer<Desc>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    frames: Frames,
    queue: XskQueue,
}

impl Xsk {
    /// Registers memory and rings with a [socket] that is not bound to a queue.
    pub(crate) fn new(queue: XskQueue, socket: OwnedFd) -> Result<Self, Failed> {
        let failed = |call| move |err: io::Error| (call, err);
        let frames = Frames::new(queue.ring.get() as usize, queue.frame_size as usize).map_err(failed("mmap"))?;
        let fd = socket.as_fd();
        let memory = memory_of(frames.memory(), queue.frame_size);
        set_bytes(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &memory).map_err(failed("XDP_UMEM_REG"))?;
        // The kernel releases slots of the fill ring only after it has emptied all that it had read the index of, so
        // the ring needs room for twice the frames.
        let fill_slots = queue.ring.saturating_mul(NonZeroU32::MIN.saturating_add(1));
        for (name, call, slots) in [
            (libc::XDP_UMEM_FILL_RING, "XDP_UMEM_FILL_RING", fill_slots),
            (libc::XDP_UMEM_COMPLETION_RING, "XDP_UMEM_COMPLETION_RING", queue.ring),
            (libc::XDP_RX_RING, "XDP_RX_RING", queue.ring),
            (libc::XDP_TX_RING, "XDP_TX_RING", queue.ring),
        ] {
            set_option(fd, libc::SOL_XDP, name, slots.get() as i32).map_err(failed(call))?;
        }
        let [rx, tx, fill, completion] = parts(fd).map_err(failed("XDP_MMAP_OFFSETS"))?;
        let no_ring = || failed("mmap")(io::Error::other("ring offsets lie outside the mapping"));
        let map = |parts: Parts, slots: NonZeroU32, slot: usize, at: u64| {
            let len = parts.slots.saturating_add(u64::from(slots.get()) * slot as u64);
            Mapping::of(fd, at, len as usize).map(Arc::new).map_err(failed("mmap"))
        };
        let (rx_at, tx_at) = (libc::XDP_PGOFF_RX_RING as u64, libc::XDP_PGOFF_TX_RING as u64);
        let (fill_at, completion_at) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        let (desc, slot) = (size_of::<Desc>(), size_of::<u64>());
        let rx = Consumer::new(&map(rx, queue.ring, desc, rx_at)?, rx, queue.ring);
        let tx = Producer::new(&map(tx, queue.ring, desc, tx_at)?, tx, queue.ring);
        let fill = Producer::new(&map(fill, fill_slots, slot, fill_at)?, fill, fill_slots);
        let completion = Consumer::new(&map(completion, queue.ring, slot, completion_at)?, completion, queue.ring);

        Ok(Self {
            rx: rx.ok_or_else(no_ring)?,
            tx: tx.ok_or_else(no_ring)?,
            fill: fill.ok_or_else(no_ring)?,
            completion: completion.ok_or_else(no_ring)?,
            frames,
            queue,
            socket,
        })
    }

    /// Binds the socket to its queue, in the mode of `flags` (`XDP_COPY` and the like), and lends the kernel every receive frame. After an
    /// error the call may be repeated.
    pub(crate) fn bind(&mut self, flags: u16) -> io::Result<()> {
        bind(self.socket.as_fd(), &sockaddr::xdp(self.queue.index, self.queue.queue, flags))?;
        self.refill();
        Ok(())
    }

    /// Lends the kernel the free receive frames. Tells whether it has any now, empty or filled.
    pub(crate) fn refill(&mut self) -> bool {
        let fill = &mut self.fill;
        if self.frames.lend_home(|addr| fill.push(addr)) {
            self.fill.publish();
        }
        // The wakeup may also be needed for frames lent earlier: the kernel may have found the ring empty since.
        if self.fill.waiting() > 0 && self.fill.needs_wakeup() {
            self.wake_for_rx();
        }
        self.frames.receivable() > 0
    }

    /// Takes the next received frame, if any, or the reason to drop it because of an impossible descriptor.
    pub(crate) fn receive(&mut self) -> Option<Result<FramePiece, DropReason>> {
        let desc = self.rx.pop()?;
        Some(self.frames.received(desc))
    }

    /// Releases the slots of received frames to the kernel.
    pub(crate) fn release(&self) {
        self.rx.release();
    }

    /// Copies a packet of `len` bytes to transmit frames. Returns false if there are not enough. The kernel sees the
    /// packet after [`flush`](Self::flush).
    pub(crate) fn send<'a>(&mut self, len: usize, pieces: impl Iterator<Item = &'a [u8]>) -> bool {
        let free = self.queue.ring.get() - self.tx.waiting();
        let tx = &mut self.tx;
        self.frames.fill(len, pieces, free as usize, |desc| assert!(tx.push(desc), "a slot that was free is taken"))
    }

    /// Publishes the packets to be sent, and kicks the kernel. Packets that it does not take now stay in the ring.
    /// Returns the number of packets that the device dropped.
    pub(crate) fn flush(&mut self) -> io::Result<u32> {
        let Self { tx, socket, .. } = self;
        tx.publish();
        let waiting = tx.waiting();
        let dropped = kick(waiting, || tx.waiting() > 0 && tx.needs_wakeup(), || wake_for_tx(socket))?;
        self.complete();
        Ok(dropped)
    }

    /// Takes back the frames that were sent.
    pub(crate) fn complete(&mut self) {
        while let Some(addr) = self.completion.pop() {
            self.frames.sent(addr);
        }
        self.completion.release();
    }

    /// Tells whether the transmit ring holds packets that the kernel has not taken.
    pub(crate) fn has_unsent(&mut self) -> bool {
        self.tx.waiting() > 0
    }

    /// Tells whether packets stay in the transmit ring until the kernel is kicked again.
    pub(crate) fn is_stuck(&mut self) -> bool {
        self.has_unsent() && self.tx.needs_wakeup()
    }

    /// Receive frames that packets hold.
    pub(crate) fn held(&self) -> usize {
        self.frames.held()
    }

    /// Tells whether the driver fills our frames itself (zero copy).
    pub(crate) fn is_zero_copy(&self) -> bool {
        let mut options = [0; 4];
        let got = get_bytes(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS, &mut options);
        got.is_ok() && u32::from_ne_bytes(options) & libc::XDP_OPTIONS_ZEROCOPY != 0
    }

    /// The kernel's counters; a counter that the kernel lacks is 0.
    pub(crate) fn stats(&self) -> XdpStats {
        let mut bytes = [0; 48];
        if get_bytes(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, &mut bytes).is_err() {
            return XdpStats::default();
        }
        let mut numbers = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or(0);
        XdpStats {
            rx_dropped: next(),
            rx_invalid_descs: next(),
            tx_invalid_descs: next(),
            rx_ring_full: next(),
            rx_fill_ring_empty_descs: next(),
            tx_ring_empty_descs: next(),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Kicks the kernel for receiving. Errors are ignored: an interface that is down is reported by other calls.
    fn wake_for_rx(&self) {
        let (fd, nowhere) = (self.socket.as_raw_fd(), ptr::null_mut());
        // SAFETY: the kernel writes no bytes and no address: both lengths are zero or null.
        unsafe { libc::recvfrom(fd, nowhere, 0, libc::MSG_DONTWAIT, ptr::null_mut(), ptr::null_mut()) };
    }
}

fn wake_for_tx(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no bytes and no address.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    check(sent as i32).map(drop)
}

/// Calls `wake` often enough for the kernel to take all `waiting` packets, or until no wakeup is `is_needed` any more.
/// Returns the number of packets that the device dropped.
///
/// A call takes no more than [`TX_BATCH`] packets and returns `EAGAIN` if there are more, or if the device has no room.
/// The two cases look alike: kernels before 6.17 do not publish their index then. `EBUSY` stands for one dropped
/// packet.
fn kick(
    waiting: u32,
    mut is_needed: impl FnMut() -> bool,
    mut wake: impl FnMut() -> io::Result<()>,
) -> io::Result<u32> {
    let (mut calls, mut dropped) = (waiting.div_ceil(TX_BATCH), 0);
    while calls > 0 && is_needed() {
        match wake() {
            Ok(()) => break,
            Err(err) => match errno(&err) {
                libc::EBUSY if dropped < waiting => dropped += 1,
                libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR => calls -= 1,
                _ => return Err(err),
            },
        }
    }
    Ok(dropped)
}

/// `struct xdp_umem_reg`, up to its flags.
fn memory_of(memory: ptr::NonNull<[u8]>, frame_size: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(memory.cast::<u8>().as_ptr().expose_provenance() as u64).to_ne_bytes());
    bytes[8..16].copy_from_slice(&(memory.len() as u64).to_ne_bytes());
    bytes[16..20].copy_from_slice(&frame_size.to_ne_bytes());
    bytes
}

/// Offsets of the parts of the receive, transmit, fill and completion rings.
fn parts(fd: BorrowedFd<'_>) -> io::Result<[Parts; 4]> {
    let mut bytes = [0; size_of::<libc::xdp_mmap_offsets>()];
    if get_bytes(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut bytes)? != bytes.len() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "needs Linux 5.4 or later"));
    }
    let mut numbers = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    let mut next = || numbers.next().unwrap_or(u64::MAX);
    Ok(std::array::from_fn(|_| Parts { producer: next(), consumer: next(), slots: next(), flags: next() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel before 6.17 with `waiting` packets to copy, into a device with room for `room`, that drops the `lost`
    /// first.
    struct Old {
        waiting: u32,
        room: u32,
        lost: u32,
        calls: u32,
    }

    impl Old {
        fn wake(&mut self) -> io::Result<()> {
            self.calls += 1;
            for _ in 0..TX_BATCH {
                let error = match (self.waiting, self.lost, self.room) {
                    (0, ..) => return Ok(()),
                    (_, 0, 0) => libc::EAGAIN,
                    (_, 0, _) => 0,
                    _ => libc::EBUSY,
                };
                match error {
                    0 => self.room -= 1,
                    libc::EBUSY => self.lost -= 1,
                    error => return Err(io::Error::from_raw_os_error(error)),
                }
                self.waiting -= 1;
                if error == libc::EBUSY {
                    return Err(io::Error::from_raw_os_error(error));
                }
            }
            match self.waiting {
                0 => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            }
        }
    }

    #[test]
    fn kick_takes_all_packets_and_stops_at_a_full_device() {
        // Waiting, room and lost; left and calls.
        let cases = [
            (1, 256, 0, (0, 1)),
            (32, 256, 0, (0, 1)),
            (33, 256, 0, (0, 2)),
            (256, 256, 0, (0, 8)),
            (256, 0, 0, (256, 8)),
            (256, 100, 0, (156, 8)),
            (256, 256, 10, (0, 18)),
            (10, 256, 10, (0, 11)),
        ];
        for (waiting, room, lost, (left, calls)) in cases {
            let mut kernel = Old { waiting, room, lost, calls: 0 };
            let dropped = kick(waiting, || true, || kernel.wake()).unwrap();
            assert_eq!((dropped, kernel.waiting), (lost, left), "{waiting} {room} {lost}");
            assert_eq!(kernel.calls, calls, "{waiting} {room} {lost}");
        }
    }

    #[test]
    fn kick_makes_no_call_unless_needed_and_returns_errors() {
        assert_eq!(kick(9, || false, || panic!("it takes them by itself")).unwrap(), 0);
        let mut calls = 0;
        let err = kick(
            99,
            || true,
            || {
                calls += 1;
                Err(io::Error::from_raw_os_error(libc::ENETDOWN))
            },
        );
        assert_eq!((err.unwrap_err().raw_os_error(), calls), (Some(libc::ENETDOWN), 1));
        // A device that stays busy although it drops no packet.
        calls = 0;
        let busy = || {
            calls += 1;
            Err(io::Error::from_raw_os_error(libc::EBUSY))
        };
        assert_eq!((kick(40, || true, busy).unwrap(), calls), (40, 42));
    }
}
