//! Packets on their way out by virtual devices: VLAN devices and bridges one above the other, with queueing disciplines.

use std::time::Duration;

use base::{DropReason, PortId};
use datapath::{DropReport, TapPoints, Traffic};
use fib::Known;
use offload::Features;
use packet::Packet;
use qdisc::{Depth, LinkLayer, Options, RateSpec, Tbf};
use sim::{AddAddress as _, Flow, Node, PortOptions};
use switch::BridgeError;

use crate::common::*;
use crate::trace::{every, numbered, stages};

const SOURCE: PortId = PortId(1);
const PORT: PortId = PortId(2);
const BRIDGE: PortId = PortId(9);
const VLAN: PortId = PortId(10);

fn features() -> Features {
    Features { frames: false, ..Features::ALL }
}

/// A router with a bridge of one port, and VLAN 5 of the bridge. Hosts of 10.1.0.0/24 are in VLAN 5, of 10.3.0.0/24 outside of it.
fn router() -> Node {
    let mut node = Node::new();
    node.port(SOURCE.0, PortOptions::BARE, &["10.2.0.254/24"]);
    node.port(PORT.0, PortOptions::ethernet(2).features(features()), &[]);
    node.datapath.add_bridge(BRIDGE, "br0".to_owned(), mac(9), 1500).unwrap();
    node.datapath.set_bridge(NOW, &node.mem, PORT, Some(BRIDGE)).unwrap();
    node.datapath.fib.add_address(BRIDGE, "10.3.0.254/24".parse().unwrap());
    node.port(VLAN.0, PortOptions::ethernet(9).features(features()), &["10.1.0.254/24"]);
    node.datapath.set_vlan(VLAN, BRIDGE, 5).unwrap();
    for (link, addr) in [(VLAN, "10.1.0.1"), (BRIDGE, "10.3.0.1")] {
        let known = Known::Permanent(mac(0x21));
        node.datapath.set_neighbour(NOW, &node.mem, link, addr.parse().unwrap(), known, 0);
    }
    node
}

fn to_vlan() -> Flow {
    Flow::new("10.2.0.1", "10.1.0.1")
}

fn to_bridge() -> Flow {
    Flow::new("10.2.0.1", "10.3.0.1")
}

fn traffic(node: &Node, link: PortId) -> Traffic {
    node.datapath.ports.get(link).unwrap().traffic
}

/// Without the end of a burst, nothing waits in a virtual device for a later call. GRO does not hold ICMP.
#[test]
fn packet_leaves_by_all_devices_in_one_call() {
    let mut node = router();
    for flow in [to_vlan(), to_bridge()] {
        let pkt = Packet::with_data(&node.mem, &flow.ping(1, 8)).unwrap();
        node.datapath.receive_burst(NOW, &node.mem, SOURCE, &mut vec![pkt]);
        assert_eq!(node.datapath.take_tx(PORT).map(|waiting| waiting.drain(..).count()), Some(1), "{flow:?}");
        assert_eq!(node.datapath.take_tx(BRIDGE).map(|waiting| waiting.len()), Some(0));
        assert_eq!(node.datapath.poll_timeout(), None, "nothing is due");
    }
    assert_eq!(node.drops(), []);
}

#[test]
fn trace_names_each_device_once_from_above_to_below() {
    let forward = ["Input", "PreRouting", "Route", "Forward", "at Forward", "Output", "PostRouting", "Transmit"];
    for (flow, devices) in [(to_vlan(), vec![VLAN, BRIDGE, PORT]), (to_bridge(), vec![BRIDGE, PORT])] {
        for is_shaped in [false, true] {
            let mut node = router();
            if is_shaped {
                for link in [VLAN, BRIDGE, PORT] {
                    node.datapath.set_qdisc(NOW, &node.mem, link, Some(Options::Pfifo { limit: 9 })).unwrap();
                }
            }
            node.datapath.set_trace(every(), 9);
            node.rx_bytes(NOW, SOURCE, &flow.udp(10));
            let steps: Vec<_> = node.datapath.take_trace().map(|step| step.step).collect();
            let queued = |step: &datapath::Step| match step {
                datapath::Step::Queued { dev } => Some(*dev),
                _ => None,
            };
            assert_eq!(steps.iter().filter_map(queued).collect::<Vec<_>>(), devices, "shaped: {is_shaped}");
            node.rx_bytes(NOW, SOURCE, &flow.udp(10));
            let want = [&forward[..], &vec!["Queued"; devices.len()]].concat();
            assert_eq!(stages(&mut node), numbered(2, &want));
        }
    }
}

