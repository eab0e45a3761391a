//! A cable made of two links, counts of the packets that it carries, and a TCP stream through it.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use link::{Layer, Link, Sent};
use packet::{Csum, GsoKind, Memory, Packet};
use system::{Netns, Outcome};
use wire::checksum::{fold, pseudo_v4, pseudo_v6};
use wire::{EtherType, eth, ip};

/// Packets that went through a cable, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Fat packets of TCP over IPv4.
    pub(crate) fat_v4: u64,
    /// Fat packets of TCP over IPv6.
    pub(crate) fat_v6: u64,
    /// The longest packet.
    pub(crate) longest: usize,
    /// Partial checksums.
    pub(crate) partial: u64,
    /// Packets whose metadata contradict their bytes.
    pub(crate) wrong: Vec<String>,
}

/// Carries all packets between the links until `stop`.
pub(crate) fn carry(a: &mut dyn Link, b: &mut dyn Link, stop: &AtomicBool) -> Outcome<Seen> {
    let mem = Memory::heap();
    let mut seen = Seen::default();
    let mut burst = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut moved = move_burst(a, b, &mem, &mut burst, &mut seen)?;
        moved += move_burst(b, a, &mem, &mut burst, &mut seen)?;
        if moved == 0 {
            thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(seen)
}

fn move_burst(
    from: &mut dyn Link,
    to: &mut dyn Link,
    mem: &Memory,
    burst: &mut Vec<Packet>,
    seen: &mut Seen,
) -> Outcome<usize> {
    from.recv(mem, burst)?;
    let moved = burst.len();
    burst.iter().for_each(|packet| look(packet, from.layer(), seen));
    loop {
        match to.send(burst)? {
            Sent::All => return Ok(moved),
            Sent::Busy => thread::yield_now(),
            Sent::Refit => return Err(format!("refused: {:?}", to.offloads()).into()),
        }
    }
}

/// Counts a packet, and checks its metadata against its bytes.
fn look(packet: &Packet, layer: Layer, seen: &mut Seen) {
    packet.check_invariants();
    seen.longest = seen.longest.max(packet.len());
    let l3 = match layer {
        Layer::Ip => 0,
        Layer::Ethernet(_) => eth::EthHeader::LEN,
    };
    if l3 > 0 {
        let ethertype = eth::EthHeader::ref_from(packet.head()).map(eth::EthHeader::ethertype);
        if !matches!(ethertype, Ok(EtherType::IPV4 | EtherType::IPV6)) {
            return;
        }
    }
    let head = &packet.head()[l3..];
    let Ok(info) = ip::Info::parse(head, packet.len() - l3) else {
        seen.wrong.push(format!("malformed: {packet:?}"));
        return;
    };
    let sum = match (info.src, info.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => pseudo_v4(src, dst, info.protocol, info.payload_len()),
        (IpAddr::V6(src), IpAddr::V6(dst)) => pseudo_v6(src, dst, info.protocol, info.payload_len()),
        _ => unreachable!("one packet, one family"),
    };
    if let Csum::Partial { start, offset } = packet.meta.csum {
        seen.partial += 1;
        let at = usize::from(start + offset);
        let field = u16::from_be_bytes([packet.head()[at], packet.head()[at + 1]]);
        if usize::from(start) != l3 + info.header_len || field != fold(sum) {
            seen.wrong.push(format!("partial checksum {field:#x} for {:#x}: {packet:?}", fold(sum)));
        }
    }
    let Some(gso) = packet.meta.cut.gso() else { return };
    match gso.kind {
        GsoKind::TcpV4 => seen.fat_v4 += 1,
        GsoKind::TcpV6 => seen.fat_v6 += 1,
        GsoKind::Udp => {}
    }
    let payload = match gso.kind {
        GsoKind::Udp => info.payload_len() - 8,
        _ => {
            info.payload_len()
                - wire::tcp::TcpHeader::ref_from(info.payload(head)).map_or(0, wire::tcp::TcpHeader::header_len)
        }
    };
    let family = matches!(
        (gso.kind, info.src),
        (GsoKind::TcpV4, IpAddr::V4(_)) | (GsoKind::TcpV6, IpAddr::V6(_)) | (GsoKind::Udp, _)
    );
    if !family || payload.div_ceil(usize::from(gso.size)) != usize::from(gso.segs) || gso.segs < 2 {
        seen.wrong.push(format!("{payload} bytes of payload: {packet:?}"));
    }
}

/// Bytes that no two segments share.
fn blob(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let step = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32).to_le_bytes()
    };
    std::iter::repeat_with(step).flatten().take(len).collect()
}

/// Sends `len` bytes by the kernels' TCP from one namespace to an address of the other, and compares what arrives.
pub(crate) fn transfer(from: &Netns, to: &Netns, address: IpAddr, len: usize) -> Outcome {
    let data = blob(len);
    let listener = to.enter(|| TcpListener::bind(SocketAddr::new(address, 0)))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            let mut got = Vec::new();
            stream.read_to_end(&mut got).map(|_| got)
        });
        let mut stream = from.enter(|| TcpStream::connect_timeout(&address, Duration::from_secs(10)))?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(&data)?;
        stream.shutdown(Shutdown::Write)?;
        let got = receiver.join().map_err(|_| "the receiver panicked")??;
        if got == data {
            Ok(())
        } else {
            Err(format!("{} bytes arrived, not the {len} that were sent", got.len()).into())
        }
    })
}

/// Runs `action` while queues of two links form cables, each with a thread of its own, and returns the counts of packets.
pub(crate) fn with_cables(
    a: &mut [Box<dyn Link>],
    b: &mut [Box<dyn Link>],
    action: impl FnOnce() -> Outcome,
) -> Outcome<Vec<Seen>> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let pairs = a.iter_mut().zip(b).map(|(a, b)| scope.spawn(move || carry(a.as_mut(), b.as_mut(), stop)));
        let cables: Vec<_> = pairs.collect();
        let done = action();
        stop.store(true, Ordering::Relaxed);
        let seen = cables.into_iter().map(|cable| cable.join().map_err(|_| "a cable panicked")?);
        let seen = seen.collect::<Outcome<Vec<_>>>();
        done.and(seen)
    })
}

/// Runs `action` while the links form a cable, and returns the counts of packets.
pub(crate) fn with_cable(a: &mut dyn Link, b: &mut dyn Link, action: impl FnOnce() -> Outcome) -> Outcome<Seen> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let cable = scope.spawn(|| carry(a, b, &stop));
        let done = action();
        stop.store(true, Ordering::Relaxed);
        let seen = cable.join().map_err(|_| "the cable panicked")?;
        done.and(seen)
    })
}
