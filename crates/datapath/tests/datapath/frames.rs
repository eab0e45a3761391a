//! Encrypted frames that share one packet until transmission, with the same result as separate packets.

use base::{DropReason, Mib, PortId};
use datapath::{TX_QUEUE_BYTES, TapPoints};
use offload::Features;
use packet::{Cut, Packet};
use qdisc::{Depth, LinkLayer, Options, RateSpec, Stats, Tbf};
use sim::{Node, PortOptions};
use wire::{EtherType, arp, esp, eth};

use crate::common::*;
use crate::gateways::{ENDS, TUNNELS, Tunnel, tunnelled};

/// Raw ESP, over either family.
const RAW: [Tunnel; 2] = [TUNNELS[0], TUNNELS[2]];

/// Number of frames of an encrypted fat packet.
const ALL: u64 = SEGMENTS as u64;

/// Segments of a fat packet; the last is shorter.
const SEGMENTS: usize = 10;

const APART: Features = Features { frames: false, ..Features::ALL };

/// The sending gateway of a tunnel, with this port to the other one.
fn sender(tunnel: Tunnel, wan: PortOptions) -> Node {
    let mut node = tunnelled(tunnel, 1).nodes.swap_remove(0);
    node.port(OUTSIDE.0, wan, &[]);
    node
}

/// Makes the gateway encrypt a fat packet.
fn send(node: &mut Node) {
    let [flow, _] = flows();
    let fat = flow.fat_tcp(&node.mem, 1, (SEGMENTS - 1) * 1200 + 77, 1200);
    node.rx(NOW, INSIDE, vec![fat]);
}

/// Packets queued at the port: the shape of each, and the bytes of its frames.
fn waiting(node: &mut Node) -> Vec<(u64, Vec<Vec<u8>>)> {
    let bytes = |pkt: &Packet| match pkt.meta.cut {
        Cut::Frames(_) => pkt.frames().map(<[u8]>::to_vec).collect(),
        _ => vec![pkt.to_vec()],
    };
    node.datapath.take_tx(OUTSIDE).unwrap().drain(..).map(|pkt| (pkt.meta.cut.packets(), bytes(&pkt))).collect()
}

/// Packets that such a gateway sends for a fat packet.
fn sent(tunnel: Tunnel, wan: PortOptions, before: fn(&mut Node), after: fn(&mut Node)) -> Vec<(u64, Vec<Vec<u8>>)> {
    let mut node = sender(tunnel, wan);
    before(&mut node);
    send(&mut node);
    after(&mut node);
    assert_eq!(node.drops(), []);
    let requests = [Mib::IpOutRequests, Mib::Ip6OutRequests].map(|mib| node.datapath.counters.get(mib));
    assert_eq!(requests[usize::from(tunnel.v6)], SEGMENTS as u64);
    waiting(&mut node)
}

/// Lengths of packets, and their link-layer and ESP headers. The remaining bytes differ by SA.
fn headers(packets: &[Vec<u8>], l3: usize) -> Vec<(usize, &[u8], &[u8])> {
    fn of(bytes: &[u8], l3: usize) -> (usize, &[u8], &[u8]) {
        let esp = l3 + info_of(&bytes[l3..]).header_len;
        (bytes.len(), &bytes[..l3], &bytes[esp..esp + esp::EspHeader::LEN])
    }
    packets.iter().map(|bytes| of(bytes, l3)).collect()
}

fn nothing(_: &mut Node) {}

fn know_next_hop(node: &mut Node) {
    for addr in [ENDS[0][1], ENDS[1][1]] {
        let heard = fib::LladdrUpdate::Solicitation(mac(9));
        node.datapath.neighbours.learn(NOW, OUTSIDE, addr.parse().unwrap(), heard, &mut Vec::new());
    }
}

const fn bare(features: Features) -> PortOptions {
    PortOptions::BARE.features(features)
}

const fn ethernet(features: Features) -> PortOptions {
    PortOptions::ethernet(2).features(features)
}

