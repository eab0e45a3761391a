//! Hostile packets into every kind of port: no panic, and each packet is accounted for.

use std::time::Duration;

use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, geometry};
use sim::{Flow, FullNode, Rng};
use wire::{EtherType, FragOffset, MacAddr, Protocol, Spi, arp, esp, eth, icmpv6, nd};

use crate::common::{edit_v4, mac};

const ADDRESSES: [&str; 14] = [
    "10.1.0.1",
    "10.1.0.254",
    "10.1.0.255",
    "10.2.0.1",
    "10.2.0.254",
    "10.3.0.1",
    "10.4.0.1",
    "10.5.0.1",
    "10.6.0.1",
    "10.8.0.1",
    "192.0.2.1",
    "192.0.2.2",
    "255.255.255.255",
    "127.0.0.1",
];
const ADDRESSES_V6: [&str; 12] = [
    "fd00:1::1",
    "fd00:1::254",
    "fd00:2::1",
    "fd00:3::1",
    "fd00:4::254",
    "fd00:5::1",
    "fd00:8::1",
    "2001:db8::1",
    "2001:db8::2",
    "fe80::1",
    "ff02::1",
    "::",
];

/// Well-formed IP packet of any kind.
fn packet(rng: &mut Rng, depth: usize) -> Vec<u8> {
    let family: &[&str] = if rng.happens(500) { &ADDRESSES } else { &ADDRESSES_V6 };
    let [src, dst] = [*rng.pick::<&str>(family), *rng.pick::<&str>(family)];
    let mut flow = Flow::new(src, dst);
    flow.dont_fragment = rng.happens(700);
    flow.ttl = *rng.pick(&[0, 1, 2, 64, 255]);
    flow.dport = *rng.pick(&[4500, 4500, 500, 53, 5201]);
    let len = *rng.pick(&[0, 1, 8, 9, 100, 1200, 1600, 4000]);
    match rng.below(8) {
        0 => flow.tcp(1, len),
        1 if rng.happens(500) => flow.udp(len),
        // Behind the non-ESP marker.
        1 => flow.udp_with(&vec![0; len]),
        2 => flow.ping(1, len),
        3 => flow.raw(Protocol(rng.bits() as u8), &vec![rng.bits() as u8; len]),
        4 if flow.src.is_ipv4() => {
            let offset = FragOffset::from_bytes(8 * rng.below(100)).unwrap();
            let more = rng.happens(500);
            edit_v4(&flow.udp(len), |header| header.set_fragment(offset, more))
        }
        5 => {
            let kind = *rng.pick(&[133, 134, 135, 136, 1, 2, 3, 129, 5, 11]);
            let protocol = if flow.src.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
            flow.raw(protocol, &[&[kind, 0, 0, 0][..], &vec![0; len]].concat())
        }
        _ if depth > 0 => sealed(rng, depth),
        _ => flow.udp(len),
    }
}

/// Any packet inside ESP, or inside malformed ESP.
fn sealed(rng: &mut Rng, depth: usize) -> Vec<u8> {
    let bits = rng.below(8) as u32;
    let ends = if bits & 1 == 0 { ["192.0.2.1", "192.0.2.2"] } else { ["2001:db8::1", "2001:db8::2"] };
    let flow = Flow { sport: 4500, dport: 4500, ..Flow::new(ends[0], ends[1]) };
    let mut inside = packet(rng, depth - 1);
    let next = if bits & 2 != 0 {
        inside.drain(..inside.len().min(20));
        *rng.pick(&[Protocol::UDP, Protocol::TCP, Protocol::ICMP, Protocol::ESP])
    } else if inside[0] >> 4 == 4 {
        Protocol::IPIP
    } else {
        Protocol::IPV6
    };
    let header = esp::EspHeader::new(Spi(bits + 1), rng.below(3000) as u32);
    let mut trailer = vec![0; esp::trailer_len(inside.len(), 4)];
    esp::write_trailer(&mut trailer, next);
    let body = [header.as_bytes(), &inside, &trailer].concat();
    if bits & 4 == 0 {
        return flow.raw(Protocol::ESP, &body);
    }
    let udp = wire::udp::UdpHeader::new(4500, 4500, (8 + body.len()) as u16);
    flow.raw(Protocol::UDP, &[udp.as_bytes(), &body].concat())
}

