//! Features that the first shard owns, met by another one: packets are handed over at the place that the table of `hand_over.rs` names.

use base::{DropReason, Instant, PortId, ShardCount, ShardId};
use datapath::{Datapath, HandOver, host_port};
use packet::{Memory, Packet};
use sim::{Flow, Node, PortOptions};
use wire::MacAddr;

const NOW: Instant = Instant::ZERO;
const ETH0: PortId = PortId(2);
const VLAN: PortId = PortId(3);
const BRIDGE: PortId = PortId(4);

/// The second of two shards, with an Ethernet port.
fn second() -> Node {
    let mut node = Node::new();
    let shards = Datapath::shards(ShardCount::new(2).unwrap());
    node.datapath = shards.into_iter().nth(1).unwrap();
    node.port(ETH0.0, PortOptions::ethernet(1), &["10.1.0.254/24"]);
    node
}

/// A frame to `to` with a datagram, in VLAN 10 if it is tagged.
fn frame(mem: &Memory, to: MacAddr, is_tagged: bool) -> Packet {
    let mut bytes = [to.0, [2, 0, 0, 0, 0, 9]].concat();
    if is_tagged {
        bytes.extend([0x81, 0, 0, 10]);
    }
    bytes.extend([8, 0]);
    bytes.extend(Flow::new("10.1.0.1", "10.1.0.254").udp(20));
    Packet::with_data(mem, &bytes).unwrap()
}

/// The packets that a shard hands over when it receives one.
fn handed_over(node: &mut Node, packet: Packet) -> Vec<HandOver> {
    node.rx(NOW, ETH0, vec![packet]);
    assert!(node.datapath.has_handed_over(), "{:?}", node.drops());
    node.datapath.take_handed_over().collect()
}

fn has_first_owner(handed: &[HandOver]) -> bool {
    handed.len() == 1 && handed[0].to() == ShardId::FIRST
}

#[test]
fn frames_of_bridged_ports_are_the_first_shards() {
    let own = MacAddr([2, 0, 0, 0, 0, 1]);
    for is_vlan in [false, true] {
        let mut node = second();
        node.datapath.add_bridge(BRIDGE, "br0".to_owned(), MacAddr([2, 0, 0, 0, 0, 8]), 1500).unwrap();
        let port = if is_vlan { VLAN } else { ETH0 };
        if is_vlan {
            node.port(VLAN.0, PortOptions::ethernet(1), &[]);
            node.datapath.set_vlan(VLAN, ETH0, 10).unwrap();
        }
        let mem = Memory::heap();
        node.datapath.set_bridge(NOW, &mem, port, Some(BRIDGE)).unwrap();
        for to in [own, MacAddr([2, 0, 0, 0, 0, 7]), MacAddr::BROADCAST] {
            let packet = frame(&mem, to, is_vlan);
            assert!(has_first_owner(&handed_over(&mut node, packet)), "{to}, VLAN {is_vlan}");
        }
        let learnt = node.datapath.bridge_mut(BRIDGE).unwrap().fdb_entry(NOW, MacAddr([2, 0, 0, 0, 0, 9]), None);
        assert_eq!(learnt, None, "another shard learns no stations, VLAN {is_vlan}");
    }
}

#[test]
fn packets_for_sockets_of_the_host_side_are_the_first_shards() {
    let mut node = second();
    let mem = Memory::heap();
    let packet = || frame(&mem, MacAddr([2, 0, 0, 0, 0, 1]), false);
    let config = node.datapath.ports.get(ETH0).unwrap().config.clone();
    node.datapath.set_host_port_elsewhere(ETH0, Some(config));
    assert!(has_first_owner(&handed_over(&mut node, packet())));
    // A frame that carries no IP is copied to the device.
    let mut other = packet();
    other.writable_head(&mem).unwrap()[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert!(has_first_owner(&handed_over(&mut node, other)));
    // Without the device the node answers itself.
    node.datapath.set_host_port_elsewhere(ETH0, None);
    assert!(node.datapath.ports.get(host_port(ETH0)).is_none());
    assert_eq!(node.drops(), []);
    node.rx(NOW, ETH0, vec![packet()]);
    assert_eq!(node.drops(), [(ETH0.0, DropReason::UdpNoPort, 1)]);
}
