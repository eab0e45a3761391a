//! UDP sockets over a virtual cable.

use std::net::SocketAddr;

use base::DropReason;
use libtest_mimic::Trial;
use link::{ConfigKind, Link, Sent};
use packet::{Csum, Memory};
use system::{Need, Netns, Outcome, trial, veth};
use wire::ip;

use crate::open;
use crate::train::{receive, send, train};

const NEEDS: &[Need] = &[Need::Namespaces];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("udp/a_train_is_received_as_a_train", NEEDS, || trains(V4)),
        trial("udp/a_train_is_received_as_a_train_over_ipv6", NEEDS, || trains(V6)),
        trial("udp/a_socket_bound_to_no_address_sends_from_the_packets_own", NEEDS, unbound),
        trial("udp/without_offloads_every_datagram_is_plain", NEEDS, thin),
        trial("udp/many_datagrams_go_in_one_call", NEEDS, batches),
        trial("udp/what_does_not_fit_the_wire_is_dropped_and_counted", NEEDS, too_big),
        trial("udp/what_the_socket_cannot_send_is_dropped_and_counted", NEEDS, unsendable),
        trial("udp/a_refused_train_loses_no_packet", NEEDS, refused),
        trial("udp/offloads_are_verified_and_say_so", NEEDS, verified),
        trial("udp/an_address_in_use_is_an_error_that_says_so", NEEDS, in_use),
    ]
}

const V4: [&str; 2] = ["192.0.2.1:4500", "192.0.2.2:4500"];
const V6: [&str; 2] = ["[2001:db8::1]:4500", "[2001:db8::2]:4500"];

struct Wire {
    a: Netns,
    b: Netns,
}

fn wire() -> Outcome<Wire> {
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    veth((&a, "wire"), (&b, "wire"))?;
    for (netns, host) in [(&a, 1), (&b, 2)] {
        netns.sh(&format!("ip addr add 192.0.2.{host}/24 dev wire; ip addr add 2001:db8::{host}/64 dev wire nodad"))?;
    }
    Ok(Wire { a, b })
}

fn socket(netns: &Netns, bind: &str, offloads: bool) -> Outcome<Box<dyn Link>> {
    open(netns, "wan", ConfigKind::Udp { bind: bind.parse()? }, offloads)
}

