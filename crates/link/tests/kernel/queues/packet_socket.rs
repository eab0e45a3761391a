//! Packet sockets, one for each shard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::ShardId;
use driver::DriverKind;
use libtest_mimic::Trial;
use link::{Config, Link, Sent};
use packet::{Memory, Packet};
use system::{Need, Netns, Outcome, trial, veth, wait_until};
use wire::{EtherType, FragInfo, FragOffset, Protocol, frag, ipv4, ipv6, udp};

use super::{collect, collect_for, config, drain, open_queues, refusal, shards, sum, wait_until_all_arrive};
use crate::bridge::{transfer, with_cables};
use crate::open;
use crate::packet_socket::{received_by_stack, street};

const NEEDS: &[Need] = &[Need::Namespaces];
const NEEDS_PING: &[Need] = &[Need::Namespaces, Need::PING];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("queues/packet_esp_arrives_at_the_owner_of_its_spi", NEEDS, || owners(true)),
        trial("queues/packet_esp_arrives_at_the_owner_without_offloads", NEEDS, || owners(false)),
        trial("queues/packet_flow_arrives_at_one_shard", NEEDS, flows),
        trial("queues/packet_fragments_of_a_datagram_share_a_shard", NEEDS, fragments),
        trial("queues/packet_that_is_no_flow_arrives_at_the_first_shard", NEEDS, first_shard),
        trial("queues/packet_sent_by_a_shard_is_received_by_none", NEEDS, own_frames),
        trial("queues/packet_goes_on_without_a_closed_socket", NEEDS, one_closed),
        trial("queues/packet_steers_after_the_interface_was_down", NEEDS, down),
        trial("queues/packet_opened_while_down_is_a_down_link", NEEDS, down_from_the_start),
        trial("queues/packet_deleted_interface_is_gone_for_each_shard", NEEDS, deleted),
        trial("queues/packet_setters_are_called_by_each_shard", NEEDS, setters),
        trial("queues/packet_streams_pass_by_threads_of_their_own", NEEDS, streams),
        trial("queues/packet_exclusive_ends_with_the_last_shard", NEEDS_PING, exclusive),
    ]
}

/// Bytes in front of a frame's number.
const MARK: [u8; 4] = *b"mark";

const PATIENCE: Duration = Duration::from_secs(20);

/// Number of frames of each kind.
const COUNT: u32 = 96;

struct Cable {
    us: Netns,
    peer: Netns,
    /// Sends the frames.
    sender: Box<dyn Link>,
}

fn packet(interface: &str, offloads: bool) -> Config {
    config(interface, DriverKind::Packet { interface: interface.to_owned(), exclusive: false }, offloads)
}

fn cable() -> Outcome<Cable> {
    let (us, peer) = (Netns::new("us")?, Netns::new("peer")?);
    veth((&us, "eth0"), (&peer, "eth0"))?;
    for netns in [&us, &peer] {
        netns.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
    }
    let sender = open(&peer, "eth0", packet("eth0", true).kind, true)?;
    Ok(Cable { us, peer, sender })
}

/// Place of VLAN tags in a frame.
#[derive(Clone, Copy, Debug)]
enum Tags {
    None,
    /// One of 802.1Q.
    One,
    /// One of 802.1ad, and one of 802.1Q behind it.
    Two,
}

/// A frame with a number at its end.
fn frame(mem: &Memory, tags: Tags, ethertype: EtherType, l3: &[u8], number: u32) -> Packet {
    let inner: &[u8] = match tags {
        Tags::None | Tags::One => &[],
        Tags::Two => &[0x00, 7, 0x81, 0],
    };
    let outer: &[u8] = match tags {
        Tags::None => &[],
        Tags::One => &[0x81, 0, 0x20, 7],
        Tags::Two => &[0x88, 0xa8, 0x20, 9, 0x81, 0],
    };
    // The type of the first tag, its control information, and so on, up to the type of the packet.
    let tags = if inner.is_empty() { outer.to_vec() } else { [outer, &inner[..2]].concat() };
    let bytes =
        [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &tags, &ethertype.0.to_be_bytes(), l3, &MARK, &number.to_be_bytes()];
    Packet::with_data(mem, &bytes.concat()).expect("memory")
}

