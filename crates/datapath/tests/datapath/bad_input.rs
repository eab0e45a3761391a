//! Malformed and invalid ESP: each fault has its counter, advances no window unless the packet is authentic, and does not affect other
//! packets.

use base::{Counters, DropReason, Mib};
use ipsec::SaStats;
use ipsec::engine::Cipher;
use packet::Packet;
use sim::{Flow, Node, unique_mask};
use wire::{Protocol, Spi, esp, udp};
use xfrm::{EspInUdp, Lifetime, Limits, SaConfig, SaDir};

use crate::common::*;
use crate::gateways::*;

/// The highest number that the SA under test has seen.
const TOP: u32 = 5000;

/// Other SAs of the receiver: an output SA, one with the other encapsulation, one that expires.
const TO_SEND: u32 = 0x2222;
const OTHER_ENCAP: u32 = 0x2223;
const ENDING: u32 = 0x2224;

/// A bad packet, with its drop reason and counters.
struct Bad {
    what: &'static str,
    packet: Vec<u8>,
    reason: DropReason,
    mib: Mib,
    /// Change of the SA's counters.
    stats: fn(&mut SaStats),
}

/// An authentic ESP packet of that SA with the given plaintext.
fn authentic(sa: &SaConfig, seq: u32, text: &[u8]) -> Vec<u8> {
    let cipher = Cipher::new(&sa.algorithm).unwrap();
    let header = esp::EspHeader::new(sa.spi, seq);
    let mut packet = [header.as_bytes(), &vec![0; cipher.iv_len()], text, &vec![0; cipher.icv_len()]].concat();
    cipher.seal(&mut packet, u64::from(seq).to_be_bytes(), None);
    packet
}

/// The text of a good packet: a datagram that goes on to the host behind the gateway.
fn good_text(next_header: Protocol) -> Vec<u8> {
    let [flow, _] = flows();
    let mut text = flow.udp(101);
    let at = text.len();
    text.resize(at + esp::trailer_len(at, 4), 0);
    esp::write_trailer(&mut text[at..], next_header);
    text
}

/// Outer headers in front of it.
fn wrap(sa: &SaConfig, udp: bool, esp: &[u8]) -> Vec<u8> {
    let flow = Flow::new(&sa.src.to_string(), &sa.dst.to_string());
    if !udp {
        return flow.raw(Protocol::ESP, esp);
    }
    let header = udp::UdpHeader::new(4500, 4500, (udp::UdpHeader::LEN + esp.len()) as u16);
    flow.raw(Protocol::UDP, &[header.as_bytes(), esp].concat())
}

fn with_spi(sa: &SaConfig, spi: u32) -> SaConfig {
    SaConfig { spi: Spi(spi), ..sa.clone() }
}

