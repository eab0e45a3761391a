//! Forwarded packets: hops, MTU, fragments, super-packets, links that are down or slow.

use base::{Counters, DropReason, Mib, PortId};
use datapath::{FatCounts, Forwarded, PortConfig, TX_QUEUE_BYTES};
use offload::Features;
use packet::{Csum, Cut, Memory, Packet, Pool, geometry};
use sim::{Flow, Node, PortOptions, Rng};
use wire::{Version, icmp, icmpv6};

use crate::common::*;

/// The counters of one received and one forwarded packet.
fn received(flow: &Flow) -> Mib {
    if flow.version() == Version::V4 { Mib::IpInReceives } else { Mib::Ip6InReceives }
}

/// Counts of fat packets of a port.
fn fat(node: &Node, link: PortId) -> FatCounts {
    node.datapath.ports.get(link).unwrap().fat
}

fn sent_on(flow: &Flow) -> Mib {
    if flow.version() == Version::V4 { Mib::IpForwDatagrams } else { Mib::Ip6OutForwDatagrams }
}

/// IPv6 counters of a link.
fn of_link(node: &Node, link: PortId) -> Counters {
    (*node.datapath.ports.get(link).expect("a port").counters).clone()
}

#[test]
fn each_link_counts_its_own_share_of_ipv6() {
    let [_, v6] = flows();
    let mut node = router();
    node.rx_bytes(NOW, INSIDE, &v6.udp(1000));
    assert_eq!(of_link(&node, INSIDE), counters([(Mib::Ip6InReceives, 1)]));
    assert_eq!(of_link(&node, OUTSIDE), counters([(Mib::Ip6OutForwDatagrams, 1)]));
    // Linux's `ip6_forward` counts a packet that is too long at both links, and the error at its output link.
    node.rx_bytes(NOW, INSIDE, &v6.udp(2000));
    let inside = [
        (Mib::Ip6InReceives, 2),
        (Mib::Ip6InTooBigErrors, 1),
        (Mib::Ip6OutRequests, 1),
        (Mib::Icmp6OutMsgs, 1),
        (Mib::Icmp6OutPktTooBigs, 1),
    ];
    assert_eq!(of_link(&node, INSIDE), counters(inside));
    assert_eq!(of_link(&node, OUTSIDE), counters([(Mib::Ip6OutForwDatagrams, 1), (Mib::Ip6FragFails, 1)]));
    // A link has no counters of IPv4.
    node.rx_bytes(NOW, INSIDE, &flows()[0].udp(1000));
    assert_eq!(of_link(&node, INSIDE), counters(inside));
}

//= test RFC 8200 §3 hop-limit
#[test]
fn packet_of_every_geometry_is_forwarded_with_one_hop_less() {
    for flow in flows() {
        let bytes = flow.udp(1000);
        let want = Flow { ttl: 63, ..flow }.udp(1000);
        let mem = Memory::heap();
        for (shape, pkt) in geometry::all(&mem, &bytes, &[1, 20, 28, 40, 48]) {
            let mut node = router();
            node.rx(NOW, INSIDE, vec![pkt]);
            let sent = only(node.tx(OUTSIDE));
            assert!(sent.to_vec() == want, "{shape}: {sent:?}");
            assert_eq!(node.datapath.counters, counters([(received(&flow), 1), (sent_on(&flow), 1)]), "{shape}");
            assert_eq!(node.datapath.forwarded, Forwarded { packets: 1, bytes: bytes.len() as u64 }, "{shape}");
            assert!(node.drops().is_empty() && node.tx(INSIDE).is_empty(), "{shape}");
        }
    }
}

