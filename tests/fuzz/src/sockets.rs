//! Sockets of the host side in two VRFs with equal addresses, as a list of operations: packets of few flows and floods of
//! others, by both links, answers of the sockets, and time. A model of the sockets' kernel, which has no VRFs, answers
//! look-ups. An answer leaves by the VRF of its flow or not at all, and no packet of another VRF reaches a connection.

use std::collections::HashMap;
use std::time::Duration;

use base::{Instant, PortId};
use datapath::{L3mdevAccept, PortConfig, SocketBinding, SocketQuestion, host_port};
use offload::Features;
use packet::Packet;
use sim::{Choices, Flow, Node, PortOptions};
use wire::tcp::Flags;
use wire::{FlowKey, Protocol};

/// Links of the VRFs [`VRFS`], and a link of none, by which answers of sockets without a device leave their kernel.
const LINKS: [PortId; 2] = [PortId(1), PortId(2)];
const VRFS: [PortId; 2] = [PortId(11), PortId(12)];
const PLAIN: PortId = PortId(5);

/// Port of sockets that are bound to no device, of sockets of each VRF, and of none.
const SERVER: u16 = 80;
const BOUND: u16 = 81;
const CLOSED: u16 = 82;

struct World {
    node: Node,
    now: Instant,
    /// Connections and datagrams in the sockets' kernel, by addresses and ports of received packets: the link by which the
    /// last packet went up.
    flows: HashMap<FlowKey, PortId>,
}

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut input = Choices::new(input);
    let mut world = World::new();
    for _ in 0..200 {
        if input.is_over() {
            break;
        }
        world.step(&mut input);
    }
}

impl World {
    fn new() -> Self {
        let mut node = Node::new();
        let addresses = ["10.1.0.254/24", "fd00:1::254/64"];
        for ((link, vrf), table) in LINKS.into_iter().zip(VRFS).zip([10, 20]) {
            node.vrf(vrf.0, table, &[link.0]);
            node.datapath.set_vrf_port(Instant::ZERO, vrf, Some((format!("vrf{table}"), 65_575)));
            node.port(link.0, PortOptions::BARE, &addresses);
        }
        node.port(PLAIN.0, PortOptions::BARE, &["10.5.0.254/24", "fd00:5::254/64"]);
        for link in LINKS.into_iter().chain(VRFS).chain([PLAIN]) {
            let name = format!("host{}", link.0);
            let config =
                PortConfig { name, mac: None, mtu: 65_521, features: Features::ALL, gro: false, esp_gro: false };
            node.datapath.set_host_port(link, Some(config));
        }
        node.datapath.enable_socket_lookups(true);
        node.datapath.set_l3mdev_accept(L3mdevAccept { tcp: true, udp: true });
        Self { node, now: Instant::ZERO + Duration::from_secs(1), flows: HashMap::new() }
    }

    fn step(&mut self, input: &mut Choices<'_>) {
        let op = input.byte();
        let at = usize::from(op & 1);
        let flow = flow(input);
        match op >> 1 & 7 {
            0 => {
                self.now = self.now + Duration::from_secs(u64::from(input.byte()));
                self.node.timeout(self.now);
            }
            1 => {
                for sport in 1000..1000 + u16::from(input.byte() % 32) {
                    self.receive(at, &Flow { sport, ..flow }.tcp_flags(1, Flags::SYN));
                }
            }
            2 => self.receive(at, &flow.udp(8)),
            3 => self.receive(at, &flow.tcp_flags(1, input.pick(&[Flags::SYN, Flags::ACK, Flags::ACK, Flags::RST]))),
            4 => self.answer(&flow, Protocol::UDP, &flow.reversed().udp(8)),
            5 => self.answer(&flow, Protocol::TCP, &flow.reversed().tcp_flags(1, Flags::ACK)),
            6 => {
                self.answer(&flow, Protocol::TCP, &flow.reversed().tcp_flags(1, Flags::RST));
                self.flows.remove(&key(&flow, Protocol::TCP));
            }
            _ => self.answer_by(at, &Flow { dport: BOUND, ..flow }.reversed().udp(8)),
        }
    }

