//! Routes with an ILA encapsulation: destinations are translated on output, or on input.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::{DropReason, Mib};
use datapath::{HookPoint, Step, TraceFilter};
use fib::{IlaRoute, RouteKind};
use ila::{AdjTransport, CsumMode, HookType, IdentType, Locator, RouteEncap};
use packet::{Cut, Packet};
use sim::{AddAddress as _, Flow, Node, PortOptions, esp, policy, unique_mask};
use wire::{icmpv6, ipv6};
use xfrm::{Dir, Mode};

use crate::common::*;
use crate::host_side::{add_devices, down, down_bytes, up};
use crate::ila::with_hop_limit;

/// Prefix of the addresses that applications use, and locator of the network behind [`OUTSIDE`].
const SIR: Locator = Locator(0x3333_0000_0000_0001);
const PLACE: Locator = Locator(0xfd00_0002_0000_0000);

/// SIR address of a node.
const NODE: &str = "3333:0:0:1:2000:0:0:7";

/// Prefix of SIR addresses that are locally unique.
const NODES: &str = "3333:0:0:1:2000::/67";

fn flow() -> Flow {
    Flow::new("fd00:1::1", NODE)
}

fn encap(locator: Locator, csum_mode: CsumMode, hook_type: HookType) -> RouteEncap {
    RouteEncap { locator, csum_mode, ident_type: IdentType::UseFormat, hook_type }
}

fn by_outside(encap: RouteEncap, via: Option<&str>) -> RouteKind {
    let via = via.map(|via| via.parse().unwrap());
    RouteKind::Ila { encap, to: IlaRoute::Unicast { via, dev: OUTSIDE } }
}

/// A router that translates to [`PLACE`] what it sends to [`NODES`].
fn translator(csum_mode: CsumMode) -> Node {
    let mut node = router();
    node.route_of(NODES, by_outside(encap(PLACE, csum_mode, HookType::Output), None));
    node
}

/// The packet, whole, with another destination locator.
fn translated(node: &Node, bytes: &[u8], by: RouteEncap) -> Vec<u8> {
    let mut pkt = Packet::with_data(&node.mem, bytes).unwrap();
    by.rewrite().packet(&node.mem, &mut pkt, &info_of(bytes), by.direction(), AdjTransport::Linux).unwrap();
    pkt.to_vec()
}

fn dst_of(bytes: &[u8]) -> Ipv6Addr {
    ipv6::Ipv6Header::ref_from(bytes).unwrap().dst()
}

#[test]
fn forwarded_packet_leaves_with_ila_address() {
    for csum_mode in CsumMode::ALL {
        for via in [None, Some("fd00:2::9")] {
            let by = encap(PLACE, csum_mode, HookType::Output);
            let mut node = router();
            node.route_of(NODES, by_outside(by, via));
            for sent in [flow().udp(100), flow().tcp(5, 300), flow().ping(1, 40)] {
                node.rx_bytes(NOW, INSIDE, &sent);
                let want = translated(&node, &with_hop_limit(&sent, 63), by);
                assert_eq!(only(node.tx(OUTSIDE)).to_vec(), want, "{csum_mode:?} {via:?}");
            }
            assert_eq!((node.datapath.ila_translated(), node.drops()), (3, vec![]));
        }
    }
}

#[test]
fn next_hop_is_gateway_or_that_of_new_address() {
    let by = encap(PLACE, CsumMode::NeutralMap, HookType::Output);
    for (via, behind, next_hop) in [
        (Some("fd00:2::9"), None, "fd00:2::9"),
        (None, None, "translated"),
        // A route to the new address leads on.
        (None, Some("fd00:2::8"), "fd00:2::8"),
    ] {
        let mut node = router();
        node.route_of(NODES, by_outside(by, via));
        if behind.is_some() {
            node.route("fd00:2:0:0:3000::/68", behind, OUTSIDE);
        }
        node.datapath.set_trace(Some(TraceFilter::default()), 1);
        node.rx_bytes(NOW, INSIDE, &flow().udp(100));
        let sent = only(node.tx(OUTSIDE)).to_vec();
        let IpAddr::V6(original) = flow().dst else { panic!() };
        assert_eq!(dst_of(&sent), by.address(original));
        let next_hop = next_hop.parse().unwrap_or(IpAddr::V6(dst_of(&sent)));
        let steps: Vec<Step> = node.datapath.take_trace().map(|step| step.step).collect();
        let want = [
            Step::Forward { dev: OUTSIDE, next_hop },
            Step::Hook { point: HookPoint::Forward, dev: OUTSIDE },
            Step::Output { dev: OUTSIDE },
            Step::Hook { point: HookPoint::PostRouting, dev: OUTSIDE },
            Step::Ila { from: original },
            Step::Transmit { dev: OUTSIDE, next_hop },
        ];
        assert!(steps.windows(want.len()).any(|steps| steps == want), "{via:?} {behind:?}: {steps:?}");
    }
}

