//! UDP sockets, one for each shard.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use driver::DriverKind;
use libtest_mimic::Trial;
use link::{Config, Link, Sent};
use packet::{Memory, Packet};
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketType, bind, socket};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use system::{Need, Netns, Outcome, trial, veth, wait_until};

use super::{collect, config, drain, open_queues, refusal, shards, sum, wait_until_all_arrive};
use crate::train::train;

const NEEDS: &[Need] = &[Need::Namespaces];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("queues/udp_datagram_arrives_at_the_owner_of_its_spi", NEEDS, || owners(V4, true)),
        trial("queues/udp_datagram_over_ipv6_arrives_at_the_owner", NEEDS, || owners(V6, true)),
        trial("queues/udp_owner_receives_without_offloads", NEEDS, || owners(V4, false)),
        trial("queues/udp_of_any_address_steers_by_spi", NEEDS, || owners(["0.0.0.0:4500", V4[1]], true)),
        trial("queues/udp_links_of_several_addresses_share_a_port", NEEDS, side_by_side),
        trial("queues/udp_needs_no_privilege", NEEDS, unprivileged),
        trial("queues/udp_socket_cannot_join_the_group", NEEDS, joining),
        trial("queues/udp_goes_on_without_a_closed_socket", NEEDS, one_closed),
        trial("queues/udp_shards_send_from_one_port", NEEDS, sent),
        trial("queues/udp_error_of_the_network_is_counted_once", NEEDS, soft_errors),
        trial("queues/udp_port_500_is_the_first_shards", NEEDS, ike),
    ]
}

const V4: [&str; 2] = ["192.0.2.1:4500", "192.0.2.2:4500"];
const V6: [&str; 2] = ["[2001:db8::1]:4500", "[2001:db8::2]:4500"];

/// SPIs as they are written by hand, and others.
fn spis() -> impl Iterator<Item = u32> {
    (0x100..0x140).chain((1..40).map(|at| at * 0x1000)).chain((1..40).map(|at: u32| at.wrapping_mul(0x0808_8405)))
}

struct Wire {
    us: Netns,
    peer: Netns,
}

fn wire() -> Outcome<Wire> {
    let (us, peer) = (Netns::new("us")?, Netns::new("peer")?);
    veth((&us, "wire"), (&peer, "wire"))?;
    for (netns, host) in [(&us, 1), (&peer, 2)] {
        netns.sh(&format!(
            "ip link set lo up; ip addr add 192.0.2.{host}/24 dev wire; ip addr add 2001:db8::{host}/64 dev wire nodad"
        ))?;
    }
    Ok(Wire { us, peer })
}

fn udp(bind: &str, offloads: bool) -> Outcome<Config> {
    Ok(config("wan", DriverKind::Udp { bind: bind.parse()? }, offloads))
}

/// ESP of an SPI, as a socket sends it.
fn esp(spi: u32, len: usize) -> Vec<u8> {
    [&spi.to_be_bytes()[..], &vec![7; len]].concat()
}

/// Payload of a datagram that a link has received.
fn payload(packet: &Packet) -> Vec<u8> {
    let bytes = packet.to_vec();
    let header_len = if bytes[0] >> 4 == 4 { 28 } else { 48 };
    bytes[header_len..].to_vec()
}

fn spi(packet: &Packet) -> Option<u32> {
    payload(packet).first_chunk().map(|spi| u32::from_be_bytes(*spi))
}

/// Opens sockets at an address of sockets that were closed just now. A child of another test has copies of the descriptors between `fork`
/// and `exec`.
fn open_again(netns: &Netns, config: &Config, count: u8) -> Outcome<Vec<Box<dyn Link>>> {
    let mut opened = Err("not tried".into());
    wait_until("the address is free", Duration::from_secs(20), || {
        opened = open_queues(netns, config, count);
        opened.is_ok()
    })?;
    opened
}

fn owners([bind, from]: [&str; 2], offloads: bool) -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let to: SocketAddr = if bind == V6[0] { V6[0].parse()? } else { V4[0].parse()? };
    let peer = wire.peer.enter(|| UdpSocket::bind(from))?;
    for count in [2, 3, 8] {
        let mut queues = open_again(&wire.us, &udp(bind, offloads)?, count)?;
        assert_eq!(queues.len(), usize::from(count));
        // The neighbour is resolved: the kernel holds few datagrams until then.
        peer.send_to(&esp(0, 60), to)?;
        collect(&mut queues, &mem, 1, spi)?;
        // Fragments of a long datagram are put together before its socket is chosen.
        for spi in spis() {
            peer.send_to(&esp(spi, if spi % 8 == 0 { 3000 } else { 60 }), to)?;
        }
        let got = collect(&mut queues, &mem, spis().count(), spi)?;
        for (shard, spi) in got {
            assert_eq!(shard, usize::from(shards(count).owner_of_spi(spi).0), "SPI {spi:#x} of {count} shards");
        }
        // IKE with its marker, a keepalive, and what is shorter than an SPI.
        for first in [&esp(0, 40)[..], &[0xff], &[1, 2, 3], &[]] {
            peer.send_to(first, to)?;
            let got = collect(&mut queues, &mem, 1, |packet| Some(payload(packet)))?;
            assert_eq!(got, [(0, first.to_vec())]);
        }
        let sum = sum(&queues);
        assert_eq!((sum.rx_packets, sum.rx_dropped), (spis().count() as u64 + 5, 0));
        assert!(queues.iter().all(|queue| queue.stats().rx_packets > 0));
    }
    Ok(())
}

