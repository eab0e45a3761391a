//! Node with every kind of configuration, as a list of operations: arbitrary packets into its ports, linear or in
//! fragments, with metadata that may be wrong; time; links that go down, come up, lose an offload or send queued
//! packets. After each operation every received packet is accounted for, and the link can send each sent packet; at the
//! end all memory has been returned.

use std::time::Duration;

use base::Instant;
use offload::Features;
use packet::{Buf, Csum, Cut, Gso, GsoKind, Memory, Packet};
use sim::{Choices, Flow, FullNode};
use wire::{EtherType, MacAddr, Protocol, eth};

const ADDRESSES: [&str; 8] =
    ["10.1.0.1", "10.2.0.254", "10.2.0.1", "10.5.0.1", "192.0.2.1", "192.0.2.2", "10.8.0.1", "255.255.255.255"];
const ADDRESSES_V6: [&str; 8] =
    ["fd00:1::1", "fd00:2::254", "fd00:2::1", "fd00:5::1", "2001:db8::1", "2001:db8::2", "fe80::1", "ff02::1"];

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut input = Choices::new(input);
    let mut full_node = FullNode::new();
    for _ in 0..256 {
        if input.is_over() {
            break;
        }
        let op = input.byte();
        let at = usize::from(op & 3);
        let port = FullNode::PORTS[at];
        match op >> 2 {
            0 => full_node.pass(Duration::from_millis(20 * u64::from(input.byte()))),
            1 => full_node.set_up(port, input.byte() & 1 == 0),
            2 => {
                full_node.send(port);
            }
            3 => full_node.node.datapath.refit(Instant::ZERO, &full_node.node.mem, port, Features::NONE),
            _ => {
                let pkt = packet(&mut input, &full_node.node.mem, at);
                full_node.rx(port, pkt);
            }
        }
    }
    full_node.finish();
}

/// A packet: arbitrary bytes, with or without a valid header of the fuzzer's choice.
pub(crate) fn packet(input: &mut Choices<'_>, mem: &Memory, port: usize) -> Packet {
    let form = input.byte();
    let len = usize::from(input.word() % 2048);
    let mut bytes = if form & 3 == 0 {
        input.bytes(len).to_vec()
    } else {
        let family = if form & 1 == 0 { &ADDRESSES } else { &ADDRESSES_V6 };
        let ends = input.byte();
        let mut flow = Flow::new(family[usize::from(ends & 7)], family[usize::from(ends >> 4 & 7)]);
        flow.dont_fragment = form & 4 == 0;
        flow.ttl = if ends & 8 == 0 { 64 } else { 255 };
        let protocol =
            [Protocol::ESP, Protocol::UDP, Protocol::TCP, Protocol(input.byte())][usize::from(form >> 3 & 3)];
        flow.raw(protocol, input.bytes(len))
    };
    if port & 1 == 1 && form & 3 != 3 {
        let ethertype =
            if bytes.first().is_some_and(|first| first >> 4 == 6) { EtherType::IPV6 } else { EtherType::IPV4 };
        let to = MacAddr([2, 0, 0, 0, 0, if port == 1 { 2 } else { 4 }]);
        bytes = [eth::EthHeader::new(to, MacAddr([2, 0, 0, 0, 0, 9]), ethertype).as_bytes(), &bytes].concat();
    }
    let cut = usize::from(input.byte()).min(bytes.len());
    let mut pkt = match form >> 5 {
        1 => Packet::from_buf(Buf::foreign(bytes)),
        2 | 3 => {
            let mut pkt = Packet::with_data(mem, &bytes[..cut]).expect("memory");
            let mut rest = mem.take(0, bytes.len() - cut).expect("memory");
            rest.put(bytes.len() - cut).expect("room").copy_from_slice(&bytes[cut..]);
            if form >> 5 == 2 {
                pkt.push_frag(rest).expect("a free slot");
            } else {
                pkt.push_child(Packet::from_buf(rest));
            }
            pkt
        }
        _ => Packet::with_data(mem, &bytes).expect("memory"),
    };
    let marks = input.byte();
    if marks & 1 != 0 {
        pkt.meta.csum = Csum::Partial { start: u16::from(input.byte()), offset: u16::from(input.byte()) };
    }
    if marks & 2 != 0 {
        let kind = [GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp][usize::from(marks >> 2) % 3];
        let (size, segs) = (input.word().max(1), u16::from(input.byte()));
        pkt.meta.cut = Cut::Gso(Gso { size, kind, segs, ecn: marks & 64 != 0, fixed_id: marks & 128 != 0 });
    }
    pkt
}
