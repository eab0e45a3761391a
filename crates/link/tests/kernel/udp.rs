//! UDP sockets over a virtual cable.

use std::net::SocketAddr;

use base::DropReason;
use driver::DriverKind;
use libtest_mimic::Trial;
use link::{Link, Sent};
use packet::{Csum, Memory, PktType};
use system::{Need, Netns, Outcome, trial, veth, wait_until};
use wire::{Protocol, ip};

use crate::open;
use crate::train::{receive, send, train, without_df};

const NEEDS: &[Need] = &[Need::Namespaces];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("udp/train_is_received_as_one_packet", NEEDS, || trains(V4)),
        trial("udp/train_is_received_as_one_packet_over_ipv6", NEEDS, || trains(V6)),
        trial("udp/unbound_socket_sends_from_the_packets_source", NEEDS, unbound),
        trial("udp/without_offloads_every_datagram_is_plain", NEEDS, thin),
        trial("udp/many_datagrams_are_sent_in_one_call", NEEDS, batches),
        trial("udp/datagrams_of_one_flow_are_sent_as_a_train", NEEDS, joined),
        trial("udp/refused_joined_datagrams_are_sent_singly", NEEDS, joined_over_narrow_link),
        trial("udp/too_long_packet_is_dropped_and_counted", NEEDS, too_big),
        trial("udp/path_mtu_message_of_a_router_is_received", NEEDS, || reported_by_router(V4)),
        trial("udp/path_mtu_message_of_a_router_is_received_over_ipv6", NEEDS, || reported_by_router(V6)),
        trial("udp/mtu_of_the_first_link_is_reported_and_costs_no_offload", NEEDS, reported_by_own_link),
        trial("udp/kernel_fragments_datagrams_without_df", NEEDS, fragmented),
        trial("udp/datagram_has_the_df_flag_of_its_header", NEEDS, dont_fragment),
        trial("udp/datagram_without_df_passes_a_narrow_path", NEEDS, without_df_over_narrow_path),
        trial("udp/datagram_without_df_passes_a_narrow_first_link", NEEDS, without_df_over_narrow_link),
        trial("udp/path_mtu_is_reported_after_a_datagram_without_df", NEEDS, reported_without_df),
        trial("udp/error_about_one_packet_drops_no_other", NEEDS, soft_errors),
        trial("udp/datagrams_that_overflow_the_socket_are_counted", NEEDS, overflow),
        trial("udp/unsendable_packet_is_dropped_and_counted", NEEDS, unsendable),
        trial("udp/refused_train_loses_no_packet", NEEDS, refused),
        trial("udp/offloads_are_verified_with_evidence", NEEDS, verified),
        trial("udp/address_in_use_is_named_in_the_error", NEEDS, in_use),
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
    open(netns, "wan", DriverKind::Udp { bind: bind.parse()? }, offloads)
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
        // There and back: the reply is from the destination address, which is not the host's first address.
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

/// Single datagrams of these lengths to `dst`, as fragments of a large one are.
fn singles(mem: &Memory, dst: &str, lens: &[u32]) -> Outcome<Vec<packet::Packet>> {
    let (src, dst) = (V4[0].parse()?, dst.parse()?);
    Ok(lens.iter().map(|&len| train(mem, src, dst, 0, &payload(len), 1400)).collect())
}

fn joined() -> Outcome {
    let wire = wire()?;
    wire.b.sh("ip addr add 192.0.2.22/24 dev wire")?;
    let (mut a, mut b) = (socket(&wire.a, V4[0], true)?, socket(&wire.b, "0.0.0.0:4500", true)?);
    let mem = Memory::heap();
    let lens = [1400, 1400, 1400, 900, 1400, 1400];
    let mut burst = singles(&mem, V4[1], &lens)?;
    burst.extend(singles(&mem, "192.0.2.22:4500", &[1400, 1400])?);
    assert_eq!((a.send(&mut burst)?, burst.len()), (Sent::All, 0));
    let got = receive(b.as_mut(), &mem, 28, lens.iter().sum::<u32>() as usize + 2800)?;
    let trains: Vec<_> = got.iter().map(|packet| (packet.len() - 28, packet.meta.cut.segs())).collect();
    assert_eq!(trains, [(5100, 4), (2800, 2), (2800, 2)]);
    assert_eq!(got[0].to_vec()[28..], [1400, 1400, 1400, 900].map(payload).concat());
    assert_eq!((a.stats().tx_packets, a.stats().tx_wire_packets, a.stats().tx_calls), (8, 8, 1));
    Ok(())
}