#[test]
fn trace_ends_with_drop_below_a_virtual_device() {
    let mut node = router();
    node.datapath.remove_port(NOW, &node.mem, PORT);
    node.datapath.set_trace(every(), 9);
    node.datapath.watch_drops(Some(9));
    let udp = to_vlan().udp(10);
    node.rx_bytes(NOW, SOURCE, &udp);
    let steps = stages(&mut node);
    assert_eq!(steps[steps.len() - 4..], numbered(1, &["Transmit", "Queued", "Queued", "Drop"]));
    let reports: Vec<_> = node.datapath.take_drop_reports().collect();
    let flow = wire::FlowKey::parse(&udp, udp.len()).ok();
    let reason = DropReason::BridgeNoPort;
    assert_eq!(reports, [DropReport { link: Some(SOURCE), reason, packets: 1, flow, esp: None }]);
    assert_eq!(node.drops(), [(SOURCE.0, reason, 1)]);
}

#[test]
fn each_device_counts_and_captures_a_fat_packet_once() {
    let mut node = router();
    for link in [VLAN, BRIDGE, PORT] {
        node.datapath.set_tap(link, TapPoints { wire: true, fat: false });
    }
    let fat = to_vlan().fat_tcp(&node.mem, 1, 4200, 1400);
    let len = (fat.len() + 14) as u64;
    node.rx(NOW, SOURCE, vec![fat]);
    let sent = only(node.tx(PORT));
    assert!(sent.meta.cut.gso().is_some() && sent.to_vec()[12..16] == [0x81, 0, 0, 5]);
    assert_eq!(traffic(&node, VLAN), Traffic { tx_packets: 1, tx_bytes: len, ..Traffic::default() });
    let bridge = node.datapath.bridge(BRIDGE).unwrap().stats();
    assert_eq!((bridge.tx_packets, bridge.tx_bytes, bridge.tx_dropped), (1, len, 0));
    let fat = [BRIDGE, PORT].map(|link| node.datapath.ports.get(link).unwrap().fat);
    assert_eq!(fat.map(|fat| (fat.tx_gso_packets, fat.tx_gso_segs, fat.tx_gso_cut_packets)), [(1, 3, 0); 2]);
    // Three segments each: the VLAN device has no tag of its own, the others have.
    let seen: Vec<_> = node.datapath.take_tapped().map(|it| (it.link, it.bytes[12..14].to_vec())).collect();
    let want = |link, kind: [u8; 2]| vec![(link, kind.to_vec()); 3];
    assert_eq!(seen, [want(VLAN, [8, 0]), want(BRIDGE, [0x81, 0]), want(PORT, [0x81, 0])].concat());
}

/// 8 Mbit/s: a byte takes a microsecond.
fn tbf() -> Options {
    let rate = RateSpec { rate: 1_000_000, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };
    Options::Tbf(Tbf { limit: 100_000, rate, burst: Depth::Bytes(300), peak: None })
}