/// Number of a frame of these tests.
fn number(packet: &Packet) -> Option<u32> {
    let bytes = packet.to_vec();
    let (front, number) = bytes.split_last_chunk::<4>()?;
    front.ends_with(&MARK).then(|| u32::from_be_bytes(*number))
}

/// Bytes of an IPv4 header with `options` bytes of options, and a payload.
fn v4(protocol: Protocol, hosts: [u8; 2], options: usize, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ([10, 1, 0, hosts[0]].into(), [10, 2, 0, hosts[1]].into());
    let total = 20 + options + payload.len() + 8;
    let header = ipv4::Ipv4Header::new(src, dst, protocol, total as u16);
    let mut header = [header.as_bytes(), &vec![1; options]].concat();
    header[0] = 0x40 | (5 + options as u8 / 4);
    [header, payload.to_vec()].concat()
}

fn v6(protocol: Protocol, hosts: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let address =
        |net: u8, host: u8| std::net::Ipv6Addr::from([0xfd, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    let header = ipv6::Ipv6Header::new(address(1, hosts[0]), address(2, hosts[1]), protocol, payload.len() as u16 + 8);
    [header.as_bytes(), payload].concat()
}

fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    [udp::UdpHeader::new(ports[0], ports[1], payload.len() as u16 + 16).as_bytes(), payload].concat()
}

fn tcp(ports: [u16; 2]) -> Vec<u8> {
    let [a, b] = ports.map(u16::to_be_bytes);
    [a.as_slice(), &b, &[0; 8], &[0x50, 0x10, 1, 0, 0, 0, 0, 0]].concat()
}

fn spi_of(number: u32) -> u32 {
    if number.is_multiple_of(2) { 0x1000 * (number + 1) } else { 0x100 + number.wrapping_mul(0x0808_8405) }
}

fn send(sender: &mut dyn Link, burst: Vec<Packet>) -> Outcome {
    let mut burst = burst;
    assert_eq!((sender.send(&mut burst)?, burst.len()), (Sent::All, 0));
    assert_eq!(sender.stats().tx_dropped, 0);
    Ok(())
}

/// Numbers of frames, each with its shard. No frame arrives twice.
fn shards_of(queues: &mut [Box<dyn Link>], mem: &Memory, count: u32) -> Outcome<BTreeMap<u32, usize>> {
    let got = collect(queues, mem, count as usize, number)?;
    let more = drain(queues, mem)?.into_iter().filter(|(_, packet)| number(packet).is_some()).count();
    let shards: BTreeMap<_, _> = got.into_iter().map(|(shard, number)| (number, shard)).collect();
    assert_eq!((shards.len(), more), (count as usize, 0), "each frame arrives once");
    Ok(shards)
}

/// Sends ESP of many SPIs in every form, and checks its owners.
fn check_owners(cable: &mut Cable, queues: &mut [Box<dyn Link>]) -> Outcome {
    let mem = Memory::heap();
    let count = shards(u8::try_from(queues.len())?);
    let esp = |spi: u32| [&spi.to_be_bytes()[..], &[0; 12]].concat();
    let encap = |spi: u32| udp([6000, 4500], &esp(spi));
    let (hosts, ipv4, ipv6) = ([1, 2], EtherType::IPV4, EtherType::IPV6);
    for tags in [Tags::None, Tags::One, Tags::Two] {
        let forms: [(_, _, &dyn Fn(u32) -> Vec<u8>); 6] = [
            ("IPv4", ipv4, &|spi| v4(Protocol::ESP, hosts, 0, &esp(spi))),
            ("IPv4 with options", ipv4, &|spi| v4(Protocol::ESP, hosts, 12, &esp(spi))),
            ("UDP, IPv4", ipv4, &|spi| v4(Protocol::UDP, hosts, 0, &encap(spi))),
            ("UDP, IPv4 with options", ipv4, &|spi| v4(Protocol::UDP, hosts, 40, &encap(spi))),
            ("IPv6", ipv6, &|spi| v6(Protocol::ESP, hosts, &esp(spi))),
            ("UDP, IPv6", ipv6, &|spi| v6(Protocol::UDP, hosts, &encap(spi))),
        ];
        for (form, ethertype, packet) in forms {
            let burst =
                (0..COUNT).map(|number| frame(&mem, tags, ethertype, &packet(spi_of(number)), number)).collect();
            send(cable.sender.as_mut(), burst)?;
            for (number, shard) in shards_of(queues, &mem, COUNT)? {
                let spi = spi_of(number);
                assert_eq!(ShardId(shard as u8), count.owner_of_spi(spi), "SPI {spi:#x}, {form}, {tags:?}");
            }
        }
    }
    Ok(())
}

fn owners(offloads: bool) -> Outcome {
    let mut cable = cable()?;
    for count in [2, 3, 8] {
        let mut queues = open_queues(&cable.us, &packet("eth0", offloads), count)?;
        assert_eq!(queues.len(), usize::from(count));
        check_owners(&mut cable, &mut queues)?;
        assert!(queues.iter().all(|queue| queue.stats().rx_packets > 0));
        assert!(sum(&queues).rx_packets >= 18 * u64::from(COUNT) && sum(&queues).rx_dropped == 0);
    }
    Ok(())
}

/// TCP, UDP and others, with each packet of a flow twice: both arrive at one shard, and flows are spread.
fn flows() -> Outcome {
    let mut cable = cable()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 4)?;
    let (ipv4, ipv6) = (EtherType::IPV4, EtherType::IPV6);
    // Ports as `connect` chooses them: all even.
    let ports = |number: u32| [32_768 + 2 * number as u16, 443];
    let hosts = |number: u32| [number as u8, 255 - number as u8];
    let kinds: [(_, _, &dyn Fn(u32) -> Vec<u8>); 8] = [
        ("TCP", ipv4, &|flow| v4(Protocol::TCP, [1, 2], 0, &tcp(ports(flow)))),
        ("TCP to many ports", ipv4, &|flow| v4(Protocol::TCP, [1, 2], 0, &tcp([443, ports(flow)[0]]))),
        ("TCP with options of IPv4", ipv4, &|flow| v4(Protocol::TCP, [1, 2], 8, &tcp(ports(flow)))),
        ("UDP", ipv4, &|flow| v4(Protocol::UDP, [1, 2], 0, &udp(ports(flow), &[]))),
        ("ICMP", ipv4, &|flow| v4(Protocol::ICMP, hosts(flow), 0, &[8, 0, 0, 0])),
        ("TCP, IPv6", ipv6, &|flow| v6(Protocol::TCP, [1, 2], &tcp(ports(flow)))),
        ("UDP, IPv6", ipv6, &|flow| v6(Protocol::UDP, [1, 2], &udp(ports(flow), &[]))),
        ("destination options, IPv6", ipv6, &|flow| v6(Protocol::DEST_OPTS, hosts(flow), &[6, 0, 1, 4, 0, 0, 0, 0])),
    ];
    for tags in [Tags::None, Tags::One, Tags::Two] {
        for (kind, ethertype, packet) in kinds {
            let burst = (0..2 * COUNT).map(|number| frame(&mem, tags, ethertype, &packet(number % COUNT), number));
            send(cable.sender.as_mut(), burst.collect())?;
            let shard_of = shards_of(&mut queues, &mem, 2 * COUNT)?;
            let mut each = [0; 4];
            for flow in 0..COUNT {
                assert_eq!(shard_of[&flow], shard_of[&(flow + COUNT)], "{kind}, flow {flow}, {tags:?}");
                each[shard_of[&flow]] += 1;
            }
            // 24 expected in each, with a standard deviation of 4.2.
            assert!(each.iter().all(|count| (4..=52).contains(count)), "{kind}, {tags:?}: {each:?}");
        }
    }
    Ok(())
}

