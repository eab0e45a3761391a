//! Frames by vhost-user between a front end and a back end on one thread: `cargo bench -p fatpath-link --bench vhost`.
//!
//! Each line is a direction and a size, with packets and bytes per second; `copy` is a thread that copies as many bytes
//! of that size in and out: the lower bound for two copies.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use link::vhost::{self, FrontConfig, VhostConfig};
use link::{Link, Sent};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::{MacAddr, Protocol, ipv4, tcp};

/// Address of both links.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Packets in one burst.
const BURST: usize = 32;

/// Bytes of the headers of a fat frame.
const HEADERS: usize = 14 + ipv4::Ipv4Header::LEN + tcp::TcpHeader::LEN;

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let time = if is_bench { Duration::from_secs(1) } else { Duration::from_millis(20) };
    println!("{:<28}{:>12}{:>12}", "", "Mpackets/s", "Gbit/s");
    for len in [64, 1514, 9014, 65_000] {
        for to_guest in [true, false] {
            let direction = if to_guest { "to_guest" } else { "from_guest" };
            let packets = throughput(to_guest, len, time);
            assert!(packets > 0.0, "nothing arrives");
            print(&format!("vhost/{direction}/{len}"), packets, len);
        }
        print(&format!("copy/{len}"), copies(len, time), len);
    }
}

fn print(name: &str, packets: f64, len: usize) {
    println!("{name:<28}{:>12.2}{:>12.1}", packets / 1e6, packets * len as f64 * 8.0 / 1e9);
}

/// A frame of `len` bytes, fat if that is more than 1514.
fn frame(mem: &Memory, len: usize) -> Packet {
    let mut ip = ipv4::Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::TCP, (len - 14) as u16);
    ip.fill_check();
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend_from_slice(ip.as_bytes());
    bytes.extend_from_slice(tcp::TcpHeader::new(1, 2, 3, 4).as_bytes());
    bytes.resize(len, 1);
    let mut packet = Packet::with_data(mem, &bytes).unwrap();
    packet.meta.csum = Csum::Partial { start: 34, offset: 16 };
    if len > 1514 {
        let segs = (len - HEADERS).div_ceil(1460) as u16;
        packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 1460, segs, ecn: false, fixed_id: false });
    }
    packet
}

/// Packets per second from one end to the other.
fn throughput(to_guest: bool, len: usize, time: Duration) -> f64 {
    let socket = PathBuf::from(format!("{}/vhost-bench-{}", std::env::temp_dir().display(), std::process::id()));
    let mut back: Box<dyn Link> = Box::new(vhost::open(&VhostConfig::new("vm0", &socket, MAC)).unwrap());
    let mut front: Box<dyn Link> = Box::new(vhost::open_front(&FrontConfig::new("u0", &socket, MAC)).unwrap());
    let mem = Memory::heap();
    let is_running = |link: &dyn Link| link.guest().is_some_and(|guest| guest.running);
    while !(is_running(&*back) && is_running(&*front)) {
        back.recv(&mem, &mut Vec::new()).unwrap();
        front.recv(&mem, &mut Vec::new()).unwrap();
    }
    for link in [&mut back, &mut front] {
        while link.send(&mut Vec::new()).unwrap() == Sent::Refit {}
    }
    let (mut from, mut to) = if to_guest { (back, front) } else { (front, back) };
    let (mut burst, mut received) = (Vec::new(), Vec::new());
    let mut first = frame(&mem, len);
    let begin = Instant::now();
    let mut packets = 0;
    while begin.elapsed() < time {
        while burst.len() < BURST {
            burst.push(first.clone_shared());
        }
        let _ = from.send(&mut burst).unwrap();
        to.recv(&mem, &mut received).unwrap();
        assert!(received.iter().all(|packet| packet.len() == len));
        packets += received.len();
        received.clear();
    }
    packets as f64 / begin.elapsed().as_secs_f64()
}

/// Packets per second that a thread copies to one place and from there to another.
fn copies(len: usize, time: Duration) -> f64 {
    let from = vec![1_u8; len];
    let mut between = vec![0_u8; 256 * len];
    let mut to = vec![0_u8; len];
    let begin = Instant::now();
    let mut packets = 0;
    while begin.elapsed() < time {
        for slot in between.chunks_mut(len) {
            slot.copy_from_slice(&from);
        }
        for slot in between.chunks(len) {
            to.copy_from_slice(slot);
            black_box(&mut to);
        }
        packets += 256;
    }
    packets as f64 / begin.elapsed().as_secs_f64()
}
