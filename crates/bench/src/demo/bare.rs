//! The least that a tunnel in user space has to do, without a datapath: read a packet of the TUN device, encrypt it in pieces
//! of 1400 bytes, and send them as one train; receive a train, decrypt it in place, and write the packet at once. What
//! fatpath needs beyond that is its own.

use std::io::{ErrorKind, IoSlice};
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use driver::DriverKind;
use ipsec::engine::Cipher;
use link::{Config, Link};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use testbed::Failure;
use xfrm::{Aead, Algorithm};

use super::config::Keys;
use super::meter::{Cost, Usage};
use super::ping;
use super::sample::DemoSample;
use super::site::{Site, gbps};
use super::topology::Side;

/// Bytes of text in a piece, but for the last of a packet.
const TEXT: usize = 1400;

/// Bytes of a piece: SPI, sequence number, initialisation vector, text, ICV.
const PIECE: usize = HEADER + TEXT + 16;

/// Bytes in front of the text: SPI, sequence number, initialisation vector.
const HEADER: usize = 16;

/// Pieces that one call can send: a datagram of IPv4 has 65 507 bytes at most.
const TRAIN: usize = 65_507 / PIECE;

/// Bytes in front of each packet: their number, big-endian.
const LEN: usize = 4;

/// Longest packet, with its virtio-net header.
const LONGEST: usize = 65_535 + 12;

/// SPI of the first piece of a packet, and of every other one.
const SPIS: [u32; 2] = [0x100, 0x101];

const PORT: u16 = 4500;

/// Time that an end waits for a packet before it checks whether to end.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// One end of the tunnel.
struct End {
    tun: Box<dyn Link>,
    socket: UdpSocket,
    ciphers: Ciphers,
}

struct Ciphers {
    seal: Cipher,
    open: Cipher,
}

/// Measures one stream through the two loops.
pub(super) fn measure(site: &Site) -> Result<DemoSample, Failure> {
    let keys = Keys::random()?;
    let open = |side: Side| {
        let end = site.topology.host(side).enter(|| End::open(side, &keys))?;
        site.topology.attach(side, true, &site.stop)?;
        Ok::<_, Failure>(end)
    };
    let ends = [open(Side::A)?, open(Side::B)?];
    let ends_now = AtomicBool::new(false);
    let (stream, used) = thread::scope(|scope| {
        let running = ends.map(|end| scope.spawn(|| end.run(&ends_now)));
        let pinged = ping::ping(site.topology.host(Side::A), Side::B.host(), &site.stop);
        let stream = pinged.and_then(|()| site.stream(Side::B.host()));
        ends_now.store(true, Ordering::Relaxed);
        let ended = running.map(|end| end.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)));
        let [a, b] = ended;
        Ok::<_, Failure>((stream?, [a?, b?]))
    })?;
    let cost = Some(Cost::between([Usage::default(); 2], used.map(Usage::of_thread), stream));
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost })
}

impl End {
    fn open(side: Side, keys: &Keys) -> Result<Self, Failure> {
        let config = Config {
            name: "tun0".to_owned(),
            kind: DriverKind::Tun { queues: 1 },
            mac: None,
            mtu: None,
            offloads: true,
            index: None,
        };
        let tun = link::open(&config).map_err(|err| Failure::step("open a TUN device", err))?;
        let fail = |err| Failure::step("open a UDP socket", err);
        let socket = UdpSocket::bind((side.wire(), PORT)).map_err(fail)?;
        socket.connect((side.other().wire(), PORT)).map_err(fail)?;
        socket.set_nonblocking(true).map_err(fail)?;
        link::set_trains(&socket, PIECE as u16).map_err(fail)?;
        let [seal, open] = [side, side.other()].map(|sender| {
            let algorithm = Algorithm::aead(Aead::GcmAes, keys.bytes(sender).into(), 128);
            Cipher::new(&algorithm).map_err(|err| Failure::step("make a cipher", err))
        });
        Ok(Self { tun, socket, ciphers: Ciphers { seal: seal?, open: open? } })
    }