/// Links of one port: both families unspecified, and several addresses.
fn side_by_side() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    wire.us.sh("ip addr add 192.0.2.11/24 dev wire; ip addr add 2001:db8::11/64 dev wire nodad")?;
    let peers = [V4[1], V6[1]].map(|from| wire.peer.enter(|| UdpSocket::bind(from)));
    let [v4, v6] = peers;
    let (v4, v6) = (v4?, v6?);
    let all = ["192.0.2.1:4500", "192.0.2.11:4500", "[2001:db8::1]:4500", "[2001:db8::11]:4500"];
    for binds in [&["0.0.0.0:4500", "[::]:4500"][..], &["[::]:4500", "0.0.0.0:4500"], &all] {
        let mut links = Vec::new();
        for bind in binds {
            links.push(open_again(&wire.us, &udp(bind, true)?, 3)?);
        }
        for to in all {
            let to: SocketAddr = to.parse()?;
            let peer = if to.is_ipv4() { &v4 } else { &v6 };
            let is_for = |bind: &&str| {
                let bind: SocketAddr = bind.parse().expect("an address");
                bind.is_ipv4() == to.is_ipv4() && (bind == to || bind.ip().is_unspecified())
            };
            let link = &mut links[binds.iter().position(is_for).ok_or("a link has the address")?];
            for spi in [0x1000, 0x1001, 0x1002, 0x1003, 0x1004, 0x1005] {
                peer.send_to(&esp(spi, 60), to)?;
                let got = collect(link, &mem, 1, self::spi)?;
                assert_eq!(got, [(usize::from(shards(3).owner_of_spi(spi).0), spi)], "{to} of {binds:?}");
            }
        }
    }
    Ok(())
}

fn unprivileged() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let config = udp(V4[0], true)?;
    let opened = wire.us.enter(|| {
        // Of this thread alone. Its capabilities go with it.
        set_thread_uid(Uid::from_raw(65534))?;
        assert!(std::fs::read("/etc/shadow").is_err(), "the thread is still root's");
        link::open_queues(&config, shards(3)).map_err(|err| io::Error::other(err.to_string()))
    });
    let mut queues = opened?;
    let peer = wire.peer.enter(|| UdpSocket::bind(V4[1]))?;
    spis().try_for_each(|spi| peer.send_to(&esp(spi, 60), V4[0]).map(drop))?;
    for (shard, spi) in collect(&mut queues, &mem, spis().count(), spi)? {
        assert_eq!(shard, usize::from(shards(3).owner_of_spi(spi).0), "SPI {spi:#x}");
    }
    Ok(())
}

/// Binds a socket of this user with both options by which the kernel lets sockets share an address.
fn join(netns: &Netns, address: SocketAddr) -> io::Result<()> {
    netns.enter(|| {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let other = socket(family, SocketType::DGRAM, None)?;
        set_socket_reuseport(&other, true)?;
        set_socket_reuseaddr(&other, true)?;
        Ok(bind(&other, &address)?)
    })
}

/// A second gateway is refused by name, and so is another program of the same user.
fn joining() -> Outcome {
    let wire = wire()?;
    let in_use = "wan: bind: Address already in use (another socket has this address and port)";
    for (bind, count, others) in [
        ("192.0.2.1:4500", 3, ["192.0.2.1:4500", "0.0.0.0:4500"]),
        ("0.0.0.0:4500", 3, ["192.0.2.1:4500", "0.0.0.0:4500"]),
        // From 10 sockets of a port on, the kernel searches by address.
        ("0.0.0.0:4500", 16, ["192.0.2.1:4500", "0.0.0.0:4500"]),
        ("192.0.2.1:4500", 16, ["192.0.2.1:4500"; 2]),
        ("[2001:db8::1]:4500", 3, ["[2001:db8::1]:4500", "[::]:4500"]),
        // A socket of one address beside a link of IPv6's unspecified one is not kept out.
        ("[::]:4500", 3, ["[::]:4500", "[::1]:4500"]),
    ] {
        let mut queues = open_again(&wire.us, &udp(bind, true)?, count)?;
        for left in [usize::from(count), 1] {
            queues.truncate(left);
            for other in others {
                for count in [1, 2] {
                    assert_eq!(refusal(&wire.us, &udp(other, true)?, count), in_use, "{other} beside {bind}");
                }
                let joined = join(&wire.us, other.parse()?).map_err(|err| err.kind());
                assert_eq!(joined, Err(io::ErrorKind::AddrInUse), "{other} beside {bind}, {left} left");
            }
        }
    }
    let _one = open_again(&wire.us, &udp(V4[0], true)?, 1)?;
    assert_eq!(refusal(&wire.us, &udp(V4[0], true)?, 2), in_use);
    Ok(())
}

