//! ILA: destinations translated at pre-routing, once, before their route is looked up.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use base::{Domain, DropReason, Mib, PortId, TableId};
use datapath::{HookPoint, PortConfig, Step, TraceFilter, host_port};
use ila::{
    AdjTransport, CsumMode, Direction, IdentType, Identifier, Locator, Mapping, MappingChange, MappingKey, Mappings,
    Rewrite,
};
use offload::checksum;
use packet::{Csum, Packet};
use sim::{AddAddress as _, Flow, Node, PortOptions, Rng, esp, policy, unique_mask};
use wire::ipv6;
use xfrm::{Dir, Mode};

use crate::common::*;
use crate::fragments::fragments;

/// Locator of the network behind [`OUTSIDE`], and those of places.
const SIR: Locator = Locator(0xfd00_0002_0000_0000);
const ILA: Locator = Locator(0x2001_0db8_0001_0001);
const OTHER: Locator = Locator(0x2001_0db8_0001_0002);

/// SIR address of a node behind [`OUTSIDE`].
const NODE: &str = "fd00:2::2000:0:0:7";

fn flow() -> Flow {
    Flow::new("fd00:1::1", NODE)
}

fn mapping(locator_match: Locator, locator: Locator, link: Option<PortId>) -> Mapping {
    let (csum_mode, ident_type) = (CsumMode::NeutralMap, IdentType::Luid);
    Mapping { locator_match, identifier: None, locator, link, csum_mode, ident_type }
}

/// The packet as translated by another node: to the ILA address of its destination. The checksum covers either address.
fn to_ila(bytes: &[u8], locator: Locator) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let rewrite = Rewrite { locator, csum_mode: CsumMode::NeutralMap, diff: None };
    let header = ipv6::Ipv6Header::mut_from(&mut bytes).unwrap();
    header.set_dst(rewrite.address(header.dst(), Direction::SirToIla));
    bytes
}

pub(crate) fn with_hop_limit(bytes: &[u8], hop_limit: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    ipv6::Ipv6Header::mut_from(&mut bytes).unwrap().set_hop_limit(hop_limit);
    bytes
}

#[test]
fn packet_to_ila_address_is_routed_by_sir_address() {
    let mut node = router();
    let sent = flow().udp(100);
    node.rx_bytes(NOW, INSIDE, &to_ila(&sent, ILA));
    assert_eq!(node.drops(), [(INSIDE.0, DropReason::NoRoute, 1)], "no mapping yet");
    node.tx(INSIDE);
    node.datapath.add_ila(mapping(ILA, SIR, None)).unwrap();
    node.rx_bytes(NOW, INSIDE, &to_ila(&sent, ILA));
    assert_eq!(only(node.tx(OUTSIDE)).to_vec(), with_hop_limit(&sent, 63));
    assert_eq!(node.datapath.ila_translated(), 1);
    // Another locator, and IPv4.
    node.rx_bytes(NOW, INSIDE, &sent);
    node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.2.0.1").udp(100));
    assert_eq!(node.tx(OUTSIDE).len(), 2);
    assert_eq!(node.datapath.ila_translated(), 1);
    assert!(node.datapath.remove_ila(MappingKey::of_locator(ILA, None)));
    node.rx_bytes(NOW, INSIDE, &to_ila(&sent, ILA));
    assert_eq!(node.tx(OUTSIDE).len(), 0);
}

#[test]
fn segments_are_merged_and_translated_as_one_packet() {
    let mut node = router();
    node.datapath.add_ila(mapping(ILA, SIR, None)).unwrap();
    let segments: Vec<Vec<u8>> = (0..10).map(|nth| flow().tcp(nth * 1000, 1000)).collect();
    let burst = segments.iter().map(|bytes| Packet::with_data(&node.mem, &to_ila(bytes, ILA)).unwrap()).collect();
    node.rx(NOW, INSIDE, burst);
    let fat = only(node.tx(OUTSIDE));
    assert_eq!(fat.meta.cut.segs(), 10);
    assert_eq!(node.datapath.ila_translated(), 1);
    let mut cut = Vec::new();
    offload::gso::segment(&node.mem, &offload::Features::BY_REFERENCE, fat, 0, &mut cut).unwrap();
    for (segment, sent) in cut.iter().zip(&segments) {
        assert_eq!(segment.to_vec(), with_hop_limit(sent, 63));
    }
}