    /// Moves packets until the end. Returns the processor time of the thread in seconds.
    fn run(self, ends_now: &AtomicBool) -> Result<f64, Failure> {
        let Self { tun, socket, ciphers } = self;
        let queue = tun.poll_fds()[0];
        let (mut out, mut back) = (Outbound::new(), Inbound::new());
        while !ends_now.load(Ordering::Relaxed) {
            let sent = out.forward(queue, &socket, &ciphers.seal)?;
            let received = back.forward(queue, &socket, &ciphers.open)?;
            if !sent && !received {
                let mut fds = [PollFd::new(&queue, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)];
                poll(&mut fds, Some(&POLL_INTERVAL)).map_err(|err| Failure::step("poll", err))?;
            }
        }
        let used = clock_gettime(ClockId::ThreadCPUTime);
        Ok(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)
    }
}

/// From the device to the wire.
struct Outbound {
    /// A packet behind its length.
    packet: Vec<u8>,
    pieces: Vec<u8>,
    number: u64,
}

impl Outbound {
    fn new() -> Self {
        Self { packet: vec![0; LEN + LONGEST], pieces: Vec::new(), number: 0 }
    }

    /// Sends one packet, if there is one. Tells whether there was.
    fn forward(&mut self, tun: BorrowedFd<'_>, socket: &UdpSocket, cipher: &Cipher) -> Result<bool, Failure> {
        let len = match rustix::io::read(tun, &mut self.packet[LEN..]) {
            Ok(len) => len,
            Err(Errno::AGAIN) => return Ok(false),
            Err(err) => return Err(Failure::step("read the TUN device", err)),
        };
        self.packet[..LEN].copy_from_slice(&(len as u32).to_be_bytes());
        self.seal(len, cipher);
        for train in self.pieces.chunks(TRAIN * PIECE) {
            send(socket, train)?;
        }
        Ok(true)
    }

    fn seal(&mut self, len: usize, cipher: &Cipher) {
        let Self { packet, pieces, number } = self;
        pieces.clear();
        for (text, at) in packet[..LEN + len].chunks(TEXT).zip(0..) {
            // ESP's alignment.
            let padding = &[0; 3][..text.len().next_multiple_of(4) - text.len()];
            *number += 1;
            let start = pieces.len();
            pieces.resize(start + cipher.overhead() + text.len() + padding.len(), 0);
            let piece = &mut pieces[start..];
            piece[..4].copy_from_slice(&SPIS[usize::from(at > 0)].to_be_bytes());
            piece[4..8].copy_from_slice(&(*number as u32).to_be_bytes());
            cipher.seal_from(piece, text, padding, number.to_be_bytes(), None);
        }
    }
}

/// Sends a train, waiting while the socket is full.
fn send(socket: &UdpSocket, train: &[u8]) -> Result<(), Failure> {
    loop {
        match socket.send(train) {
            Ok(_) => return Ok(()),
            Err(err) if err.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&POLL_INTERVAL))
                    .map_err(|err| Failure::step("poll", err))?;
            }
            // The other end is not there yet, or not any more.
            Err(err) if err.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Err(err) => return Err(Failure::step("send a train", err)),
        }
    }
}

/// From the wire to the device.
struct Inbound {
    /// The trains of one packet, one behind the other.
    trains: Vec<u8>,
    /// Bytes of `trains` in use.
    used: usize,
    /// Texts of the packet in `trains`.
    texts: Vec<(usize, usize)>,
    /// Number of the next piece of the packet.
    next: u32,
}

impl Inbound {
    fn new() -> Self {
        // A packet may end in its second train, and a further one is received behind an incomplete packet.
        Self { trains: vec![0; 3 * 65_536], used: 0, texts: Vec::new(), next: 0 }
    }

    /// Receives one train, if there is one, and writes the packet that is complete with it. Tells whether there was a train.
    fn forward(&mut self, tun: BorrowedFd<'_>, socket: &UdpSocket, cipher: &Cipher) -> Result<bool, Failure> {
        if self.trains.len() - self.used < 65_536 {
            self.forget();
        }
        let len = match socket.recv(&mut self.trains[self.used..]) {
            Ok(len) => len,
            Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(err) if err.kind() == ErrorKind::ConnectionRefused => return Ok(true),
            Err(err) => return Err(Failure::step("receive a train", err)),
        };
        let mut at = self.used;
        let end = self.used + len;
        self.used = end;
        while at < end {
            let piece_end = end.min(at + PIECE);
            if self.open(at, piece_end, cipher) {
                self.write(tun)?;
            }
            at = piece_end;
        }
        if self.texts.is_empty() {
            self.used = 0;
        }
        Ok(true)
    }

