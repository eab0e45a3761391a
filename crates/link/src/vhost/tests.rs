//! Front end and back end against each other, and back ends against drivers that lie.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::DropReason;
use offload::Features;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, geometry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::{EtherType, Protocol, ipv4, tcp};

use super::VhostConfig;
use super::back::{VhostUser, lock, open};
use super::driver_ring::{available_at, used_at};
use super::features::Bits;
use super::front;
use super::front::{FrontConfig, VhostFront, open_wanting};
use super::handshake::{BASE, RX_BUFFER, Session, TX_BUFFER, Wanted, negotiate};
use super::ring::{INDIRECT, NEXT, WRITE};
use crate::offloads::{BY_CONFIGURATION, Offloads};
use crate::virtio::DATA_VALID;
use crate::{Link, Sent};

/// How long a test waits for something that is to happen at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// A path for a socket that no other test has.
fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fatpath-vhost-{}-{number}.sock", std::process::id()))
}

fn back_end(pairs: u16) -> VhostUser {
    open(&VhostConfig { pairs, ..VhostConfig::new("vm0", &path()) }).unwrap()
}

fn front_of(back: &VhostUser) -> FrontConfig {
    FrontConfig::new("u0", &back.socket)
}

/// Both ends of a connection.
struct Wire {
    back: VhostUser,
    front: VhostFront,
    mem: Memory,
}

impl Wire {
    fn new(pairs: u16, change: impl FnOnce(&mut FrontConfig)) -> Self {
        Self::without(0, pairs, change)
    }

    /// Without some features.
    fn without(bits: u64, pairs: u16, change: impl FnOnce(&mut FrontConfig)) -> Self {
        let back = back_end(pairs);
        let mut config = FrontConfig { pairs, ..front_of(&back) };
        change(&mut config);
        let wanted = Bits(Bits::wanted(config.offloads, pairs > 1).0 & !bits);
        let front = open_wanting(&config, wanted).unwrap();
        let mut wire = Self { back, front, mem: Memory::heap() };
        wire.connect();
        wire
    }

    fn connect(&mut self) {
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
    fn carry(&mut self, to_guest: bool, mut burst: Vec<Packet>) -> Vec<Packet> {
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

/// Has a link tell of its features.
fn refit(link: &mut dyn Link) {
    while link.send(&mut Vec::new()).unwrap() == Sent::Refit {}
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "it does not happen");
        std::thread::yield_now();
    }
}

/// An Ethernet frame of `len` bytes with a number in it.
fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 ^ number) as u8).collect();
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

/// A TCP frame with an unfinished checksum, of so many segments of 1448 bytes.
fn fat(mem: &Memory, payload: usize) -> Packet {
    let total = 20 + 32 + payload;
    let mut ip =
        ipv4::Header::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), Protocol::TCP, total as u16);
    ip.fill_check();
    let mut segment = tcp::Header::new(1, 2, 3, 4);
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

fn bytes_of(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::to_vec).collect()
}

#[test]
fn frames_of_any_length_cross_both_ways() {
    let mut wire = Wire::new(1, |_| {});
    let lens = [14, 15, 59, 60, 61, 1513, 1514, 1515, 4083, 4084, 4085, 4096, 9014, 40_000, 65_549];
    let frames: Vec<Vec<u8>> = lens.iter().zip(0..).map(|(&len, number)| frame(number, len)).collect();
    for to_guest in [true, false] {
        let burst = frames.iter().map(|bytes| Packet::with_data(&wire.mem, bytes).unwrap_or_else(|_| long(bytes)));
        let burst = burst.collect();
        let got = wire.carry(to_guest, burst);
        assert_eq!(bytes_of(&got), frames, "to the guest: {to_guest}");
        assert!(got.iter().all(|packet| packet.meta.csum == Csum::None && packet.meta.cut == Cut::Whole));
    }
    let bytes: u64 = lens.iter().map(|&len| len as u64).sum();
    assert_eq!((wire.back.stats().rx_bytes, wire.back.stats().tx_bytes), (bytes, bytes));
    assert_eq!(wire.back.guest().copied, 2 * bytes);
}

/// A packet of more bytes than a test's default page takes.
fn long(bytes: &[u8]) -> Packet {
    let mem = Memory::heap();
    let mut buf = mem.take(0, bytes.len()).unwrap();
    buf.put(bytes.len()).unwrap().copy_from_slice(bytes);
    Packet::from_buf(buf)
}

#[test]
fn frames_in_every_shape_arrive_as_one() {
    let mut wire = Wire::new(1, |_| {});
    let bytes = frame(7, 300);
    for to_guest in [true, false] {
        for (shape, packet) in geometry::all(&Memory::heap(), &bytes, &[14, 34]) {
            let got = wire.carry(to_guest, vec![packet]);
            assert_eq!(bytes_of(&got), std::slice::from_ref(&bytes), "{shape}");
        }
    }
}