#[test]
fn fat_packet_is_translated_once_and_cuts_right() {
    for csum_mode in CsumMode::ALL {
        let by = encap(PLACE, csum_mode, HookType::Output);
        let mut node = translator(csum_mode);
        let segments: Vec<Vec<u8>> = (0..10).map(|nth| flow().tcp(nth * 1000, 1000)).collect();
        let burst = segments.iter().map(|bytes| Packet::with_data(&node.mem, bytes).unwrap()).collect();
        node.rx(NOW, INSIDE, burst);
        let fat = only(node.tx(OUTSIDE));
        assert_eq!((fat.meta.cut.segs(), node.datapath.ila_translated()), (10, 1));
        let mut cut = Vec::new();
        offload::gso::segment(&node.mem, &offload::Features::BY_REFERENCE, fat, 0, &mut cut).unwrap();
        for (segment, sent) in cut.iter_mut().zip(&segments) {
            offload::checksum::complete(&node.mem, segment, 0).unwrap();
            assert_eq!(segment.to_vec(), translated(&node, &with_hop_limit(sent, 63), by), "{csum_mode:?}");
        }
    }
}

#[test]
fn long_datagram_of_socket_is_translated_before_it_is_cut() {
    for csum_mode in CsumMode::ALL {
        let by = encap(PLACE, csum_mode, HookType::Output);
        let mut node = translator(csum_mode);
        add_devices(&mut node);
        let sent = Flow::new("fd00:2::254", NODE).udp(5000);
        down_bytes(&mut node, OUTSIDE, &sent);
        let pieces = node.tx(OUTSIDE);
        assert!(pieces.len() > 3);
        // The checksum of fragments is not adjusted.
        let by = match csum_mode {
            CsumMode::AdjTransport => encap(PLACE, CsumMode::NoAction, HookType::Output),
            _ => by,
        };
        let want = translated(&node, &sent, by);
        // One datagram: the checksum of its first fragment is that of the whole.
        let mut far = Node::new();
        far.port(INSIDE.0, PortOptions::BARE, &["fd00:9::1/64"]);
        far.port(OUTSIDE.0, PortOptions::BARE, &[&format!("{}/64", dst_of(&want))]);
        add_devices(&mut far);
        far.rx(NOW, OUTSIDE, pieces.iter().map(|pkt| Packet::with_data(&far.mem, &pkt.to_vec()).unwrap()).collect());
        let got = only(up(&mut far, OUTSIDE)).to_vec();
        assert!(got[40..] == want[40..] && dst_of(&got) == dst_of(&want), "{csum_mode:?}");
        assert_eq!(node.datapath.ila_translated(), 1);
    }
}