/// Fragments, the first of which has ports or an SPI, and a whole packet of the same addresses without ports.
fn fragments() -> Outcome {
    let mut cable = cable()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 3)?;
    let of_v4 = |hosts, protocol, offset: usize, more, payload: &[u8]| {
        let mut bytes = v4(protocol, hosts, 0, payload);
        let header = ipv4::Ipv4Header::mut_from(&mut bytes).expect("a header");
        header.set_fragment(FragOffset::from_bytes(offset).expect("a multiple of 8"), more);
        bytes
    };
    let of_v6 = |hosts, protocol, offset: usize, more, payload: &[u8]| {
        let offset = FragOffset::from_bytes(offset).expect("a multiple of 8");
        let header = frag::FragHeader::new(protocol, FragInfo { offset, more, id: 7 });
        v6(Protocol::FRAGMENT, hosts, &[header.as_bytes(), payload].concat())
    };
    let mut met = BTreeSet::new();
    for pair in 0..32 {
        let hosts = [pair, 200 - pair];
        let mut burst = Vec::new();
        let mut add =
            |ethertype, bytes: Vec<u8>| burst.push(frame(&mem, Tags::None, ethertype, &bytes, burst.len() as u32));
        for (protocol, transport) in [
            (Protocol::UDP, udp([1000, 4500], &[0, 0, 16, 0, 1, 2, 3, 4])),
            (Protocol::TCP, tcp([1000, 2000])),
            (Protocol::ESP, vec![0, 0, 16, 1, 1, 2, 3, 4]),
        ] {
            add(EtherType::IPV4, of_v4(hosts, protocol, 0, true, &transport));
            add(EtherType::IPV4, of_v4(hosts, protocol, 1480, true, &[9; 16]));
            add(EtherType::IPV4, of_v4(hosts, protocol, 2960, false, &[8; 4]));
            add(EtherType::IPV6, of_v6(hosts, protocol, 0, true, &transport));
            add(EtherType::IPV6, of_v6(hosts, protocol, 1480, true, &[9; 16]));
            add(EtherType::IPV6, of_v6(hosts, protocol, 2960, false, &[8; 4]));
        }
        send(cable.sender.as_mut(), burst)?;
        let shard_of = shards_of(&mut queues, &mem, 18)?;
        for family in [0, 3] {
            let of: BTreeSet<_> = shard_of.iter().filter(|(number, _)| *number % 6 / 3 * 3 == family).collect();
            let of: BTreeSet<_> = of.into_iter().map(|(_, shard)| *shard).collect();
            assert_eq!(of.len(), 1, "pair {pair}: {shard_of:?}");
            met.extend(of.into_iter().map(|shard| (family, shard)));
        }
    }
    assert_eq!(met.len(), 6, "all shards have some: {met:?}");
    Ok(())
}

