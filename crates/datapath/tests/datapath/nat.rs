//! A gateway with a peer behind NAT: keepalives on time, and replies to the peer's present address.

use std::time::Duration;

use base::{DropReason, Instant, Mib};
use ipsec::Event;
use sim::{Flow, Node, PortOptions, esp, policy, unique_mask};
use wire::{Protocol, ipv4, ipv6, udp};
use xfrm::{Algorithm, Dir, EspInUdp, Mode, NatTraversal, SaConfig, SaDir};

use crate::common::*;
use crate::fragments::fragments;
use crate::host_side::{add_devices, up};

const ENDS: [[&str; 2]; 2] = [["10.2.0.254", "10.2.0.1"], ["fd00:2::254", "fd00:2::1"]];

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// An output SA with a keepalive every 20 s.
fn kept_alive(v6: bool) -> SaConfig {
    let [src, dst] = ENDS[usize::from(v6)];
    let nat = NatTraversal { keepalive_interval: 20, ..NatTraversal::default() };
    let encap = Some(EspInUdp { sport: 4500, dport: 61_000 });
    SaConfig { dir: Some(SaDir::Out), replay_window: 0, encap, nat, ..esp(src, dst, 7, Mode::Tunnel, true) }
}

#[test]
fn a_quiet_tunnel_is_kept_alive() {
    for v6 in [false, true] {
        let mut node = router();
        node.datapath.ipsec.add_sa(&kept_alive(v6), unique_mask()).unwrap();
        for seconds in [0, 20, 40] {
            assert!(node.datapath.poll_timeout().is_some_and(|due| due <= at(seconds)));
            node.timeout(at(seconds));
            let pkt = only(node.tx(OUTSIDE));
            let (bytes, info) = (pkt.to_vec(), info(&pkt));
            let [src, dst] = ENDS[usize::from(v6)];
            assert_eq!((info.src.to_string(), info.dst.to_string()), (src.to_owned(), dst.to_owned()));
            assert_eq!((info.protocol, info.payload(&bytes)[8..].to_vec()), (Protocol::UDP, vec![0xff]));
            let header = udp::UdpHeader::ref_from(info.payload(&bytes)).unwrap();
            assert_eq!((header.sport(), header.dport(), header.len()), (4500, 61_000, 9));
            assert_eq!(header.check() == 0, !v6, "none over IPv4 (RFC 3948 §2.3)");
            assert!(v6 || info.dont_fragment);
            assert!(offload::checksum::verify(&pkt, &info));
        }
        let sent = if v6 { Mib::Ip6OutRequests } else { Mib::IpOutRequests };
        assert_eq!(
            (node.datapath.counters.clone(), node.datapath.poll_timeout()),
            (counters([(sent, 3)]), Some(at(60)))
        );
        // Policies do not apply to a keepalive, and no page is left in use.
        node.datapath.ipsec.set_default_policy(Dir::Out, xfrm::Action::Block);
        node.timeout(at(60));
        assert_eq!(node.tx(OUTSIDE).len(), 1);
        assert_eq!((node.drops(), node.pages_in_use()), (vec![], 0));
    }
}

#[test]
fn unsendable_keepalive_is_counted() {
    let mut node = Node::new();
    node.datapath.ipsec.add_sa(&kept_alive(false), unique_mask()).unwrap();
    node.timeout(at(0));
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1)]);
    node.port(OUTSIDE.0, PortOptions::BARE, &["10.2.0.254/24"]);
    node.datapath.set_up(at(1), &node.mem, OUTSIDE, false);
    node.timeout(at(20));
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1), (0, DropReason::LinkDown, 1)]);
}