#[test]
fn segments_with_checksum_of_other_address_stay_thin() {
    // As Linux sends them with no-action: the checksum is that of the SIR address, and nothing merges them before
    // translation.
    let mut node = router();
    let map = Mapping { csum_mode: CsumMode::NoAction, ..mapping(ILA, SIR, None) };
    node.datapath.add_ila(map).unwrap();
    let dst = ILA.with(Identifier::of(NODE.parse().unwrap()));
    let burst = (0..4).map(|nth| {
        let mut bytes = flow().tcp(nth * 1000, 1000);
        ipv6::Ipv6Header::mut_from(&mut bytes).unwrap().set_dst(dst);
        Packet::with_data(&node.mem, &bytes).unwrap()
    });
    let burst = burst.collect();
    node.rx(NOW, INSIDE, burst);
    let sent = node.tx(OUTSIDE);
    assert_eq!((sent.len(), node.datapath.ila_translated()), (4, 4));
    for (nth, pkt) in (0..).zip(&sent) {
        assert_eq!(pkt.to_vec(), with_hop_limit(&flow().tcp(nth * 1000, 1000), 63));
    }
}

#[test]
fn adj_transport_is_right_at_the_end_with_either_sign() {
    for sign in [AdjTransport::Linux, AdjTransport::Rfc1624] {
        let mut node = router();
        node.datapath.set_ila_adj_transport(sign);
        let map = Mapping { csum_mode: CsumMode::AdjTransport, ..mapping(ILA, SIR, None) };
        node.datapath.add_ila(map).unwrap();
        let sent = flow().tcp(5, 300);
        let mut pkt = Packet::with_data(&node.mem, &sent).unwrap();
        let there = Rewrite { locator: ILA, csum_mode: CsumMode::AdjTransport, diff: None };
        there.packet(&node.mem, &mut pkt, &info_of(&sent), Direction::SirToIla, sign).unwrap();
        node.rx_bytes(NOW, INSIDE, &pkt.to_vec());
        assert_eq!(only(node.tx(OUTSIDE)).to_vec(), with_hop_limit(&sent, 63), "{sign:?}");
    }
}

#[test]
fn mapping_of_other_device_does_not_match() {
    let mut node = router();
    node.datapath.add_ila(mapping(ILA, SIR, Some(OUTSIDE))).unwrap();
    node.rx_bytes(NOW, INSIDE, &to_ila(&flow().udp(9), ILA));
    assert_eq!((node.tx(OUTSIDE).len(), node.datapath.ila_translated()), (0, 0));
    node.datapath.add_ila(mapping(ILA, SIR, Some(INSIDE))).unwrap();
    node.rx_bytes(NOW, INSIDE, &to_ila(&flow().udp(9), ILA));
    assert_eq!((node.tx(OUTSIDE).len(), node.datapath.ila_translated()), (1, 1));
}

#[test]
fn packet_in_vrf_is_translated_once_by_link_or_vrf() {
    const RED: PortId = PortId(11);
    // By any device; by the link; by the VRF. No packet is translated twice.
    for (first, second) in [(None, None), (Some(INSIDE), Some(RED)), (Some(RED), None), (Some(INSIDE), None)] {
        let mut node = Node::new();
        node.vrf(RED.0, 10, &[1, 2]);
        node.port(INSIDE.0, PortOptions::BARE, &["fd00:1::254/64"]);
        node.port(OUTSIDE.0, PortOptions::BARE, &["fd00:2::254/64"]);
        node.datapath.add_ila(mapping(ILA, SIR, first)).unwrap();
        node.datapath.add_ila(mapping(SIR, OTHER, second)).unwrap();
        let sent = flow().udp(100);
        node.rx_bytes(NOW, INSIDE, &to_ila(&sent, ILA));
        assert_eq!(only(node.tx(OUTSIDE)).to_vec(), with_hop_limit(&sent, 63), "{first:?} {second:?}");
        assert_eq!(node.datapath.ila_translated(), 1);
    }
}

