//! TUN and TAP devices with several queues.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use driver::DriverKind;
use libtest_mimic::Trial;
use link::{Layer, Link, Sent};
use packet::{Memory, Packet};
use system::{Need, Netns, Outcome, trial, wait_until};
use wire::{EtherType, MacAddr, Protocol, eth, ip, udp};

use super::{collect, config, open_queues, refusal, sum, wait_until_all_arrive};
use crate::bridge::{transfer, with_cables};
use crate::open;
use crate::train::train;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("queues/tun_flow_returns_to_the_shard_that_sent_it", NEEDS, || flows_return(TUN, true)),
        trial("queues/tun_flow_returns_to_its_shard_without_offloads", NEEDS, || flows_return(TUN, false)),
        trial("queues/tap_flow_returns_to_the_shard_that_sent_it", NEEDS, || flows_return(TAP, true)),
        trial("queues/tun_has_more_queues_than_shards", NEEDS, || flows_return(DriverKind::Tun { queues: 7 }, true)),
        trial("queues/tun_new_flow_arrives_at_one_shard", NEEDS, new_flows),
        trial("queues/tun_streams_pass_by_threads_of_their_own", NEEDS, || streams(TUN)),
        trial("queues/tap_streams_pass_by_threads_of_their_own", NEEDS, || streams(TAP)),
        trial("queues/tun_goes_on_without_a_closed_queue", NEEDS, one_closed),
        trial("queues/tun_deleted_device_is_gone_for_each_shard", NEEDS, deleted),
        trial("queues/tun_mtu_is_set_by_each_shard", NEEDS, mtu),
        trial("queues/tun_of_one_queue_is_refused_with_a_remedy", NEEDS, one_queue),
        trial("queues/tun_is_kept_by_the_first_shard_alone", NEEDS, kept),
    ]
}

const TUN: DriverKind = DriverKind::Tun { queues: 1 };
const TAP: DriverKind = DriverKind::Tap { queues: 1 };

/// Shards of these tests.
const SHARDS: usize = 3;

struct Node {
    netns: Netns,
    queues: Vec<Box<dyn Link>>,
    /// Address of the host's end, which frames of a TAP device need.
    host: MacAddr,
}

/// A device with a queue for each shard; the host is 10.9.0.1, and the node 10.9.0.2.
fn node(kind: DriverKind, offloads: bool) -> Outcome<Node> {
    let netns = Netns::new("a")?;
    let queues = open_queues(&netns, &config("fat0", kind, offloads), SHARDS as u8)?;
    assert_eq!(queues.len(), SHARDS);
    netns.sh("echo 1 >/proc/sys/net/ipv6/conf/fat0/disable_ipv6; ip addr add 10.9.0.1/24 dev fat0")?;
    let mut host = MacAddr::ZERO;
    if let Layer::Ethernet(mac) = queues[0].layer() {
        assert!(queues.iter().all(|queue| queue.layer() == Layer::Ethernet(mac)), "one station");
        netns.sh(&format!("ip neigh add 10.9.0.2 lladdr {mac} dev fat0"))?;
        host = netns.sh("cat /sys/class/net/fat0/address")?.trim().parse().map_err(|_| "no address")?;
    }
    Ok(Node { netns, queues, host })
}

impl Node {
    /// A datagram from a port of the node to a port of the host.
    fn datagram(&self, mem: &Memory, sport: u16, dst: SocketAddr) -> Packet {
        let mut packet = train(mem, ([10, 9, 0, 2], sport).into(), dst, 0, &[7; 100], 1400);
        packet.linearize(mem).expect("memory");
        // A datagram without a checksum, which a device without offloads takes too.
        packet.head_mut().expect("its own")[26..28].fill(0);
        packet.meta.csum = packet::Csum::None;
        if let Layer::Ethernet(own) = self.queues[0].layer() {
            let header = eth::EthHeader::new(self.host, own, EtherType::IPV4);
            packet.push(mem, eth::EthHeader::LEN).expect("headroom").copy_from_slice(header.as_bytes());
        }
        packet
    }

    /// The port of the node that a packet of the host is for, if it is UDP.
    fn dport(&self) -> impl Fn(&Packet) -> Option<u16> + use<> {
        let l3 = if self.queues[0].layer() == Layer::Ip { 0 } else { eth::EthHeader::LEN };
        move |packet| {
            let bytes = packet.to_vec();
            let info = ip::Info::parse(bytes.get(l3..)?, bytes.len() - l3).ok()?;
            let is_udp = info.protocol == Protocol::UDP;
            let header = udp::UdpHeader::ref_from(info.payload(&bytes[l3..])).ok()?;
            is_udp.then(|| header.dport())
        }
    }
}

