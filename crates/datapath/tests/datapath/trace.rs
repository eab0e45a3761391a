//! Traces, hooks and VRF ports along a packet's path.

use base::{Domain, DropReason, PortId, TableId};
use datapath::{DropReport, DroppedEsp, EspRef, HookPoint, Step, TapPoints, TraceFilter, TraceTerm, Traffic};
use fib::Known;
use sim::{Flow, Node, PortOptions};
use wire::{Protocol, Spi, Version};
use xfrm::Dir;

use crate::common::*;
use crate::gateways::{self, TUNNELS, tunnelled};

pub(crate) fn every() -> Option<TraceFilter> {
    Some(TraceFilter::default())
}

fn one(term: TraceTerm) -> Option<TraceFilter> {
    Some(TraceFilter { terms: vec![(false, term)] })
}

fn steps(node: &mut Node) -> Vec<(u16, Step)> {
    node.datapath.take_trace().map(|step| (step.packet, step.step)).collect()
}

#[test]
fn trace_of_forwarded_packet_has_each_stage_and_hook() {
    for flow in flows() {
        let mut node = router();
        node.datapath.set_trace(every(), 1);
        let fat = flow.fat_tcp(&node.mem, 1, 10 * 1000, 1000);
        node.rx(NOW, INSIDE, vec![fat]);
        let next_hop = flow.dst;
        let prefix = if flow.dst.is_ipv4() { "10.2.0.0/24" } else { "fd00:2::/64" }.parse().unwrap();
        let geometry = node.datapath.take_trace().map(|step| (step.step, step.geometry)).collect::<Vec<_>>();
        let got: Vec<_> = geometry.iter().map(|(step, _)| *step).collect();
        assert_eq!(
            got,
            [
                Step::Input,
                Step::Hook { point: HookPoint::PreRouting, dev: INSIDE },
                Step::Route { table: Some(TableId::MAIN), prefix: Some(prefix), domain: Domain::DEFAULT },
                Step::Forward { dev: OUTSIDE, next_hop },
                Step::Hook { point: HookPoint::Forward, dev: OUTSIDE },
                Step::Output { dev: OUTSIDE },
                Step::Hook { point: HookPoint::PostRouting, dev: OUTSIDE },
                Step::Transmit { dev: OUTSIDE, next_hop },
                Step::Queued { dev: OUTSIDE },
            ]
        );
        // One packet from input to output.
        assert!(
            geometry.iter().all(|(_, it)| it.and_then(|it| it.gso).is_some_and(|gso| gso.segs == 10)),
            "{geometry:#?}"
        );
        node.rx_bytes(NOW, INSIDE, &flow.udp(1));
        assert_eq!(steps(&mut node), [], "one packet was requested");
    }
}

#[test]
fn trace_filter_chooses_packets_by_every_term() {
    let flow = Flow::new("10.1.0.1", "10.2.0.1");
    let udp = flow.udp(10);
    let ports = [udp[20..22].to_vec(), udp[22..24].to_vec()].map(|port| u16::from_be_bytes([port[0], port[1]]));
    let prefix = |text: &str| text.parse().unwrap();
    for (term, is_true) in [
        (TraceTerm::Version(Version::V4), true),
        (TraceTerm::Version(Version::V6), false),
        (TraceTerm::Protocol(Protocol::UDP), true),
        (TraceTerm::Protocol(Protocol::TCP), false),
        (TraceTerm::Src(prefix("10.1.0.0/16")), true),
        (TraceTerm::Src(prefix("10.2.0.0/16")), false),
        (TraceTerm::Dst(prefix("10.2.0.1/32")), true),
        (TraceTerm::Dst(prefix("10.1.0.1/32")), false),
        (TraceTerm::Either(prefix("10.1.0.1/32")), true),
        (TraceTerm::Either(prefix("10.9.0.0/16")), false),
        (TraceTerm::SrcPort(ports[0]), true),
        (TraceTerm::SrcPort(ports[0] + 1), false),
        (TraceTerm::DstPort(ports[1]), true),
        (TraceTerm::DstPort(ports[1] + 1), false),
        (TraceTerm::Port(ports[0]), true),
        (TraceTerm::Port(9), false),
        (TraceTerm::Dev(INSIDE), true),
        (TraceTerm::Dev(OUTSIDE), false),
    ] {
        for is_negated in [false, true] {
            let mut node = router();
            node.datapath.set_trace(Some(TraceFilter { terms: vec![(is_negated, term)] }), 9);
            node.rx_bytes(NOW, INSIDE, &udp);
            assert_eq!(steps(&mut node).is_empty(), is_true == is_negated, "{term:?}, negated: {is_negated}");
        }
    }
    let mut node = router();
    let both = [TraceTerm::Protocol(Protocol::UDP), TraceTerm::Dev(OUTSIDE)].map(|term| (false, term));
    node.datapath.set_trace(Some(TraceFilter { terms: both.into() }), 9);
    node.rx_bytes(NOW, INSIDE, &udp);
    assert_eq!(steps(&mut node), [], "every term has to be true");
}