fn one_closed() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let peer = wire.peer.enter(|| UdpSocket::bind(V4[1]))?;
    let mut queues = open_queues(&wire.us, &udp(V4[0], true)?, 4)?;
    for closed in [1, 0, 1] {
        queues.remove(closed);
        let send = || Ok(spis().try_for_each(|spi| peer.send_to(&esp(spi, 60), V4[0]).map(drop))?);
        wait_until_all_arrive(&mut queues, &mem, spis().count(), send, spi)?;
    }
    Ok(())
}

fn sent() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&wire.us, &udp(V4[0], true)?, 3)?;
    let peer = wire.peer.enter(|| UdpSocket::bind(V4[1]))?;
    peer.set_read_timeout(Some(Duration::from_secs(5)))?;
    for (shard, queue) in queues.iter_mut().enumerate() {
        queue.set_mtu(Some(1400)).map_err(|err| err.to_string())?;
        let packet = train(&mem, V4[0].parse()?, V4[1].parse()?, 0, &[shard as u8; 50], 1400);
        assert_eq!((queue.send(&mut vec![packet])?, queue.stats().tx_packets), (Sent::All, 1));
        let mut room = [0; 100];
        assert_eq!(peer.recv_from(&mut room)?, (50, V4[0].parse()?));
        assert_eq!(room[..50], [shard as u8; 50]);
    }
    assert_eq!(sum(&queues).tx_packets, 3);
    Ok(())
}

/// The kernel gives the error about a datagram to any socket of the group, and no packet is lost by it.
fn soft_errors() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&wire.us, &udp(V4[0], true)?, 3)?;
    let to_closed_port =
        |number: u8| train(&mem, V4[0].parse().unwrap(), V4[1].parse().unwrap(), 0, &[number; 50], 1400);
    for (number, queue) in (0..).zip(&mut queues) {
        assert_eq!(queue.send(&mut vec![to_closed_port(number)])?, Sent::All);
    }
    wait_until("three errors are reported", Duration::from_secs(20), || {
        drain(&mut queues, &mem).is_ok() && sum(&queues).soft_errors == 3
    })?;
    let errors: u64 = queues.iter().flat_map(|queue| queue.peer_errors()).map(|error| error.count).sum();
    assert_eq!((errors, sum(&queues).tx_packets, sum(&queues).tx_dropped), (3, 3, 0));
    let peer = wire.peer.enter(|| UdpSocket::bind(V4[1]))?;
    spis().try_for_each(|spi| peer.send_to(&esp(spi, 60), V4[0]).map(drop))?;
    collect(&mut queues, &mem, spis().count(), spi)?;
    Ok(())
}

fn ike() -> Outcome {
    let wire = wire()?;
    let mem = Memory::heap();
    let mut queues = open_queues(&wire.us, &udp(V4[0], true)?, 3)?;
    for queue in queues.iter_mut().rev() {
        wire.us.enter(|| queue.set_ike_port(true)).map_err(|err| err.to_string())?;
    }
    let sockets: Vec<_> = queues.iter().map(|queue| queue.poll_fds().len()).collect();
    assert_eq!(sockets, [3, 2, 2]);
    let peer = wire.peer.enter(|| UdpSocket::bind("192.0.2.2:500"))?;
    peer.send_to(&[9; 40], "192.0.2.1:500")?;
    let got = collect(&mut queues, &mem, 1, |packet| Some(payload(packet)))?;
    assert_eq!(got, [(0, vec![9; 40])]);
    // A link of port 500 itself: no datagram begins with an SPI.
    drop(queues);
    let mut queues = open_again(&wire.us, &udp("192.0.2.1:500", true)?, 3)?;
    spis().try_for_each(|cookie| peer.send_to(&esp(cookie, 40), "192.0.2.1:500").map(drop))?;
    let got = collect(&mut queues, &mem, spis().count(), spi)?;
    assert!(got.iter().all(|(shard, _)| *shard == 0), "{got:?}");
    Ok(())
}