/// The host replies to every flow, and each reply arrives at the shard that has sent the datagram.
fn flows_return(kind: DriverKind, offloads: bool) -> Outcome {
    let mut node = node(kind, offloads)?;
    let mem = Memory::heap();
    let echo = node.netns.enter(|| UdpSocket::bind("10.9.0.1:7"))?;
    echo.set_read_timeout(Some(Duration::from_secs(5)))?;
    let ports = 1000..1060_u16;
    // Two rounds: the second shows that the shard stays the same, and the third that a flow follows its sender to another one.
    for round in [0, 0, 1] {
        let shard_of = |port: u16| (usize::from(port) + round) % SHARDS;
        for port in ports.clone() {
            let datagram = node.datagram(&mem, port, ([10, 9, 0, 1], 7).into());
            assert_eq!(node.queues[shard_of(port)].send(&mut vec![datagram])?, Sent::All);
        }
        for _ in ports.clone() {
            let mut room = [0; 200];
            let (len, from) = echo.recv_from(&mut room)?;
            echo.send_to(&room[..len], from)?;
        }
        let dport = node.dport();
        let got = collect(&mut node.queues, &mem, ports.len(), dport)?;
        let wrong: Vec<_> = got.iter().filter(|&&(shard, port)| shard != shard_of(port)).collect();
        assert!(wrong.is_empty(), "shard and port: {wrong:?}");
    }
    let sum = sum(&node.queues);
    let moved = 3 * ports.len() as u64;
    assert_eq!((sum.tx_packets, sum.rx_dropped, sum.tx_dropped), (moved, 0, 0));
    // The host's stack may send frames of its own through a TAP device.
    assert!(sum.rx_packets >= moved && sum.rx_packets < moved + 10, "{sum:?}");
    let each = node.queues.iter().map(|queue| queue.stats().tx_packets);
    assert!(each.eq([moved / SHARDS as u64; SHARDS]), "{sum:?}");
    Ok(())
}

/// Sends datagrams from one socket of the host to ports of the node.
fn send_flows(netns: &Netns, ports: u16, each: u16) -> Outcome {
    let socket = netns.enter(|| UdpSocket::bind("10.9.0.1:0"))?;
    for _ in 0..each {
        for port in 1000..1000 + ports {
            socket.send_to(&[7; 100], ("10.9.0.2", port))?;
        }
    }
    Ok(())
}

fn new_flows() -> Outcome {
    let mut node = node(TUN, true)?;
    let mem = Memory::heap();
    send_flows(&node.netns, 100, 4)?;
    let dport = node.dport();
    let got = collect(&mut node.queues, &mem, 400, dport)?;
    let mut shard_of = BTreeMap::new();
    for (shard, port) in got {
        assert_eq!(*shard_of.entry(port).or_insert(shard), shard, "port {port}");
    }
    let each: Vec<_> = (0..SHARDS).map(|shard| shard_of.values().filter(|of| **of == shard).count()).collect();
    assert!(shard_of.len() == 100 && each.iter().all(|count| *count > 5), "{each:?}");
    assert_eq!(sum(&node.queues).rx_wire_packets, 400);
    Ok(())
}

/// TCP streams of two hosts pass through two devices, whose queues are carried by a thread each.
fn streams(kind: DriverKind) -> Outcome {
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    let config = config("fat0", kind, true);
    let (mut queues_a, mut queues_b) = (open_queues(&a, &config, 3)?, open_queues(&b, &config, 3)?);
    for (netns, host) in [(&a, 1), (&b, 2)] {
        netns.sh(&format!("ip addr add 10.9.0.{host}/24 dev fat0; ip addr add fd09::{host}/64 dev fat0 nodad"))?;
    }
    let seen = with_cables(&mut queues_a, &mut queues_b, || {
        for address in ["10.9.0.2", "fd09::2"] {
            (0..6).try_for_each(|_| transfer(&a, &b, address.parse()?, 1 << 20))?;
        }
        Ok(())
    })?;
    assert!(seen.iter().all(|seen| seen.wrong.is_empty()), "{seen:?}");
    assert!(seen.iter().map(|seen| seen.fat_v4 + seen.fat_v6).sum::<u64>() > 50, "{seen:?}");
    for queues in [&queues_a, &queues_b] {
        assert_eq!((sum(queues).rx_dropped, sum(queues).tx_dropped), (0, 0));
    }
    Ok(())
}

fn one_closed() -> Outcome {
    let mut node = node(TUN, true)?;
    let mem = Memory::heap();
    for left in [2, 1] {
        // Another than the last one, so that the kernel moves a queue to its place.
        node.queues.remove(0);
        let dport = node.dport();
        let Node { netns, queues, .. } = &mut node;
        wait_until_all_arrive(queues, &mem, 100, || send_flows(netns, 50, 2), dport)?;
        assert_eq!(node.queues.len(), left);
        for queue in &mut node.queues {
            queue.set_mtu(Some(1400)).map_err(|err| err.to_string())?;
            assert!(queue.has_device() && !queue.look()?, "{queue:?}");
        }
    }
    Ok(())
}

