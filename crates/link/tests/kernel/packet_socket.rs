//! Packet sockets on virtual cables: two hosts, and a cable between them through two links.

use base::DropReason;
use driver::DriverKind;
use libtest_mimic::Trial;
use link::{Layer, Link, Sent};
use packet::{Cut, Frames, Gso, GsoKind, Memory, Packet};
use system::{Need, Netns, Outcome, trial, veth, wait_until};
use wire::EtherType;

use crate::bridge::{transfer, with_cable};
use crate::open;

const NEEDS: &[Need] = &[Need::Namespaces];
const NEEDS_PING: &[Need] = &[Need::Namespaces, Need::PING];
const NEEDS_ETHTOOL: &[Need] = &[Need::Namespaces, Need::ETHTOOL];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("packet/kernel_tcp_stays_fat_from_interface_to_interface", NEEDS, fat),
        trial("packet/interface_without_offloads_gets_complete_frames", NEEDS_ETHTOOL, kernel_cuts),
        trial("packet/frames_of_an_exclusive_link_do_not_reach_the_stack", NEEDS_PING, exclusive),
        trial("packet/vlan_tags_are_in_metadata_and_service_tags_in_bytes", NEEDS, vlan),
        trial("packet/packets_in_one_buffer_are_frames_on_the_wire", NEEDS, together),
        trial("packet/refused_offload_loses_no_packet", NEEDS, refused),
        trial("packet/down_interface_is_an_error_until_it_is_up", NEEDS, down),
        trial("packet/deleted_interface_is_an_error", NEEDS, gone),
        trial("packet/too_long_packet_is_dropped_and_counted", NEEDS, too_big),
        trial("packet/missing_interface_is_named_in_the_error", NEEDS, missing),
    ]
}

/// Host a, us in the middle, host b.
pub(crate) struct Street {
    pub(crate) a: Netns,
    pub(crate) middle: Netns,
    pub(crate) b: Netns,
}

pub(crate) fn street() -> Outcome<Street> {
    let (a, middle, b) = (Netns::new("a")?, Netns::new("m")?, Netns::new("b")?);
    veth((&a, "host"), (&middle, "left"))?;
    veth((&b, "host"), (&middle, "right"))?;
    for (netns, host) in [(&a, 1), (&b, 2)] {
        netns.sh(&format!("ip addr add 192.0.2.{host}/24 dev host; ip addr add 2001:db8::{host}/64 dev host nodad"))?;
    }
    Ok(Street { a, middle, b })
}

fn socket(netns: &Netns, interface: &str) -> Outcome<Box<dyn Link>> {
    open(netns, interface, DriverKind::Packet { interface: interface.to_owned(), exclusive: false }, true)
}

/// IPv6 packets that the stack behind `left` has received.
pub(crate) fn received_by_stack(netns: &Netns) -> Outcome<u64> {
    let text = netns.sh("cat /proc/net/dev_snmp6/left")?;
    let found = text.lines().find_map(|line| line.strip_prefix("Ip6InReceives")?.trim().parse().ok());
    found.ok_or_else(|| text.into())
}

/// Frames of an exclusive link reach only the link, and the stack again after the link is dropped.
fn exclusive() -> Outcome {
    let street = street()?;
    let mac = street.middle.sh("cat /sys/class/net/left/address")?;
    street.a.sh(&format!(
        "ip -6 route add 2001:db8:9::/64 dev host; ip neigh add 2001:db8:9::1 lladdr {} dev host",
        mac.trim()
    ))?;
    let mem = Memory::heap();
    for is_exclusive in [true, false] {
        let kind = DriverKind::Packet { interface: "left".to_owned(), exclusive: is_exclusive };
        let mut left = open(&street.middle, "left", kind, true)?;
        let before = received_by_stack(&street.middle)?;
        // The pings get no reply.
        let _ = street.a.sh("ping -q -n -c 3 -i 0.05 -W 1 2001:db8:9::1");
        let (mut got, mut frames) = (0, Vec::new());
        while left.recv(&mem, &mut frames).is_ok() && !frames.is_empty() {
            got += frames.drain(..).filter(|frame| frame.len() == 14 + 40 + 64).count();
        }
        assert_eq!(got, 3, "echo requests");
        assert_eq!(received_by_stack(&street.middle)? - before, if is_exclusive { 0 } else { 3 });
    }
    Ok(())
}

fn fat() -> Outcome {
    let street = street()?;
    let (mut left, mut right) = (socket(&street.middle, "left")?, socket(&street.middle, "right")?);
    let mac = street.middle.sh("cat /sys/class/net/left/address")?;
    assert_eq!((left.layer(), left.mtu()), (Layer::Ethernet(mac.trim().parse().map_err(|_| "no address")?), 1500));
    let seen = with_cable(left.as_mut(), right.as_mut(), || {
        transfer(&street.a, &street.b, "192.0.2.2".parse()?, 8 << 20)?;
        transfer(&street.a, &street.b, "2001:db8::2".parse()?, 8 << 20)
    })?;
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    assert!(seen.fat_v4 > 50 && seen.fat_v6 > 50 && seen.longest > 60_000 && seen.partial > 100, "{seen:?}");
    for link in [&left, &right] {
        assert_eq!((link.stats().rx_dropped, link.stats().tx_dropped), (0, 0), "{:?}", link.stats());
        assert!(link.offloads().iter().all(|offload| offload.on));
    }
    Ok(())
}

