//! Front end and back end against each other, and back ends against malicious drivers.

mod both_ends;
mod malformed;
mod messages;
mod passed;
mod shards;

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::DropReason;
use offload::Features;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, geometry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::{EtherType, MacAddr, Protocol, ipv4, tcp};

use crate::offloads::{BY_CONFIGURATION, Offloads};
use crate::vhost::VhostConfig;
use crate::vhost::back::{VhostUser, open};
use crate::vhost::device::lock;
use crate::vhost::driver_ring::{available_at, used_at};
use crate::vhost::features::Bits;
use crate::vhost::front;
use crate::vhost::front::{FrontConfig, VhostFront, open_requesting};
use crate::vhost::handshake::{BASE, Proposal, RX_BUFFER, Session, TX_BUFFER, negotiate};
use crate::vhost::ring::{INDIRECT, NEXT, WRITE};
use crate::virtio::DATA_VALID;
use crate::{Link, Sent};

/// Address of links in tests.
pub(super) const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Time limit of waits in tests.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A unique path for a socket.
pub(super) fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fatpath-vhost-{}-{number}.sock", std::process::id()))
}

pub(super) fn back_end(pairs: u16) -> VhostUser {
    open(&VhostConfig { pairs, ..VhostConfig::new("vm0", &path(), MAC) }).unwrap()
}

pub(super) fn front_of(back: &VhostUser) -> FrontConfig {
    FrontConfig::new("u0", &back.socket, MAC)
}

/// Both ends of a connection.
pub(super) struct Wire {
    pub(super) back: VhostUser,
    pub(super) front: VhostFront,
    pub(super) mem: Memory,
}

impl Wire {
    pub(super) fn new(pairs: u16, change: impl FnOnce(&mut FrontConfig)) -> Self {
        Self::without(0, pairs, change)
    }

    /// Both ends without some features.
    pub(super) fn without(bits: u64, pairs: u16, change: impl FnOnce(&mut FrontConfig)) -> Self {
        let back = back_end(pairs);
        let mut config = FrontConfig { pairs, ..front_of(&back) };
        change(&mut config);
        let requested = Bits(Bits::requested(config.offloads, pairs > 1).0 & !bits);
        let front = open_requesting(&config, requested).unwrap();
        let mut wire = Self { back, front, mem: Memory::heap() };
        wire.connect();
        wire
    }

    pub(super) fn connect(&mut self) {
        until(|| {
            let mut none = Vec::new();
            self.back.recv(&self.mem, &mut none).unwrap();
            self.front.recv(&self.mem, &mut none).unwrap();
            self.back.guest().running && self.front.guest().running
        });
        for link in [&mut self.back as &mut dyn Link, &mut self.front] {
            refit(link);
        }
    }

    /// Sends packets one way, and returns what arrives.
    pub(super) fn carry(&mut self, to_guest: bool, mut burst: Vec<Packet>) -> Vec<Packet> {
        let (from, to): (&mut dyn Link, &mut dyn Link) =
            if to_guest { (&mut self.back, &mut self.front) } else { (&mut self.front, &mut self.back) };
        let mut got = Vec::new();
        let dropped = from.stats().tx_dropped + to.stats().rx_dropped;
        let want = burst.iter().map(|packet| packet.meta.cut.packets()).sum::<u64>();
        until(|| {
            let sent = from.send(&mut burst).unwrap();
            assert_ne!(sent, Sent::Refit);
            to.recv(&self.mem, &mut got).unwrap();
            let dropped = from.stats().tx_dropped + to.stats().rx_dropped - dropped;
            got.len() as u64 + dropped == want
        });
        got
    }
}

/// Drives `send` until the link reports its features.
pub(super) fn refit(link: &mut dyn Link) {
    while link.send(&mut Vec::new()).unwrap() == Sent::Refit {}
}

pub(super) fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "it does not happen");
        std::thread::yield_now();
    }
}

/// An Ethernet frame of `len` bytes that contains a number.
pub(super) fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 ^ number) as u8).collect();
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