#[test]
fn links_with_and_without_offload_get_equal_segments() {
    for tunnel in RAW {
        for (port, before, l3) in [
            (bare as fn(Features) -> PortOptions, nothing as fn(&mut Node), 0),
            (ethernet, know_next_hop, eth::EthHeader::LEN),
        ] {
            let together = sent(tunnel, port(Features::ALL), before, nothing);
            let [(packets, together)] = &together[..] else { panic!("one buffer: {together:?}") };
            assert_eq!((*packets, together.len()), (SEGMENTS as u64, SEGMENTS));
            let refit = |node: &mut Node| node.datapath.refit(NOW, &packet::Memory::heap(), OUTSIDE, APART);
            for (features, after) in [(APART, nothing as fn(&mut Node)), (Features::ALL, refit)] {
                let apart = sent(tunnel, port(features), before, after);
                assert!(apart.iter().all(|(packets, _)| *packets == 1));
                let apart: Vec<Vec<u8>> = apart.into_iter().flat_map(|(_, bytes)| bytes).collect();
                assert_eq!(headers(together, l3), headers(&apart, l3), "{tunnel:?}");
            }
        }
    }
}

#[test]
fn each_has_the_link_header_in_front() {
    let [(_, frames)] = &sent(RAW[0], ethernet(Features::ALL), know_next_hop, nothing)[..] else {
        panic!("one buffer")
    };
    for frame in frames {
        let header = eth::EthHeader::ref_from(frame).unwrap();
        assert_eq!((header.dst(), header.src()), (mac(9), mac(2)));
        assert_eq!(info_of(&frame[eth::EthHeader::LEN..]).src.to_string(), ENDS[0][0]);
    }
}

#[test]
fn frames_waiting_for_a_neighbour_are_queued_one_by_one() {
    let mut node = sender(RAW[0], ethernet(Features::ALL));
    send(&mut node);
    assert_eq!((node.waiting(), waiting(&mut node).len()), (SEGMENTS, 1), "all wait, and one solicitation is sent");
    let [ours, theirs] = [(mac(2), ENDS[0][0]), (mac(9), ENDS[0][1])].map(|(mac, ip)| (mac, ip.parse().unwrap()));
    let header = eth::EthHeader::new(ours.0, theirs.0, EtherType::ARP);
    node.rx_bytes(NOW, OUTSIDE, &[header.as_bytes(), arp::ArpHeader::reply(theirs, ours).as_bytes()].concat());
    let sent: Vec<u64> = waiting(&mut node).iter().map(|(packets, _)| *packets).collect();
    assert_eq!((node.waiting(), sent), (0, vec![1; SEGMENTS]));
    send(&mut node);
    assert!(matches!(waiting(&mut node)[..], [(packets, _)] if packets == SEGMENTS as u64), "nothing to wait for");
}

#[test]
fn each_dropped_segment_is_counted() {
    let all = SEGMENTS as u64;
    let mut node = sender(RAW[0], PortOptions::BARE);
    send(&mut node);
    node.datapath.set_up(NOW, &node.mem, OUTSIDE, false);
    assert_eq!(node.drops(), [(INSIDE.0, DropReason::LinkDown, all)], "what waited");

    let mut node = sender(RAW[1], PortOptions::BARE);
    send(&mut node);
    let each: usize = node.datapath.take_tx(OUTSIDE).unwrap().iter().map(Packet::truesize).sum();
    let room = TX_QUEUE_BYTES / each;
    (0..room + 2).for_each(|_| send(&mut node));
    let dropped = node.drops();
    assert!(matches!(dropped[..], [(_, DropReason::TxQueueFull, n)] if n % all == 0 && n > 0), "{dropped:?}");
    let waits: u64 = waiting(&mut node).iter().map(|(packets, _)| packets).sum();
    assert_eq!(waits + dropped[0].2, (room as u64 + 3) * all);
}