#[test]
fn reply_of_a_guest_follows_its_peer_behind_nat() {
    let [here, there] = ENDS[0];
    let follow = NatTraversal { follow: true, ..NatTraversal::default() };
    let inward = SaConfig { reqid: 1, nat: follow, ..esp(there, here, 1, Mode::Tunnel, true) };
    let outward = SaConfig { reqid: 1, ..esp(here, there, 2, Mode::Tunnel, true) };
    let (mut node, mut peer) = (router(), Node::new());
    node.route("0.0.0.0/0", Some("10.2.0.9"), OUTSIDE);
    node.datapath.ipsec.set_listener(true);
    peer.port(INSIDE.0, PortOptions::BARE, &["10.3.0.254/24"]);
    peer.port(OUTSIDE.0, PortOptions::BARE, &["10.2.0.1/24"]);
    peer.route("10.1.0.0/16", Some(here), OUTSIDE);
    for (node, out, fwd) in [(&mut node, &outward, &inward), (&mut peer, &inward, &outward)] {
        let nets = if out.spi.0 == 2 { ["10.1.0.0/16", "10.3.0.0/16"] } else { ["10.3.0.0/16", "10.1.0.0/16"] };
        for sa in [&inward, &outward] {
            node.datapath.ipsec.add_sa(sa, unique_mask()).unwrap();
        }
        node.datapath.ipsec.add_policy(policy(Dir::Out, nets[0], nets[1], std::slice::from_ref(out))).unwrap();
        node.datapath.ipsec.add_policy(policy(Dir::Fwd, nets[1], nets[0], std::slice::from_ref(fwd))).unwrap();
    }
    let flow = Flow::new("10.3.0.1", "10.1.0.1");
    for (from, port) in [("10.2.0.1", 4500), ("198.51.100.7", 61_000), ("203.0.113.8", 4500)] {
        peer.rx_bytes(NOW, INSIDE, &flow.udp(100));
        let mut bytes = edit_v4(&only(peer.tx(OUTSIDE)).to_vec(), |header| header.set_src(from.parse().unwrap()));
        bytes[ipv4::Ipv4Header::LEN..][..2].copy_from_slice(&u16::to_be_bytes(port));
        node.rx_bytes(NOW, OUTSIDE, &bytes);
        assert_eq!(node.tx(INSIDE).len(), 1);
        node.rx_bytes(NOW, INSIDE, &flow.reversed().udp(100));
        let answer = only(node.tx(OUTSIDE)).to_vec();
        let info = info_of(&answer);
        let dport = udp::UdpHeader::ref_from(info.payload(&answer)).unwrap().dport();
        assert_eq!((info.dst.to_string(), dport), (from.to_owned(), port));
    }
    let events: Vec<_> = node.datapath.ipsec.take_events().collect();
    assert!(matches!(events[..], [Event::Mapping(_), Event::Mapping(_)]), "{events:?}");
    assert_eq!(node.drops(), []);
}

#[test]
fn fragments_inside_esp_behind_nat_have_a_right_checksum() {
    for same_sa in [true, false] {
        let mut node = router();
        add_devices(&mut node);
        for spi in [7, 8] {
            let sa =
                SaConfig { algorithm: Algorithm::null(), ..esp(ENDS[1][1], ENDS[1][0], spi, Mode::Transport, true) };
            node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
        }
        // The sender knows itself by another address than the NAT shows.
        let whole = Flow::new("fd00:9::9", ENDS[1][0]).udp(3000);
        let shown = Flow { sport: 4500, dport: 4500, ..Flow::new(ENDS[1][1], ENDS[1][0]) };
        for (at, fragment) in fragments(&node.mem, &whole, 1400).iter().enumerate() {
            let spi = if same_sa { 7 } else { 7 + at as u8 % 2 };
            let mut esp = vec![0, 0, 0, spi, 0, 0, 0, 1 + at as u8];
            esp.extend_from_slice(&fragment.to_vec()[ipv6::Ipv6Header::LEN..]);
            let padding = (2 + 4 - esp.len() % 4) % 4;
            esp.extend((1..=padding).map(|byte| byte as u8));
            esp.extend([padding as u8, Protocol::FRAGMENT.0]);
            node.rx_bytes(NOW, OUTSIDE, &shown.udp_with(&esp));
        }
        let got = up(&mut node, OUTSIDE);
        assert_eq!((got.len(), node.drops()), (usize::from(same_sa), vec![]));
        if let [got] = &got[..] {
            let bytes = got.to_vec();
            assert_eq!(bytes[48..], whole[48..]);
            let unverified = packet::Packet::with_data(&node.mem, &bytes).unwrap();
            assert!(offload::checksum::verify(&unverified, &info_of(&bytes)));
        }
    }
}