fn deleted() -> Outcome {
    let mut node = node(TUN, true)?;
    let mem = Memory::heap();
    node.netns.sh("ip link del fat0")?;
    for queue in &mut node.queues {
        let err = queue.recv(&mem, &mut Vec::new()).expect_err("the device is gone");
        assert!(err.to_string().starts_with("fat0: readv: File descriptor in bad state"), "{err}");
        assert!(queue.is_gone() && !queue.has_device());
        queue.release();
    }
    // A new device of that name is used while links of the old one are there.
    let mut queues = open_queues(&node.netns, &config("fat0", TUN, true), SHARDS as u8)?;
    drop(node.queues);
    for queue in &mut queues {
        queue.recv(&mem, &mut Vec::new())?;
        assert!(!queue.is_gone() && queue.has_device());
    }
    Ok(())
}

fn mtu() -> Outcome {
    let mut node = node(TUN, false)?;
    let mem = Memory::heap();
    for (configured, mtu) in [(Some(9000), 9000), (None, 1500)] {
        for queue in &mut node.queues {
            queue.set_mtu(configured).map_err(|err| err.to_string())?;
            assert_eq!((queue.mtu(), queue.configured_mtu()), (mtu, u16::try_from(mtu).ok()));
            assert_eq!(node.netns.sh("cat /sys/class/net/fat0/mtu")?.trim(), mtu.to_string());
        }
        // A queue without offloads reads packets up to the new MTU whole.
        let socket = node.netns.enter(|| UdpSocket::bind("10.9.0.1:0"))?;
        (2000..2020).try_for_each(|port| socket.send_to(&vec![1; mtu - 28], ("10.9.0.2", port)).map(drop))?;
        let got = collect(&mut node.queues, &mem, 20, |packet| (packet.len() > 1000).then_some(packet.len()))?;
        assert!(got.iter().all(|(_, len)| *len == mtu), "{got:?}");
    }
    for queue in &mut node.queues {
        let err = queue.set_mtu(Some(1)).expect_err("an MTU that IP does not have");
        assert_eq!((err.to_string().as_str(), queue.mtu()), ("fat0: SIOCSIFMTU: Invalid argument", 1500));
    }
    Ok(())
}

fn one_queue() -> Outcome {
    let netns = Netns::new("a")?;
    let several = config("fat0", TUN, true);
    let want = "fat0: TUNSETIFF: Invalid argument (the device was made for one queue and needs several: delete it with `ip link del \
                fat0`, or make it with `ip tuntap add fat0 mode tun multi_queue`)";
    netns.sh("ip tuntap add fat0 mode tun")?;
    assert_eq!(refusal(&netns, &several, 2), want);
    let one = open(&netns, "fat0", TUN, true)?;
    assert_eq!(refusal(&netns, &several, 2), want, "another program has it");
    drop(one);
    let other_kind = "fat0: TUNSETIFF: Invalid argument (an interface of that name is there already, of another kind or with other options)";
    assert_eq!(refusal(&netns, &config("fat0", TAP, true), 2), other_kind);
    // The remedy works, and a link of one queue refuses the result.
    netns.sh("ip link del fat0; ip tuntap add fat0 mode tun multi_queue")?;
    drop(open_queues(&netns, &several, 2)?);
    let text = refusal(&netns, &several, 1);
    assert!(text.ends_with("needs `queues` above 1, or is to be deleted with `ip link del fat0`)"), "{text}");
    drop(open_queues(&netns, &config("fat0", DriverKind::Tun { queues: 2 }, true), 1)?);
    Ok(())
}

/// Waits until the device is gone. A child of another test has copies of the descriptors between `fork` and `exec`.
fn wait_until_gone(netns: &Netns) -> Outcome {
    wait_until("the device is gone", Duration::from_secs(20), || netns.sh("ip link show fat0").is_err())
}

fn kept() -> Outcome {
    let netns = Netns::new("a")?;
    let config = config("fat0", TUN, true);
    for (shard, is_kept) in [(1, false), (0, true)] {
        let mut queues = open_queues(&netns, &config, 3)?;
        queues[shard].own();
        queues[shard].keep(true)?;
        drop(queues);
        if is_kept {
            netns.sh("ip link show fat0")?;
        } else {
            wait_until_gone(&netns)?;
        }
    }
    // The device that was kept has room for as many queues again.
    let mut queues = open_queues(&netns, &config, 3)?;
    queues[0].own();
    queues[0].keep(false)?;
    drop(queues);
    wait_until_gone(&netns)
}