#[test]
fn capture_has_each_segment() {
    let mut node = sender(RAW[0], ethernet(Features::ALL));
    know_next_hop(&mut node);
    node.datapath.set_tap(OUTSIDE, TapPoints { wire: true, fat: true });
    send(&mut node);
    let tapped: Vec<_> = node.datapath.take_tapped().map(|tapped| (tapped.link, tapped.fat, tapped.bytes)).collect();
    let [(_, frames)] = &waiting(&mut node)[..] else { panic!("one buffer") };
    let wire = frames.iter().map(|frame| (PortId(2), false, frame.clone()));
    let fat = frames.iter().map(|frame| (PortId(2), true, frame[eth::EthHeader::LEN..].to_vec()));
    let want: Vec<_> = fat.chain(wire).collect();
    assert!(tapped == want);
}

#[test]
fn only_segments_beyond_the_mtu_are_fragmented() {
    // IPv6 needs an MTU of 1280 bytes inside, whatever the link's MTU (RFC 8200 §5).
    let [_, flow] = flows();
    let mut node = sender(RAW[0], PortOptions::BARE.mtu(1280));
    let fat = flow.fat_tcp(&node.mem, 1, (SEGMENTS - 1) * 1208 + 77, 1208);
    node.rx(NOW, INSIDE, vec![fat]);
    let got = waiting(&mut node);
    assert_eq!((got.len(), node.drops()), (2 * (SEGMENTS - 1) + 1, vec![]));
    assert!(got.iter().all(|(_, bytes)| bytes[0].len() <= 1280));
}

#[test]
fn super_packet_passes_a_queueing_discipline_whole() {
    let busy = |node: &mut Node, is_busy| node.datapath.set_busy(NOW, &node.mem, OUTSIDE, is_busy);
    for tunnel in RAW {
        for (port, before, l3) in [
            (bare as fn(Features) -> PortOptions, nothing as fn(&mut Node), 0),
            (ethernet, know_next_hop, eth::EthHeader::LEN),
        ] {
            let [(_, want)] = &sent(tunnel, port(Features::ALL), before, nothing)[..] else { panic!("one buffer") };
            let total: usize = want.iter().map(Vec::len).sum();
            let mut node = sender(tunnel, port(Features::ALL));
            before(&mut node);
            node.datapath.set_qdisc(NOW, &node.mem, OUTSIDE, Some(Options::Pfifo { limit: 1 })).unwrap();
            busy(&mut node, true);
            send(&mut node);
            let counted = |node: &Node| node.datapath.qdisc_stats(OUTSIDE).unwrap();
            let waits = Stats { qlen: 1, backlog: total as u64, ..Stats::default() };
            assert_eq!((counted(&node), waiting(&mut node).len()), (waits, 0));
            // The queue is full: each frame of the next is dropped.
            send(&mut node);
            assert_eq!(node.drops(), [(INSIDE.0, DropReason::QdiscFull, SEGMENTS as u64)]);
            busy(&mut node, false);
            let [(ALL, got)] = &waiting(&mut node)[..] else { panic!("one buffer") };
            assert_eq!(headers(got, l3), headers(want, l3), "{tunnel:?}");
            let left = Stats {
                bytes: total as u64,
                packets: SEGMENTS as u64,
                drops: counted(&node).drops,
                ..Stats::default()
            };
            assert_eq!(counted(&node), left);
        }
    }
}

#[test]
fn tbf_cuts_those_that_exceed_its_burst_in_order() {
    let [(_, want)] = &sent(RAW[0], bare(Features::ALL), nothing, nothing)[..] else { panic!("one buffer") };
    let rate = RateSpec { rate: 1_000_000, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };
    let tbf = Tbf { limit: 100_000, rate, burst: Depth::Bytes(3000), peak: None };
    let mut node = sender(RAW[0], bare(Features::ALL));
    node.datapath.set_qdisc(NOW, &node.mem, OUTSIDE, Some(Options::Tbf(tbf))).unwrap();
    send(&mut node);
    let mut got = waiting(&mut node);
    assert_eq!(got.len(), 2, "as many as the bucket has tokens for");
    while let Some(due) = node.datapath.poll_timeout().filter(|_| got.len() < SEGMENTS) {
        node.timeout(due);
        got.extend(waiting(&mut node));
    }
    assert!(got.iter().all(|(packets, _)| *packets == 1));
    let got: Vec<Vec<u8>> = got.into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(headers(&got, 0), headers(want, 0));
    assert_eq!(node.drops(), []);
}