#[test]
fn trace_of_dropped_packet_ends_with_the_reason() {
    let mut node = router();
    node.datapath.set_trace(one(TraceTerm::Protocol(Protocol::UDP)), 9);
    let far = Flow::new("10.1.0.1", "10.77.0.1");
    node.rx_bytes(NOW, INSIDE, &far.udp(1));
    let steps = steps(&mut node);
    let [.., (1, Step::Reject(DropReason::NoRoute, _)), last] = steps[..] else { panic!("{steps:?}") };
    assert_eq!(last, (1, Step::Drop(DropReason::NoRoute)));
    node.datapath.set_trace(None, 0);
    node.rx_bytes(NOW, INSIDE, &far.udp(1));
    assert_eq!(node.datapath.take_trace().count(), 0, "nothing is traced any more");
}

#[test]
fn trace_follows_esp_to_the_ciphers_and_behind_them() {
    let mut world = tunnelled(TUNNELS[0], 1);
    let flow = Flow::new("10.1.0.1", "10.2.0.1");
    for node in &mut world.nodes {
        node.datapath.set_trace(every(), 9);
    }
    world.nodes[0].rx_bytes(NOW, INSIDE, &flow.tcp(1, 100));
    let near = steps(&mut world.nodes[0]);
    let sa = Some(EspRef { spi: Spi(0x1000), reqid: 0x1000 });
    assert!(near.contains(&(1, Step::Encrypt { sa })), "{near:?}");
    let [src, dst] = ["10.1.0.0/16", "10.2.0.0/16"].map(|text| text.parse().unwrap());
    assert!(near.contains(&(1, Step::Policy { dir: Dir::Out, src, dst })), "{near:?}");
    assert!(near.iter().any(|(number, step)| (*number, matches!(step, Step::Queued { .. })) == (2, true)), "{near:?}");
    let sealed = world.nodes[0].tx(OUTSIDE);
    world.nodes[1].rx(NOW, OUTSIDE, sealed);
    let far = steps(&mut world.nodes[1]);
    assert!(far.contains(&(1, Step::Decrypt { sa })), "{far:?}");
    assert!(far.iter().any(|(_, step)| matches!(step, Step::Policy { dir: Dir::Fwd, .. })), "{far:?}");
    assert!(far.contains(&(2, Step::Queued { dev: INSIDE })), "{far:?}");
}

/// A wire packet and the reason for which the far gateway drops it.
fn refused(near: &mut Node, case: usize) -> (Vec<packet::Packet>, DropReason) {
    let flow = Flow::new("10.1.0.1", "10.2.0.1");
    near.rx_bytes(NOW, INSIDE, &flow.tcp(1, 100));
    let sent = only(near.tx(OUTSIDE));
    let mut bytes = sent.to_vec();
    let esp_at = bytes.len() - sent_esp_len(&bytes);
    let packet = |bytes: &[u8]| packet::Packet::with_data(&near.mem, bytes).unwrap();
    match case {
        0 => {
            *bytes.last_mut().unwrap() ^= 1;
            (vec![packet(&bytes)], DropReason::EspIcv)
        }
        1 => (vec![packet(&bytes), packet(&bytes)], DropReason::EspReplay),
        _ => {
            bytes[esp_at + 2] ^= 0x20;
            (vec![packet(&bytes)], DropReason::EspNoState)
        }
    }
}

/// Bytes from the SPI on.
fn sent_esp_len(bytes: &[u8]) -> usize {
    let info = wire::ip::Info::parse(bytes, bytes.len()).unwrap();
    let udp = if info.protocol == Protocol::UDP { 8 } else { 0 };
    bytes.len() - info.header_len - udp
}

#[test]
fn drop_at_esp_ends_the_trace_of_its_packet() {
    for tunnel in TUNNELS {
        for threads in 0..2 {
            for case in 0..3 {
                let mut world = tunnelled(tunnel, 1);
                let (packets, reason) = refused(&mut world.nodes[0], case);
                let far = &mut world.nodes[1];
                if let Some(threads) = std::num::NonZeroUsize::new(threads) {
                    far.datapath.ipsec.set_crypto(Some(Box::new(ipsec::crypto::Pool::new(threads, |_| {}).unwrap())));
                }
                far.datapath.set_trace(every(), 9);
                let refused = packets.len() as u16;
                far.rx(NOW, OUTSIDE, packets);
                let got = steps(far);
                let of_refused: Vec<_> = got.iter().filter(|(number, _)| *number == refused).collect();
                let spi = Some(Spi(if case == 2 { 0x3000 } else { 0x1000 }));
                let peer = gateways::ENDS[usize::from(tunnel.v6)][0].parse().unwrap();
                let last = Step::EspDrop { reason, spi, peer, outbound: false };
                assert_eq!(of_refused.last(), Some(&&(refused, last)), "{tunnel:?} {case} {threads}: {got:#?}");
                let drops = got.iter().filter(|(_, step)| matches!(step, Step::Drop(_) | Step::EspDrop { .. }));
                assert_eq!(drops.count(), 1, "{got:#?}");
            }
        }
    }
}