#[test]
fn mappings_of_removed_device_are_removed() {
    let mut node = router();
    for link in [None, Some(INSIDE), Some(OUTSIDE)] {
        node.datapath.add_ila(mapping(ILA, SIR, link)).unwrap();
    }
    assert!(node.datapath.add_ila(mapping(ILA, OTHER, Some(INSIDE))).is_err());
    node.datapath.remove_port(NOW, &node.mem, INSIDE);
    assert_eq!(node.datapath.ila().snapshot(), [mapping(ILA, SIR, Some(OUTSIDE)), mapping(ILA, SIR, None)]);
}

#[test]
fn ping_in_fragments_to_own_ila_address_is_answered() {
    let own = "fd00:2::2000:0:0:fe";
    let ping = Flow::new("fd00:1::1", own).ping(1, 3000);
    for count in [1, 3] {
        let mut node = router();
        node.datapath.fib.add_address(OUTSIDE, format!("{own}/64").parse().unwrap());
        node.datapath.add_ila(mapping(ILA, SIR, None)).unwrap();
        let sent = to_ila(&ping, ILA);
        let pieces: Vec<Vec<u8>> = match count {
            1 => vec![sent],
            _ => fragments(&node.mem, &sent, 1280).iter().map(Packet::to_vec).collect(),
        };
        assert_eq!(pieces.len(), count);
        pieces.iter().for_each(|piece| node.rx_bytes(NOW, INSIDE, piece));
        let answer = only(node.tx(INSIDE));
        assert_eq!(info(&answer).src, own.parse::<IpAddr>().unwrap());
        assert!(host::icmp::check_ok(&answer, &info(&answer)));
        assert_eq!((node.datapath.ila_translated(), node.drops()), (count as u64, vec![]));
    }
}

#[test]
fn translated_packet_of_established_flow_skips_route_lookup() {
    let own = "fd00:2::2000:0:0:fe";
    let flow = Flow::new("fd00:1::1", own);
    let mut node = router();
    let device = PortConfig {
        name: "host1".to_owned(),
        mac: None,
        mtu: 65_521,
        features: offload::Features::ALL,
        gro: false,
        esp_gro: false,
    };
    node.datapath.set_host_port(INSIDE, Some(device));
    node.datapath.fib.add_address(INSIDE, format!("{own}/64").parse().unwrap());
    node.datapath.add_ila(mapping(ILA, SIR, None)).unwrap();
    let answer = Packet::with_data(&node.mem, &flow.reversed().tcp(1, 10)).unwrap();
    node.datapath.handle_rx(NOW, &node.mem, host_port(INSIDE), &mut vec![answer]);
    // The first packet needs a route lookup; then two segments at once are one packet.
    for segments in [0..1, 1..2, 2..4, 4..5] {
        let bytes = segments.map(|nth: u32| to_ila(&flow.tcp(1 + nth * 100, 100), ILA));
        let burst = bytes.map(|bytes| Packet::with_data(&node.mem, &bytes).unwrap()).collect();
        node.rx(NOW, INSIDE, burst);
    }
    let counts = node.datapath.demux_counts;
    assert_eq!((counts.hits, counts.misses, node.datapath.ila_translated()), (3, 1, 4));
    let up = |node: &mut Node| node.datapath.take_tx(host_port(INSIDE)).map(std::mem::take).unwrap_or_default();
    let got = up(&mut node);
    assert_eq!(got.iter().map(|pkt| pkt.meta.cut.segs()).collect::<Vec<_>>(), [1, 1, 2, 1]);
    assert_eq!(got[0].to_vec(), flow.tcp(1, 100));
    // Without the mapping the packet is for an address that is not the node's.
    node.datapath.remove_ila(MappingKey::of_locator(ILA, None));
    node.rx_bytes(NOW, INSIDE, &to_ila(&flow.tcp(501, 100), ILA));
    assert!(up(&mut node).is_empty());
}