/// A TCP frame with a partial checksum, in segments of 1448 bytes.
pub(super) fn fat(mem: &Memory, payload: usize) -> Packet {
    let total = 20 + 32 + payload;
    let mut ip =
        ipv4::Ipv4Header::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), Protocol::TCP, total as u16);
    ip.fill_check();
    let mut segment = tcp::TcpHeader::new(1, 2, 3, 4);
    segment.set_header_len(32);
    let mut bytes = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0].to_vec();
    bytes.extend_from_slice(ip.as_bytes());
    bytes.extend_from_slice(segment.as_bytes());
    bytes.resize(14 + 20 + 32, 1);
    bytes.extend((0..payload).map(|at| (at % 251) as u8));
    let mut packet = Packet::with_data(mem, &bytes).unwrap();
    packet.meta.csum = Csum::Partial { start: 34, offset: 16 };
    let segs = payload.div_ceil(1448) as u16;
    packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 1448, segs, ecn: false, fixed_id: false });
    packet
}

pub(super) fn bytes_of(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::to_vec).collect()
}

/// A packet longer than a test's default page.
pub(super) fn long(bytes: &[u8]) -> Packet {
    let mem = Memory::heap();
    let mut buf = mem.take(0, bytes.len()).unwrap();
    buf.put(bytes.len()).unwrap().copy_from_slice(bytes);
    Packet::from_buf(buf)
}

pub(super) fn is_readable(link: &dyn Link) -> bool {
    let fds = link.poll_fds();
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Waits as the daemon does; a lost wake-up is a failure.
pub(super) fn wait(link: &dyn Link) {
    let fds = link.poll_fds();
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert!(poll(&mut fds, Some(&limit)).unwrap() > 0, "{} is never woken", link.name());
}

/// A driver whose rings the test itself writes.
pub(super) struct Raw {
    pub(super) back: VhostUser,
    pub(super) session: Session,
    pub(super) mem: Memory,
}

impl Raw {
    pub(super) fn new(change: impl FnOnce(u64) -> u64) -> Self {
        let back = back_end(1);
        Self::of(back, change)
    }

    pub(super) fn of(mut back: VhostUser, change: impl FnOnce(u64) -> u64) -> Self {
        let mem = Memory::heap();
        let features = Bits(change(Bits::offered(true).0));
        let requested = Proposal { features, pairs: 1, ring_size: 16 };
        let socket = UnixStream::connect(&back.socket).unwrap();
        let session = std::thread::spawn(move || negotiate(socket, &requested).unwrap());
        let mut none = Vec::new();
        until(|| {
            back.recv(&mem, &mut none).unwrap();
            session.is_finished()
        });
        back.recv(&mem, &mut none).unwrap();
        refit(&mut back);
        Self { back, session: session.join().unwrap(), mem }
    }

    /// The transmit queue.
    pub(super) fn tx(&mut self) -> &mut super::handshake::FrontQueue {
        &mut self.session.queues[1]
    }

    /// Writes bytes at an address.
    pub(super) fn poke(&self, addr: u64, bytes: &[u8]) {
        let mut pieces = Vec::new();
        assert!(self.session.memory.locate(addr, bytes.len() as u32, &mut pieces));
        let mut at = 0;
        for piece in pieces {
            self.session.memory.write(piece, 0, &bytes[at..at + piece.len as usize]);
            at += piece.len as usize;
        }
    }

    /// Offers the chain at descriptor 0 to the back end.
    pub(super) fn offer(&mut self) {
        let queue = self.tx();
        queue.ring.offer(0, 0);
        queue.ring.publish();
    }

    pub(super) fn recv(&mut self) -> (Vec<Packet>, Option<String>) {
        let mut got = Vec::new();
        let err = self.back.recv(&self.mem, &mut got).err();
        (got, err.map(|err| err.to_string()))
    }

    /// Sends a frame with the test's own header.
    pub(super) fn send(&mut self, header: [u8; 12], bytes: &[u8]) -> Vec<Packet> {
        let addr = self.tx().buffers;
        self.poke(addr, &[&header[..], bytes].concat());
        let len = 12 + bytes.len() as u32;
        self.tx().ring.describe(0, addr, len, 0, 0);
        self.offer();
        let (got, err) = self.recv();
        assert_eq!(err, None);
        assert_eq!(self.tx().ring.take_back(), Ok(Some((0, 0))));
        got
    }
}