//= test RFC 8200 §3 hop-limit
#[test]
fn packet_with_ttl_1_is_dropped_with_time_exceeded() {
    for flow in flows() {
        let bytes = Flow { ttl: 1, ..flow }.udp(10);
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        let want = match flow.version() {
            Version::V4 => Message::V4(icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::TTL)),
            Version::V6 => Message::V6(icmpv6::Icmpv6Message::TimeExceeded(icmpv6::Icmpv6Exceeded::HOP_LIMIT)),
        };
        let reply = parse_icmp(&only(node.tx(INSIDE)));
        assert_eq!((reply.message, reply.quote), (want, bytes));
        assert_eq!(reply.dst, flow.src.to_string());
        assert_eq!(reply.src, if flow.version() == Version::V4 { "10.1.0.254" } else { "fd00:1::254" });
        assert_eq!(node.drops(), [(1, DropReason::TtlExceeded, 1)]);
        assert_eq!(
            node.datapath.counters,
            match flow.version() {
                Version::V4 => counters([
                    (Mib::IpInReceives, 1),
                    (Mib::IpInHdrErrors, 1),
                    (Mib::IcmpOutMsgs, 1),
                    (Mib::IcmpOutTimeExcds, 1),
                    (Mib::IpOutRequests, 1),
                ]),
                Version::V6 => counters([
                    (Mib::Ip6InReceives, 1),
                    (Mib::Ip6InHdrErrors, 1),
                    (Mib::Icmp6OutMsgs, 1),
                    (Mib::Icmp6OutTimeExcds, 1),
                    (Mib::Ip6OutRequests, 1),
                ]),
            }
        );
        assert!(node.tx(OUTSIDE).is_empty());
    }
}

/// Expected result of an MTU check.
#[derive(Debug)]
enum Want {
    /// The packet leaves unfragmented and unsegmented.
    Whole,
    /// The packet is dropped, with an ICMP error that has this MTU.
    TooBig(u16),
    /// The packet leaves in so many fragments.
    Fragments(usize),
}