#[test]
fn esp_to_own_ila_address_is_decrypted_in_either_mode() {
    let own = "fd00:2::2000:0:0:fe";
    for mode in [Mode::Transport, Mode::Tunnel] {
        for udp in [false, true] {
            let sa = esp("fd00:1::1", own, 0x1000, mode, udp);
            let mut near = Node::new();
            near.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["fd00:9::254/64"]);
            near.port(OUTSIDE.0, PortOptions::BARE, &["fd00:1::1/64"]);
            near.route("fd00:2::/64", Some("fd00:1::254"), OUTSIDE);
            near.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
            let mut node = router();
            node.datapath.fib.add_address(OUTSIDE, format!("{own}/64").parse().unwrap());
            node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
            node.datapath.add_ila(mapping(ILA, SIR, None)).unwrap();
            let (src, dst) = ("fd00:1::1", if mode == Mode::Tunnel { NODE } else { own });
            let selector = |addr: &str| format!("{addr}/128");
            let out = policy(Dir::Out, &selector(src), &selector(dst), std::slice::from_ref(&sa));
            near.datapath.ipsec.add_policy(out).unwrap();
            let fwd = policy(Dir::Fwd, &selector(src), &selector(dst), std::slice::from_ref(&sa));
            node.datapath.ipsec.add_policy(fwd).unwrap();
            let inner = Flow::new(src, dst);
            // The near node encrypts forwarded packets in tunnel mode, and its own packets in transport mode too.
            let clear: Vec<Vec<u8>> = (0..6).map(|nth| inner.ping(nth, 40)).collect();
            let sealed: Vec<Vec<u8>> = clear.iter().map(|bytes| seal(&mut near, bytes, mode)).collect();
            let burst = sealed.iter().map(|bytes| Packet::with_data(&node.mem, &to_ila(bytes, ILA)).unwrap());
            let burst = burst.collect();
            node.rx(NOW, INSIDE, burst);
            let case = format!("{mode:?} udp {udp} {:?}", node.drops());
            let (link, want) = if mode == Mode::Tunnel { (OUTSIDE, 6) } else { (INSIDE, 6) };
            assert_eq!(node.tx(link).len(), want, "{case}");
            assert_eq!(node.datapath.ila_translated(), 6, "{case}");
            assert_eq!(node.datapath.ipsec.sad().iter().map(|sa| sa.replay().top()).collect::<Vec<_>>(), [6], "{case}");
        }
    }
}

/// The packet as `near` sends it: in ESP.
fn seal(near: &mut Node, clear: &[u8], mode: Mode) -> Vec<u8> {
    let link = if mode == Mode::Tunnel { INSIDE } else { OUTSIDE };
    near.rx_bytes(NOW, link, clear);
    only(near.tx(OUTSIDE)).to_vec()
}

#[test]
fn identifier_that_makes_no_destination_is_dropped() {
    let mut node = router();
    node.datapath.add_ila(mapping(ILA, Locator(0), None)).unwrap();
    node.datapath.add_ila(mapping(OTHER, Locator(0xff02 << 48), None)).unwrap();
    for addr in [ILA.with(Identifier(1)), ILA.with(Identifier(0))] {
        node.rx_bytes(NOW, INSIDE, &Flow { dst: IpAddr::V6(addr), ..flow() }.udp(8));
    }
    assert_eq!(node.drops(), [(INSIDE.0, DropReason::IpDestinationInvalid, 2)]);
    assert_eq!(node.datapath.counters, counters([(Mib::Ip6InReceives, 2), (Mib::Ip6InAddrErrors, 2)]));
    // A packet translated to a group is neither answered nor forwarded.
    node.rx_bytes(NOW, INSIDE, &Flow { dst: IpAddr::V6(OTHER.with(Identifier(0x99))), ..flow() }.udp(8));
    assert_eq!((node.tx(INSIDE).len(), node.tx(OUTSIDE).len()), (0, 0));
}

#[test]
fn trace_shows_translation_between_hook_and_route() {
    let sent = to_ila(&flow().udp(5), ILA);
    let from = ipv6::Ipv6Header::ref_from(&sent).unwrap().dst();
    let of_address = Mapping { identifier: Some(Identifier::of(from)), ..mapping(ILA, SIR, None) };
    for map in [mapping(ILA, SIR, None), of_address] {
        let mut node = router();
        node.datapath.add_ila(map).unwrap();
        node.datapath.set_trace(Some(TraceFilter::default()), 1);
        node.rx_bytes(NOW, INSIDE, &sent);
        let steps: Vec<_> = node.datapath.take_trace().collect();
        let prefix = Some("fd00:2::/64".parse().unwrap());
        let table = Some(TableId::MAIN);
        assert_eq!(
            steps[..4].iter().map(|step| step.step).collect::<Vec<_>>(),
            [
                Step::Input,
                Step::Hook { point: HookPoint::PreRouting, dev: INSIDE },
                Step::Ila { from },
                Step::Route { table, prefix, domain: Domain::DEFAULT },
            ]
        );
        let dst: Vec<_> = steps[..4].iter().map(|step| step.flow.unwrap().dst).collect();
        assert_eq!(dst, [from.into(), from.into(), flow().dst, flow().dst]);
        assert_eq!(node.datapath.ila_translated(), 1);
        // The trace ends, and translation goes on.
        node.datapath.set_trace(None, 0);
        node.rx_bytes(NOW, INSIDE, &sent);
        assert_eq!(node.datapath.ila_translated(), 2);
    }
}