    /// Decrypts a piece. Tells whether its packet is complete.
    fn open(&mut self, start: usize, end: usize, cipher: &Cipher) -> bool {
        let piece = &mut self.trains[start..end];
        let Some(header) = piece.first_chunk::<8>() else { return false };
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (spi, number) = (word(0), word(4));
        let Ok(text) = cipher.open(piece, None) else { return false };
        let len = text.len();
        if spi == SPIS[0] {
            self.texts.clear();
        } else if self.texts.is_empty() || number != self.next {
            // A piece before it is lost, and so is the packet.
            self.texts.clear();
            return false;
        }
        self.next = number.wrapping_add(1);
        self.texts.push((start + HEADER, start + HEADER + len));
        self.texts.iter().map(|(from, to)| to - from).sum::<usize>() >= LEN + self.len()
    }

    /// Length of the packet by its first piece.
    fn len(&self) -> usize {
        let first = self.texts.first().and_then(|&(from, to)| self.trains[from..to].first_chunk::<LEN>());
        first.map_or(0, |&len| u32::from_be_bytes(len) as usize)
    }

    /// Writes the packet.
    fn write(&mut self, tun: BorrowedFd<'_>) -> Result<(), Failure> {
        let (mut left, mut front) = (self.len(), LEN);
        let mut parts = Vec::with_capacity(self.texts.len());
        for &(from, to) in &self.texts {
            let part = &self.trains[from + front..to];
            let part = &part[..part.len().min(left)];
            (left, front) = (left - part.len(), 0);
            parts.push(IoSlice::new(part));
        }
        let written = rustix::io::writev(tun, &parts);
        drop(parts);
        self.texts.clear();
        match written {
            // The device is not up yet, or refuses a packet.
            Ok(_) | Err(Errno::IO | Errno::INVAL | Errno::AGAIN) => Ok(()),
            Err(err) => Err(Failure::step("write to the TUN device", err)),
        }
    }

    fn forget(&mut self) {
        self.texts.clear();
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher() -> Cipher {
        Cipher::new(&Algorithm::aead(Aead::GcmAes, vec![7; 36].into(), 128)).unwrap()
    }

    /// Trains of two packets, the first longer than one train, and a receiver.
    fn sealed(lens: [usize; 2]) -> Vec<Vec<u8>> {
        let (cipher, mut out) = (cipher(), Outbound::new());
        let mut trains = Vec::new();
        for (len, fill) in lens.into_iter().zip(1..) {
            out.packet[..LEN].copy_from_slice(&(len as u32).to_be_bytes());
            out.packet[LEN..LEN + len].fill(fill);
            out.seal(len, &cipher);
            trains.extend(out.pieces.chunks(TRAIN * PIECE).map(<[u8]>::to_vec));
        }
        trains
    }

    /// Lengths and first bytes of the packets that arrive by these trains.
    fn arrived(trains: &[Vec<u8>]) -> Vec<(usize, u8)> {
        let cipher = cipher();
        let [near, far] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        link::set_trains(&near, PIECE as u16).unwrap();
        link::set_trains(&far, PIECE as u16).unwrap();
        far.set_nonblocking(true).unwrap();
        let (device, packets) = std::os::unix::net::UnixDatagram::pair().unwrap();
        packets.set_nonblocking(true).unwrap();
        let mut back = Inbound::new();
        let mut got = Vec::new();
        for train in trains {
            near.send(train).unwrap();
            while back.forward(std::os::fd::AsFd::as_fd(&device), &far, &cipher).unwrap() {}
            let mut bytes = vec![0; LONGEST];
            while let Ok(len) = packets.recv(&mut bytes) {
                assert!(bytes[..len].iter().all(|&byte| byte == bytes[0]));
                got.push((len, bytes[0]));
            }
        }
        got
    }

    #[test]
    fn packets_arrive_whole_or_not_at_all() {
        let lens = [LONGEST, 61];
        let trains = sealed(lens);
        assert_eq!(trains.len(), 3);
        assert_eq!(arrived(&trains), [(LONGEST, 1), (61, 2)]);
        assert_eq!(arrived(&trains[1..]), [(61, 2)]);
        assert_eq!(arrived(&[&trains[..1], &trains[2..]].concat()), [(61, 2)]);
        let mut forged = trains;
        forged[0][PIECE + 20] ^= 1;
        assert_eq!(arrived(&forged), [(61, 2)]);
    }
}