#[test]
fn fat_frames_stay_fat_both_ways() {
    let mut wire = Wire::new(1, |_| {});
    for to_guest in [true, false] {
        for payload in [1449, 2896, 30_000, 65_000] {
            let packet = fat(&wire.mem, payload);
            let (bytes, meta) = (packet.to_vec(), packet.meta.clone());
            let got = wire.carry(to_guest, vec![packet]);
            assert_eq!(got.len(), 1, "{:?}", wire.back.stats());
            assert_eq!(got[0].to_vec(), bytes);
            assert_eq!((got[0].meta.csum, got[0].meta.cut), (meta.csum, meta.cut));
        }
    }
}

#[test]
fn vlan_tag_beside_a_frame_is_put_in_its_place() {
    let mut wire = Wire::new(1, |_| {});
    for to_guest in [true, false] {
        let mut packet = fat(&wire.mem, 5000);
        packet.meta.vlan = Some(7);
        let plain = packet.to_vec();
        let got = wire.carry(to_guest, vec![packet]);
        let want = [&plain[..12], &EtherType::VLAN.0.to_be_bytes(), &[0, 7], &plain[12..]].concat();
        assert_eq!(got[0].to_vec(), want);
        assert_eq!(got[0].meta.csum, Csum::Partial { start: 38, offset: 16 });
    }
}

#[test]
fn frames_in_one_buffer_are_sent_one_by_one() {
    let mut wire = Wire::new(1, |config| config.ring_size = 4);
    for to_guest in [true, false] {
        let together: Vec<u8> = (0..9).flat_map(|number| frame(number, 100)).collect();
        let mut packet = Packet::with_data(&wire.mem, &together).unwrap();
        packet.meta.cut = Cut::Frames(packet::Frames { size: 100, stride: 100, count: 9 });
        let got = wire.carry(to_guest, vec![packet]);
        assert_eq!(bytes_of(&got), (0..9).map(|number| frame(number, 100)).collect::<Vec<_>>());
        let stats = if to_guest { wire.back.stats() } else { wire.front.stats() };
        assert_eq!((stats.tx_packets, stats.tx_wire_packets, stats.tx_bytes), (1, 9, 900));
    }
}

#[test]
fn indices_wrap_without_a_loss() {
    for event_index in [true, false] {
        let off = if event_index { 0 } else { 1 << 29 };
        let mut wire = Wire::without(off, 1, |config| config.ring_size = 32);
        let mut number = 0;
        while number < 70_000 {
            let numbers = number..number + 50;
            let burst = numbers.clone().map(|number| Packet::with_data(&wire.mem, &frame(number, 64)).unwrap());
            let burst = burst.collect();
            let got = wire.carry(number % 100 == 0, burst);
            let want: Vec<Vec<u8>> = numbers.map(|number| frame(number, 64)).collect();
            assert_eq!(bytes_of(&got), want);
            number += 50;
        }
        assert!(wire.back.guest().queues.iter().all(|queue| queue.chains == 35_000));
    }
}

#[test]
fn only_what_was_negotiated_is_used() {
    const MRG_RXBUF: u64 = 1 << 15;
    const CSUM: u64 = 1 << 0;
    const GUEST_CSUM: u64 = 1 << 1;
    const GUEST_TSO4: u64 = 1 << 7;
    const VERSION_1: u64 = 1 << 32;
    let of = |off| {
        let wire = Wire::without(off, 1, |_| {});
        let brief = |features: Features| (features.csum != offload::CsumOffload::None, features.tso4, features.uso);
        (brief(wire.back.features()), brief(wire.front.features()))
    };
    let (all, none) = ((true, true, true), (false, false, false));
    assert_eq!(of(0), (all, all));
    assert_eq!(of(GUEST_CSUM), (none, all));
    assert_eq!(of(CSUM), (all, none));
    assert_eq!(of(GUEST_TSO4), ((true, false, true), all));
    assert_eq!(of(MRG_RXBUF), ((true, false, false), all));
    // Frames that were not fitted to it are dropped, and counted.
    for off in [GUEST_CSUM, GUEST_TSO4, MRG_RXBUF, VERSION_1 | MRG_RXBUF] {
        let mut wire = Wire::without(off, 1, |_| {});
        let plain = frame(1, 1000);
        let burst = vec![fat(&wire.mem, 3000), Packet::with_data(&wire.mem, &plain).unwrap()];
        let got = wire.carry(true, burst);
        assert_eq!(bytes_of(&got), std::slice::from_ref(&plain), "without {off:#x}");
        assert_eq!(wire.back.stats().dropped_for(DropReason::TxError), 1);
        let packet = Packet::with_data(&wire.mem, &plain).unwrap();
        assert_eq!(bytes_of(&wire.carry(false, vec![packet])), [plain]);
    }
}