//= test RFC 8200 §4.5 source-alone
#[test]
fn mtu_check_uses_wire_size_for_fat_packets() {
    use Want::{Fragments, TooBig, Whole};
    let [v4, v6] = flows();
    let cut = Flow { dont_fragment: false, ..v4 };
    let mem = Memory::heap();
    let plain = |bytes: Vec<u8>| Packet::with_data(&mem, &bytes).unwrap();
    // The headers of TCP are 52 bytes with IPv4 and 72 with IPv6.
    let cases = [
        ("UDP of the MTU", plain(v4.udp(1472)), Whole),
        ("UDP of a byte more", plain(v4.udp(1473)), TooBig(1500)),
        ("UDP of a byte more that may be fragmented", plain(cut.udp(1473)), Fragments(2)),
        ("UDP of 9000 bytes that may be fragmented", plain(cut.udp(8972)), Fragments(7)),
        ("IPv6 of the MTU", plain(v6.udp(1452)), Whole),
        ("IPv6 of a byte more", plain(v6.udp(1453)), TooBig(1500)),
        ("64 KiB of TCP in segments of the MTU", v4.fat_tcp(&mem, 1, 65_160, 1448), Whole),
        ("64 KiB of TCP over IPv6 in segments of the MTU", v6.fat_tcp(&mem, 1, 64_260, 1428), Whole),
        ("64 KiB of TCP in segments of a byte more", v4.fat_tcp(&mem, 1, 65_205, 1449), TooBig(1500)),
        ("64 KiB of TCP over IPv6 in segments of a byte more", v6.fat_tcp(&mem, 1, 64_305, 1429), TooBig(1500)),
        ("TCP in two segments, the first a byte too long", v4.fat_tcp(&mem, 1, 1450, 1449), TooBig(1500)),
        ("a TCP segment that is as fat as it is long", v4.fat_tcp(&mem, 1, 1448, 8000), Whole),
        ("a train of datagrams of the MTU", v4.fat_udp(&mem, 44 * 1472, 1472), Whole),
        ("a train of datagrams of a byte more", v4.fat_udp(&mem, 44 * 1473, 1473), TooBig(1500)),
        ("TCP in segments of a byte more that may be fragmented", cut.fat_tcp(&mem, 1, 4 * 1449, 1449), Fragments(8)),
        ("a train of datagrams of 3000 bytes that may be fragmented", cut.fat_udp(&mem, 9000, 3000), Fragments(9)),
    ];
    for (name, pkt, want) in cases {
        let (bytes, meta) = (pkt.to_vec(), pkt.meta.clone());
        let before = info_of(&bytes);
        let mut node = router();
        node.rx(NOW, INSIDE, vec![pkt]);
        let mut sent = node.tx(OUTSIDE);
        let answers = node.tx(INSIDE);
        match want {
            Whole => {
                let sent = only(std::mem::take(&mut sent));
                assert_eq!(sent.meta.cut, meta.cut, "{name}");
                let is_unfinished = |csum| matches!(csum, Csum::Partial { .. });
                assert_eq!(is_unfinished(sent.meta.csum), is_unfinished(meta.csum), "{name}");
                assert_eq!(info(&sent).ttl, 63, "{name}");
                assert!(sent.to_vec()[before.header_len..] == bytes[before.header_len..], "{name}");
                assert_eq!((answers.len(), node.drops()), (0, vec![]), "{name}");
            }
            TooBig(mtu) => {
                let reply = parse_icmp(&only(answers));
                let want = match before.version() {
                    Version::V4 => Message::V4(icmp::IcmpMessage::FragNeeded { mtu }),
                    Version::V6 => Message::V6(icmpv6::Icmpv6Message::PacketTooBig { mtu: mtu.into() }),
                };
                assert_eq!((reply.message, sent.len()), (want, 0), "{name}");
                assert!(bytes.starts_with(&reply.quote), "{name}: quoted unchanged, with its TTL");
                assert_eq!(node.drops(), [(1, DropReason::PacketTooBig, 1)], "{name}");
                let counted = [Mib::IpFragFails, Mib::Ip6FragFails, Mib::Ip6InTooBigErrors]
                    .map(|mib| node.datapath.counters.get(mib));
                let want = if before.version() == Version::V4 { [1, 0, 0] } else { [0, 1, 1] };
                assert_eq!(counted, want, "{name}");
            }
            Fragments(n) => {
                assert_eq!(sent.len(), n, "{name}: {sent:?}");
                for fragment in &sent {
                    let header = info(fragment);
                    assert!(fragment.len() <= 1500 && header.fragment.is_some(), "{name}");
                    assert_eq!((fragment.meta.cut, fragment.meta.csum), (Cut::Fragment, Csum::None), "{name}");
                }
                assert_eq!((answers.len(), node.drops()), (0, vec![]), "{name}");
                let (oks, made) = (Mib::IpFragOKs, Mib::IpFragCreates);
                let segments = meta.cut.gso().map_or(1, |gso| u64::from(gso.segs));
                assert_eq!(
                    (node.datapath.counters.get(oks), node.datapath.counters.get(made)),
                    (segments, n as u64),
                    "{name}"
                );
            }
        }
        drop(sent);
        assert_eq!(node.pages_in_use(), 0, "{name}");
    }
}

#[test]
fn last_datagram_of_train_passes_if_it_alone_fits() {
    for flow in flows() {
        let headers = flow.version().header_len() + 8;
        let mut node = router();
        let train = flow.fat_udp(&node.mem, 2 * 1600 + 100, 1600);
        node.rx(NOW, INSIDE, vec![train]);
        let sent = only(node.tx(OUTSIDE));
        assert_eq!((sent.len(), sent.meta.cut, info(&sent).ttl), (headers + 100, Cut::Whole, 63), "{flow:?}");
        assert!(offload::checksum::verify(&sent, &info(&sent)));
        let answer = parse_icmp(&only(node.tx(INSIDE)));
        let want = match flow.version() {
            Version::V4 => Message::V4(icmp::IcmpMessage::FragNeeded { mtu: 1500 }),
            Version::V6 => Message::V6(icmpv6::Icmpv6Message::PacketTooBig { mtu: 1500 }),
        };
        assert_eq!(answer.message, want);
        assert!(flow.udp(1600).starts_with(&answer.quote[..headers - 8]), "about the first datagram: {answer:?}");
        assert_eq!(node.drops(), [(INSIDE.0, DropReason::PacketTooBig, 2)]);
        drop(sent);
        assert_eq!(node.pages_in_use(), 0);
    }
}

