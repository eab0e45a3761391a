//! Authentic ESP with malformed contents.

use std::time::Duration;

use ipsec::engine::Cipher;
use packet::{Cut, Gso, GsoKind, Packet};
use wire::{Protocol, esp, udp};
use xfrm::{Mode, SaConfig};

use crate::{Choices, Flow, FullNode};

/// Addresses of inner flows, by family.
const HOSTS: [[&str; 6]; 2] = [
    ["10.5.0.1", "10.1.0.1", "10.2.0.254", "10.2.0.1", "192.0.2.1", "192.0.2.2"],
    ["fd00:5::1", "fd00:1::1", "fd00:2::254", "fd00:2::1", "2001:db8::1", "2001:db8::2"],
];

/// Sends ESP packets to a [`FullNode`] that are valid except for their plaintext: singly, in bursts and in trains.
///
/// # Panics
/// If a packet is not accounted for, a link gets a packet that it cannot send, or memory is leaked.
pub fn malformed_inner(choices: &mut Choices<'_>) {
    let mut full_node = FullNode::new();
    let sas = FullNode::sas();
    let ciphers: Vec<Cipher> = sas.iter().map(|sa| Cipher::new(&sa.algorithm).expect("a good key")).collect();
    let mut seq = 0;
    for _ in 0..64 {
        if choices.is_over() {
            break;
        }
        match choices.byte() % 16 {
            0 => full_node.pass(Duration::from_millis(100 * u64::from(choices.byte()))),
            1 => {
                full_node.send(FullNode::PORTS[usize::from(choices.byte() & 3)]);
            }
            op => {
                let which = usize::from(choices.byte()) % sas.len();
                let count = if op < 8 { 1 } else { 1 + choices.byte() % 6 };
                let text = text(choices, &sas[which], &ciphers[which]);
                let packets = (0..count).map(|_| {
                    seq += 1;
                    sealed(&sas[which], &ciphers[which], seq, &text)
                });
                let sealed: Vec<Vec<u8>> = packets.collect();
                if op >= 12 && sas[which].encap.is_some() {
                    let train = train(&full_node, &sas[which], &sealed);
                    full_node.rx_burst(FullNode::PORTS[2], vec![train]);
                } else {
                    let wrapped = sealed.iter().map(|esp| wrap(&sas[which], esp));
                    let burst = wrapped.map(|bytes| Packet::with_data(&full_node.node.mem, &bytes).expect("memory"));
                    let burst = burst.collect();
                    full_node.rx_burst(FullNode::PORTS[2], burst);
                }
            }
        }
    }
    full_node.finish();
}

/// Plaintext of a packet: an IP packet or its payload, possibly damaged, and a trailer, possibly wrong.
fn text(choices: &mut Choices<'_>, sa: &SaConfig, cipher: &Cipher) -> Vec<u8> {
    let form = choices.byte();
    let len = usize::from(choices.word() % 1400);
    let mut text = if form & 7 == 0 {
        choices.bytes(len).to_vec()
    } else {
        let family = usize::from(form >> 3 & 1);
        let (src, dst) = (choices.pick(&HOSTS[family]), choices.pick(&HOSTS[family]));
        let flow = Flow { ttl: choices.pick(&[64, 64, 1, 0]), ..Flow::new(src, dst) };
        let payload = choices.bytes(len);
        let mut packet = match form & 7 {
            1 => flow.tcp_with(u32::from(choices.byte()), payload),
            2 => flow.udp_with(payload),
            3 => flow.ping_with(7, payload),
            4 => flow.raw(Protocol::ESP, payload),
            5 => flow.raw(Protocol::TCP, payload),
            6 => flow.raw(Protocol::UDP, payload),
            _ => flow.raw(Protocol(choices.byte()), payload),
        };
        for _ in 0..choices.byte() & 3 {
            let at = usize::from(choices.byte()) % packet.len();
            packet[at] = choices.byte();
        }
        packet
    };
    let next = choices.pick(&[Protocol::IPIP, Protocol::IPV6, Protocol::UDP, Protocol::TCP, Protocol::ESP]);
    let next = match form >> 5 {
        0 => Protocol(choices.byte()),
        1 => next,
        _ if sa.mode == Mode::Transport => next,
        _ if text.first().is_some_and(|first| first >> 4 == 6) => Protocol::IPV6,
        _ => Protocol::IPIP,
    };
    // Traffic flow confidentiality (RFC 4303 §2.7).
    if form & 0x10 != 0 {
        text.resize(text.len() + usize::from(choices.byte()), 0);
    }
    let at = text.len();
    text.resize(at + esp::trailer_len(at, cipher.align()), 0);
    esp::write_trailer(&mut text[at..], next);
    if choices.once_in(8) {
        let pad_len = text.len() - 2;
        text[pad_len] = choices.byte();
    }
    text
}

/// An ESP packet with this plaintext.
fn sealed(sa: &SaConfig, cipher: &Cipher, seq: u32, text: &[u8]) -> Vec<u8> {
    let room = |n| vec![0; n];
    let header = esp::EspHeader::new(sa.spi, seq);
    let mut esp = [header.as_bytes(), &room(cipher.iv_len()), text, &room(cipher.icv_len())].concat();
    if !sa.algorithm.is_null() {
        cipher.seal(&mut esp, u64::from(seq).to_be_bytes(), None);
    }
    esp
}

/// Adds outer headers to ESP packets.
fn wrap(sa: &SaConfig, esp: &[u8]) -> Vec<u8> {
    let flow = Flow { src: sa.src, dst: sa.dst, ..Flow::new("192.0.2.1", "192.0.2.2") };
    let Some(encap) = sa.encap else { return flow.raw(Protocol::ESP, esp) };
    let header = udp::UdpHeader::new(encap.sport, encap.dport, (udp::UdpHeader::LEN + esp.len()) as u16);
    flow.raw(Protocol::UDP, &[header.as_bytes(), esp].concat())
}

/// A train of ESP packets in UDP, as received from a socket.
fn train(full_node: &FullNode, sa: &SaConfig, sealed: &[Vec<u8>]) -> Packet {
    let fits = 60_000 / sealed[0].len();
    let sealed = &sealed[..sealed.len().min(fits)];
    let mut pkt = Packet::with_data(&full_node.node.mem, &wrap(sa, &sealed.concat())).expect("memory");
    if sealed.len() > 1 {
        let (size, segs) = (sealed[0].len() as u16, sealed.len() as u16);
        pkt.meta.cut = Cut::Gso(Gso { size, kind: GsoKind::Udp, segs, ecn: false, fixed_id: false });
    }
    pkt
}