fn first_shard() -> Outcome {
    let mut cable = cable()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 3)?;
    let ike = udp([6000, 4500], &[0; 20]);
    for tags in [Tags::None, Tags::One, Tags::Two] {
        let frames = [
            ("ARP", EtherType::ARP, vec![0; 28]),
            ("an experiment", EtherType(0x88b5), vec![7; 50]),
            ("IKE", EtherType::IPV4, v4(Protocol::UDP, [1, 2], 0, &ike)),
            ("IKE over IPv6", EtherType::IPV6, v6(Protocol::UDP, [1, 2], &ike)),
        ];
        for (what, ethertype, l3) in frames {
            send(cable.sender.as_mut(), vec![frame(&mem, tags, ethertype, &l3, 7)])?;
            assert_eq!(shards_of(&mut queues, &mem, 1)?, [(7, 0)].into(), "{what}, {tags:?}");
        }
    }
    // Cut anywhere: a load behind the end.
    for whole in [v4(Protocol::UDP, [1, 2], 40, &ike), v6(Protocol::UDP, [1, 2], &ike)] {
        let ethertype = if whole[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
        for len in 0..whole.len() {
            let header = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &ethertype.0.to_be_bytes()].concat();
            let bytes = [&header, &whole[..len]].concat();
            send(cable.sender.as_mut(), vec![Packet::with_data(&mem, &bytes).map_err(|dry| dry.to_string())?])?;
        }
        let cut = |packet: &Packet| (packet.to_vec().get(6..12) == Some(&[2, 0, 0, 0, 0, 1])).then_some(());
        collect(&mut queues, &mem, whole.len(), cut)?;
    }
    Ok(())
}

