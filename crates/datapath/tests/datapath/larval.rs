//! Packets held for a larval SA, and rekeying, for hosts behind gateways.

use std::time::Duration;

use base::{DropReason, Instant, Mib, PortId};
use ipsec::Event;
use packet::{Memory, Packet, Pool};
use sim::{Flow, Node, PortOptions, esp, policy, unique_mask};
use wire::{Protocol, Spi, ipv4};
use xfrm::{Dir, Lifetime, Limits, Mode, SaConfig};

use crate::common::{mac, solicitation};

const INSIDE: PortId = PortId(1);
const OUTSIDE: PortId = PortId(2);
const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const NETS: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];

const fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn sa(spi: u32) -> SaConfig {
    SaConfig { reqid: 1, ..esp(ENDS[0], ENDS[1], spi, Mode::Tunnel, false) }
}

/// A sending gateway and a receiving one, which have policies and no SAs.
fn gateways() -> [Node; 2] {
    let mut nodes = [0, 1].map(|n| {
        let mut node = Node::new();
        node.port(1, PortOptions::BARE, &[&format!("10.{}.0.254/16", n + 1)]);
        node.port(2, PortOptions::BARE, &[&format!("{}/24", ENDS[n])]);
        node.route(NETS[1 - n], Some(ENDS[1 - n]), OUTSIDE);
        node
    });
    nodes[0].datapath.ipsec.add_policy(policy(Dir::Out, NETS[0], NETS[1], &[sa(1)])).unwrap();
    nodes[1].datapath.ipsec.add_policy(policy(Dir::Fwd, NETS[0], NETS[1], &[sa(1)])).unwrap();
    nodes
}

/// A packet from a host behind the first gateway, by its number.
fn packet(n: usize) -> Vec<u8> {
    Flow::new("10.1.0.1", "10.2.0.1").udp(n)
}

/// Packets that the second gateway delivers to its hosts out of the packets that the first gateway has sent.
fn arrived([near, far]: &mut [Node; 2], now: Instant) -> Vec<Vec<u8>> {
    for pkt in near.tx(OUTSIDE) {
        assert_eq!(ipv4::Ipv4Header::ref_from(pkt.head()).unwrap().protocol(), Protocol::ESP);
        far.rx_bytes(now, OUTSIDE, &pkt.to_vec());
    }
    far.tx(INSIDE).iter().map(Packet::to_vec).collect()
}

/// The ring of the device that received the packets would run dry until the SA is added.
#[test]
fn packets_waiting_for_an_sa_release_device_frames() {
    let [mut near, _] = gateways();
    near.datapath.ipsec.set_larval_drop(false);
    near.datapath.ipsec.set_listener(true);
    let ring = Pool::bounded(Memory::SMALL, 1);
    for n in 0..20 {
        let mut frame = ring.take(Memory::HEADROOM).expect("the frame came back");
        let bytes = packet(n);
        frame.put(bytes.len()).unwrap().copy_from_slice(&bytes);
        near.rx(at(1), INSIDE, vec![Packet::from_buf(frame)]);
    }
    assert_eq!((near.datapath.ipsec.held(), ring.in_use()), (20, 0));
}

