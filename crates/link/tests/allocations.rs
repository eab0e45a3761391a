//! In a steady state links allocate nothing, however many packets they move.

use driver::DriverKind;
use libtest_mimic::Arguments;
use link::{Config, Link, Sent};
use packet::{Allocations, Csum, Cut, Gso, GsoKind, Memory, Packet};
use system::{Need, Netns, Outcome, trial};
use wire::{Protocol, ipv4, udp};

#[global_allocator]
static ALLOCATOR: Allocations = Allocations;

fn main() {
    let trials = vec![
        trial("udp/a_steady_state_allocates_nothing", &[Need::Namespaces], over_loopback),
        trial("tun/a_steady_state_allocates_nothing", &[Need::Namespaces, Need::Tun], through_a_device),
    ];
    // One thread at a time: a busy machine must not make a train late.
    libtest_mimic::run(&Arguments { test_threads: Some(1), ..Arguments::from_args() }, trials).exit();
}

const ROUNDS: u64 = 2000;

fn udp_link(bind: &str) -> Outcome<Box<dyn Link>> {
    let kind = DriverKind::Udp { bind: bind.parse()? };
    Ok(link::open(&Config { name: "wan".to_owned(), kind, mac: None, mtu: None, offloads: true, index: None })?)
}

/// A train of 20 datagrams from `src` to `dst`, both at port 4500, in pieces.
fn train(mem: &Memory, src: [u8; 4], dst: [u8; 4]) -> Packet {
    let payload = 20 * 1000;
    let udp_len = udp::UdpHeader::LEN + payload;
    let mut ip = ipv4::Ipv4Header::new(src.into(), dst.into(), Protocol::UDP, (20 + udp_len) as u16);
    ip.fill_check();
    let mut packet = Packet::new(mem, Memory::HEADROOM, 28).expect("memory");
    let (front, back) = packet.put(28).expect("room").split_at_mut(20);
    front.copy_from_slice(ip.as_bytes());
    back.copy_from_slice(udp::UdpHeader::new(4500, 4500, udp_len as u16).as_bytes());
    for _ in 0..20 {
        let mut piece = mem.take(0, 1000).expect("memory");
        piece.put(1000).expect("room").fill(7);
        packet.push_frag(piece).expect("a free slot");
    }
    packet.meta.csum = Csum::Partial { start: 20, offset: 6 };
    packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size: 1000, segs: 20, ecn: false, fixed_id: false });
    packet
}

/// Runs `round` until nothing is new to it, then counts what it allocates.
fn steady(mut round: impl FnMut() -> Outcome) -> Outcome {
    for _ in 0..200 {
        round()?;
    }
    let before = Allocations::of_thread();
    for _ in 0..ROUNDS {
        round()?;
    }
    let allocated = Allocations::of_thread() - before;
    assert_eq!(allocated, 0, "allocations in {ROUNDS} rounds");
    Ok(())
}

/// Receives at least one packet.
fn receive(link: &mut dyn Link, mem: &Memory, got: &mut Vec<Packet>) -> Outcome {
    for _ in 0..1_000_000 {
        link.recv(mem, got)?;
        if !got.is_empty() {
            return Ok(());
        }
    }
    Err("nothing arrived".into())
}

fn over_loopback() -> Outcome {
    Netns::new("a")?.enter(|| {
        let (mut a, mut b) = (udp_link("127.0.0.1:4500")?, udp_link("127.0.0.2:4500")?);
        let (mem, mut burst, mut got) = (Memory::heap(), Vec::new(), Vec::new());
        steady(|| {
            burst.extend([train(&mem, [127, 0, 0, 1], [127, 0, 0, 2]), train(&mem, [127, 0, 0, 1], [127, 0, 0, 2])]);
            if a.send(&mut burst)? != Sent::All {
                return Err("not sent".into());
            }
            receive(b.as_mut(), &mem, &mut got)?;
            got.clear();
            Ok(())
        })?;
        assert_eq!(a.stats().tx_wire_packets, (ROUNDS + 200) * 40);
        Ok(())
    })
}

/// The train leaves through the device and comes back from it, as if from the address that it was sent to.
fn through_a_device() -> Outcome {
    let netns = Netns::new("a")?;
    netns.enter(|| {
        let kind = DriverKind::Tun { queues: 1 };
        let config = Config { name: "fat0".to_owned(), kind, mac: None, mtu: None, offloads: true, index: None };
        let mut device = link::open(&config)?;
        netns.sh("echo 1 >/proc/sys/net/ipv6/conf/fat0/disable_ipv6; ip addr add 10.9.0.1/24 dev fat0")?;
        let mut socket = udp_link("10.9.0.1:4500")?;
        let (mem, mut burst, mut got) = (Memory::heap(), Vec::new(), Vec::new());
        steady(|| {
            burst.push(train(&mem, [10, 9, 0, 1], [10, 9, 0, 2]));
            if socket.send(&mut burst)? != Sent::All {
                return Err("not sent".into());
            }
            receive(device.as_mut(), &mem, &mut got)?;
            for packet in &mut got {
                let head = packet.head_mut().ok_or("received into a page of its own")?;
                let (src, dst) = head[12..20].split_at_mut(4);
                src.swap_with_slice(dst);
            }
            if device.send(&mut got)? != Sent::All {
                return Err("not sent".into());
            }
            receive(socket.as_mut(), &mem, &mut got)?;
            got.clear();
            Ok(())
        })?;
        let stats = device.stats();
        assert_eq!((stats.rx_packets, stats.tx_wire_packets), (ROUNDS + 200, (ROUNDS + 200) * 20));
        Ok(())
    })
}