/// The kernel fragments single datagrams for a link of MTU 1000, but rejects a train of them.
fn joined_over_narrow_link() -> Outcome {
    let wire = wire()?;
    wire.a.sh("ip link set wire mtu 1000")?;
    let (mut a, mut b) = (socket(&wire.a, V4[0], true)?, socket(&wire.b, V4[1], true)?);
    let mem = Memory::heap();
    let mut burst = singles(&mem, V4[1], &[1400; 6])?;
    for packet in &mut burst {
        let head = packet.writable_head(&mem).map_err(|err| format!("{err:?}"))?;
        let header = wire::ipv4::Ipv4Header::mut_from(head).map_err(|why| why.to_string())?;
        header.set_dont_fragment(false);
        wire::ipv4::fill_check(head).map_err(|why| why.to_string())?;
    }
    assert_eq!((a.send(&mut burst)?, burst.len()), (Sent::All, 0));
    let got = receive(b.as_mut(), &mem, 28, 6 * 1400)?;
    assert!(got.iter().all(|packet| packet.to_vec()[28..] == payload(1400)), "{got:?}");
    assert_eq!((got.len(), a.stats().tx_dropped, a.features().uso), (6, 0, true));
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

/// Two ends with a router between them, whose second link has an MTU of 1280 bytes.
struct Path {
    a: Netns,
    _router: Netns,
    b: Netns,
}

fn narrow_path() -> Outcome<Path> {
    let (a, router, b) = (Netns::new("a")?, Netns::new("r")?, Netns::new("b")?);
    veth((&a, "wire"), (&router, "near"))?;
    veth((&router, "far"), (&b, "wire"))?;
    router.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip link set far mtu 1280;
         ip addr add 192.0.2.254/25 dev near; ip addr add 192.0.2.253/25 dev far;
         ip route replace 192.0.2.1/32 dev near; ip route replace 192.0.2.2/32 dev far;
         ip addr add 2001:db8::fe/128 dev near; ip addr add 2001:db8::fd/128 dev far;
         ip -6 route add 2001:db8::1/128 dev near; ip -6 route add 2001:db8::2/128 dev far;
         sysctl -qw net.ipv4.conf.all.proxy_arp=1 net.ipv4.conf.near.proxy_arp=1 net.ipv4.conf.far.proxy_arp=1")?;
    for (netns, host, other) in [(&a, 1, "fe"), (&b, 2, "fd")] {
        netns.sh(&format!(
            "ip addr add 192.0.2.{host}/24 dev wire; ip addr add 2001:db8::{host}/128 dev wire nodad;
             ip -6 route add 2001:db8::{other}/128 dev wire; ip -6 route add default via 2001:db8::{other}"
        ))?;
    }
    Ok(Path { a, _router: router, b })
}

/// Receives at least one packet.
fn wait_for(link: &mut dyn Link, mem: &Memory) -> Outcome<Vec<packet::Packet>> {
    let mut out = Vec::new();
    for _ in 0..200 {
        link.recv(mem, &mut out)?;
        if !out.is_empty() {
            return Ok(out);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Err("nothing came in 2 s".into())
}

/// The MTU in a message, and the payload that the message quotes.
fn reported_mtu(message: &packet::Packet) -> (usize, Vec<u8>) {
    let bytes = message.to_vec();
    let info = ip::Info::parse(&bytes, bytes.len()).expect("a packet");
    let body = info.payload(&bytes);
    let mtu = if info.src.is_ipv4() {
        match wire::icmp::IcmpHeader::ref_from(body).expect("a header").message() {
            Some(wire::icmp::IcmpMessage::FragNeeded { mtu }) => usize::from(mtu),
            other => panic!("{other:?}"),
        }
    } else {
        match wire::icmpv6::Icmpv6Header::ref_from(body).expect("a header").message() {
            Some(wire::icmpv6::Icmpv6Message::PacketTooBig { mtu }) => mtu as usize,
            other => panic!("{other:?}"),
        }
    };
    (mtu, wire::Quote::parse(&body[8..]).expect("a quote").payload.to_vec())
}

fn reported_by_router(ends: [&str; 2]) -> Outcome {
    let path = narrow_path()?;
    let (mut a, mut b) = (socket(&path.a, ends[0], true)?, socket(&path.b, ends[1], true)?);
    let mem = Memory::heap();
    let (src, dst) = (ends[0].parse()?, ends[1].parse()?);
    for turn in 0..2 {
        // A train too: a report about it does not lower the MTU that the kernel accepts.
        assert_eq!(send(a.as_mut(), train(&mem, src, dst, 0, &payload(2 * 1400), 1400))?, Sent::All, "turn {turn}");
        let messages = wait_for(a.as_mut(), &mem)?;
        let (mtu, quoted) = reported_mtu(&messages[0]);
        assert_eq!((mtu, messages[0].meta.pkt_type), (1280, PktType::Host));
        assert_eq!((&quoted[..4], &quoted[8..16]), (&[0x11, 0x94, 0x11, 0x94][..], &payload(8)[..]));
        std::thread::sleep(std::time::Duration::from_millis(50));
        a.recv(&mem, &mut Vec::new())?;
    }
    assert_eq!((a.stats().tx_dropped, a.features().uso), (0, true));
    let good = payload(1200);
    assert_eq!(send(a.as_mut(), train(&mem, src, dst, 0, &good, 1400))?, Sent::All);
    let header_len = if ends[0] == V4[0] { 28 } else { 48 };
    assert_eq!(receive(b.as_mut(), &mem, header_len, good.len())?.len(), 1);
    Ok(())
}

fn reported_by_own_link() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    for (ends, bind) in [(V4, V4[0]), (V6, V6[0]), (V4, "0.0.0.0:4500"), (V6, "[::]:4500")] {
        let (src, dst): (SocketAddr, _) = (ends[0].parse()?, ends[1].parse()?);
        let mut a = socket(&wire.a, bind, true)?;
        wire.a.sh("ip link set wire mtu 1300")?;
        for len in [1400, 2 * 1400] {
            let dropped = a.stats().dropped_for(DropReason::PacketTooBig);
            // It looks up routes in its thread's namespace.
            let packet = || train(&Memory::heap(), src, dst, 0, &payload(len), 1400);
            let sent = wire.a.enter(|| send(a.as_mut(), packet()).ok());
            assert_eq!(sent, Some(Sent::All));
            assert_eq!(a.stats().dropped_for(DropReason::PacketTooBig), dropped + 1, "{len} bytes to {dst}");
            let messages = wait_for(a.as_mut(), &mem)?;
            let (mtu, quoted) = reported_mtu(&messages[0]);
            assert_eq!((mtu, &quoted[8..16]), (1300, &payload(8)[..]), "{len} bytes to {dst}");
            let bytes = messages[0].to_vec();
            let info = ip::Info::parse(&bytes, bytes.len()).expect("a packet");
            let to_itself = (src.ip(), src.ip(), PktType::Loopback);
            assert_eq!((info.src, info.dst, messages[0].meta.pkt_type), to_itself, "{len} bytes by {bind}");
        }
        assert!(a.features().uso);
        wire.a.sh("ip link set wire mtu 1500")?;
    }
    Ok(())
}

fn fragmented() -> Outcome {
    let path = narrow_path()?;
    let mem = Memory::heap();
    for (ends, header_len) in [(V4, 28), (V6, 48)] {
        let (mut a, mut b) = (socket(&path.a, ends[0], true)?, socket(&path.b, ends[1], true)?);
        assert!(a.features().ufo);
        let (src, dst) = (ends[0].parse()?, ends[1].parse()?);
        let long = || train(&mem, src, dst, 0, &payload(1400), 1400);
        // IPv6 is fragmented by its source only, which must know the path MTU before.
        assert_eq!(send(a.as_mut(), long())?, Sent::All);
        wait_for(a.as_mut(), &mem)?;
        let mut may_be_cut = long();
        may_be_cut.meta.cut = packet::Cut::Fragment;
        let mut burst = vec![may_be_cut, train(&mem, src, dst, 0, &payload(100), 1400)];
        assert_eq!(a.send(&mut burst)?, Sent::All);
        assert_eq!(receive(b.as_mut(), &mem, header_len, 1500)?.len(), 2, "{dst}");
        // A datagram with Don't Fragment is not fragmented, before or after one without.
        assert_eq!(send(a.as_mut(), long())?, Sent::All);
        assert_eq!(reported_mtu(&wait_for(a.as_mut(), &mem)?[0]).0, 1280);
    }
    Ok(())
}

/// Flags and payload lengths on the wire, in order, of a burst in which they change.
fn dont_fragment() -> Outcome {
    let wire = wire()?;
    let mut a = socket(&wire.a, V4[0], true)?;
    let kind = DriverKind::Packet { interface: "wire".to_owned(), exclusive: false };
    let mut b = open(&wire.b, "wire", kind, true)?;
    let _port_is_open = socket(&wire.b, V4[1], true)?;
    let mem = Memory::heap();
    let (src, dst) = (V4[0].parse()?, V4[1].parse()?);
    let sent = [(true, 1), (true, 2800), (false, 3), (false, 2803), (true, 5), (false, 6), (false, 7), (true, 8)];
    let mut burst = Vec::new();
    for (df, len) in sent {
        let packet = train(&mem, src, dst, 0, &payload(len), 1400);
        burst.push(if df { packet } else { without_df(packet) });
    }
    assert_eq!((a.send(&mut burst)?, a.stats().tx_calls), (Sent::All, 5));
    let (mut got, mut seen) = (Vec::new(), Vec::new());
    wait_until("all are on the wire", std::time::Duration::from_secs(20), || {
        b.recv(&mem, &mut got).expect("the link goes on");
        for mut packet in got.drain(..) {
            packet.pull(14);
            let bytes = packet.to_vec();
            let info = ip::Info::parse(&bytes, bytes.len());
            if let Some(info) = info.ok().filter(|info| info.dst == dst.ip() && info.protocol == Protocol::UDP) {
                seen.push((info.dont_fragment, (bytes.len() - 28) as u32));
            }
        }
        seen.len() >= sent.len()
    })?;
    assert_eq!(seen, sent);
    Ok(())
}

fn without_df_over_narrow_path() -> Outcome {
    let path = narrow_path()?;
    let (mut a, mut b) = (socket(&path.a, V4[0], true)?, socket(&path.b, V4[1], true)?);
    let mem = Memory::heap();
    let (src, dst) = (V4[0].parse()?, V4[1].parse()?);
    for len in [1400, 3 * 1400 + 100] {
        assert_eq!(send(a.as_mut(), without_df(train(&mem, src, dst, 0, &payload(len), 1400)))?, Sent::All);
        let got = receive(b.as_mut(), &mem, 28, len as usize)?;
        let bytes: Vec<u8> = got.iter().flat_map(|packet| packet.to_vec().split_off(28)).collect();
        assert_eq!((bytes, a.stats().tx_dropped, a.features().uso), (payload(len), 0, true));
    }
    Ok(())
}

fn without_df_over_narrow_link() -> Outcome {
    let wire = wire()?;
    let (mut a, mut b) = (socket(&wire.a, V4[0], true)?, socket(&wire.b, V4[1], true)?);
    wire.a.sh("ip link set wire mtu 1300")?;
    let mem = Memory::heap();
    let (src, dst) = (V4[0].parse()?, V4[1].parse()?);
    assert_eq!(send(a.as_mut(), without_df(train(&mem, src, dst, 0, &payload(1400), 1400)))?, Sent::All);
    let got = receive(b.as_mut(), &mem, 28, 1400)?;
    assert_eq!((got[0].to_vec().split_off(28), a.stats().tx_dropped), (payload(1400), 0));
    Ok(())
}

/// The option keeps the value of the last datagram, and the kernel still reports ICMP errors about earlier ones.
fn reported_without_df() -> Outcome {
    let path = narrow_path()?;
    let mut a = socket(&path.a, V4[0], true)?;
    let mem = Memory::heap();
    let (src, dst) = (V4[0].parse()?, V4[1].parse()?);
    for _ in 0..2 {
        let long = train(&mem, src, dst, 0, &payload(1400), 1400);
        let mut burst = vec![long, without_df(train(&mem, src, dst, 0, &[1], 1400))];
        assert_eq!(a.send(&mut burst)?, Sent::All);
        assert_eq!(reported_mtu(&wait_for(a.as_mut(), &mem)?[0]).0, 1280);
    }
    assert_eq!(a.stats().tx_dropped, 0);
    Ok(())
}

fn soft_errors() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let (src, dst): (SocketAddr, SocketAddr) = (V4[0].parse()?, V4[1].parse()?);
    let mut a = socket(&wire.a, V4[0], true)?;
    // No socket listens at the other end yet: each datagram is answered by an error.
    for _ in 0..5 {
        assert_eq!(send(a.as_mut(), train(&mem, src, dst, 0, &[1], 1400))?, Sent::All);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!((a.stats().tx_packets, a.stats().tx_dropped), (5, 0));
    let mut out = Vec::new();
    a.recv(&mem, &mut out)?;
    assert!(out.is_empty() && a.stats().soft_errors > 0);
    let mut b = socket(&wire.b, V4[1], true)?;
    assert_eq!(send(b.as_mut(), train(&mem, dst, src, 0, &[7], 1400))?, Sent::All);
    assert_eq!(wait_for(a.as_mut(), &mem)?.len(), 1);
    Ok(())
}

/// The kernel says with a later datagram how many it has dropped because the socket's buffer was full.
fn overflow() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let (src, dst): (SocketAddr, SocketAddr) = (V4[0].parse()?, V4[1].parse()?);
    let (mut a, mut b) = (socket(&wire.a, V4[0], true)?, socket(&wire.b, V4[1], true)?);
    // 256 MiB are more than any buffer holds.
    for _ in 0..4096 {
        let _ = send(a.as_mut(), train(&mem, src, dst, 0, &payload(44 * 1400), 1400))?;
    }
    let drain = |b: &mut dyn Link| loop {
        let mut out = Vec::new();
        match b.recv(&mem, &mut out) {
            Ok(()) if out.is_empty() => return Ok(()),
            Ok(()) => {}
            Err(err) => return Err(err),
        }
    };
    drain(b.as_mut())?;
    assert_eq!(send(a.as_mut(), train(&mem, src, dst, 0, &[1], 1400))?, Sent::All);
    drain(b.as_mut())?;
    let lost = b.stats().dropped_for(DropReason::SocketFull);
    assert!(lost > 0 && b.stats().rx_dropped == lost, "{:?}", b.stats());
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
    // More segments than any kernel accepts.
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
    let want = "accepted by the kernel, not verified over loopback: no datagram arrived, the device may be down";
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
        ("192.0.2.1:4500", "wan: bind: Cannot assign requested address (the host has no address 192.0.2.1)"),
    ];
    for (bind, want) in cases {
        let err = socket(&netns, bind, true).expect_err("it cannot be bound");
        assert_eq!(err.message(), Some(want));
    }
    Ok(())
}