#[test]
fn no_route_to_new_address_is_unreachable_host() {
    let nowhere = encap(Locator(0x2001_0db8 << 32), CsumMode::NoAction, HookType::Output);
    let again = encap(SIR, CsumMode::NoAction, HookType::Output);
    // No route; a route by another link; an error route; a route that translates as well, the same or another.
    let cases: [(RouteEncap, Option<RouteKind>); 5] = [
        (nowhere, None),
        (nowhere, Some(RouteKind::Unicast { via: None, dev: INSIDE })),
        (nowhere, Some(RouteKind::Unreachable)),
        (again, None),
        (nowhere, Some(by_outside(encap(PLACE, CsumMode::NoAction, HookType::Output), None))),
    ];
    for (by, other) in cases {
        let mut node = router();
        node.route_of(NODES, by_outside(by, None));
        if let Some(kind) = other {
            node.route_of("2001:db8::/32", kind);
        }
        node.rx_bytes(NOW, INSIDE, &flow().udp(100));
        assert_eq!(node.drops(), [(INSIDE.0, DropReason::IlaUnreachable, 1)]);
        let error = parse_icmp(&only(node.tx(INSIDE)));
        assert_eq!(error.message, Message::V6(icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::ADDRESS)));
        assert_eq!(dst_of(&error.quote), dst_of(&flow().udp(0)), "the sender used the SIR address");
        // A socket gets the error as well: EHOSTUNREACH.
        add_devices(&mut node);
        down_bytes(&mut node, OUTSIDE, &Flow::new("fd00:2::254", NODE).udp(9));
        let error = parse_icmp(&only(up(&mut node, OUTSIDE)));
        assert_eq!(error.message, Message::V6(icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::ADDRESS)));
        assert_eq!((node.tx(OUTSIDE).len(), node.datapath.ila_translated()), (0, 0));
    }
}

/// A router that translates to [`SIR`] what it receives for [`PLACE`].
fn receiver(to: IlaRoute, csum_mode: CsumMode) -> Node {
    let mut node = router();
    let by = encap(SIR, csum_mode, HookType::Input);
    node.route_of("fd00:2:0:0:2000::/67", RouteKind::Ila { encap: by, to });
    node
}

/// A packet of [`flow`] as another node has translated it.
fn arriving(node: &Node, sent: &[u8], csum_mode: CsumMode) -> Vec<u8> {
    translated(node, sent, encap(PLACE, csum_mode, HookType::Output))
}

#[test]
fn input_route_delivers_or_forwards_by_sir_address() {
    // The C bit makes the identifier of a neutral mapping that of another prefix.
    for csum_mode in [CsumMode::AdjTransport, CsumMode::NoAction, CsumMode::NeutralMapAuto] {
        let sent = flow().udp(77);
        // Local.
        let mut node = receiver(IlaRoute::Local { dev: INSIDE }, csum_mode);
        add_devices(&mut node);
        let bytes = arriving(&node, &sent, csum_mode);
        for _ in 0..2 {
            node.rx_bytes(NOW, INSIDE, &bytes);
            assert_eq!(only(up(&mut node, INSIDE)).to_vec(), sent, "{csum_mode:?}");
        }
        // By a gateway; by the route to the SIR address; by the route to an own address.
        for (via, own, link) in
            [(Some("fd00:2::9"), None, OUTSIDE), (None, None, OUTSIDE), (None, Some("3333:0:0:1:2000::7/128"), OUTSIDE)]
        {
            let via = via.map(|via: &str| via.parse().unwrap());
            let mut node = receiver(IlaRoute::Unicast { via, dev: OUTSIDE }, csum_mode);
            match own {
                Some(own) => node.datapath.fib.add_address(OUTSIDE, own.parse().unwrap()),
                None => node.route("3333::/16", Some("fd00:2::9"), OUTSIDE),
            }
            add_devices(&mut node);
            node.rx_bytes(NOW, INSIDE, &bytes);
            let got = match own {
                Some(_) => only(up(&mut node, INSIDE)).to_vec(),
                None => only(node.tx(link)).to_vec(),
            };
            let want = if own.is_some() { sent.clone() } else { with_hop_limit(&sent, 63) };
            assert_eq!(got, want, "{csum_mode:?} {via:?} {own:?}");
            assert_eq!(node.datapath.ila_translated(), 1);
        }
    }
}