    /// Receives a packet by a link, and gives it to the kernel of the sockets.
    fn receive(&mut self, at: usize, bytes: &[u8]) {
        self.node.rx_bytes(self.now, LINKS[at], bytes);
        while let Some(question) = self.node.datapath.socket_question() {
            let binding = self.binding(&question);
            self.node.datapath.answer_socket_question(self.now, &self.node.mem, binding);
        }
        let other = [LINKS[1 - at], VRFS[1 - at], PLAIN];
        for link in other {
            assert!(self.up(link).is_empty(), "{bytes:02x?} by {:?} went up by {link:?}", LINKS[at]);
        }
        self.up(VRFS[at]);
        for pkt in self.up(LINKS[at]) {
            self.deliver(LINKS[at], &pkt.to_vec());
        }
        self.sent_by(PLAIN, 0);
        self.sent_by(LINKS[1 - at], 0);
        self.node.tx(LINKS[at]);
    }

    /// Delivers a packet that has gone up by the device of a link to a socket that is bound to no device.
    fn deliver(&mut self, link: PortId, bytes: &[u8]) {
        let Ok(flow) = FlowKey::parse(bytes, bytes.len()) else { return };
        if flow.protocol == Protocol::UDP {
            self.flows.insert(flow, link);
        } else if flow.protocol == Protocol::TCP {
            let flags = bytes[if flow.src.is_ipv4() { 20 } else { 40 } + 13];
            let (is_syn, is_rst) = (flags & 2 != 0, flags & 4 != 0);
            if let Some(of) = self.flows.get(&flow) {
                assert_eq!(*of, link, "a segment of another VRF has reached the connection {flow:?}");
            }
            if is_rst {
                self.flows.remove(&flow);
            } else if is_syn {
                self.flows.insert(flow, link);
            }
        }
    }

    /// Binding of the socket that gets a packet.
    fn binding(&self, question: &SocketQuestion) -> SocketBinding {
        match question.flow.dport {
            SERVER if question.flow.protocol == Protocol::TCP && self.flows.contains_key(&question.flow) => {
                SocketBinding::Connected
            }
            SERVER => SocketBinding::Unbound,
            BOUND => SocketBinding::Vrf,
            _ => SocketBinding::NoSocket,
        }
    }

    /// Sends an answer of a socket that is bound to no device, if it has received something of the flow.
    fn answer(&mut self, flow: &Flow, protocol: Protocol, bytes: &[u8]) {
        let Some(&of) = self.flows.get(&key(flow, protocol)) else { return };
        self.down(PLAIN, bytes);
        for link in LINKS.into_iter().chain([PLAIN]) {
            self.sent_by(link, usize::from(link == of));
        }
    }

    /// Sends a packet of a socket that is bound to a VRF.
    fn answer_by(&mut self, at: usize, bytes: &[u8]) {
        self.down(VRFS[at], bytes);
        self.sent_by(LINKS[at], 1);
        self.sent_by(LINKS[1 - at], 0);
        self.sent_by(PLAIN, 0);
    }

    fn down(&mut self, link: PortId, bytes: &[u8]) {
        let pkt = Packet::with_data(&self.node.mem, bytes).expect("memory");
        self.node.datapath.handle_rx(self.now, &self.node.mem, host_port(link), &mut vec![pkt]);
        // Errors to the sockets.
        for link in LINKS.into_iter().chain(VRFS).chain([PLAIN]) {
            self.up(link);
        }
    }

    /// Packets that went up by the device of a link.
    fn up(&mut self, link: PortId) -> Vec<Packet> {
        self.node.datapath.take_tx(host_port(link)).map(std::mem::take).unwrap_or_default()
    }

    /// Checks that a link has sent at most `most` packets.
    fn sent_by(&mut self, link: PortId, most: usize) {
        let sent = self.node.tx(link);
        assert!(sent.len() <= most, "{} packets by {link:?}: {sent:?}", sent.len());
    }
}

/// One of a few flows to the node.
fn flow(input: &mut Choices<'_>) -> Flow {
    let bits = input.byte();
    let flow = if bits & 1 == 0 { Flow::new("10.1.0.1", "10.1.0.254") } else { Flow::new("fd00:1::1", "fd00:1::254") };
    let dport = [SERVER, SERVER, BOUND, CLOSED][usize::from(bits >> 1 & 3)];
    Flow { sport: 1000 + u16::from(bits >> 3 & 3), dport, ..flow }
}

fn key(flow: &Flow, protocol: Protocol) -> FlowKey {
    FlowKey { src: flow.src, dst: flow.dst, protocol, sport: flow.sport, dport: flow.dport }
}