#[test]
fn shortcuts_give_way_while_there_are_mappings() {
    // ESP for this node, once to the address that it is for and once to that of a mapping, in one burst.
    let own = "fd00:2::2000:0:0:fe";
    let sa = esp("fd00:1::1", own, 0x1000, Mode::Tunnel, false);
    let mut near = Node::new();
    near.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["fd00:9::254/64"]);
    near.port(OUTSIDE.0, PortOptions::BARE, &["fd00:1::1/64"]);
    near.route("fd00:2::/64", Some("fd00:1::254"), OUTSIDE);
    near.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
    near.datapath
        .ipsec
        .add_policy(policy(Dir::Out, "fd00:1::1/128", "fd00:2::/64", std::slice::from_ref(&sa)))
        .unwrap();
    for is_mapped in [false, true] {
        let mut node = router();
        node.datapath.fib.add_address(OUTSIDE, format!("{own}/64").parse().unwrap());
        node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
        let fwd = policy(Dir::Fwd, "fd00:1::1/128", "fd00:2::/64", std::slice::from_ref(&sa));
        node.datapath.ipsec.add_policy(fwd).unwrap();
        let burst = |near: &mut Node, node: &Node| {
            let sealed = (0..8).map(|nth| seal(near, &flow().ping(nth, 30), Mode::Tunnel));
            sealed.map(|bytes| Packet::with_data(&node.mem, &bytes).unwrap()).collect::<Vec<_>>()
        };
        let first = burst(&mut near, &node);
        node.rx(NOW, INSIDE, first);
        assert_eq!(node.tx(OUTSIDE).len(), 8);
        if is_mapped {
            // From now on the outer destination is another node's, behind the outer link.
            node.datapath.add_ila(mapping(SIR, OTHER, None)).unwrap();
        }
        let second = burst(&mut near, &node);
        node.rx(NOW, INSIDE, second);
        assert_eq!(node.tx(OUTSIDE).len(), if is_mapped { 0 } else { 8 });
        assert_eq!(node.datapath.ila_translated(), if is_mapped { 8 } else { 0 });
        if is_mapped {
            node.datapath.remove_ila(MappingKey::of_locator(SIR, None));
            let third = burst(&mut near, &node);
            node.rx(NOW, INSIDE, third);
            assert_eq!(node.tx(OUTSIDE).len(), 8);
        }
    }
}