#[test]
fn steps_of_a_burst_have_times_of_the_clock() {
    let mut node = router();
    node.datapath.set_trace(every(), 1);
    let readings = std::sync::atomic::AtomicU64::new(0);
    let clock =
        move || NOW + std::time::Duration::from_micros(readings.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    node.datapath.set_trace_clock(datapath::TraceClock(Box::new(clock)));
    node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.2.0.1").udp(1));
    let times: Vec<_> = node.datapath.take_trace().map(|step| step.at.since(NOW).as_micros()).collect();
    assert!(times.len() > 5 && times.is_sorted_by(|a, b| a < b), "{times:?}");
}

#[test]
fn reports_of_drops_have_flow_and_spi_and_a_limit() {
    let report = |link, reason, flow, esp| DropReport { link: Some(link), reason, packets: 1, flow, esp };
    let mut node = router();
    let far = Flow::new("10.1.0.1", "10.77.0.1").udp(1);
    node.rx_bytes(NOW, INSIDE, &far);
    assert!(!node.datapath.has_drop_reports(), "nothing is reported without a reader");
    node.datapath.watch_drops(Some(2));
    for _ in 0..5 {
        node.rx_bytes(NOW, INSIDE, &far);
    }
    let flow = wire::FlowKey::parse(&far, far.len()).ok();
    let one = report(INSIDE, DropReason::NoRoute, flow, None);
    assert_eq!(node.datapath.take_drop_reports().collect::<Vec<_>>(), [one, one]);
    assert_eq!((node.datapath.take_unreported_drops(), node.datapath.unreported_drops()), (3, 0));
    for case in 0..3 {
        let mut world = tunnelled(TUNNELS[0], 1);
        let (packets, reason) = refused(&mut world.nodes[0], case);
        world.nodes[1].datapath.watch_drops(Some(9));
        world.nodes[1].rx(NOW, OUTSIDE, packets);
        let spi = Some(Spi(if case == 2 { 0x3000 } else { 0x1000 }));
        let [src, dst] = gateways::ENDS[0].map(|text| text.parse().unwrap());
        let want = report(OUTSIDE, reason, None, Some(DroppedEsp { spi, src, dst }));
        assert_eq!(world.nodes[1].datapath.take_drop_reports().collect::<Vec<_>>(), [want], "{case}");
        let counted: u64 = world.nodes[1].drops().iter().map(|(_, _, n)| n).sum();
        assert_eq!(counted, 1, "{case}");
    }
}

const RED: u32 = 11;

/// A router whose links are in a VRF that has a port.
fn red_router() -> Node {
    let mut node = Node::new();
    node.vrf(RED, 10, &[INSIDE.0, OUTSIDE.0]);
    node.datapath.set_vrf_port(NOW, PortId(RED), Some(("red".to_owned(), 65_575)));
    node.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["10.1.0.254/24", "fd00:1::254/64"]);
    node.port(OUTSIDE.0, PortOptions::BARE, &["10.2.0.254/24", "fd00:2::254/64"]);
    node
}

#[test]
fn vrf_port_counts_and_is_captured_in_and_out() {
    for flow in flows() {
        let mut node = red_router();
        node.datapath.set_tap(PortId(RED), TapPoints { wire: true, fat: false });
        let udp = flow.udp(100);
        node.rx_bytes(NOW, INSIDE, &udp);
        let own = if flow.dst.is_ipv4() { "10.1.0.254" } else { "fd00:1::254" };
        let ping = Flow::new(&flow.src.to_string(), own).ping(1, 8);
        node.rx_bytes(NOW, INSIDE, &ping);
        let answer = only(node.tx(INSIDE)).to_vec();
        let bytes = |packets: &[&Vec<u8>]| packets.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let (rx_bytes, tx_bytes) = (bytes(&[&udp, &ping]), bytes(&[&answer]));
        let want = Traffic { rx_packets: 2, rx_bytes, tx_packets: 1, tx_bytes, tx_errors: 0 };
        assert_eq!(node.datapath.ports.get(PortId(RED)).unwrap().traffic, want);
        let seen: Vec<_> = node.datapath.take_tapped().map(|it| (it.link.0, it.outbound, it.bytes)).collect();
        assert_eq!(seen, [(RED, false, udp), (RED, false, ping), (RED, true, answer)]);
        // Without the VRF's port nothing is counted, and packets pass as before.
        node.datapath.set_vrf_port(NOW, PortId(RED), None);
        node.rx_bytes(NOW, INSIDE, &flow.udp(100));
        assert_eq!(node.tx(OUTSIDE).len(), 2);
    }
}