#[test]
fn route_translates_for_its_own_hook_alone() {
    // A route for received packets does not translate packets that the node sends.
    let mut node =
        receiver(IlaRoute::Unicast { via: Some("fd00:2::9".parse().unwrap()), dev: OUTSIDE }, CsumMode::NoAction);
    add_devices(&mut node);
    let sent = Flow::new("fd00:1::254", "fd00:2::2000:0:0:7").udp(9);
    down_bytes(&mut node, INSIDE, &sent);
    assert_eq!(only(node.tx(OUTSIDE)).to_vec(), sent);
    // A local route for sent packets delivers received packets untranslated.
    let mut node = router();
    let by = encap(PLACE, CsumMode::NoAction, HookType::Output);
    node.route_of(NODES, RouteKind::Ila { encap: by, to: IlaRoute::Local { dev: INSIDE } });
    add_devices(&mut node);
    node.rx_bytes(NOW, INSIDE, &flow().udp(9));
    assert_eq!(only(up(&mut node, INSIDE)).to_vec(), flow().udp(9));
    assert_eq!(node.datapath.ila_translated(), 0);
}

#[test]
fn early_demux_remembers_nothing_of_input_route() {
    let mut node = receiver(IlaRoute::Local { dev: INSIDE }, CsumMode::NoAction);
    add_devices(&mut node);
    let flow = flow();
    // The socket's flow, known by its SIR address.
    node.route("fd00:1::/96", None, INSIDE);
    down_bytes(&mut node, INSIDE, &flow.reversed().tcp(1, 10));
    let bytes = arriving(&node, &flow.tcp(1, 100), CsumMode::NoAction);
    node.rx_bytes(NOW, INSIDE, &bytes);
    assert_eq!(only(up(&mut node, INSIDE)).to_vec(), flow.tcp(1, 100));
    // A packet to the SIR address itself has no route to this node.
    node.rx_bytes(NOW, INSIDE, &flow.tcp(101, 100));
    assert!(up(&mut node, INSIDE).is_empty());
    assert_eq!(node.datapath.demux_counts.hits, 0);
    assert_eq!(node.drops(), [(INSIDE.0, DropReason::NoRoute, 1)]);
}

#[test]
fn fragments_to_input_route_are_reassembled_under_sir_address() {
    for csum_mode in [CsumMode::NoAction, CsumMode::NeutralMapAuto] {
        let mut node = receiver(IlaRoute::Local { dev: INSIDE }, csum_mode);
        add_devices(&mut node);
        let sent = flow().udp(4000);
        let bytes = arriving(&node, &sent, csum_mode);
        let pieces = crate::fragments::fragments(&node.mem, &bytes, 1280);
        assert!(pieces.len() > 2);
        node.rx(NOW, INSIDE, pieces);
        let got = only(up(&mut node, INSIDE)).to_vec();
        assert!(got[40..] == sent[40..] && dst_of(&got) == dst_of(&sent), "{csum_mode:?}");
    }
}

#[test]
fn esp_is_translated_behind_the_ciphers() {
    let end = "3333:0:0:1:2000:0:0:99";
    let own = "fd00:2::254";
    for mode in [Mode::Transport, Mode::Tunnel] {
        for udp in [false, true] {
            for csum_mode in [CsumMode::NeutralMapAuto, CsumMode::NoAction] {
                let sa = esp(own, end, 0x1000, mode, udp);
                let by = encap(PLACE, csum_mode, HookType::Output);
                let mut node = translator(csum_mode);
                add_devices(&mut node);
                node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
                let (src, dst) = if mode == Mode::Tunnel { ("fd00:1::1", "fd00:2::77") } else { (own, end) };
                let selector = |addr: &str| format!("{addr}/128");
                let out = policy(Dir::Out, &selector(src), &selector(dst), std::slice::from_ref(&sa));
                node.datapath.ipsec.add_policy(out).unwrap();
                let inner = Flow::new(src, dst);
                let mut far = Node::new();
                far.port(INSIDE.0, PortOptions::BARE, &["fd00:9::1/64"]);
                far.port(OUTSIDE.0, PortOptions::BARE, &[&format!("{end}/64")]);
                far.route("fd00:2::/64", None, INSIDE);
                far.route("fd00:1::/64", None, OUTSIDE);
                add_devices(&mut far);
                far.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
                let fwd = policy(Dir::Fwd, &selector(src), &selector(dst), std::slice::from_ref(&sa));
                far.datapath.ipsec.add_policy(fwd).unwrap();
                let fat = |node: &Node| inner.fat_tcp(&node.mem, 1, 9000, 1000);
                match mode {
                    Mode::Tunnel => node.rx(NOW, INSIDE, vec![fat(&node)]),
                    _ => {
                        let pkt = fat(&node);
                        down(&mut node, OUTSIDE, pkt);
                    }
                }
                let case = format!("{mode:?} udp {udp} {csum_mode:?}");
                let sent = node.tx(OUTSIDE);
                assert!(sent.len() >= 8, "{case}: {}", sent.len());
                // Every packet is to the ILA address, and another node translates it back.
                let back = RouteEncap { locator: SIR, hook_type: HookType::Input, ..by };
                let burst = sent.iter().map(|pkt| {
                    let bytes = pkt.to_vec();
                    assert_eq!(Locator::of(dst_of(&bytes)), PLACE, "{case}");
                    Packet::with_data(&far.mem, &translated(&far, &bytes, back)).unwrap()
                });
                let burst = burst.collect();
                far.rx(NOW, OUTSIDE, burst);
                far.timeout(NOW + Duration::from_millis(1));
                let got = if mode == Mode::Tunnel { far.tx(INSIDE) } else { up(&mut far, OUTSIDE) };
                let payload: usize = got.iter().map(|pkt| info(pkt).total_len - 40 - TCP_LEN).sum();
                assert_eq!(payload, 9000, "{case}: {:?}", far.drops());
            }
        }
    }
}