fn own_frames() -> Outcome {
    let cable = cable()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 3)?;
    let mut peer = vec![cable.sender];
    for (number, queue) in (0..).zip(&mut queues) {
        let l3 = v4(Protocol::TCP, [1, 2], 0, &tcp([number as u16, 80]));
        send(queue.as_mut(), vec![frame(&mem, Tags::None, EtherType::IPV4, &l3, number)])?;
    }
    assert_eq!(collect(&mut peer, &mem, 3, number)?.len(), 3);
    let back = collect_for(Duration::from_millis(100), &mut queues, &mem, 1, number)?;
    assert!(back.is_empty(), "{back:?}");
    assert_eq!(sum(&queues).tx_packets, 3);
    Ok(())
}

/// TCP streams of two hosts pass through two links, whose queues are carried by a thread each.
fn streams() -> Outcome {
    let street = street()?;
    let mut left = open_queues(&street.middle, &packet("left", true), 3)?;
    let mut right = open_queues(&street.middle, &packet("right", true), 3)?;
    let seen = with_cables(&mut left, &mut right, || {
        for address in ["192.0.2.2", "2001:db8::2"] {
            for _ in 0..6 {
                transfer(&street.a, &street.b, address.parse()?, 1 << 20)?;
            }
        }
        Ok(())
    })?;
    assert!(seen.iter().all(|seen| seen.wrong.is_empty()), "{seen:?}");
    assert!(seen.iter().map(|seen| seen.fat_v4).sum::<u64>() > 20, "{seen:?}");
    assert!(seen.iter().map(|seen| seen.fat_v6).sum::<u64>() > 20, "{seen:?}");
    for queues in [&left, &right] {
        let stats = sum(queues);
        assert_eq!((stats.rx_dropped, stats.tx_dropped), (0, 0), "{stats:?}");
    }
    Ok(())
}

fn one_closed() -> Outcome {
    let mut cable = cable()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 4)?;
    for closed in [1, 0, 1] {
        queues.remove(closed);
        let flows = |number| v4(Protocol::TCP, [1, 2], 0, &tcp([number as u16, 80]));
        let send = || {
            let burst = (0..COUNT).map(|number| frame(&mem, Tags::None, EtherType::IPV4, &flows(number), number));
            send(cable.sender.as_mut(), burst.collect())
        };
        wait_until_all_arrive(&mut queues, &mem, COUNT as usize, send, number)?;
    }
    Ok(())
}

fn down() -> Outcome {
    let mut cable = cable()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 3)?;
    for _ in 0..2 {
        cable.us.sh("ip link set eth0 down")?;
        for queue in &mut queues {
            // Frames that have arrived before come first.
            let mut failed = None;
            wait_until("the interface is down", PATIENCE, || {
                failed = queue.recv(&mem, &mut Vec::new()).err();
                failed.is_some()
            })?;
            assert_eq!(failed.map(|err| err.to_string()).as_deref(), Some("eth0: recvmmsg: Network is down"));
            assert!(!queue.is_gone());
        }
        cable.us.sh("ip link set eth0 up")?;
        cable.peer.wait_for_carrier("eth0")?;
        drain(&mut queues, &mem)?;
        let _was_down_too = cable.sender.recv(&mem, &mut Vec::new());
        let _is_back = cable.sender.recv(&mem, &mut Vec::new());
        check_owners(&mut cable, &mut queues)?;
    }
    Ok(())
}