#[test]
fn back_end_without_offloads_offers_none() {
    let back = open(&VhostConfig { offloads: false, ..VhostConfig::new("vm0", &path()) }).unwrap();
    let front = front::open(&front_of(&back)).unwrap();
    let mut wire = Wire { back, front, mem: Memory::heap() };
    wire.connect();
    assert_eq!(wire.back.features(), Features { frames: true, ..Offloads::new().features() });
    assert_eq!(wire.front.features(), wire.back.features());
    assert_eq!(wire.back.offloads()[0].why.as_deref(), Some(BY_CONFIGURATION));
}

#[test]
fn guest_without_buffers_makes_the_link_busy() {
    let mut wire = Wire::new(1, |config| config.ring_size = 8);
    let mut burst: Vec<Packet> = (0..20).map(|n| Packet::with_data(&wire.mem, &frame(n, 100)).unwrap()).collect();
    assert_eq!((wire.back.send(&mut burst).unwrap(), burst.len()), (Sent::Busy, 12));
    assert_eq!(wire.back.guest().queues[0].full, 1);
    let mut got = Vec::new();
    wire.front.recv(&wire.mem, &mut got).unwrap();
    assert_eq!(got.len(), 8);
    // The guest has kicked, which the link's descriptor tells.
    assert!(is_readable(&wire.back));
    got.extend(wire.carry(true, burst));
    assert_eq!(bytes_of(&got), (0..20).map(|n| frame(n, 100)).collect::<Vec<_>>());
}

#[test]
fn frame_that_no_ring_holds_is_dropped() {
    let mut wire = Wire::new(1, |config| config.ring_size = 8);
    let burst = vec![fat(&wire.mem, 60_000), fat(&wire.mem, 20_000)];
    let got = wire.carry(true, burst);
    assert_eq!((got.len(), wire.back.stats().dropped_for(DropReason::PacketTooBig)), (1, 1));
}