/// The ICMPv6 error that a router on the path sends about a packet.
fn error_about(node: &Node, sent: &[u8], problem: host::icmp::Problem) -> Vec<u8> {
    let pkt = Packet::with_data(&node.mem, sent).unwrap();
    host::icmp::error(&node.mem, &pkt, &info_of(sent), problem, "fd00:2::1".parse().unwrap()).unwrap().to_vec()
}

#[test]
fn socket_gets_an_error_by_sir_address() {
    let problems = [
        host::icmp::Problem::TtlExceeded,
        host::icmp::Problem::HostUnreachable,
        host::icmp::Problem::TooBig { mtu: 1300 },
        host::icmp::Problem::Parameter { code: icmpv6::Problem(0), at: 7 },
    ];
    for csum_mode in CsumMode::ALL {
        for problem in problems {
            let mut node = translator(csum_mode);
            add_devices(&mut node);
            let sent = Flow::new("fd00:2::254", NODE).tcp(1, 600);
            down_bytes(&mut node, OUTSIDE, &sent);
            let on_wire = only(node.tx(OUTSIDE)).to_vec();
            let error = error_about(&node, &on_wire, problem);
            assert_eq!(Locator::of(dst_of(&parse_icmp(&Packet::with_data(&node.mem, &error).unwrap()).quote)), PLACE);
            node.rx_bytes(NOW, OUTSIDE, &error);
            let got = parse_icmp(&only(up(&mut node, OUTSIDE)));
            assert_eq!(dst_of(&got.quote), dst_of(&sent), "{csum_mode:?} {problem:?}");
            assert_eq!(node.datapath.ila_errors_restored(), 1);
            // The path MTU is recorded for the address that sockets use.
            if let host::icmp::Problem::TooBig { .. } = problem {
                let path_mtu = node.datapath.fib.path_mtu(NOW, base::Domain::DEFAULT, NODE.parse().unwrap());
                assert_eq!(path_mtu, Some(1300));
            }
            // As Linux does it.
            node.datapath.restore_ila_errors(false);
            node.rx_bytes(NOW, OUTSIDE, &error);
            assert_eq!(only(up(&mut node, OUTSIDE)).to_vec(), error);
            assert_eq!(node.datapath.ila_errors_restored(), 1);
        }
    }
}

