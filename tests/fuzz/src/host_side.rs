//! Node with every kind of configuration whose links have devices of the host side, as a list of operations: raw frames
//! down by a device, arbitrary packets up to sockets, look-ups of sockets with any answer, and answers of `sock_diag` of
//! any bytes. Devices can send what they get, and all memory is returned.

use std::time::Duration;

use base::{Domain, Instant, PortId};
use datapath::{L3mdevAccept, PortConfig, SocketBinding, host_port};
use fib::{Rule, Vrf};
use offload::Features;
use packet::Packet;
use sim::{Choices, FullNode, Node};
use wire::{FlowKey, Protocol};

use crate::path;

/// VRF of the last port.
const RED: PortId = PortId(11);

const BINDINGS: [SocketBinding; 5] = [
    SocketBinding::Link,
    SocketBinding::Vrf,
    SocketBinding::Unbound,
    SocketBinding::Connected,
    SocketBinding::NoSocket,
];

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut input = Choices::new(input);
    let mut node = node();
    let mut now = Instant::ZERO + Duration::from_secs(1);
    for _ in 0..128 {
        if input.is_over() {
            break;
        }
        let op = input.byte();
        let at = usize::from(op & 3);
        let link = FullNode::PORTS[at];
        match op >> 2 & 15 {
            0 => now = now + Duration::from_millis(20 * u64::from(input.byte())),
            1 => node.datapath.set_up(now, &node.mem, link, input.byte() & 1 == 0),
            2 => set_device(&mut node, link, input.byte() & 1 == 0),
            3 => _ = node.datapath.set_watched(link, input.byte() & 1 == 0),
            4 => look_up(&mut input),
            5..10 => {
                let pkt = path::packet(&mut input, &node.mem, at);
                node.rx(now, link, vec![pkt]);
            }
            kind => {
                let by = if kind == 15 { RED } else { link };
                let pkt = path::packet(&mut input, &node.mem, at);
                node.rx(now, host_port(by), vec![pkt]);
            }
        }
        while node.datapath.socket_question().is_some() {
            node.datapath.answer_socket_question(now, &node.mem, input.pick(&BINDINGS));
        }
        node.timeout(now);
        FullNode::PORTS.into_iter().flat_map(|link| [link, host_port(link)]).for_each(|port| send(&mut node, port));
        send(&mut node, host_port(RED));
    }
    for link in FullNode::PORTS {
        set_device(&mut node, link, false);
        node.datapath.remove_port(now, &node.mem, link);
    }
    let Node { datapath, mem, .. } = node;
    drop(datapath);
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
}

/// The node, with a device for each link and for a VRF.
fn node() -> Node {
    let FullNode { mut node, .. } = FullNode::new();
    let slave = FullNode::PORTS[3];
    node.datapath.fib.set_vrf(RED, Some(Vrf { table: base::TableId(10), up: true }));
    node.datapath.fib.set_domain(slave, Domain::vrf(RED));
    for v4 in [true, false] {
        let mut rules = Rule::first(v4);
        rules.insert(1, Rule::ask_vrf());
        node.datapath.fib.set_rules(v4, rules);
    }
    node.datapath.set_vrf_port(Instant::ZERO, RED, Some(("red".to_owned(), 65_575)));
    FullNode::PORTS.into_iter().chain([RED]).for_each(|link| set_device(&mut node, link, true));
    node.datapath.enable_socket_lookups(true);
    node.datapath.set_l3mdev_accept(L3mdevAccept { tcp: true, udp: false });
    node
}

/// Adds or removes the device of a link.
fn set_device(node: &mut Node, link: PortId, is_there: bool) {
    let mac = node.datapath.ports.get(link).and_then(|port| port.config.mac);
    let name = format!("host{}", link.0);
    let config = PortConfig { name, mac, mtu: 65_521, features: Features::ALL, gro: false, esp_gro: false };
    node.datapath.set_host_port(link, is_there.then_some(config));
}

/// Takes the packets of a port, and checks that its device can send them.
fn send(node: &mut Node, port: PortId) {
    let sent: Vec<Packet> = node.tx(port);
    let Some(features) = node.datapath.ports.get(port).map(|port| port.config.features) else { return };
    for pkt in sent {
        pkt.check_invariants();
        assert!(features.sg || pkt.is_linear());
        assert!(pkt.meta.cut.gso().is_none_or(|gso| features.cuts(gso, pkt.len())));
    }
}

/// Looks a socket up in a kernel that answers with any bytes.
fn look_up(input: &mut Choices<'_>) {
    let protocol = input.pick(&[Protocol::TCP, Protocol::UDP]);
    let flow = FlowKey { src: [10, 1, 0, 1].into(), dst: [10, 1, 0, 254].into(), protocol, sport: 1, dport: 2 };
    let answers: Vec<Vec<u8>> = (0..input.byte() % 4)
        .map(|_| {
            let len = u16::from(input.byte());
            let kind = input.pick(&[20, 20, 2, 3]);
            let head = [u32::from(len).to_ne_bytes(), [kind, 0, input.byte(), 0]].concat();
            [&head[..], input.bytes(usize::from(len))].concat()
        })
        .collect();
    // Whatever is answered, the look-up ends.
    let _ = daemon::fuzzing::look_up_socket(flow, &answers);
}
