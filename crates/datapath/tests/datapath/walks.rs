//! Traces of whole walks through the datapath: each names its stages once and in order.

use base::PortId;
use datapath::Step;
use offload::Features;
use packet::Packet;
use sim::{AddAddress as _, Flow, Node, PortOptions, esp, policy, unique_mask};
use wire::{EtherType, eth};
use xfrm::{Dir, Mode};

use crate::bridge::{OUTSIDE_PORT, framed, routed};
use crate::common::*;
use crate::gateways::{TUNNELS, tunnelled};
use crate::trace::{every, numbered, stages};

const FORWARD: [&str; 6] = ["Input", "PreRouting", "Route", "Forward", "at Forward", "Output"];

/// Stages of a packet into a tunnel, until the cipher makes another packet of it.
fn seal() -> Vec<&'static str> {
    [&FORWARD[..], &["Policy", "PostRouting", "Encrypt"]].concat()
}

fn flow() -> Flow {
    Flow::new("10.1.0.1", "10.2.0.1")
}

#[test]
fn fat_packet_of_tun_leaves_as_esp_in_udp() {
    let mut world = tunnelled(TUNNELS[1], 1);
    let near = &mut world.nodes[0];
    near.datapath.set_trace(every(), 9);
    let fat = flow().fat_tcp(&near.mem, 1, 3900, 1300);
    near.rx(NOW, INSIDE, vec![fat]);
    assert_eq!(stages(near), [numbered(1, &seal()), numbered(2, &["Transmit", "Queued"])].concat());
}

#[test]
fn train_of_esp_in_udp_leaves_by_tun() {
    let mut world = tunnelled(TUNNELS[1], 1);
    let [near, far] = &mut world.nodes[..] else { panic!("two gateways") };
    let fat = flow().fat_tcp(&near.mem, 1, 3900, 1300);
    near.rx(NOW, INSIDE, vec![fat]);
    far.datapath.set_trace(every(), 9);
    far.rx(NOW, OUTSIDE, near.tx(OUTSIDE));
    let open = ["Input", "PreRouting", "Route", "Local", "LocalIn", "Decrypt"];
    let inner = [
        "Input",
        "PreRouting",
        "Route",
        "Forward",
        "Policy",
        "at Forward",
        "Output",
        "PostRouting",
        "Transmit",
        "Queued",
    ];
    assert_eq!(stages(far), [numbered(1, &open), numbered(2, &inner)].concat());
}

#[test]
fn fragmented_datagram_goes_up_to_the_host_side() {
    let mut node = router();
    crate::host_side::add_devices(&mut node);
    node.datapath.set_trace(every(), 9);
    let datagram = Packet::with_data(&node.mem, &Flow::new("10.1.0.1", "10.1.0.254").udp(2000)).unwrap();
    let mut fragments = Vec::new();
    reassembly::fragment(&node.mem, datagram, 1500, &mut fragments).unwrap();
    node.rx(NOW, INSIDE, fragments);
    let fragment = ["Input", "PreRouting", "Route", "Local"];
    // The datagram has the number of its first fragment.
    let want = [numbered(1, &fragment), numbered(2, &fragment), numbered(1, &["Local", "LocalIn", "Up"])].concat();
    assert_eq!(stages(&mut node), want);
}

#[test]
fn fat_frame_of_a_guest_leaves_by_bridge_and_tunnel() {
    let mut node = routed(PortOptions::BARE.features(Features::ALL));
    let sa = esp("10.2.0.254", "10.2.0.9", 1, Mode::Tunnel, false);
    let protecting = policy(Dir::Out, "10.1.0.0/24", "10.2.0.1/32", std::slice::from_ref(&sa));
    node.datapath.ipsec.add_policy(protecting).unwrap();
    node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
    let mut pkt = flow().fat_tcp(&node.mem, 1, 45 * 1300, 1300);
    let header = eth::EthHeader::new(mac(9), mac(0x21), EtherType::IPV4);
    pkt.push(&node.mem, eth::EthHeader::LEN).unwrap().copy_from_slice(header.as_bytes());
    node.datapath.set_trace(every(), 9);
    node.rx(NOW, PortId(1), vec![pkt]);
    assert_eq!(stages(&mut node), [numbered(1, &seal()), numbered(2, &["Transmit", "Queued"])].concat());
    assert_eq!((node.tx(OUTSIDE_PORT).len(), node.drops()), (45, vec![]));
}

/// Thin frames for the node behind a bridge's device are one packet in all stages. Frames that a bridge forwards are in no trace.
#[test]
fn thin_frames_of_a_wire_are_routed_behind_a_bridge_as_one() {
    let mut node = routed(PortOptions::BARE.features(Features::ALL));
    node.datapath.set_trace(every(), 9);
    let frame = |at: u32| framed(mac(9), mac(0x21), &flow().tcp(1 + at * 1300, 1300));
    let burst = (0..4).map(|at| Packet::with_data(&node.mem, &frame(at)).unwrap()).collect();
    node.rx(NOW, PortId(1), burst);
    assert_eq!(stages(&mut node), numbered(1, &[&FORWARD[..], &["PostRouting", "Transmit", "Queued"]].concat()));
    assert_eq!(only(node.tx(OUTSIDE_PORT)).meta.cut.gso().map(|gso| gso.segs), Some(4));
}

/// A route that was added is in the trace of the next packet, also of a flow whose decision was known.
#[test]
fn changed_route_is_met_by_the_next_packet_of_a_flow() {
    const THIRD: PortId = PortId(3);
    let mut node = router();
    node.port(THIRD.0, PortOptions::BARE, &[]);
    node.datapath.fib.add_address(THIRD, "10.3.0.254/24".parse().unwrap());
    node.datapath.set_trace(every(), 9);
    let walk = [&FORWARD[..], &["PostRouting", "Transmit", "Queued"]].concat();
    let routed_by = |node: &mut Node, number| {
        node.rx_bytes(NOW, INSIDE, &flow().udp(1));
        let steps: Vec<_> = node.datapath.take_trace().collect();
        assert_eq!(steps.len(), walk.len(), "{number}: {steps:?}");
        let routes = steps.iter().filter_map(|step| match step.step {
            Step::Route { prefix, .. } => Some(prefix),
            _ => None,
        });
        routes.collect::<Vec<_>>()
    };
    let prefix = |text: &str| vec![text.parse().ok()];
    assert_eq!(routed_by(&mut node, 1), prefix("10.2.0.0/24"));
    assert_eq!(routed_by(&mut node, 2), prefix("10.2.0.0/24"));
    node.route("10.2.0.1/32", None, THIRD);
    assert_eq!(routed_by(&mut node, 3), prefix("10.2.0.1/32"));
    assert_eq!((node.tx(OUTSIDE).len(), node.tx(THIRD).len()), (2, 1));
}