/// The kernel segments and checksums in software what its interface does not offload.
fn kernel_cuts() -> Outcome {
    let street = street()?;
    street.middle.sh("ethtool -K right tso off gso off tx off sg off")?;
    let (mut left, mut right) = (socket(&street.middle, "left")?, socket(&street.middle, "right")?);
    let before = received_packets(&street.b)?;
    let seen = with_cable(left.as_mut(), right.as_mut(), || {
        transfer(&street.a, &street.b, "192.0.2.2".parse()?, 8 << 20)?;
        transfer(&street.a, &street.b, "2001:db8::2".parse()?, 8 << 20)
    })?;
    assert!(seen.wrong.is_empty() && seen.fat_v4 > 50 && seen.fat_v6 > 50, "{seen:?}");
    let received = received_packets(&street.b)? - before;
    assert!(received > (16 << 20) / 1448, "cut to {received} frames");
    Ok(())
}

fn received_packets(netns: &Netns) -> Outcome<u64> {
    Ok(netns.sh("cat /sys/class/net/host/statistics/rx_packets")?.trim().parse()?)
}

fn vlan() -> Outcome {
    let street = street()?;
    let (mut host, mut left) = (socket(&street.a, "host")?, socket(&street.middle, "left")?);
    let mem = Memory::heap();
    let payload: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
    // Tags of 802.1ad stay in the bytes.
    for (size, segs, tpid) in [
        (1000, 5, EtherType::VLAN),
        (5001, 1, EtherType::VLAN),
        (1000, 5, EtherType::SERVICE_VLAN),
        (5001, 1, EtherType::SERVICE_VLAN),
    ] {
        let payload = &payload[..if segs > 1 { 5000 } else { 1000 }];
        let mut tagged = frame(&mem, payload, size);
        let tag = (tpid == EtherType::VLAN).then_some(0x2007);
        tagged.meta.vlan = tag;
        if tag.is_none() {
            offload::push_tag(&mem, &mut tagged, tpid, 0x2007).map_err(DropReason::name)?;
        }
        let (sent, meta) = (tagged.to_vec(), tagged.meta.clone());
        assert_eq!(host.send(&mut vec![tagged])?, Sent::All);
        let mut got = Vec::new();
        wait_until("the tagged frame arrives", std::time::Duration::from_secs(20), || {
            left.recv(&mem, &mut got).is_err() || got.iter().any(|packet| packet.len() == sent.len())
        })?;
        let packet = got.iter().find(|packet| packet.len() == sent.len()).ok_or("the link failed")?;
        assert_eq!((packet.meta.vlan, packet.meta.csum), (tag, meta.csum));
        assert_eq!((packet.meta.cut, packet.meta.cut.segs(), packet.to_vec()), (meta.cut, segs, sent));
    }
    Ok(())
}

/// More frames than one system call takes.
fn together() -> Outcome {
    let street = street()?;
    let (mut host, mut left) = (socket(&street.a, "host")?, socket(&street.middle, "left")?);
    assert!(host.features().frames);
    let mem = Memory::heap();
    let sent: Vec<Vec<u8>> = (0..100).map(|number| frame(&mem, &[number; 400], 401).to_vec()).collect();
    let bytes: Vec<u8> = sent.iter().flat_map(|frame| [frame, [0xee; 20].as_slice()].concat()).collect();
    let mut packet = Packet::with_data(&mem, &bytes[..bytes.len() - 20]).map_err(|dry| dry.to_string())?;
    let (size, count) = (sent[0].len() as u16, sent.len() as u16);
    packet.meta.cut = Cut::Frames(Frames { size, stride: size + 20, count });
    assert_eq!(host.send(&mut vec![packet])?, Sent::All);
    let stats = host.stats();
    assert_eq!((stats.tx_packets, stats.tx_wire_packets, stats.tx_calls), (1, 100, 2));
    assert_eq!(stats.tx_bytes, 100 * u64::from(size));
    let mut got = Vec::new();
    wait_until("the frames arrive", std::time::Duration::from_secs(20), || {
        let failed = left.recv(&mem, &mut got).is_err();
        got.retain(|packet| sent.iter().any(|frame| packet.len() == frame.len()));
        failed || got.len() >= sent.len()
    })?;
    assert!(got.iter().map(Packet::to_vec).eq(sent), "{} came", got.len());
    Ok(())
}