fn payload(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

fn trains(ends: [&str; 2]) -> Outcome {
    let wire = wire()?;
    let (mut a, mut b) = (socket(&wire.a, ends[0], true)?, socket(&wire.b, ends[1], true)?);
    let mem = Memory::heap();
    let (src, dst): (SocketAddr, SocketAddr) = (ends[0].parse()?, ends[1].parse()?);
    let header_len = if src.is_ipv4() { 28 } else { 48 };
    for (len, segs) in [(1, 1), (1400, 1), (1401, 2), (44 * 1400 + 7, 45)] {
        let payload = payload(len);
        assert_eq!(send(a.as_mut(), train(&mem, src, dst, 0xb9, &payload, 1400))?, Sent::All);
        let got = receive(b.as_mut(), &mem, header_len, payload.len())?;
        assert_eq!(got.len(), 1, "a train of {len}: {got:?}");
        let (packet, bytes) = (&got[0], got[0].to_vec());
        assert_eq!((packet.meta.cut.segs(), packet.meta.csum), (segs, Csum::Unnecessary));
        assert_eq!(packet.meta.cut.gso().map_or(1400, |gso| gso.size), 1400);
        let info = ip::Info::parse(&bytes, bytes.len()).map_err(|why| why.to_string())?;
        assert_eq!((info.src, info.dst, info.tos, info.total_len), (src.ip(), dst.ip(), 0xb9, bytes.len()));
        assert_eq!(bytes[header_len - 8..header_len - 4], [0x11, 0x94, 0x11, 0x94]);
        assert_eq!(bytes[header_len..], payload);
    }
    assert_eq!((a.stats().tx_packets, a.stats().tx_wire_packets, a.stats().tx_calls), (4, 49, 4));
    assert_eq!((b.stats().rx_packets, b.stats().rx_wire_packets), (4, 49));
    Ok(())
}

fn unbound() -> Outcome {
    let wire = wire()?;
    wire.b.sh("ip addr add 192.0.2.22/24 dev wire; ip addr add 2001:db8::22/64 dev wire nodad")?;
    let mem = Memory::heap();
    for (any, src, dst, header_len) in [
        ("0.0.0.0:4500", "192.0.2.1:4500", "192.0.2.22:4500", 28),
        ("[::]:4500", "[2001:db8::1]:4500", "[2001:db8::22]:4500", 48),
    ] {
        let (mut a, mut b) = (socket(&wire.a, any, true)?, socket(&wire.b, any, true)?);
        let (src, dst): (SocketAddr, SocketAddr) = (src.parse()?, dst.parse()?);
        // There, and back from the address that it was sent to, which is not the first of that host.
        let pass = |from: &mut dyn Link, to: &mut dyn Link, src: SocketAddr, dst: SocketAddr| {
            assert_eq!(send(from, train(&mem, src, dst, 0, &payload(3000), 1000))?, Sent::All);
            let got = receive(to, &mem, header_len, 3000)?;
            let info = ip::Info::parse(got[0].head(), got[0].len()).map_err(|why| why.to_string())?;
            assert_eq!((info.src, info.dst), (src.ip(), dst.ip()));
            Outcome::Ok(())
        };
        pass(a.as_mut(), b.as_mut(), src, dst)?;
        pass(b.as_mut(), a.as_mut(), dst, src)?;
    }
    Ok(())
}

fn thin() -> Outcome {
    let wire = wire()?;
    let (mut a, mut b) = (socket(&wire.a, V4[0], true)?, socket(&wire.b, V4[1], false)?);
    assert!(!b.features().uso && !b.features().sg);
    let mem = Memory::heap();
    assert_eq!(send(a.as_mut(), train(&mem, V4[0].parse()?, V4[1].parse()?, 0, &payload(5000), 1000))?, Sent::All);
    let got = receive(b.as_mut(), &mem, 28, 5000)?;
    let lengths: Vec<_> = got.iter().map(|packet| (packet.len(), packet.meta.cut.segs())).collect();
    assert_eq!((lengths, b.stats().rx_calls), (vec![(1028, 1); 5], 5));
    Ok(())
}

fn batches() -> Outcome {
    let wire = wire()?;
    let (mut a, mut b) = (socket(&wire.a, V4[0], true)?, socket(&wire.b, V4[1], true)?);
    let (src, dst) = (V4[0].parse()?, V4[1].parse()?);
    let mem = Memory::heap();
    let mut burst: Vec<_> = (1..=50).map(|len| train(&mem, src, dst, 0, &payload(len), 1400)).collect();
    assert_eq!((a.send(&mut burst)?, a.stats().tx_calls), (Sent::All, 1));
    let got = receive(b.as_mut(), &mem, 28, 50 * 51 / 2)?;
    assert!(got.iter().zip(1..).all(|(packet, len)| packet.to_vec()[28..] == payload(len)), "{got:?}");
    assert!(b.stats().rx_calls < 15, "{:?}", b.stats());
    // A page serves several datagrams as short as these.
    assert!(mem.large().in_use() < 20, "{mem:?}");
    Ok(())
}

fn too_big() -> Outcome {
    let wire = wire()?;
    let mut a = socket(&wire.a, V4[0], true)?;
    let mem = Memory::heap();
    let (src, dst) = (V4[0].parse()?, V4[1].parse()?);
    let mut burst =
        vec![train(&mem, src, dst, 0, &payload(1473), 2000), train(&mem, src, dst, 0, &payload(1472), 2000)];
    assert_eq!(a.send(&mut burst)?, Sent::All);
    assert_eq!((a.stats().tx_packets, a.stats().dropped_for(DropReason::PacketTooBig)), (1, 1));
    assert!(a.features().uso);
    Ok(())
}

fn unsendable() -> Outcome {
    let wire = wire()?;
    let mut a = socket(&wire.a, V4[0], true)?;
    let mem = Memory::heap();
    let (src, dst): (SocketAddr, SocketAddr) = (V4[0].parse()?, V4[1].parse()?);
    let from_elsewhere = train(&mem, "192.0.2.9:4500".parse()?, dst, 0, &[1], 1400);
    let another_port = train(&mem, "192.0.2.1:4501".parse()?, dst, 0, &[1], 1400);
    let mut tcp = train(&mem, src, dst, 0, &[1], 1400);
    tcp.head_mut().expect("its own")[9] = 6;
    wire::ipv4::fill_check(&mut tcp.head_mut().expect("its own")[..20]).map_err(|why| why.to_string())?;
    let unroutable = train(&mem, src, "203.0.113.1:1".parse()?, 0, &[1], 1400);
    let good = train(&mem, src, dst, 0, &[1], 1400);
    let mut burst = vec![from_elsewhere, another_port, tcp, unroutable, good];
    assert_eq!(a.send(&mut burst)?, Sent::All);
    let stats = a.stats();
    let drops: Vec<_> = stats.drops().collect();
    assert_eq!(drops, [(DropReason::NoRoute, 1), (DropReason::TxError, 3)]);
    assert_eq!((stats.tx_packets, stats.tx_dropped), (1, 4));
    Ok(())
}

fn refused() -> Outcome {
    let wire = wire()?;
    let mut a = socket(&wire.a, V4[0], true)?;
    let mem = Memory::heap();
    let (src, dst) = (V4[0].parse()?, V4[1].parse()?);
    // More segments than any kernel takes.
    let fat = train(&mem, src, dst, 0, &payload(3000), 10);
    let mut burst = vec![train(&mem, src, dst, 0, &[1], 1400), fat, train(&mem, src, dst, 0, &[2], 1400)];
    assert_eq!((a.send(&mut burst)?, burst.len(), a.stats().tx_packets), (Sent::Refit, 2, 1));
    assert!(!a.features().uso);
    let uso = a.offloads().iter().find(|offload| offload.name == "tx-uso").expect("it is listed");
    assert_eq!((uso.on, uso.why.as_deref()), (false, Some("wan: sendmmsg: Invalid argument")));
    burst.remove(0);
    assert_eq!((a.send(&mut burst)?, a.stats().tx_dropped), (Sent::All, 0));
    Ok(())
}

fn verified() -> Outcome {
    let netns = Netns::new("a")?;
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let link = socket(&netns, bind, true)?;
        for name in ["rx-gro", "tx-uso"] {
            let offload = link.offloads().iter().find(|offload| offload.name == name).expect("it is listed");
            assert_eq!((offload.on, offload.why.as_deref()), (true, Some("verified over loopback")), "{name} {bind}");
        }
    }
    netns.sh("ip link set lo down")?;
    let link = socket(&netns, "0.0.0.0:0", true)?;
    let want = "accepted by the kernel, not verified over loopback: it carries nothing, perhaps it is down";
    for offload in link.offloads().iter().filter(|offload| offload.name != "tx-checksum") {
        assert_eq!((offload.on, offload.why.as_deref()), (true, Some(want)), "{}", offload.name);
    }
    Ok(())
}

fn in_use() -> Outcome {
    let netns = Netns::new("a")?;
    let _first = socket(&netns, "127.0.0.1:4500", true)?;
    let cases = [
        ("127.0.0.1:4500", "wan: bind: Address already in use (another socket has this address and port)"),
        ("192.0.2.1:4500", "wan: bind: Cannot assign requested address (the host has no such address)"),
    ];
    for (bind, want) in cases {
        let err = socket(&netns, bind, true).expect_err("it cannot be bound");
        assert_eq!(err.message(), Some(want));
    }
    Ok(())
}