/// A burst of datagrams of one flow; some fit 1400 bytes and others do not.
pub(crate) fn mixed_datagrams(rng: &mut Rng, flow: &Flow) -> Vec<Vec<u8>> {
    let big = *rng.pick(&[1300, 1500, 3000]);
    let small = *rng.pick(&[1, 100, 1300]);
    let dont_fragment = rng.happens(700);
    let count = 1 + rng.below(12) as u16;
    let datagrams = (0..count).map(|at| {
        let len = if rng.happens(600) { big } else { small };
        let bytes = Flow { dont_fragment, ..*flow }.udp(len);
        if flow.version() == Version::V4 { edit_v4(&bytes, |header| header.set_id(7 + at)) } else { bytes }
    });
    datagrams.collect()
}

/// Packets queued at a port, segmented as on the wire.
pub(crate) fn on_wire(node: &mut Node, link: PortId) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    node.tx(link).into_iter().for_each(|pkt| offload::fit(&node.mem, &Features::NONE, pkt, 0, &mut frames).unwrap());
    frames.iter().map(Packet::to_vec).collect()
}

/// Switches GRO of a port on or off.
pub(crate) fn set_gro(node: &mut Node, link: PortId, gro: bool) {
    let config = node.datapath.ports.get(link).unwrap().config.clone();
    node.datapath.set_port(link, PortConfig { gro, ..config });
}

#[test]
fn gro_does_not_change_which_datagrams_pass() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let flow = flows()[seed as usize % 2];
        let datagrams = mixed_datagrams(&mut rng, &flow);
        let sent = [true, false].map(|gro| {
            let mut node = router_with(PortOptions::BARE.mtu(9000), PortOptions::BARE.mtu(1400));
            set_gro(&mut node, INSIDE, gro);
            let burst = datagrams.iter().map(|bytes| Packet::with_data(&node.mem, bytes).unwrap()).collect();
            node.rx(NOW, INSIDE, burst);
            on_wire(&mut node, OUTSIDE)
        });
        assert!(sent[0] == sent[1], "seed {seed}");
    }
}

#[test]
fn fragments_of_a_fat_packet_are_those_of_its_segments() {
    let [flow, _] = flows();
    let flow = Flow { dont_fragment: false, ..flow };
    let mut node = router();
    let pkt = flow.fat_tcp(&node.mem, 77, 3 * 2000, 2000);
    node.rx(NOW, INSIDE, vec![pkt]);
    let fragments: Vec<_> = node.tx(OUTSIDE).iter().map(Packet::to_vec).collect();
    assert_eq!(fragments.len(), 6);
    for (at, pair) in fragments.chunks(2).enumerate() {
        let joined = [&pair[0][20..], &pair[1][20..]].concat();
        let whole = flow.tcp(77 + 2000 * at as u32, 2000);
        assert!(joined == whole[20..], "segment {at}");
        let id = |bytes: &[u8]| u16::from_be_bytes([bytes[4], bytes[5]]);
        assert_eq!([id(&pair[0]), id(&pair[1])], [0x1234 + at as u16; 2]);
    }
}