/// A kernel before 6.13 refuses the group, which the error says.
fn down_from_the_start() -> Outcome {
    let mut cable = cable()?;
    let mem = Memory::heap();
    cable.us.sh("ip link set eth0 down")?;
    let mut queues = match open_queues(&cable.us, &packet("eth0", true), 3) {
        Ok(queues) => queues,
        Err(err) => {
            let text = err.message().unwrap_or_default();
            assert!(text.starts_with("eth0: PACKET_FANOUT: Invalid argument (a kernel before 6.13 "), "{text}");
            return Ok(());
        }
    };
    for queue in &mut queues {
        let err = queue.recv(&mem, &mut Vec::new()).expect_err("the interface is down");
        assert_eq!(err.to_string(), "eth0: recvmmsg: Network is down");
    }
    cable.us.sh("ip link set eth0 up")?;
    cable.peer.wait_for_carrier("eth0")?;
    drain(&mut queues, &mem)?;
    let _was_down_too = cable.sender.recv(&mem, &mut Vec::new());
    let _is_back = cable.sender.recv(&mem, &mut Vec::new());
    check_owners(&mut cable, &mut queues)
}

fn deleted() -> Outcome {
    let cable = cable()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 3)?;
    cable.us.sh("ip link del eth0")?;
    for queue in &mut queues {
        wait_until("the interface is gone", PATIENCE, || queue.recv(&mem, &mut Vec::new()).is_err())?;
        assert!(queue.is_gone());
        queue.release();
    }
    let text = refusal(&cable.us, &packet("eth0", true), 3);
    assert_eq!(text, "eth0: SIOCGIFINDEX: No such device (no such interface; `ip link` lists those there are)");
    // Beside links of the old interface.
    veth((&cable.us, "eth0"), (&cable.peer, "eth0"))?;
    let sender = open(&cable.peer, "eth0", packet("eth0", true).kind, true)?;
    let mut new = open_queues(&cable.us, &packet("eth0", true), 3)?;
    check_owners(&mut Cable { sender, ..cable }, &mut new)?;
    drop(queues);
    Ok(())
}

fn setters() -> Outcome {
    let cable = cable()?;
    let mut queues = open_queues(&cable.us, &packet("eth0", true), 3)?;
    let mac = "02:00:00:00:00:77".parse().map_err(|_| "an address")?;
    for (queue, promiscuous) in queues.iter_mut().zip(1..) {
        queue.set_mtu(Some(1400)).map_err(|err| err.to_string())?;
        queue.set_mac(mac).map_err(|err| err.to_string())?;
        queue.set_promiscuous(true)?;
        assert!(!queue.look()? && queue.mtu() == 1400 && queue.layer() == link::Layer::Ethernet(mac));
        let seen = cable.us.sh("ip -d link show eth0")?;
        assert!(seen.contains(&format!("promiscuity {promiscuous} ")) && seen.contains("02:00:00:00:00:77"), "{seen}");
        assert!(seen.contains("allmulti 3 "), "{seen}");
    }
    queues.remove(0);
    for queue in &mut queues {
        queue.set_promiscuous(true)?;
        assert!(!queue.look()?);
    }
    wait_until("a membership ends", PATIENCE, || {
        cable.us.sh("ip -d link show eth0").is_ok_and(|seen| seen.contains("promiscuity 2 "))
    })
}

/// Frames of an exclusive link reach no stack, whichever shards are left.
fn exclusive() -> Outcome {
    let street = street()?;
    let mac = street.middle.sh("cat /sys/class/net/left/address")?;
    street.a.sh(&format!(
        "ip -6 route add 2001:db8:9::/64 dev host; ip neigh add 2001:db8:9::1 lladdr {} dev host",
        mac.trim()
    ))?;
    let mem = Memory::heap();
    let kind = DriverKind::Packet { interface: "left".to_owned(), exclusive: true };
    let mut queues = open_queues(&street.middle, &config("left", kind, true), 3)?;
    for left in [3, 2, 1] {
        let before = received_by_stack(&street.middle)?;
        let mut got = 0;
        wait_until("three pings arrive", PATIENCE, || {
            // The pings get no reply.
            let _ = street.a.sh("ping -q -n -c 3 -i 0.05 -W 1 2001:db8:9::1");
            let frames = drain(&mut queues, &mem).unwrap_or_default();
            got = frames.iter().filter(|(_, frame)| frame.len() == 14 + 40 + 64).count();
            got == 3
        })?;
        assert_eq!(received_by_stack(&street.middle)? - before, 0, "{left} left");
        queues.remove(0);
    }
    Ok(())
}