fn is_readable(link: &dyn Link) -> bool {
    let fds = link.poll_fds();
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Waits as the daemon does; a wake-up that is lost is a failure.
fn wait(link: &dyn Link) {
    let fds = link.poll_fds();
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert!(poll(&mut fds, Some(&limit)).unwrap() > 0, "{} is never woken", link.name());
}

#[test]
fn two_threads_that_sleep_lose_no_wake_up() {
    for event_index in [true, false] {
        let off = if event_index { 0 } else { 1 << 29 };
        let Wire { mut back, mut front, .. } = Wire::without(off, 1, |config| config.ring_size = 16);
        let count = 20_000_u32;
        let echo = std::thread::spawn(move || {
            let mem = Memory::heap();
            let mut burst = Vec::new();
            let mut echoed = 0;
            while echoed < count {
                front.recv(&mem, &mut burst).unwrap();
                let before = burst.len();
                let sent = front.send(&mut burst).unwrap();
                echoed += (before - burst.len()) as u32;
                if (before == 0 || sent == Sent::Busy) && echoed < count {
                    wait(&front);
                }
            }
            front
        });
        let mem = Memory::heap();
        let (mut sent, mut got) = (0, Vec::new());
        let mut received = 0_u32;
        let mut burst = Vec::new();
        while received < count {
            // At most so many on their way that the echo is never stuck.
            while sent < count && sent - received < 40 && burst.len() < 20 {
                burst.push(Packet::with_data(&mem, &frame(sent, 60 + (sent % 1000) as usize)).unwrap());
                sent += 1;
            }
            let _ = back.send(&mut burst).unwrap();
            back.recv(&mem, &mut got).unwrap();
            if got.is_empty() {
                wait(&back);
            }
            for packet in got.drain(..) {
                assert_eq!(packet.to_vec(), frame(received, 60 + (received % 1000) as usize));
                received += 1;
            }
        }
        echo.join().unwrap();
    }
}

#[test]
fn idle_guest_does_not_wake_the_link() {
    let mut wire = Wire::new(1, |_| {});
    let mut none = Vec::new();
    for _ in 0..3 {
        wire.back.recv(&wire.mem, &mut none).unwrap();
        wire.front.recv(&wire.mem, &mut none).unwrap();
    }
    assert!(!is_readable(&wire.back) && !is_readable(&wire.front));
    // A burst that ends before the ring does makes it readable again.
    let burst: Vec<Packet> = (0..200).map(|n| Packet::with_data(&wire.mem, &frame(n, 100)).unwrap()).collect();
    let mut burst = burst;
    assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
    let mut got = Vec::new();
    while is_readable(&wire.back) {
        wire.back.recv(&wire.mem, &mut got).unwrap();
    }
    assert_eq!(got.len(), 200);
}

#[test]
fn each_flow_stays_in_its_queue() {
    let mut wire = Wire::new(4, |_| {});
    assert_eq!(wire.back.guest().queues.iter().filter(|queue| queue.running).count(), 8);
    for to_guest in [true, false] {
        let mut burst = Vec::new();
        for number in 0..64_u8 {
            let packet = fat(&wire.mem, 2000);
            let mut bytes = packet.to_vec();
            // Another source port.
            bytes[35] = number;
            let mut other = Packet::with_data(&wire.mem, &bytes).unwrap();
            other.meta = packet.meta.clone();
            burst.push(other);
        }
        let mut want = bytes_of(&burst);
        let mut got = bytes_of(&wire.carry(to_guest, burst));
        want.sort();
        got.sort();
        assert_eq!(got, want);
    }
    let used = wire.back.guest().queues.iter().filter(|queue| queue.chains > 0).count();
    assert_eq!(used, 8, "{:?}", wire.back.guest());
}

#[test]
fn front_end_that_comes_back_is_served_again() {
    let Wire { mut back, mut front, mem } = Wire::new(1, |_| {});
    for round in 1..4 {
        let config = front_of(&back);
        drop(front);
        front = open_wanting(&config, Bits::wanted(true, false)).unwrap();
        let mut none = Vec::new();
        let mut errors = Vec::new();
        until(|| {
            errors.extend(back.recv(&mem, &mut none).err().map(|err| err.to_string()));
            front.recv(&mem, &mut none).unwrap();
            back.guest().connections == 1 + round && back.guest().running && front.guest().running
        });
        assert_eq!(errors, ["vm0: vhost-user: the front end is gone"]);
        assert_eq!(back.guest().violations, 0);
        refit(&mut back);
        let packet = Packet::with_data(&mem, &frame(1, 100)).unwrap();
        assert_eq!(back.send(&mut vec![packet]).unwrap(), Sent::All);
        let mut got = Vec::new();
        front.recv(&mem, &mut got).unwrap();
        assert_eq!(got.len(), 1);
    }
}

#[test]
fn back_end_that_comes_back_is_found_again() {
    let mut wire = Wire::new(1, |_| {});
    let socket = wire.back.socket.clone();
    drop(wire.back);
    let mut none = Vec::new();
    let mut errors = Vec::new();
    until(|| {
        errors.extend(wire.front.recv(&wire.mem, &mut none).err().map(|err| err.to_string()));
        !errors.is_empty()
    });
    assert_eq!(errors, ["u0: vhost-user: the back end is gone"]);
    // Without one, what is sent is dropped.
    refit(&mut wire.front);
    let mut burst = vec![Packet::with_data(&wire.mem, &frame(1, 100)).unwrap()];
    assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
    assert_eq!(wire.front.stats().dropped_for(DropReason::LinkDown), 1);
    wire.back = open(&VhostConfig::new("vm0", &socket)).unwrap();
    wire.connect();
    let burst = vec![Packet::with_data(&wire.mem, &frame(1, 100)).unwrap()];
    assert_eq!(wire.carry(true, burst).len(), 1);
}

#[test]
fn second_front_end_waits_until_the_first_is_gone() {
    let mut wire = Wire::new(1, |_| {});
    let mut second = front::open(&front_of(&wire.back)).unwrap();
    let mut none = Vec::new();
    for _ in 0..50 {
        wire.back.recv(&wire.mem, &mut none).unwrap();
        second.recv(&wire.mem, &mut none).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!second.guest().running && !is_readable(&wire.back));
    let burst = vec![Packet::with_data(&wire.mem, &frame(1, 100)).unwrap()];
    assert_eq!(wire.carry(true, burst).len(), 1);
    drop(std::mem::replace(&mut wire.front, second));
    until(|| wire.back.recv(&wire.mem, &mut none).is_err());
    wire.connect();
}

#[test]
fn half_a_message_stops_nobody() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    let mut none = Vec::new();
    let mut socket = UnixStream::connect(&back.socket).unwrap();
    // GET_FEATURES, byte by byte.
    for byte in [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0] {
        socket.write_all(&[byte]).unwrap();
        let before = Instant::now();
        back.recv(&mem, &mut none).unwrap();
        back.recv(&mem, &mut none).unwrap();
        assert!(before.elapsed() < PATIENCE / 2);
        assert!(!is_readable(&back));
    }
    socket.write_all(&[0]).unwrap();
    back.recv(&mem, &mut none).unwrap();
    let mut answer = [0; 20];
    std::io::Read::read_exact(&mut socket, &mut answer).unwrap();
    assert_eq!(answer[..12], [1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0]);
}

