//! A gateway in front of a host that applies transport mode on the host's behalf, the "bump in the wire" of RFC 4301
//! §3.3.

use std::time::Duration;

use base::{DropReason, Mib};
use packet::Packet;
use sim::{Flow, Medium, Node, World, esp, policy, unique_mask};
use wire::{FragOffset, Protocol, Version};
use xfrm::{Dir, Mode, SaConfig, SaDir};

use crate::common::*;
use crate::gateways::*;

const SECOND: Duration = Duration::from_secs(1);

const SENT: Option<SaDir> = Some(SaDir::Out);
const RECEIVED: Option<SaDir> = Some(SaDir::In);

/// The SA of the packets of `flow`.
fn sa(flow: &Flow, spi: u32, udp: bool, dir: Option<SaDir>) -> SaConfig {
    let sa = esp(&flow.src.to_string(), &flow.dst.to_string(), spi, Mode::Transport, udp);
    SaConfig { dir, replay_window: if dir == SENT { 0 } else { sa.replay_window }, ..sa }
}

/// Makes a gateway protect a host's packets of `flow` and decrypt the replies.
fn stand_before(node: &mut Node, flow: &Flow, spis: [u32; 2], udp: bool) {
    let (out, back) = (sa(flow, spis[0], udp, SENT), sa(&flow.reversed(), spis[1], udp, RECEIVED));
    let (host, peer) = (flow.src.to_string(), flow.dst.to_string());
    let ipsec = &mut node.datapath.ipsec;
    for sa in [&out, &back] {
        ipsec.add_sa(sa, unique_mask()).unwrap();
    }
    ipsec.add_policy(policy(Dir::Out, &host, &peer, &[out])).unwrap();
    ipsec.add_policy(policy(Dir::Fwd, &peer, &host, &[back])).unwrap();
}

/// Two hosts, each behind a gateway that does transport mode for it.
fn bumps(flow: &Flow, udp: bool) -> World {
    let mut world = gateways(Medium::Cable, 1);
    stand_before(&mut world.nodes[0], flow, [0x2000, 0x2001], udp);
    stand_before(&mut world.nodes[1], &flow.reversed(), [0x2001, 0x2000], udp);
    world
}

fn stats(node: &Node, spi: u32) -> ipsec::SaStats {
    node.datapath.ipsec.sad().iter().find(|sa| sa.spi().0 == spi).unwrap().stats()
}

#[test]
fn fat_tcp_of_hosts_is_protected_both_ways() {
    for udp in [false, true] {
        for flow in flows() {
            let mut world = bumps(&flow, udp);
            let ways = [flow, flow.reversed()];
            let inner_mtu = overhead(&sa(&flow, 0x2000, udp, SENT)).inner_mtu(1500);
            let mss = inner_mtu - flow.tcp_headers();
            let len = 40 * mss;
            for (from, flow) in ways.iter().enumerate() {
                let pkt = flow.fat_tcp(&world.hosts[from].mem, 0, len, mss as u16);
                world.hosts[from].send(pkt);
            }
            world.run(SECOND);
            for (from, flow) in ways.iter().enumerate() {
                let mut received = Received::default();
                for pkt in &world.hosts[1 - from].take() {
                    received.take(flow, pkt);
                    // The hosts' own headers, which two routers have seen.
                    assert_eq!(info(pkt).ttl, 62, "udp {udp}, {flow:?}");
                }
                assert_eq!(received.bytes, len, "udp {udp}, {flow:?}");
                let node = &world.nodes[from];
                assert_eq!(node.drops(), [], "udp {udp}, {flow:?}");
                let [near, far] = [0x2000 + from as u32, 0x2001 - from as u32].map(|spi| stats(node, spi).packets);
                assert_eq!((near, far), (40, 40), "udp {udp}, {flow:?}");
            }
            assert_eq!(world.stats[WIRE].frames, 80, "nothing went in clear: udp {udp}, {flow:?}");
        }
    }
}

#[test]
fn pings_are_answered_by_the_host_and_not_by_its_gateway() {
    for flow in flows() {
        let mut world = bumps(&flow, false);
        for len in [0, 1, 56, 1400] {
            world.hosts[0].send_bytes(&flow.ping(7, len));
            world.run(SECOND);
            let got = parse_icmp(&only(world.hosts[1].take()));
            assert_eq!((got.src, got.quote.len()), (flow.src.to_string(), len));
        }
        assert!(world.hosts[0].take().is_empty());
        assert_eq!((world.nodes[0].drops(), world.nodes[1].drops()), (vec![], vec![]));
    }
}