#[test]
fn device_without_offloads_gets_complete_segments() {
    for flow in flows() {
        let mut node = router_with(PortOptions::BARE, PortOptions::BARE.features(Features::NONE));
        let pkt = flow.fat_tcp(&node.mem, 5, 4500, 1400);
        node.rx(NOW, INSIDE, vec![pkt]);
        let sent = node.tx(OUTSIDE);
        let want = [(5, 1400), (1405, 1400), (2805, 1400), (4205, 300)];
        assert_eq!(sent.len(), want.len());
        for (at, (pkt, (seq, len))) in sent.iter().zip(want).enumerate() {
            let mut bytes = Flow { ttl: 63, ..flow }.tcp(seq, len);
            if flow.version() == Version::V4 {
                bytes = edit_v4(&bytes, |header| header.set_id(0x1234 + at as u16));
            }
            assert!(pkt.to_vec() == bytes && pkt.is_linear(), "segment {at}");
        }
        assert_eq!(node.datapath.forwarded.packets, 1, "a fat packet is looked up once");
        assert_eq!(fat(&node, INSIDE), FatCounts { rx_gro_packets: 1, rx_gro_segs: 4, ..FatCounts::default() });
        let cut = FatCounts { tx_gso_cut_packets: 1, tx_gso_cut_segs: 4, ..FatCounts::default() };
        assert_eq!(fat(&node, OUTSIDE), cut);
    }
}

#[test]
fn segments_that_come_in_a_burst_leave_as_one_packet() {
    for flow in flows() {
        let mut node = router();
        let burst = (0..40).map(|at| Packet::with_data(&node.mem, &flow.tcp(1 + at * 1400, 1400)).unwrap()).collect();
        node.rx(NOW, INSIDE, burst);
        let sent = only(node.tx(OUTSIDE));
        assert_eq!(sent.meta.cut.gso().map(|gso| (gso.size, gso.segs)), Some((1400, 40)));
        assert_eq!(node.datapath.forwarded.packets, 1);
        assert_eq!(fat(&node, INSIDE), FatCounts { rx_gro_packets: 1, rx_gro_segs: 40, ..FatCounts::default() });
        assert_eq!(fat(&node, OUTSIDE), FatCounts { tx_gso_packets: 1, tx_gso_segs: 40, ..FatCounts::default() });
    }
}

/// Another link than the router's.
const THIRD: PortId = PortId(3);

/// Takes in a packet while more input follows.
fn receive_burst(node: &mut Node, link: PortId, packet: &[u8]) {
    let mut burst = vec![Packet::with_data(&node.mem, packet).unwrap()];
    node.datapath.receive_burst(NOW, &node.mem, link, &mut burst);
}

#[test]
fn packet_held_by_gro_survives_removal_of_its_link() {
    let ends: [fn(&mut Node); 3] = [
        |node| node.datapath.finish(NOW, &node.mem),
        |node| node.datapath.remove_port(NOW, &node.mem, INSIDE),
        |node| node.datapath.set_up(NOW, &node.mem, INSIDE, false),
    ];
    for (flow, end) in flows().into_iter().flat_map(|flow| ends.map(|end| (flow, end))) {
        let mut node = router();
        receive_burst(&mut node, INSIDE, &flow.tcp(1, 1000));
        assert!(node.tx(OUTSIDE).is_empty());
        end(&mut node);
        assert_eq!(only(node.tx(OUTSIDE)).to_vec(), Flow { ttl: 63, ..flow }.tcp(1, 1000));
        assert_eq!(node.drops(), []);
    }
}

#[test]
fn packet_by_a_link_without_gro_overtakes_no_held_packet() {
    for flow in flows() {
        let mut node = router();
        node.port(THIRD.0, PortOptions::BARE, &[]);
        let mut config = node.datapath.ports.get(THIRD).unwrap().config.clone();
        config.gro = false;
        node.datapath.set_port(THIRD, config);
        receive_burst(&mut node, INSIDE, &flow.tcp(1, 1000));
        receive_burst(&mut node, THIRD, &flow.tcp(1001, 1000));
        node.datapath.finish(NOW, &node.mem);
        let sent: Vec<_> = node.tx(OUTSIDE).iter().map(Packet::to_vec).collect();
        let flow = Flow { ttl: 63, ..flow };
        assert_eq!(sent, [flow.tcp(1, 1000), flow.tcp(1001, 1000)]);
    }
}