#[test]
fn malformed_messages_close_the_connection_with_one_error() {
    let message = |request: u32, body: &[u8]| {
        let mut bytes = Vec::new();
        for word in [request, 1, body.len() as u32] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(body);
        bytes
    };
    let word = |value: u64| value.to_ne_bytes();
    let vring = |index: u32, num: u32| [index.to_ne_bytes(), num.to_ne_bytes()].concat();
    let cases = [
        ("unknown", message(99, &[])),
        ("body too long", [7_u32, 1, 5000].map(u32::to_ne_bytes).concat()),
        ("no version", [1_u32, 0, 0].map(u32::to_ne_bytes).concat()),
        ("features not offered", message(2, &word(1 << 63))),
        ("protocol features not offered", message(16, &word(1 << 8))),
        ("ring size no power of two", message(8, &vring(0, 100))),
        ("ring size too large", message(8, &vring(0, 65_536))),
        ("ring that there is not", message(8, &vring(2, 128))),
        ("ring base of one that there is not", message(11, &vring(7, 0))),
        ("no memory", message(5, &[0; 8])),
        ("memory without descriptors", message(5, &[[1, 0, 0, 0, 0, 0, 0, 0].as_slice(), &[0; 32]].concat())),
        ("kick without descriptor", message(12, &word(0))),
    ];
    let mem = Memory::heap();
    let mut back = back_end(1);
    for (number, (case, bytes)) in cases.iter().enumerate() {
        let mut socket = UnixStream::connect(&back.socket).unwrap();
        socket.write_all(bytes).unwrap();
        let mut none = Vec::new();
        let mut errors = Vec::new();
        for _ in 0..20 {
            errors.extend(back.recv(&mem, &mut none).err().map(|err| err.to_string()));
        }
        assert_eq!(errors.len(), 1, "{case}: {errors:?}");
        assert!(errors[0].starts_with("vm0: vhost-user: connection closed: "), "{case}: {errors:?}");
        let guest = back.guest();
        assert_eq!((guest.violations, guest.connected), (number as u64 + 1, false), "{case}");
        assert_eq!(back.stats().dropped_for(DropReason::RingDescriptor), number as u64 + 1);
    }
}

#[test]
fn front_end_that_reads_no_answers_is_sent_away() {
    let mut back = back_end(1);
    let mem = Memory::heap();
    let mut none = Vec::new();
    let mut socket = UnixStream::connect(&back.socket).unwrap();
    socket.set_nonblocking(true).unwrap();
    let question = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    let mut error = None;
    until(|| {
        for _ in 0..50 {
            let _ = socket.write(&question);
        }
        error = back.recv(&mem, &mut none).err();
        error.is_some()
    });
    let text = error.unwrap().to_string();
    assert_eq!(text, "vm0: vhost-user: connection closed: answers that are not read");
}