#[test]
fn error_about_no_translated_packet_is_left_as_it_is() {
    let mut node = translator(CsumMode::NeutralMap);
    add_devices(&mut node);
    let to = |dst: &str, src: &str| Flow::new(src, dst).tcp(1, 600);
    let about = |bytes: &[u8]| error_about(&translator(CsumMode::NoAction), bytes, host::icmp::Problem::TtlExceeded);
    let mut errors = vec![
        // Another locator, another node's packet, an identifier that no translation produces.
        about(&to("fd00:3::3000:0:0:7", "fd00:2::254")),
        about(&to("fd00:2::3000:0:0:7", "fd00:2::1")),
        about(&to("fd00:2::5000:0:0:7", "fd00:2::254")),
        about(&to("fd00:2::1", "fd00:2::254")),
    ];
    // Truncated within the quoted header, with a correct checksum.
    for len in [0, 1, 23, 24, 39] {
        let Flow { src, dst, .. } = Flow::new("fd00:2::1", "fd00:2::254");
        let quoted = &to("fd00:2::3000:0:0:7", "fd00:2::254")[..len];
        let mut message = [&[3, 0, 0, 0, 0, 0, 0, 0], quoted].concat();
        let (IpAddr::V6(from), IpAddr::V6(us)) = (src, dst) else { panic!() };
        icmpv6::fill_check(&mut message, from, us).unwrap();
        errors.push(Flow::new("fd00:2::1", "fd00:2::254").raw(wire::Protocol::ICMPV6, &message));
    }
    for error in &errors {
        node.rx_bytes(NOW, OUTSIDE, error);
        for got in up(&mut node, OUTSIDE) {
            assert_eq!(&got.to_vec(), error);
        }
    }
    assert_eq!(node.datapath.ila_errors_restored(), 0);
    // Changed routes apply at once.
    let sent = to("fd00:2::3000:0:0:7", "fd00:2::254");
    node.datapath.fib.replace(fib::Fib::default());
    node.datapath.fib.add_address(OUTSIDE, "fd00:2::254/64".parse().unwrap());
    let later = |seconds| NOW + Duration::from_secs(seconds);
    node.rx_bytes(later(1), OUTSIDE, &about(&sent));
    assert_eq!(node.datapath.ila_errors_restored(), 0);
    node.route_of(NODES, by_outside(encap(PLACE, CsumMode::NeutralMap, HookType::Output), None));
    node.rx_bytes(later(2), OUTSIDE, &about(&sent));
    assert_eq!(node.datapath.ila_errors_restored(), 1);
    // An error with a wrong checksum is not translated.
    let mut wrong = about(&sent);
    wrong[42] ^= 1;
    node.rx_bytes(later(2), OUTSIDE, &wrong);
    assert_eq!(node.datapath.ila_errors_restored(), 1);
}

#[test]
fn identifier_that_ends_in_zero_is_known_by_its_own_route() {
    let own = "fd00:2::254";
    let zero = "3333:0:0:1:2000:0:1:0";
    for (route, is_restored) in [(format!("{zero}/128"), true), (NODES.to_owned(), false)] {
        let mut node = router();
        let by = encap(PLACE, CsumMode::NeutralMap, HookType::Output);
        node.route_of(&route, by_outside(by, None));
        add_devices(&mut node);
        down_bytes(&mut node, OUTSIDE, &Flow::new(own, zero).tcp(1, 10));
        let on_wire = only(node.tx(OUTSIDE)).to_vec();
        let error = error_about(&node, &on_wire, host::icmp::Problem::TtlExceeded);
        node.rx_bytes(NOW, OUTSIDE, &error);
        let quoted = dst_of(&parse_icmp(&only(up(&mut node, OUTSIDE))).quote);
        assert_eq!(quoted == zero.parse::<Ipv6Addr>().unwrap(), is_restored, "{route}: {quoted}");
        assert_eq!(node.datapath.ila_errors_restored(), u64::from(is_restored));
    }
}