#[test]
fn new_route_is_used_by_the_next_packet() {
    for flow in flows() {
        let mut node = router();
        node.port(THIRD.0, PortOptions::BARE, &[]);
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
        node.route(&format!("{}/{}", flow.dst, if flow.dst.is_ipv4() { 32 } else { 128 }), None, THIRD);
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
        assert_eq!((node.tx(OUTSIDE).len(), node.tx(THIRD).len()), (1, 1));
    }
}

#[test]
fn packets_to_a_down_link_are_answered_unreachable() {
    for flow in flows() {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
        node.datapath.set_up(NOW, &node.mem, OUTSIDE, false);
        assert_eq!(node.drops(), [(1, DropReason::LinkDown, 1)], "what waited is counted");
        assert!(node.tx(OUTSIDE).is_empty());
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
        let want = match flow.version() {
            Version::V4 => Message::V4(icmp::IcmpMessage::Unreachable(icmp::IcmpUnreachable::HOST)),
            Version::V6 => Message::V6(icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::ADDRESS)),
        };
        assert_eq!(parse_icmp(&only(node.tx(INSIDE))).message, want);
        assert_eq!(node.drops(), [(1, DropReason::LinkDown, 2)]);
        node.datapath.set_up(NOW, &node.mem, OUTSIDE, true);
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
        only(node.tx(OUTSIDE));
    }
}

#[test]
fn removed_port_counts_its_queued_packets() {
    let [flow, _] = flows();
    let mut node = router();
    for _ in 0..3 {
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
    }
    node.datapath.remove_port(NOW, &node.mem, OUTSIDE);
    assert_eq!(node.drops(), [(1, DropReason::LinkDown, 3)]);
    assert!(node.datapath.take_tx(OUTSIDE).is_none());
    assert_eq!(node.pages_in_use(), 0);
}

#[test]
fn queue_of_a_slow_link_is_bounded() {
    let [flow, _] = flows();
    let mut node = router();
    let each = flow.fat_tcp(&node.mem, 1, 60_000, 1400).truesize();
    let room = TX_QUEUE_BYTES / each;
    for at in 0..room + 10 {
        let pkt = flow.fat_tcp(&node.mem, 60_000 * at as u32, 60_000, 1400);
        node.rx(NOW, INSIDE, vec![pkt]);
    }
    assert_eq!(node.drops(), [(1, DropReason::TxQueueFull, 10)]);
    let waiting = node.datapath.take_tx(OUTSIDE).unwrap();
    assert_eq!(waiting.len(), room);
    waiting.drain(..3);
    for at in 0..5 {
        let pkt = flow.fat_tcp(&node.mem, 60_000 * at, 60_000, 1400);
        node.rx(NOW, INSIDE, vec![pkt]);
    }
    assert_eq!(node.drops(), [(1, DropReason::TxQueueFull, 12)], "what was taken makes room");
    drop(node.tx(OUTSIDE));
    assert_eq!(node.pages_in_use(), 0);
}

/// The links that a caller visits to send all queued packets, as the daemon does after each burst.
fn visits(node: &mut Node) -> Vec<u32> {
    let mut first = PortId(0);
    std::iter::from_fn(|| {
        let id = node.datapath.next_to_send(first)?;
        first = PortId(id.0 + 1);
        Some(id.0)
    })
    .collect()
}