#[test]
fn discipline_in_front_of_each_device_delays_and_keeps_order() {
    for shaped in [VLAN, BRIDGE, PORT] {
        let mut node = router();
        node.datapath.set_qdisc(NOW, &node.mem, shaped, Some(tbf())).unwrap();
        for n in 0..4 {
            node.rx_bytes(NOW, SOURCE, &to_vlan().udp(150 + n));
        }
        let mut lens: Vec<usize> = node.tx(PORT).iter().map(Packet::len).collect();
        assert_eq!(lens.len(), 1, "{shaped:?}");
        let mut now = NOW;
        while let Some(at) = node.datapath.poll_timeout() {
            assert!(at > now && at < NOW + Duration::from_millis(2), "{at:?}");
            now = at;
            node.timeout(now);
            lens.extend(node.tx(PORT).iter().map(Packet::len));
        }
        let framed = |n: usize| 14 + 4 + 28 + 150 + n;
        assert_eq!(lens, [0, 1, 2, 3].map(framed), "{shaped:?}");
        assert_eq!((node.drops(), node.datapath.qdisc_stats(shaped).unwrap().packets), (vec![], 4));
    }
}

/// A router with `depth` VLAN devices above a link, the topmost with the hosts of 10.1.0.0/24.
fn stacked(depth: u32) -> Node {
    let mut node = Node::new();
    node.port(SOURCE.0, PortOptions::BARE, &["10.2.0.254/24"]);
    node.port(PORT.0, PortOptions::ethernet(2).features(features()), &[]);
    let device = |n: u32| if n == 0 { PORT } else { PortId(100 + n) };
    for n in 1..=depth {
        let addresses: &[&str] = if n == depth { &["10.1.0.254/24"] } else { &[] };
        node.port(device(n).0, PortOptions::ethernet(2).features(features()), addresses);
        node.datapath.set_vlan(device(n), device(n - 1), n as u16).unwrap();
    }
    let known = Known::Permanent(mac(0x21));
    node.datapath.set_neighbour(NOW, &node.mem, device(depth), "10.1.0.1".parse().unwrap(), known, 0);
    node
}

#[test]
fn packet_passes_eight_devices_and_no_more() {
    for depth in [7, 8, 9, 500] {
        let mut node = stacked(depth);
        node.datapath.set_trace(every(), 9);
        for _ in 0..2 {
            node.rx_bytes(NOW, SOURCE, &to_vlan().udp(10));
        }
        let is_last = matches!(node.datapath.take_trace().next_back(), Some(step) if step.step == datapath::Step::Drop(DropReason::DeviceNesting));
        let (sent, drops) = match depth {
            ..=8 => (2, vec![]),
            _ => (0, vec![(SOURCE.0, DropReason::DeviceNesting, 2)]),
        };
        assert_eq!((node.tx(PORT).len(), node.drops(), is_last), (sent, drops, depth > 8), "{depth}");
        assert_eq!(node.pages_in_use(), 0);
    }
}

#[test]
fn device_above_a_bridge_is_refused_as_its_port() {
    let mut node = router();
    let set = |node: &mut Node, link, bridge| node.datapath.set_bridge(NOW, &node.mem, link, Some(bridge));
    assert_eq!(set(&mut node, VLAN, BRIDGE), Err(BridgeError::Loop(VLAN)));
    // The VLAN device in a second bridge, and a VLAN device of that one in the first.
    let (second, above) = (PortId(11), PortId(12));
    node.datapath.add_bridge(second, "br1".to_owned(), mac(11), 1500).unwrap();
    set(&mut node, VLAN, second).unwrap();
    node.port(above.0, PortOptions::ethernet(11), &[]);
    node.datapath.set_vlan(above, second, 7).unwrap();
    assert_eq!(set(&mut node, above, BRIDGE), Err(BridgeError::Loop(above)));
    assert_eq!(node.datapath.bridge_of(above), None);
    // A frame of the second bridge still leaves, by the VLAN of the first.
    node.datapath.fib.add_address(second, "10.5.0.254/24".parse().unwrap());
    node.rx_bytes(NOW, SOURCE, &Flow::new("10.2.0.1", "10.5.0.1").udp(10));
    assert_eq!(only(node.tx(PORT)).to_vec()[12..18], [0x81, 0, 0, 5, 8, 6], "ARP");
    assert_eq!(node.drops(), []);
}