#[test]
fn packets_held_for_an_sa_leave_in_order() {
    let mut nodes = gateways();
    nodes[0].datapath.ipsec.set_larval_drop(false);
    nodes[0].datapath.ipsec.set_listener(true);
    nodes[0].timeout(at(0));
    for n in 1..=5 {
        nodes[0].rx_bytes(at(1), INSIDE, &packet(n));
    }
    assert_eq!((nodes[0].drops(), nodes[0].datapath.ipsec.held()), (vec![], 5));
    let events: Vec<Event> = nodes[0].datapath.ipsec.take_events().collect();
    assert!(matches!(events[..], [Event::Acquire(acquire)] if acquire.template.reqid == 1), "{events:?}");
    for node in &mut nodes {
        node.datapath.ipsec.add_sa(&sa(1), unique_mask()).unwrap();
    }
    assert_eq!(nodes[0].datapath.poll_timeout(), Some(Instant::ZERO), "an SA's time begins at once");
    nodes[0].timeout(at(2));
    assert!(nodes[0].tx(OUTSIDE).is_empty());
    assert_eq!(nodes[0].datapath.poll_timeout(), Some(at(101)));
    nodes[0].timeout(at(101));
    let got = arrived(&mut nodes, at(101));
    assert_eq!(got.iter().map(|bytes| bytes.len() - 28).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let ttl = |bytes: &[u8]| ipv4::Ipv4Header::ref_from(bytes).unwrap().ttl();
    assert!(got.iter().all(|bytes| ttl(bytes) == ttl(&packet(1)) - 2));
    assert_eq!(nodes[0].datapath.counters.get(Mib::XfrmOutNoStates), 0);
    assert_eq!(nodes[0].pages_in_use(), 0);
}

#[test]
fn first_packet_after_the_sa_is_added_flushes_held_ones() {
    let mut nodes = gateways();
    nodes[0].datapath.ipsec.set_larval_drop(false);
    for n in 1..=101 {
        nodes[0].rx_bytes(at(1), INSIDE, &packet(n));
    }
    for node in &mut nodes {
        node.datapath.ipsec.add_sa(&sa(1), unique_mask()).unwrap();
    }
    let burst = (102..=165).map(|n| packet::Packet::with_data(&nodes[0].mem, &packet(n)).unwrap()).collect();
    nodes[0].rx(at(2), INSIDE, burst);
    let got = arrived(&mut nodes, at(2));
    assert_eq!(got.iter().map(|bytes| bytes.len() - 28).collect::<Vec<_>>(), (1..=165).collect::<Vec<_>>());
    assert_eq!((nodes[0].drops(), nodes[0].datapath.ipsec.held(), nodes[0].pages_in_use()), (vec![], 0, 0));
}

#[test]
fn neighbour_discovery_with_held_packets_stays_protected() {
    let (here, there) = ("2001:db8::1", "2001:db8::2");
    let mut node = Node::new();
    node.port(OUTSIDE.0, PortOptions::ethernet(1), &[&format!("{here}/64")]);
    node.datapath.ipsec.set_larval_drop(false);
    let sa = esp(here, there, 0x1000, Mode::Transport, false);
    node.datapath.ipsec.add_policy(policy(Dir::Out, here, there, std::slice::from_ref(&sa))).unwrap();
    let ask = Flow::new(there, here);
    let header = wire::eth::EthHeader::new(mac(1), mac(2), wire::EtherType::IPV6);
    node.rx_bytes(at(1), OUTSIDE, &[header.as_bytes(), &ask.ping(1, 100)].concat());
    assert_eq!((node.datapath.ipsec.held(), node.tx(OUTSIDE).len()), (1, 0), "the answer waits");
    node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
    node.rx_bytes(at(2), OUTSIDE, &[header.as_bytes(), &solicitation(&ask, mac(2))].concat());
    let sent: Vec<_> = node.tx(OUTSIDE).iter().map(|frame| frame.to_vec()[20]).collect();
    assert_eq!(sent, [Protocol::ESP.0; 2], "the held packet, and the reply to the neighbour");
    assert_eq!((node.datapath.ipsec.held(), node.drops()), (0, vec![]));
}

//= test RFC 4301 §5.1 protect-without-sa
#[test]
fn packets_whose_sa_times_out_are_counted_by_link() {
    let mut nodes = gateways();
    nodes[0].datapath.ipsec.set_larval_drop(false);
    for n in 0..103 {
        nodes[0].rx_bytes(at(0), INSIDE, &packet(n));
    }
    assert_eq!(nodes[0].drops(), [(INSIDE.0, DropReason::PolicyQueueFull, 2)]);
    while let Some(due) = nodes[0].datapath.poll_timeout() {
        nodes[0].timeout(due);
    }
    let want = [(INSIDE.0, DropReason::PolicyNoState, 101), (INSIDE.0, DropReason::PolicyQueueFull, 2)];
    assert_eq!(nodes[0].drops(), want);
    assert_eq!((nodes[0].datapath.ipsec.held(), nodes[0].pages_in_use()), (0, 0));
}

#[test]
fn rekeying_by_soft_limits_loses_nothing_and_ends_old_sas() {
    let soft = Limits { packets: 10, ..Limits::NONE };
    let hard = Limits { added: Some(Duration::from_secs(5)), ..Limits::NONE };
    let lifetime = Lifetime { soft, hard };
    let mut nodes = gateways();
    nodes[0].datapath.ipsec.set_listener(true);
    let mut spi = 1;
    let add = |nodes: &mut [Node; 2], spi| {
        for node in nodes {
            node.datapath.ipsec.add_sa(&SaConfig { lifetime, ..sa(spi) }, unique_mask()).unwrap();
        }
    };
    add(&mut nodes, spi);
    let mut arrivals = 0;
    for n in 0..100_u64 {
        let now = at(n * 100);
        for node in &mut nodes {
            if node.datapath.poll_timeout().is_some_and(|due| due <= now) {
                node.timeout(now);
            }
        }
        nodes[0].rx_bytes(now, INSIDE, &packet(n as usize));
        arrivals += arrived(&mut nodes, now).len();
        let dying = |event: &Event| matches!(event, Event::SaExpired(it) if !it.hard && it.spi == Spi(spi));
        if nodes[0].datapath.ipsec.take_events().any(|event| dying(&event)) {
            spi += 1;
            add(&mut nodes, spi);
        }
    }
    assert_eq!((arrivals, spi), (100, 10), "every eleventh packet makes its SA old");
    for node in &nodes {
        assert_eq!(node.drops(), []);
        assert!((4..=6).contains(&node.datapath.ipsec.sad().len()), "old ones end after five seconds");
    }
}