/// A frame for the Ethernet port with that address: IP, ARP, discovery, or anything.
fn frame(rng: &mut Rng, port: MacAddr) -> Vec<u8> {
    let to = *rng.pick(&[port, port, port, MacAddr::BROADCAST, mac(77), MacAddr([0x33, 0x33, 0, 0, 0, 1])]);
    let (ethertype, body) = match rng.below(8) {
        0 => {
            let [sender, target] = [[10, 2, 0, 1], [10, 2, 0, 254]].map(Into::into);
            let request = arp::ArpHeader::request((mac(9), sender), target);
            (EtherType::ARP, request.as_bytes().to_vec())
        }
        1 => {
            let (src, target) = ("fd00:2::1".parse().unwrap(), "fd00:2::254".parse().unwrap());
            let mut message = nd::Neighbour::solicit(target).as_bytes().to_vec();
            message.extend_from_slice(nd::LinkAddr::source(mac(9)).as_bytes());
            icmpv6::fill_check(&mut message, src, target).unwrap();
            let flow = Flow { ttl: 255, ..Flow::new("fd00:2::1", "fd00:2::254") };
            (EtherType::IPV6, flow.raw(Protocol::ICMPV6, &message))
        }
        2 => (EtherType(rng.bits() as u16), packet(rng, 0)),
        _ => {
            let packet = packet(rng, 2);
            (if packet[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 }, packet)
        }
    };
    [eth::EthHeader::new(to, mac(9), ethertype).as_bytes(), &body].concat()
}

/// Changes, truncates or appends bytes; half of the time it changes nothing.
fn spoil(rng: &mut Rng, bytes: &mut Vec<u8>) {
    match rng.below(8) {
        0 => bytes.truncate(rng.below(bytes.len() + 1)),
        1 => bytes.extend_from_slice(&[0xa5; 30]),
        2 | 3 => {
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len().min(120));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= rng.bits() as u8;
                }
            }
        }
        _ => {}
    }
}

/// Offload metadata that a guest claims for a packet, true or not.
fn marks(rng: &mut Rng) -> (Csum, Cut) {
    let small = |rng: &mut Rng| *rng.pick(&[0, 6, 14, 16, 20, 34, 40, 60, 1000, u16::MAX]);
    let csum = match rng.below(6) {
        0 => Csum::Partial { start: small(rng), offset: small(rng) },
        1 => Csum::Unnecessary,
        2 => Csum::Complete(rng.bits() as u16),
        _ => Csum::None,
    };
    let cut = if rng.happens(250) {
        let kind = *rng.pick(&[GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp]);
        let size = (*rng.pick(&[1, 28, 536, 1208, 1400, 1460, u16::MAX])).max(1);
        Cut::Gso(Gso { size, kind, segs: small(rng), ecn: rng.happens(100), fixed_id: rng.happens(100) })
    } else {
        Cut::Whole
    };
    (csum, cut)
}

fn hostile(rng: &mut Rng, mem: &Memory, port: usize) -> Packet {
    let mut bytes = match port {
        1 => frame(rng, mac(2)),
        3 => frame(rng, mac(4)),
        _ => packet(rng, 3),
    };
    spoil(rng, &mut bytes);
    let cuts = [rng.below(100), rng.below(100)];
    let mut shapes = if rng.happens(300) && bytes.len() < 300 { geometry::all(mem, &bytes, &cuts) } else { vec![] };
    let mut pkt = match shapes.len() {
        0 => Packet::with_data(mem, &bytes).unwrap(),
        n => shapes.swap_remove(rng.below(n)).1,
    };
    (pkt.meta.csum, pkt.meta.cut) = marks(rng);
    pkt
}

#[test]
fn hostile_packet_by_any_port_is_accounted_for() {
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let _guard = OnPanic(seed);
        let mut full_node = FullNode::new();
        let port = rng.below(4);
        let pkt = hostile(&mut rng, &full_node.node.mem, port);
        full_node.rx(FullNode::PORTS[port], pkt);
        full_node.finish();
    }
}

#[test]
fn many_hostile_packets_leave_no_memory_in_use() {
    for seed in 0..20 {
        let mut rng = Rng::new(1_000_000 + seed);
        let _guard = OnPanic(seed);
        let mut full_node = FullNode::new();
        for _ in 0..1000 {
            let port = rng.below(4);
            match rng.below(60) {
                0 => full_node.pass(rng.duration(Duration::from_secs(2))),
                1 => full_node.set_up(FullNode::PORTS[port], rng.happens(700)),
                2..6 => {
                    full_node.send(FullNode::PORTS[port]);
                }
                _ => {
                    let pkt = hostile(&mut rng, &full_node.node.mem, port);
                    full_node.rx(FullNode::PORTS[port], pkt);
                }
            }
        }
        full_node.finish();
    }
}

#[test]
fn hostile_bursts_through_gro_and_esp_leak_no_memory() {
    for seed in 0..300 {
        let mut rng = Rng::new(2_000_000 + seed);
        let _guard = OnPanic(seed);
        let mut full_node = FullNode::new();
        let port = rng.below(4);
        let burst = (0..64).map(|_| hostile(&mut rng, &full_node.node.mem, port)).collect();
        full_node.node.rx(crate::common::NOW, FullNode::PORTS[port], burst);
        full_node.finish();
    }
}

/// Prints the seed of a failed run.
struct OnPanic(u64);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed is {}", self.0);
        }
    }
}