#[test]
fn only_links_with_packets_are_visited_and_in_order() {
    const LINKS: u32 = 500;
    let mut node = router();
    for id in 3..LINKS {
        node.port(id, PortOptions::BARE, &[&format!("10.{}.{}.1/24", 3 + id / 200, id % 200)]);
    }
    let to = |id: u32| Flow::new("10.1.0.1", &format!("10.{}.{}.9", 3 + id / 200, id % 200));
    assert_eq!(visits(&mut node), []);
    for id in [400, 77, 3, 77] {
        node.rx_bytes(NOW, INSIDE, &to(id).udp(10));
    }
    assert_eq!(visits(&mut node), [3, 77, 400]);
    // The first is sent, the next is busy, the last is removed with its packets.
    drop(node.tx(PortId(3)));
    node.datapath.set_busy(NOW, &node.mem, PortId(77), true);
    node.datapath.remove_port(NOW, &node.mem, PortId(400));
    assert_eq!(visits(&mut node), [77]);
    // Packets that are fitted again stay queued.
    node.datapath.refit(NOW, &node.mem, PortId(77), Features::NONE);
    assert_eq!(visits(&mut node), [77]);
    assert_eq!(node.tx(PortId(77)).len(), 2);
    assert_eq!(visits(&mut node), []);
    node.rx_bytes(NOW, INSIDE, &to(3).udp(10));
    assert_eq!(visits(&mut node), [3], "queued again");
}

/// The ring of the device that received the packet would run dry otherwise.
#[test]
fn packets_queued_for_a_busy_link_release_device_frames() {
    const FRAMES: usize = 8;
    let [flow, _] = flows();
    let mut node = router();
    let ring = Pool::bounded(Memory::SMALL, FRAMES);
    let received = |n: usize| {
        let mut frame = ring.take(Memory::HEADROOM).expect("frames came back");
        let bytes = flow.udp(n);
        frame.put(bytes.len()).unwrap().copy_from_slice(&bytes);
        Packet::from_buf(frame)
    };
    for n in 0..FRAMES {
        node.rx(NOW, INSIDE, vec![received(n)]);
    }
    assert_eq!(ring.in_use(), FRAMES, "they are as good as sent");
    node.datapath.set_busy(NOW, &node.mem, OUTSIDE, true);
    assert!(ring.in_use() < FRAMES / 2, "so many can be spared");
    for n in FRAMES..10 * FRAMES {
        node.rx(NOW, INSIDE, vec![received(n)]);
    }
    let lens: Vec<_> = node.tx(OUTSIDE).iter().map(Packet::len).collect();
    assert!(lens.into_iter().eq((0..10 * FRAMES).map(|n| 28 + n)));
    node.datapath.set_busy(NOW, &node.mem, OUTSIDE, false);
    node.rx(NOW, INSIDE, vec![received(0)]);
    assert_eq!(ring.in_use(), 1, "nothing is copied that need not wait");
}

#[test]
fn queued_packets_are_fitted_again_when_offload_is_lost() {
    let [flow, _] = flows();
    let mut node = router();
    let fat = flow.fat_tcp(&node.mem, 1, 4200, 1400);
    node.rx_bytes(NOW, INSIDE, &flow.udp(100));
    node.rx(NOW, INSIDE, vec![fat]);
    node.rx_bytes(NOW, INSIDE, &flow.udp(200));
    node.datapath.refit(NOW, &node.mem, OUTSIDE, Features::NONE);
    let lens: Vec<_> = node.tx(OUTSIDE).iter().map(Packet::len).collect();
    assert_eq!(lens, [128, 1452, 1452, 1452, 228]);
    let fat = flow.fat_tcp(&node.mem, 1, 4200, 1400);
    node.rx(NOW, INSIDE, vec![fat]);
    assert_eq!(node.tx(OUTSIDE).len(), 3, "and so is what comes later");
}

#[test]
fn packet_may_leave_by_its_input_link() {
    let mut node = Node::new();
    let link = node.port(1, PortOptions::BARE, &["10.1.0.254/24"]);
    node.route("10.2.0.0/16", Some("10.1.0.9"), link);
    node.rx_bytes(NOW, PortId(1), &Flow::new("10.1.0.1", "10.2.0.1").udp(10));
    assert_eq!(info(&only(node.tx(link))).ttl, 63);
}