/// Every fault.
fn cases(sa: &SaConfig, udp: bool) -> Vec<Bad> {
    let nothing: fn(&mut SaStats) = |_| ();
    let failed: fn(&mut SaStats) = |stats| stats.failed += 1;
    let good = |seq| authentic(sa, seq, &good_text(Protocol::IPIP));
    let changed = |at: usize, bits: u8| {
        let mut packet = good(TOP + 1);
        packet[at] ^= bits;
        packet
    };
    let (len, proto) = (good(1).len(), Mib::XfrmInStateProtoError);
    let mut far_ahead = good(TOP + 1);
    far_ahead[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut cases = vec![
        ("forged: the ICV", changed(len - 1, 1), DropReason::EspIcv, proto, failed),
        ("forged: the payload", changed(40, 0x80), DropReason::EspIcv, proto, failed),
        ("forged: the initialisation vector", changed(8, 1), DropReason::EspIcv, proto, failed),
        ("forged: the sequence number", changed(7, 8), DropReason::EspIcv, proto, failed),
        ("forged: a number far ahead", far_ahead, DropReason::EspIcv, proto, failed),
        ("replayed", good(TOP), DropReason::EspReplay, Mib::XfrmInStateSeqError, |stats| stats.replay += 1),
        (
            "left of the window",
            good(TOP - sa.replay_window),
            DropReason::EspReplay,
            Mib::XfrmInStateSeqError,
            |stats| {
                stats.replay_window += 1;
            },
        ),
        ("number zero", good(0), DropReason::EspReplay, Mib::XfrmInStateSeqError, nothing),
        ("another SPI", changed(3, 0x40), DropReason::EspNoState, Mib::XfrmInNoStates, nothing),
        ("one byte short", good(TOP + 1)[..len - 1].to_vec(), DropReason::EspIcv, proto, failed),
        ("without room for a trailer", good(TOP + 1)[..33].to_vec(), DropReason::EspTruncated, proto, nothing),
        ("a header and a byte", good(TOP + 1)[..9].to_vec(), DropReason::EspTruncated, proto, nothing),
        ("no payload", authentic(sa, TOP + 1, &[1, 2, 2, 4]), DropReason::EspFormat, proto, nothing),
        ("more padding than there is", authentic(sa, TOP + 1, &[9, 9, 3, 4]), DropReason::EspFormat, proto, nothing),
        ("padding of 255", authentic(sa, TOP + 1, &[0x45, 0, 255, 4]), DropReason::EspFormat, proto, nothing),
        ("a dummy", authentic(sa, TOP + 1, &[0, 0, 0, 0, 1, 2, 2, 59]), DropReason::EspDummy, proto, nothing),
        (
            "to send by",
            authentic(&with_spi(sa, TO_SEND), 1, &good_text(Protocol::IPIP)),
            DropReason::EspDirection,
            Mib::XfrmInStateDirError,
            nothing,
        ),
        (
            "of the other encapsulation",
            authentic(&with_spi(sa, OTHER_ENCAP), 1, &good_text(Protocol::IPIP)),
            DropReason::EspMismatch,
            Mib::XfrmInStateMismatch,
            nothing,
        ),
    ];
    if !udp {
        // In UDP a datagram as short as this is not ESP.
        let (short, why) = (good(TOP + 1)[..7].to_vec(), DropReason::EspTruncated);
        cases.push(("less than a header", short, why, Mib::XfrmInHdrError, nothing));
    }
    let bad = |(what, esp, reason, mib, stats): (_, Vec<u8>, _, _, _)| Bad {
        what,
        packet: wrap(sa, udp, &esp),
        reason,
        mib,
        stats,
    };
    cases.into_iter().map(bad).collect()
}

/// The receiving gateway, which has seen number [`TOP`].
fn receiver(tunnel: Tunnel) -> (Node, SaConfig) {
    let mut world = tunnelled(tunnel, 1);
    let mut node = world.nodes.remove(1);
    let sa = tunnel.sas(0).remove(0);
    let other = EspInUdp { sport: 4500, dport: 4500 };
    let ending = Lifetime { hard: Limits { packets: 1, ..Limits::NONE }, ..Lifetime::default() };
    for extra in [
        SaConfig { dir: Some(SaDir::Out), replay_window: 0, ..with_spi(&sa, TO_SEND) },
        SaConfig { encap: if tunnel.udp { None } else { Some(other) }, ..with_spi(&sa, OTHER_ENCAP) },
        SaConfig { lifetime: ending, ..with_spi(&sa, ENDING) },
    ] {
        node.datapath.ipsec.add_sa(&extra, unique_mask()).unwrap();
    }
    let first = authentic(&sa, TOP, &good_text(Protocol::IPIP));
    node.rx_bytes(NOW, OUTSIDE, &wrap(&sa, tunnel.udp, &first));
    only(node.tx(INSIDE));
    (node, sa)
}

/// Counters and replay window of the SA under test.
fn state(node: &Node, sa: &SaConfig) -> (SaStats, u64, Vec<u64>) {
    let ipsec = &node.datapath.ipsec;
    let sa = ipsec.sad().by_spi(sa.dst, sa.spi, 0).and_then(|id| ipsec.sa(id)).unwrap();
    (sa.stats(), sa.replay().top(), sa.replay().seen().collect())
}

/// Counters that have moved since `before`.
fn moved(node: &Node, before: &Counters) -> Vec<(Mib, u64)> {
    let since = |(mib, value): (Mib, u64)| (mib, value - before.get(mib));
    node.datapath.counters.iter().map(since).filter(|&(_, n)| n > 0).collect()
}

fn received(tunnel: Tunnel) -> [Mib; 2] {
    match tunnel.v6 {
        false => [Mib::IpInReceives, Mib::IpInDelivers],
        true => [Mib::Ip6InReceives, Mib::Ip6InDelivers],
    }
}

#[test]
fn bad_esp_of_each_kind_is_counted_and_moves_no_window() {
    for tunnel in TUNNELS {
        let [receives, delivers] = received(tunnel);
        let (_, sa) = receiver(tunnel);
        for Bad { what, packet, reason, mib, stats } in cases(&sa, tunnel.udp) {
            let told = format!("{what}, {tunnel:?}");
            let (mut node, _) = receiver(tunnel);
            let (counters, mut want) = (node.datapath.counters.clone(), state(&node, &sa));
            node.rx_bytes(NOW, OUTSIDE, &packet);
            assert_eq!(node.drops(), [(2, reason, 1)], "{told}");
            assert_eq!(moved(&node, &counters), [(receives, 1), (delivers, 1), (mib, 1)], "{told}");
            assert_eq!((node.tx(INSIDE).len(), node.tx(OUTSIDE).len()), (0, 0), "{told}");
            stats(&mut want.0);
            assert_eq!(state(&node, &sa), want, "{told}");
            // Its sequence number is still valid.
            let next = authentic(&sa, TOP + 1, &good_text(Protocol::IPIP));
            node.rx_bytes(NOW, OUTSIDE, &wrap(&sa, tunnel.udp, &next));
            only(node.tx(INSIDE));
        }
    }
}

#[test]
fn bad_esp_in_a_burst_leaves_good_packets_alone() {
    for tunnel in TUNNELS {
        let (_, sa) = receiver(tunnel);
        let good = |seq| wrap(&sa, tunnel.udp, &authentic(&sa, seq, &good_text(Protocol::IPIP)));
        for Bad { what, packet, reason, .. } in cases(&sa, tunnel.udp) {
            let (mut node, _) = receiver(tunnel);
            let burst = [good(TOP + 2), packet, good(TOP + 3)];
            let burst = burst.map(|bytes| Packet::with_data(&node.mem, &bytes).unwrap());
            node.rx(NOW, OUTSIDE, burst.into());
            let got = node.tx(INSIDE);
            let segs: usize = got.iter().map(|pkt| pkt.meta.cut.gso().map_or(1, |gso| usize::from(gso.segs))).sum();
            assert_eq!((segs, node.drops()), (2, vec![(2, reason, 1)]), "{what}, {tunnel:?}");
        }
    }
}

#[test]
fn authentic_packet_outside_selector_moves_window_then_drops() {
    for tunnel in TUNNELS {
        let [receives, delivers] = received(tunnel);
        let (_, sa) = receiver(tunnel);
        for next_header in [Protocol::IPV6, Protocol::UDP, Protocol(0)] {
            let (mut node, _) = receiver(tunnel);
            let (counters, before) = (node.datapath.counters.clone(), state(&node, &sa));
            let esp = authentic(&sa, TOP + 1, &good_text(next_header));
            node.rx_bytes(NOW, OUTSIDE, &wrap(&sa, tunnel.udp, &esp));
            assert_eq!(node.drops(), [(2, DropReason::EspFormat, 1)], "{next_header} {tunnel:?}");
            assert_eq!(moved(&node, &counters), [(receives, 1), (delivers, 1), (Mib::XfrmInStateModeError, 1)]);
            let (stats, top, _) = state(&node, &sa);
            assert_eq!((stats.packets, top), (before.0.packets + 1, u64::from(TOP) + 1), "{next_header} {tunnel:?}");
        }
    }
}

#[test]
fn expired_sa_opens_nothing_and_counts_the_reason() {
    for tunnel in TUNNELS {
        let [receives, delivers] = received(tunnel);
        let (mut node, sa) = receiver(tunnel);
        let sa = with_spi(&sa, ENDING);
        let packet = |seq| wrap(&sa, tunnel.udp, &authentic(&sa, seq, &good_text(Protocol::IPIP)));
        node.rx_bytes(NOW, OUTSIDE, &packet(1));
        only(node.tx(INSIDE));
        let before = state(&node, &sa);
        let ends = [
            (Mib::XfrmInStateExpired, DropReason::EspExpired),
            // The SA is invalid from now on, until it is removed.
            (Mib::XfrmInStateInvalid, DropReason::EspState),
            (Mib::XfrmInStateInvalid, DropReason::EspState),
        ];
        for (at, (mib, reason)) in ends.into_iter().enumerate() {
            let (counters, drops) = (node.datapath.counters.clone(), node.drops());
            node.rx_bytes(NOW, OUTSIDE, &packet(2 + at as u32));
            assert_eq!(moved(&node, &counters), [(receives, 1), (delivers, 1), (mib, 1)], "{tunnel:?}");
            let dropped =
                |drops: &[(u32, DropReason, u64)]| drops.iter().find(|drop| drop.1 == reason).map_or(0, |drop| drop.2);
            assert_eq!(dropped(&node.drops()), dropped(&drops) + 1, "{tunnel:?}");
            assert_eq!(state(&node, &sa), before, "{tunnel:?}");
        }
        node.timeout(NOW);
        let counters = node.datapath.counters.clone();
        node.rx_bytes(NOW, OUTSIDE, &packet(9));
        assert_eq!(moved(&node, &counters), [(receives, 1), (delivers, 1), (Mib::XfrmInNoStates, 1)], "{tunnel:?}");
    }
}