/// An Ethernet frame of host b's that carries a UDP train.
fn frame(mem: &Memory, payload: &[u8], size: u16) -> Packet {
    let mut packet =
        crate::train::train(mem, "192.0.2.2:1".parse().unwrap(), "192.0.2.1:2".parse().unwrap(), 0, payload, size);
    let header = wire::eth::EthHeader::new(wire::MacAddr::BROADCAST, wire::MacAddr::ZERO, EtherType::IPV4);
    packet.push(mem, 14).unwrap().copy_from_slice(header.as_bytes());
    packet
}

fn refused() -> Outcome {
    let street = street()?;
    let mut left = socket(&street.middle, "left")?;
    let mem = Memory::heap();
    // Refused by every kernel: TCP with its checksum at another offset.
    let mut odd = frame(&mem, &[2; 3000], 1000);
    odd.linearize(&mem).map_err(|dry| dry.to_string())?;
    odd.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 1000, segs: 3, ecn: false, fixed_id: false });
    let mut burst = vec![frame(&mem, &[1; 100], 1000), odd, frame(&mem, &[3; 100], 1000)];
    assert_eq!((left.send(&mut burst)?, burst.len(), left.stats().tx_packets), (Sent::Refit, 2, 1));
    let tso = left.offloads().iter().find(|offload| offload.name == "tx-tso4").expect("it is listed");
    assert_eq!((tso.on, tso.why.as_deref()), (false, Some("left: sendmmsg: Invalid argument")));
    assert!(!left.features().tso4 && left.features().uso);
    burst.remove(0);
    assert_eq!((left.send(&mut burst)?, left.stats().tx_dropped), (Sent::All, 0));
    Ok(())
}

fn down() -> Outcome {
    let street = street()?;
    let mut left = socket(&street.middle, "left")?;
    let (mem, mut got) = (Memory::heap(), Vec::new());
    street.middle.sh("ip link set left down")?;
    let mut error = None;
    wait_until("the link is down", std::time::Duration::from_secs(20), || {
        error = left.recv(&mem, &mut got).err();
        error.is_some()
    })?;
    assert_eq!(error.map(|err| err.to_string()).as_deref(), Some("left: recvmmsg: Network is down"));
    let mut burst = vec![frame(&mem, &[1; 100], 1000)];
    let err = left.send(&mut burst).expect_err("the interface is down");
    assert_eq!((err.to_string().as_str(), burst.len()), ("left: sendmmsg: Network is down", 1));
    let err = left.recv(&mem, &mut got).expect_err("the interface is still down");
    assert_eq!(err.to_string(), "left: SIOCGIFFLAGS: Network is down");
    street.middle.sh("ip link set left up")?;
    street.a.wait_for_carrier("host")?;
    left.recv(&mem, &mut got)?;
    assert_eq!(left.send(&mut burst)?, Sent::All);
    got.clear();
    street.a.sh("ping -c 1 -W 1 192.0.2.77 || true")?;
    left.recv(&mem, &mut got)?;
    assert!(!got.is_empty(), "an ARP request");
    Ok(())
}

fn gone() -> Outcome {
    let street = street()?;
    let mut left = socket(&street.middle, "left")?;
    let mem = Memory::heap();
    street.middle.sh("ip link del left")?;
    let err = left.recv(&mem, &mut Vec::new()).expect_err("the interface is gone");
    assert_eq!(err.to_string(), "left: recvmmsg: Network is down");
    let mut burst = vec![frame(&mem, &[1; 100], 1000)];
    let err = left.recv(&mem, &mut Vec::new()).expect_err("the interface is still gone");
    assert_eq!(err.to_string(), "left: SIOCGIFINDEX: No such device");
    street.middle.sh("ip link add left type veth peer name other; ip link set left up")?;
    left.recv(&mem, &mut Vec::new()).expect_err("another interface of the same name");
    let err = left.send(&mut burst).expect_err("the interface is gone");
    assert_eq!((err.to_string().as_str(), burst.len()), ("left: sendmmsg: No such device or address", 1));
    Ok(())
}

fn too_big() -> Outcome {
    let street = street()?;
    let mut left = socket(&street.middle, "left")?;
    let mem = Memory::heap();
    let mut burst = vec![frame(&mem, &[1; 1500], 2000), frame(&mem, &[1; 1472], 2000)];
    assert_eq!(left.send(&mut burst)?, Sent::All);
    assert_eq!((left.stats().tx_packets, left.stats().dropped_for(DropReason::PacketTooBig)), (1, 1));
    Ok(())
}

fn missing() -> Outcome {
    let netns = Netns::new("a")?;
    let err = socket(&netns, "eth7").expect_err("there is none");
    let want = "eth7: SIOCGIFINDEX: No such device (no such interface; `ip link` lists those there are)";
    assert_eq!(err.message(), Some(want));
    let err = socket(&netns, "lo").expect_err("it is no Ethernet interface");
    assert_eq!(err.message(), Some("lo: SIOCGIFHWADDR: not an Ethernet interface"));
    Ok(())
}