#[test]
fn neighbour_failure_is_reported_by_sir_address() {
    let mut node = router_with(PortOptions::BARE, PortOptions::ethernet(2));
    node.route_of(NODES, by_outside(encap(PLACE, CsumMode::NeutralMap, HookType::Output), None));
    add_devices(&mut node);
    let forwarded = flow().udp(9);
    node.rx_bytes(NOW, INSIDE, &forwarded);
    let frame = |bytes: &[u8]| {
        let header = wire::eth::EthHeader::new(mac(2), mac(2), wire::EtherType::IPV6);
        [header.as_bytes(), bytes].concat()
    };
    let of_socket = Flow::new("fd00:2::254", NODE).udp(9);
    down_bytes(&mut node, OUTSIDE, &frame(&of_socket));
    assert_eq!(node.waiting(), 2);
    for second in 1..8 {
        node.timeout(NOW + Duration::from_secs(second));
    }
    let error = parse_icmp(&only(node.tx(INSIDE)));
    assert_eq!(error.message, Message::V6(icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::ADDRESS)));
    assert_eq!(dst_of(&error.quote), dst_of(&forwarded));
    let mut error = only(up(&mut node, OUTSIDE));
    error.pull(wire::eth::EthHeader::LEN);
    assert_eq!(dst_of(&parse_icmp(&error).quote), dst_of(&of_socket));
}

#[test]
fn fragmented_datagram_verifies_behind_an_input_route() {
    for csum_mode in [CsumMode::AdjTransport, CsumMode::NoAction, CsumMode::NeutralMapAuto] {
        let mut node = translator(csum_mode);
        add_devices(&mut node);
        let sent = Flow::new("fd00:2::254", NODE).udp(5000);
        down_bytes(&mut node, OUTSIDE, &sent);
        let pieces: Vec<Vec<u8>> = node.tx(OUTSIDE).iter().map(Packet::to_vec).collect();
        let mut far = receiver(IlaRoute::Local { dev: INSIDE }, csum_mode);
        add_devices(&mut far);
        far.rx(NOW, INSIDE, pieces.iter().map(|piece| Packet::with_data(&far.mem, piece).unwrap()).collect());
        let got = only(up(&mut far, INSIDE)).to_vec();
        assert!(got[40..] == sent[40..] && dst_of(&got) == dst_of(&sent), "{csum_mode:?}: {:?}", far.drops());
    }
}

#[test]
fn flood_of_errors_tries_few_of_many_routes() {
    let mut node = router();
    add_devices(&mut node);
    let by = encap(PLACE, CsumMode::NoAction, HookType::Output);
    for n in 0..20_000_u32 {
        node.route_of(&format!("3333:0:{:x}:{:x}:2000::/67", n >> 16, n & 0xffff), by_outside(by, None));
    }
    let sent = Flow::new("fd00:2::254", "fd00:2::4000:0:0:7").tcp(1, 10);
    let error = error_about(&translator(CsumMode::NoAction), &sent, host::icmp::Problem::TtlExceeded);
    let start = std::time::Instant::now();
    for _ in 0..10_000 {
        node.rx_bytes(NOW, OUTSIDE, &error);
        up(&mut node, OUTSIDE);
    }
    // Parsing the error once per route, or trying each route, would take minutes.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn path_mtu_of_translated_tunnel_is_learnt() {
    let (own, end) = ("fd00:2::254", "3333:0:0:1:2000:0:0:99");
    let sa = esp(own, end, 0x1000, Mode::Tunnel, false);
    let mut node = translator(CsumMode::NeutralMap);
    node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
    let out = policy(Dir::Out, "fd00:1::1/128", "fd00:5::/64", std::slice::from_ref(&sa));
    node.datapath.ipsec.add_policy(out).unwrap();
    node.route("fd00:5::/64", None, OUTSIDE);
    node.rx_bytes(NOW, INSIDE, &Flow::new("fd00:1::1", "fd00:5::1").udp(1300));
    let sealed = only(node.tx(OUTSIDE)).to_vec();
    let error = error_about(&node, &sealed, host::icmp::Problem::TooBig { mtu: 1320 });
    node.rx_bytes(NOW, OUTSIDE, &error);
    let path_mtu = node.datapath.fib.path_mtu(NOW, base::Domain::DEFAULT, end.parse().unwrap());
    assert_eq!((path_mtu, node.datapath.ila_errors_restored()), (Some(1320), 1));
    assert_eq!(node.datapath.counters.get(Mib::Icmp6InPktTooBigs), 1);
}