#[test]
fn socket_that_a_program_has_is_left_alone() {
    let back = back_end(1);
    let taken = open(&VhostConfig::new("vm1", &back.socket)).unwrap_err();
    assert_eq!(taken.to_string(), "vm1: bind: Address already in use");
    let socket = back.socket.clone();
    // One that crashed leaves its socket behind.
    let stale = path();
    drop(UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    let again = open(&VhostConfig::new("vm1", &stale)).unwrap();
    drop((back, again));
    assert!(!socket.exists() && !stale.exists());
}

/// A driver whose rings the test writes itself.
struct Raw {
    back: VhostUser,
    session: Session,
    mem: Memory,
}

impl Raw {
    fn new(change: impl FnOnce(u64) -> u64) -> Self {
        let back = back_end(1);
        Self::of(back, change)
    }

    fn of(mut back: VhostUser, change: impl FnOnce(u64) -> u64) -> Self {
        let mem = Memory::heap();
        let features = Bits(change(Bits::offered(true).0));
        let wanted = Wanted { features, pairs: 1, ring_size: 16 };
        let socket = UnixStream::connect(&back.socket).unwrap();
        let session = std::thread::spawn(move || negotiate(socket, &wanted).unwrap());
        let mut none = Vec::new();
        until(|| {
            back.recv(&mem, &mut none).unwrap();
            session.is_finished()
        });
        back.recv(&mem, &mut none).unwrap();
        refit(&mut back);
        Self { back, session: session.join().unwrap(), mem }
    }

    /// The queue that it sends by.
    fn tx(&mut self) -> &mut super::handshake::Queue {
        &mut self.session.queues[1]
    }

    /// Writes bytes at an address.
    fn poke(&self, addr: u64, bytes: &[u8]) {
        let mut pieces = Vec::new();
        assert!(self.session.memory.locate(addr, bytes.len() as u32, &mut pieces));
        let mut at = 0;
        for piece in pieces {
            self.session.memory.write(piece, 0, &bytes[at..at + piece.len as usize]);
            at += piece.len as usize;
        }
    }

    /// Offers the chain at descriptor 0 to the back end.
    fn offer(&mut self) {
        let queue = self.tx();
        queue.ring.offer(0, 0);
        queue.ring.publish();
    }

    fn recv(&mut self) -> (Vec<Packet>, Option<String>) {
        let mut got = Vec::new();
        let err = self.back.recv(&self.mem, &mut got).err();
        (got, err.map(|err| err.to_string()))
    }

    /// Sends a frame with a header of the test's.
    fn send(&mut self, header: [u8; 12], bytes: &[u8]) -> Vec<Packet> {
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

#[test]
fn chains_of_any_pieces_are_gathered() {
    for indirect in [false, true] {
        let mut raw = Raw::new(|all| all);
        let bytes = frame(3, 700);
        let buffers = raw.tx().buffers;
        raw.poke(buffers, &[&[0; 12], &bytes[..]].concat());
        // The header itself is in three pieces, and one piece is empty.
        let lens = [1, 10, 1, 0, 6, 300, 394];
        let table = buffers + TX_BUFFER as u64;
        let mut at = buffers;
        for (index, &len) in lens.iter().enumerate() {
            let index = index as u16;
            let is_last = usize::from(index) + 1 == lens.len();
            let (flags, next) = if is_last { (0, 0) } else { (NEXT, index + 1) };
            if indirect {
                let rest = (u64::from(flags) << 32) | (u64::from(next) << 48) | u64::from(len);
                raw.poke(table + 16 * u64::from(index), &[at.to_le_bytes(), rest.to_le_bytes()].concat());
            } else {
                raw.tx().ring.describe(index, at, len, flags, next);
            }
            at += u64::from(len);
        }
        if indirect {
            raw.tx().ring.describe(0, table, 16 * lens.len() as u32, INDIRECT, 0);
        }
        raw.offer();
        let (got, err) = raw.recv();
        assert_eq!((bytes_of(&got), err), (vec![bytes], None));
        assert_eq!(raw.tx().ring.take_back(), Ok(Some((0, 0))));
    }
}

#[test]
fn lying_rings_close_the_connection_with_one_error() {
    type Lie = fn(&mut Raw);
    const INDIRECT_DESC: u64 = 1 << 28;
    fn single(raw: &mut Raw, addr: u64, len: u32, flags: u16, next: u16) {
        raw.tx().ring.describe(0, addr, len, flags, next);
        raw.offer();
    }
    fn table(raw: &mut Raw, entries: &[[u64; 2]], len: u32) {
        let at = raw.tx().buffers;
        let bytes: Vec<u8> = entries.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        raw.poke(at, &bytes);
        single(raw, at, len, INDIRECT, 0);
    }
    fn flags(flags: u16, next: u16, len: u32) -> u64 {
        (u64::from(flags) << 32) | (u64::from(next) << 48) | u64::from(len)
    }
    const END: u64 = BASE + (1 << 40);
    let cases: [(&str, Lie); 17] = [
        ("loop of descriptors", |raw| {
            let at = raw.tx().buffers;
            raw.tx().ring.describe(1, at, 10, NEXT, 0);
            single(raw, at, 10, NEXT, 1);
        }),
        ("loop of descriptors", |raw| {
            let at = raw.tx().buffers;
            single(raw, at, 10, NEXT, 0);
        }),
        ("descriptor 16 beyond the table", |raw| {
            let at = raw.tx().buffers;
            single(raw, at, 10, NEXT, 16);
        }),
        ("descriptor 65535 beyond the table", |raw| {
            let at = available_at(16) + 4;
            raw.offer();
            raw.tx().ring.window.store_u16(at, u16::MAX, Ordering::Relaxed);
        }),
        ("available index 17 ahead", |raw| {
            raw.tx().ring.window.store_u16(available_at(16) + 2, 17, Ordering::Relaxed);
        }),
        ("available index 65535 ahead", |raw| {
            raw.tx().ring.window.store_u16(available_at(16) + 2, u16::MAX, Ordering::Relaxed);
        }),
        ("20 bytes at 0x0 outside of guest memory", |raw| single(raw, 0, 20, 0, 0)),
        ("20 bytes at 0xffffffffffffffff outside of guest memory", |raw| single(raw, u64::MAX, 20, 0, 0)),
        ("4294967295 bytes at 0x10100000000 outside of guest memory", |raw| single(raw, END, u32::MAX, 0, 0)),
        ("100000 bytes at ", |raw| {
            // Its last 50 000 bytes are behind the end.
            let sixteen = 16 * TX_BUFFER as u64;
            let at = raw.tx().buffers + sixteen - 50_000;
            single(raw, at, 100_000, 0, 0);
        }),
        ("descriptor of the wrong direction", |raw| {
            let at = raw.tx().buffers;
            single(raw, at, 20, WRITE, 0);
        }),
        ("malformed indirect table", |raw| table(raw, &[[0, 0]], 0)),
        ("malformed indirect table", |raw| table(raw, &[[0, 0]], 17)),
        ("malformed indirect table", |raw| table(raw, &[[BASE, flags(INDIRECT, 0, 16)]], 16)),
        ("descriptor 7 beyond the table", |raw| table(raw, &[[BASE, flags(NEXT, 7, 16)]], 16)),
        ("loop of descriptors", |raw| table(raw, &[[BASE, flags(NEXT, 0, 16)]], 16)),
        ("32 bytes at 0x10100000000 outside of guest memory", |raw| single(raw, END, 32, INDIRECT, 0)),
    ];
    for (number, (want, lie)) in cases.into_iter().enumerate() {
        // The front end asks for no indirect descriptors itself.
        let mut raw = Raw::new(|all| all | INDIRECT_DESC);
        lie(&mut raw);
        let (got, err) = raw.recv();
        let err = err.unwrap_or_else(|| panic!("case {number}: {want}: {got:?}"));
        assert!(err.starts_with(&format!("vm0: vhost-user: connection closed: {want}")), "case {number}: {err}");
        assert_eq!((got.len(), raw.recv().1), (0, None), "case {number}: once");
        assert_eq!((raw.back.guest().violations, raw.back.guest().connected), (1, false));
        // The next one is served.
        let Raw { back, .. } = raw;
        let mut raw = Raw::of(back, |all| all);
        assert_eq!(raw.send([0; 12], &frame(1, 64)).len(), 1);
    }
}

#[test]
fn indirect_descriptors_are_refused_unless_negotiated() {
    let mut raw = Raw::new(|all| all & !(1 << 28));
    let at = raw.tx().buffers;
    raw.tx().ring.describe(0, at, 16, INDIRECT, 0);
    raw.offer();
    assert!(raw.recv().1.is_some_and(|err| err.ends_with("malformed indirect table")));
}

#[test]
fn lying_buffers_to_receive_in_close_the_connection() {
    type Lie = fn(u64) -> (u64, u32, u16);
    let cases: [(&str, Lie); 3] = [
        ("descriptor of the wrong direction", |at| (at, 2000, 0)),
        ("2000 bytes at 0x10 outside of guest memory", |_| (16, 2000, WRITE)),
        ("buffers of a few bytes", |at| (at, 1, NEXT | WRITE)),
    ];
    for (want, lie) in cases {
        let mut raw = Raw::new(|all| all);
        let queue = &mut raw.session.queues[0];
        let (addr, len, flags) = lie(queue.buffers);
        for index in 0..16 {
            // Chains of sixteen where they go on.
            let last = index == 15;
            queue.ring.describe(index, addr, len, if last { flags & !NEXT } else { flags }, index + 1);
        }
        for _ in 0..16 {
            queue.ring.offer(0, RX_BUFFER as u32);
        }
        queue.ring.publish();
        let mut burst = vec![long(&frame(1, 60_000))];
        let sent = raw.back.send(&mut burst);
        if want.starts_with("buffers") {
            // Too few of them for that: the frame will never fit.
            assert_eq!(sent.unwrap(), Sent::All);
            assert_eq!(raw.back.stats().dropped_for(DropReason::PacketTooBig), 1);
            continue;
        }
        let err = sent.unwrap_err().to_string();
        assert!(err.ends_with(want), "{err}");
        assert_eq!(raw.back.guest().violations, 1);
    }
}

#[test]
fn headers_that_lie_cost_their_frame_alone() {
    let mut raw = Raw::new(|all| all & !(1 << 56));
    let tcp = fat(&raw.mem, 3000).to_vec();
    let header = |flags: u8, gso: u8, hdr_len: u16, size: u16, start: u16, offset: u16| {
        let mut bytes = [0; 12];
        bytes[..2].copy_from_slice(&[flags, gso]);
        for (at, value) in [hdr_len, size, start, offset].into_iter().enumerate() {
            bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    };
    let good = header(1, 1, 66, 1448, 34, 16);
    assert_eq!(raw.send(good, &tcp).len(), 1);
    let bad = [
        ("beyond the frame", header(1, 0, 0, 0, 4000, 16)),
        ("headers beyond the frame", header(1, 1, 9000, 1448, 34, 16)),
        ("segments of nothing", header(1, 1, 66, 0, 34, 16)),
        ("another protocol", header(1, 4, 66, 1448, 34, 16)),
        ("a type that was not negotiated", header(1, 5, 66, 1448, 34, 16)),
        ("a type that there is not", header(1, 77, 66, 1448, 34, 16)),
    ];
    for (number, (case, header)) in bad.into_iter().enumerate() {
        assert_eq!(raw.send(header, &tcp).len(), 0, "{case}");
        assert_eq!(raw.back.stats().dropped_for(DropReason::VirtioHeader), number as u64 + 1, "{case}");
    }
    // Short frames, and too long ones.
    assert_eq!(raw.send([0; 12], &tcp[..13]).len(), 0);
    assert_eq!(raw.back.stats().dropped_for(DropReason::EthTruncated), 1);
    assert_eq!(raw.send([0; 12], &vec![1; 66_000]).len(), 0);
    assert_eq!(raw.back.stats().dropped_for(DropReason::PacketTooBig), 1);
    assert_eq!(raw.send(good, &tcp).len(), 1, "the connection is as it was");
}

#[test]
fn checksum_that_a_guest_calls_good_is_not_believed() {
    let mut raw = Raw::new(|all| all);
    let tcp = fat(&raw.mem, 1000).to_vec();
    let mut header = [0; 12];
    header[0] = DATA_VALID;
    let got = raw.send(header, &tcp);
    assert_eq!((got.len(), got[0].meta.csum), (1, Csum::None));
}

#[test]
fn guest_is_told_of_checksums_that_are_good() {
    let mut raw = Raw::new(|all| all);
    let queue = &mut raw.session.queues[0];
    queue.ring.describe(0, queue.buffers, RX_BUFFER as u32, WRITE, 0);
    queue.ring.offer(0, RX_BUFFER as u32);
    queue.ring.publish();
    let mut packet = Packet::with_data(&raw.mem, &frame(1, 100)).unwrap();
    packet.meta.csum = Csum::Unnecessary;
    assert_eq!(raw.back.send(&mut vec![packet]).unwrap(), Sent::All);
    let mut pieces = Vec::new();
    let addr = raw.session.queues[0].buffers;
    assert!(raw.session.memory.locate(addr, 12, &mut pieces));
    let mut header = [9; 12];
    raw.session.memory.read(pieces[0], 0, &mut header);
    assert_eq!(header, [DATA_VALID, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(raw.session.queues[0].ring.take_back(), Ok(Some((0, 112))));
}

#[test]
fn back_end_that_lies_is_left() {
    fn used(wire: &mut Wire, number: u16, id: u32, len: u32) -> String {
        // The rings of the front end's queue to receive by, as the back end sees them.
        let running = wire.front.queue_for_test(0);
        let at = used_at(256) + 4;
        running.window.store_u32(at, id);
        running.window.store_u32(at + 4, len);
        running.window.store_u16(used_at(256) + 2, number, Ordering::Release);
        wire.front.recv(&wire.mem, &mut Vec::new()).unwrap_err().to_string()
    }
    let cases = [
        (1, 256, 10, "used descriptor 256 that the device does not have"),
        (1, 0, 5000, "used length 5000 beyond the buffer"),
        (257, 0, 10, "used index 257 ahead"),
    ];
    for (number, id, len, want) in cases {
        let mut wire = Wire::new(1, |_| {});
        let err = used(&mut wire, number, id, len);
        assert_eq!(err, format!("u0: vhost-user: connection closed: {want}"));
        let mut none = Vec::new();
        until(|| {
            let _ = wire.back.recv(&wire.mem, &mut none);
            wire.front.recv(&wire.mem, &mut none).unwrap();
            wire.front.guest().connections == 2
        });
    }
}

#[test]
fn rings_that_are_scribbled_on_harm_nobody() {
    let mut back = back_end(1);
    let mut closed = 0;
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        let Raw { back: again, mut session, mem } = Raw::of(back, |all| all);
        back = again;
        // Something to begin with.
        for queue in 0..2 {
            let at = session.queues[queue].buffers;
            let flags = if queue == 0 { WRITE } else { 0 };
            for index in 0..16 {
                session.queues[queue].ring.describe(index, at + 4096 * u64::from(index), 200, flags, 0);
                session.queues[queue].ring.offer(index, 200);
            }
            session.queues[queue].ring.publish();
        }
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let seed = next();
            let (session, stop) = (&session, &stop);
            let windows = [session.queues[0].ring.window.clone(), session.queues[1].ring.window.clone()];
            scope.spawn(move || {
                let mut random = seed | 1;
                while !stop.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let value = random >> 33;
                    let at = ((value as usize >> 8) % (used_at(16) + 6 + 8 * 16)) & !1;
                    // Mostly small numbers: what makes sense at first.
                    let number = if value & 7 == 0 { value as u16 } else { value as u16 & 15 };
                    windows[value as usize & 1].store_u16(at, number, Ordering::Relaxed);
                }
            });
            let mut burst: Vec<Packet> = (0..8).map(|n| Packet::with_data(&mem, &frame(n, 300)).unwrap()).collect();
            for _ in 0..500 {
                let mut got = Vec::new();
                let received = back.recv(&mem, &mut got);
                let sent = received.and_then(|()| back.send(&mut burst));
                if sent.is_err() {
                    closed += 1;
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(session);
        // The front end is gone, if it was not sent away.
        if back.guest().connected {
            until(|| back.recv(&mem, &mut Vec::new()).is_err());
        }
    }
    assert!(closed > 0, "nothing was found to be wrong");
}

#[test]
fn ring_base_is_where_the_ring_stopped() {
    let mut raw = Raw::new(|all| all);
    for number in 0..5 {
        assert_eq!(raw.send([0; 12], &frame(number, 64)).len(), 1);
    }
    let mut device = lock(&raw.back.device);
    let state = vhost::vhost_user::VhostUserBackendReqHandlerMut::get_vring_base(&mut *device, 1).unwrap();
    assert_eq!({ state.num }, 5);
    assert!(device.vrings[1].ring.is_none());
    drop(device);
    assert!(!raw.back.guest().queues[1].running);
}