#[test]
fn mapping_changes_under_traffic_misdirect_no_packet() {
    const PLACES: u64 = 6;
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut node = router();
        // Mappings to the network outside or inside, of a locator or of an address, by any device or by one; the model
        // returns the output link of a packet.
        let mut model: BTreeMap<(u64, Option<Identifier>, Option<PortId>), Mapping> = BTreeMap::new();
        let nets = [SIR, Locator(0xfd00_0001_0000_0000)];
        let mut translated = 0;
        for nth in 0..50_000_u64 {
            let place = rng.below(PLACES as usize) as u64;
            let link = [None, Some(INSIDE), Some(OUTSIDE)][rng.below(3)];
            let from = Locator(ILA.0 + place);
            let to = nets[rng.below(2)];
            let original = Identifier(0x2000_0000_0000_0001 | (rng.below(3) as u64) << 8);
            let by = [INSIDE, OUTSIDE][rng.below(2)];
            let dst = IpAddr::V6(SIR.with(original));
            let src = if by == INSIDE { "fd00:1::1" } else { "fd00:2::1" }.parse().unwrap();
            let sent = to_ila(&Flow { src, dst, ..flow() }.udp(4), from);
            let at = Ipv6Addr::from_octets(*sent[24..40].first_chunk().unwrap());
            // An address is that in the packet.
            let identifier = (rng.below(2) == 1).then_some(Identifier::of(at));
            let map = Mapping { identifier, ..mapping(from, to, link) };
            let key = (place, identifier, link);
            match rng.below(6) {
                0 => {
                    let is_new = !model.contains_key(&key);
                    assert_eq!(node.datapath.add_ila(map).is_ok(), is_new);
                    model.entry(key).or_insert(map);
                }
                1 => assert_eq!(node.datapath.remove_ila(map.key()), model.remove(&key).is_some()),
                2 => {
                    node.datapath.change_ila(MappingChange::Set(map));
                    model.insert(key, map);
                }
                3 if nth % 97 == 0 => {
                    let mut all = Mappings::default();
                    model.clear();
                    for place in 0..PLACES {
                        let map = mapping(Locator(ILA.0 + place), to, None);
                        all.add(map).unwrap();
                        model.insert((place, None, None), map);
                    }
                    node.datapath.replace_ila(all);
                }
                _ => {
                    node.rx_bytes(NOW, by, &sent);
                    let get = |identifier, link| model.get(&(place, identifier, link));
                    let own = Some(Identifier::of(at));
                    let found = get(own, Some(by)).or_else(|| get(own, None));
                    let found = found.or_else(|| get(None, Some(by))).or_else(|| get(None, None));
                    let out: Vec<Packet> = [INSIDE, OUTSIDE].into_iter().flat_map(|link| node.tx(link)).collect();
                    translated += u64::from(found.is_some());
                    let went: Vec<Ipv6Addr> = out.iter().filter_map(udp_dst).collect();
                    let want = found.map(|&Mapping { locator, .. }| {
                        let rewrite = Rewrite { locator, csum_mode: CsumMode::NeutralMap, diff: None };
                        rewrite.address(at, Direction::IlaToSir)
                    });
                    assert_eq!(went, Vec::from_iter(want), "seed {seed}, change {nth}");
                    assert!(want.is_none_or(|want| Identifier::of(want).0 >> 16 == original.0 >> 16));
                }
            }
            assert_eq!(node.datapath.ila_translated(), translated, "seed {seed}, change {nth}");
        }
        let mut want: Vec<_> = model.into_values().collect();
        want.sort_by_key(|map| map.key().place());
        assert_eq!(node.datapath.ila().snapshot(), want);
    }
}

#[test]
fn established_flow_goes_on_over_replaced_mappings() {
    // Each mode at the sender; the checksums of a flow stay right whatever the locator, as every mapping has a difference of
    // its own.
    for csum_mode in [CsumMode::NeutralMapAuto, CsumMode::AdjTransport] {
        let mut node = router();
        node.datapath.set_ila_adj_transport(AdjTransport::Rfc1624);
        node.route("fd00:8000::/32", None, OUTSIDE);
        let sir = Locator(0x2001_0db8_0000_000a);
        let dst = sir.with(Identifier(0x2000_0000_0000_0007));
        let sent = |nth: u32| Flow { dst: dst.into(), ..flow() }.tcp(nth * 100, 100);
        for nth in 0..1000 {
            // Half of them are of the one address.
            let identifier = (nth % 2 == 1).then_some(Identifier::of(dst));
            let locator = Locator(0xfd00_8000_0000_0000 + (u64::from(nth % 5) << 20));
            let map = Mapping { identifier, csum_mode, ..mapping(sir, locator, Some(INSIDE)) };
            node.datapath.change_ila(MappingChange::Set(map));
            node.rx_bytes(NOW, INSIDE, &sent(nth));
            let mut pkt = only(node.tx(OUTSIDE));
            pkt.meta.csum = Csum::None;
            assert!(checksum::verify(&pkt, &info(&pkt)), "{csum_mode:?} {nth}");
        }
        assert_eq!(node.datapath.ila_translated(), 1000);
        assert_eq!(node.datapath.ila().len(), 2);
        assert!(node.drops().is_empty());
    }
}

/// Destination of a packet with UDP, whose checksum has to be right.
fn udp_dst(pkt: &Packet) -> Option<Ipv6Addr> {
    let about = info(pkt);
    let IpAddr::V6(dst) = about.dst else { panic!("IPv6") };
    if about.protocol != wire::Protocol::UDP {
        return None;
    }
    let mut pkt = Packet::with_data(&packet::Memory::heap(), &pkt.to_vec()).unwrap();
    pkt.meta.csum = Csum::None;
    assert!(checksum::verify(&pkt, &about));
    Some(dst)
}