#[test]
fn clear_packet_to_the_host_is_dropped() {
    for flow in flows() {
        let mut world = bumps(&flow, false);
        world.nodes[1].rx_bytes(NOW, OUTSIDE, &flow.udp(100));
        assert!(world.nodes[1].tx(INSIDE).is_empty());
        assert_eq!(world.nodes[1].drops(), [(2, DropReason::PolicyMismatch, 1)]);
        assert_eq!(world.nodes[1].datapath.counters.get(Mib::XfrmInTmplMismatch), 1);
    }
}

/// Packets on the wire of the first host's gateway for one datagram.
fn sealed(flow: &Flow, udp: bool) -> Packet {
    let mut world = bumps(flow, udp);
    world.nodes[0].rx_bytes(NOW, INSIDE, &flow.udp(100));
    only(world.nodes[0].tx(OUTSIDE))
}

#[test]
fn own_esp_that_comes_back_is_not_opened() {
    for (udp, dir) in [false, true].into_iter().flat_map(|udp| [(udp, SENT), (udp, None)]) {
        for flow in flows() {
            let sent = sealed(&flow, udp).to_vec();
            let mut world = gateways(Medium::Cable, 1);
            let node = &mut world.nodes[0];
            let out = sa(&flow, 0x2000, udp, dir);
            node.datapath.ipsec.add_sa(&out, unique_mask()).unwrap();
            node.rx_bytes(NOW, OUTSIDE, &sent);
            let got = only(node.tx(OUTSIDE));
            let protocol = if udp { Protocol::UDP } else { Protocol::ESP };
            assert_eq!((info(&got).protocol, got.len()), (protocol, sent.len()), "{dir:?}, {flow:?}");
            assert!(got.to_vec().ends_with(&sent[sent.len() - 100..]), "as it was: {dir:?}, {flow:?}");
            assert_eq!(stats(node, 0x2000), ipsec::SaStats::default(), "{dir:?}, {flow:?}");
            assert_eq!(node.drops(), [], "{dir:?}, {flow:?}");
        }
    }
}

#[test]
fn an_sa_without_a_direction_opens_for_the_node_alone() {
    for dir in [None, RECEIVED] {
        for flow in flows() {
            let sent = sealed(&flow, false);
            let mut world = gateways(Medium::Cable, 1);
            let node = &mut world.nodes[1];
            node.datapath.ipsec.add_sa(&sa(&flow, 0x2000, false, dir), unique_mask()).unwrap();
            node.rx_bytes(NOW, OUTSIDE, &sent.to_vec());
            let got = info(&only(node.tx(INSIDE))).protocol;
            let want = if dir == RECEIVED { Protocol::UDP } else { Protocol::ESP };
            assert_eq!(got, want, "{flow:?}");
        }
    }
}

#[test]
fn esp_of_other_sas_and_its_fragments_are_left_alone() {
    for flow in flows() {
        let sent = sealed(&flow, false).to_vec();
        let node = || {
            let mut world = gateways(Medium::Cable, 1);
            let received = sa(&flow, 0x2000, false, RECEIVED);
            world.nodes[1].datapath.ipsec.add_sa(&received, unique_mask()).unwrap();
            world.nodes.remove(1)
        };
        let spi_at = flow.version().header_len();
        let mut other = sent.clone();
        other[spi_at + 3] ^= 1;
        let mut cut_short = sent[..spi_at + 3].to_vec();
        match flow.version() {
            Version::V4 => cut_short = edit_v4(&cut_short, |ip| ip.set_total_len((spi_at + 3) as u16)),
            Version::V6 => cut_short[4..6].copy_from_slice(&3_u16.to_be_bytes()),
        }
        for bytes in [other, cut_short] {
            let mut node = node();
            node.rx_bytes(NOW, OUTSIDE, &bytes);
            let got = only(node.tx(INSIDE));
            assert_eq!((got.len(), info(&got).protocol), (bytes.len(), Protocol::ESP), "{flow:?}");
            assert_eq!(stats(&node, 0x2000), ipsec::SaStats::default());
        }
        if flow.version() == Version::V4 {
            let first = edit_v4(&sent, |ip| {
                ip.set_dont_fragment(false);
                ip.set_fragment(FragOffset::ZERO, true);
            });
            let mut node = node();
            node.rx_bytes(NOW, OUTSIDE, &first);
            let got = only(node.tx(INSIDE));
            assert_eq!((info(&got).fragment.is_some(), info(&got).protocol), (true, Protocol::ESP));
            assert_eq!(stats(&node, 0x2000), ipsec::SaStats::default());
        }
    }
}