#[test]
fn translated_address_that_no_packet_may_have_is_dropped() {
    for (locator, via) in [(Locator(0), "fd00:2::9"), (Locator(0xff02 << 48), "fd00:2::9")] {
        let mut node = router();
        let by = RouteEncap { ident_type: IdentType::Luid, ..encap(locator, CsumMode::NoAction, HookType::Output) };
        node.route_of("3333::/16", by_outside(by, Some(via)));
        let bad = if locator.0 == 0 { "3333::1" } else { "3333::5" };
        node.rx_bytes(NOW, INSIDE, &Flow::new("fd00:1::1", bad).udp(8));
        assert_eq!(node.drops(), [(INSIDE.0, DropReason::IpDestinationInvalid, 1)]);
        assert_eq!(node.tx(OUTSIDE).len(), 0);
    }
}

#[test]
fn route_by_vrf_is_looked_up_again_in_that_vrf() {
    const RED: base::PortId = base::PortId(11);
    let mut node = Node::new();
    node.vrf(RED.0, 10, &[2]);
    node.port(INSIDE.0, PortOptions::BARE, &["fd00:1::254/64"]);
    node.port(OUTSIDE.0, PortOptions::BARE, &["fd00:2::254/64"]);
    let by = encap(PLACE, CsumMode::NeutralMap, HookType::Output);
    node.route_of(NODES, RouteKind::Ila { encap: by, to: IlaRoute::Unicast { via: None, dev: RED } });
    let sent = flow().udp(5);
    node.rx_bytes(NOW, INSIDE, &sent);
    assert_eq!(only(node.tx(OUTSIDE)).to_vec(), translated(&node, &with_hop_limit(&sent, 63), by));
}

#[test]
fn packet_too_long_is_refused_with_its_own_address() {
    let mut node = translator(CsumMode::NeutralMap);
    let sent = flow().udp(3000);
    node.rx_bytes(NOW, INSIDE, &sent);
    let error = parse_icmp(&only(node.tx(INSIDE)));
    assert_eq!(error.message, Message::V6(icmpv6::Icmpv6Message::PacketTooBig { mtu: 1500 }));
    assert_eq!(dst_of(&error.quote), dst_of(&sent));
    assert_eq!(node.datapath.ila_translated(), 0);
}

#[test]
fn mapping_and_route_translate_there_and_back() {
    // From one node's route to another node's hook, fat: the delivered packet equals the sent one.
    let mut near = translator(CsumMode::NeutralMap);
    let mut far = Node::new();
    far.port(INSIDE.0, PortOptions::BARE, &["fd00:2::1/64"]);
    far.port(OUTSIDE.0, PortOptions::BARE, &["3333:0:0:1::1/64"]);
    let mapping = ila::Mapping {
        locator_match: PLACE,
        identifier: None,
        locator: SIR,
        link: None,
        csum_mode: CsumMode::NeutralMap,
        ident_type: IdentType::Luid,
    };
    far.datapath.add_ila(mapping).unwrap();
    let segments: Vec<Vec<u8>> = (0..8).map(|nth| flow().tcp(nth * 1000, 1000)).collect();
    near.rx(NOW, INSIDE, segments.iter().map(|bytes| Packet::with_data(&near.mem, bytes).unwrap()).collect());
    let fat = only(near.tx(OUTSIDE));
    let Cut::Gso(gso) = fat.meta.cut else { panic!("{:?}", fat.meta.cut) };
    let mut copy = Packet::with_data(&far.mem, &fat.to_vec()).unwrap();
    copy.meta.cut = Cut::Gso(gso);
    copy.meta.csum = fat.meta.csum;
    far.rx(NOW, INSIDE, vec![copy]);
    let got = only(far.tx(OUTSIDE));
    assert_eq!((got.meta.cut.segs(), far.datapath.ila_translated()), (8, 1));
    let mut cut = Vec::new();
    offload::gso::segment(&far.mem, &offload::Features::BY_REFERENCE, got, 0, &mut cut).unwrap();
    for (segment, sent) in cut.iter_mut().zip(&segments) {
        offload::checksum::complete(&far.mem, segment, 0).unwrap();
        assert_eq!(segment.to_vec(), with_hop_limit(sent, 62));
    }
}