#[test]
fn pre_routing_runs_with_the_link_and_then_with_the_vrf() {
    let mut node = red_router();
    node.datapath.set_trace(every(), 1);
    node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.2.0.1").udp(1));
    let got = steps(&mut node);
    let hooks: Vec<_> = got.iter().filter(|(_, step)| matches!(step, Step::Hook { .. })).collect();
    let pre_routing = |dev| (1, Step::Hook { point: HookPoint::PreRouting, dev });
    assert_eq!(hooks[..2], [&pre_routing(INSIDE), &pre_routing(PortId(RED))], "{got:?}");
    let prefix = "10.2.0.0/24".parse().ok();
    assert!(
        got.contains(&(1, Step::Route { table: Some(TableId(10)), prefix, domain: Domain::vrf(PortId(RED)) })),
        "{got:?}"
    );
}

#[test]
fn packets_to_and_from_this_node_meet_the_local_hooks() {
    let mut node = router();
    node.datapath.set_trace(every(), 9);
    node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.1.0.254").ping(1, 8));
    let got = steps(&mut node);
    assert!(got.contains(&(1, Step::Hook { point: HookPoint::LocalIn, dev: INSIDE })), "{got:?}");
    // The answer is the request's buffer, and so the same packet.
    assert!(got.iter().any(|(_, step)| *step == Step::Hook { point: HookPoint::LocalOut, dev: INSIDE }), "{got:?}");
}

#[test]
fn trace_ignores_held_packet_of_the_trace_before() {
    let mut node = router_with(PortOptions::BARE, PortOptions::ethernet(2));
    let flow = Flow::new("10.1.0.1", "10.2.0.1");
    node.datapath.set_trace(every(), 9);
    node.rx_bytes(NOW, INSIDE, &flow.udp(1));
    assert_eq!(steps(&mut node).last(), Some(&(1, Step::Resolve { dev: OUTSIDE })));
    let arrive = |node: &mut Node| {
        let known = Known::Permanent(mac(12));
        node.datapath.set_neighbour(NOW, &node.mem, OUTSIDE, flow.dst, known, 0);
        assert_eq!(node.tx(OUTSIDE).len(), 2, "the question, and the packet");
    };
    node.datapath.set_trace(one(TraceTerm::Protocol(Protocol::TCP)), 9);
    arrive(&mut node);
    assert_eq!(steps(&mut node), []);
}

#[test]
fn trace_by_vrf_chooses_packets_of_its_links() {
    let udp = Flow::new("10.1.0.1", "10.2.0.1").udp(1);
    for (dev, is_chosen) in [(PortId(RED), true), (INSIDE, true), (OUTSIDE, false)] {
        let mut node = red_router();
        node.datapath.set_trace(one(TraceTerm::Dev(dev)), 1);
        node.rx_bytes(NOW, INSIDE, &udp);
        assert_eq!(!steps(&mut node).is_empty(), is_chosen, "{dev:?}");
    }
}

#[test]
fn full_queue_is_traced_as_a_drop() {
    let mut node = router();
    let flow = Flow::new("10.1.0.1", "10.2.0.1");
    let fat = || flow.fat_tcp(&packet::Memory::heap(), 1, 40 * 1000, 1000);
    while node.drops().is_empty() {
        node.rx(NOW, INSIDE, vec![fat()]);
    }
    node.datapath.set_trace(every(), 1);
    node.rx(NOW, INSIDE, vec![fat()]);
    assert_eq!(steps(&mut node).last(), Some(&(1, Step::Drop(DropReason::TxQueueFull))));
}

/// Names of a traced packet's stages, in order.
pub(crate) fn stages(node: &mut Node) -> Vec<String> {
    let name = |step: Step| {
        let text = format!("{step:?}");
        match step {
            Step::Hook { point: HookPoint::Forward, .. } => "at Forward".to_owned(),
            Step::Hook { point, .. } => format!("{point:?}"),
            _ => text.split([' ', '{', '(']).next().unwrap_or_default().to_owned(),
        }
    };
    steps(node).into_iter().map(|(number, step)| format!("{number} {}", name(step))).collect()
}

pub(crate) fn numbered(number: u16, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{number} {name}")).collect()
}
