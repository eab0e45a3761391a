//! ARP and neighbour discovery on the wire: replies, learnt entries, refusals.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::{DropReason, Instant, PortId};
use fib::{Action, LladdrUpdate, Neighbours, Resolution, Station, arp, nd};
use packet::{Memory, Packet};
use proptest::prelude::*;
use wire::nd::{AdvertFlags, LinkAddr, Neighbour, solicited_node};
use wire::{EtherType, MacAddr, Protocol, eth, icmpv6, ipv6};

const LINK: PortId = PortId(1);
const HERE: Station = Station { link: LINK, mac: MacAddr([2, 0, 0, 0, 0, 1]) };
const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const GROUP: MacAddr = MacAddr([3, 0, 0, 0, 0, 1]);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const THEIRS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Result of a message.
#[derive(Debug, PartialEq)]
struct Outcome {
    result: Result<(), DropReason>,
    /// The only neighbour afterwards.
    neighbour: Option<(MacAddr, &'static str)>,
    answer: Option<Vec<u8>>,
    conflict: Option<(IpAddr, MacAddr)>,
}

const NOTHING: Outcome = Outcome { result: Ok(()), neighbour: None, answer: None, conflict: None };
const KNOWN: Outcome = Outcome { neighbour: Some((A, "STALE")), ..NOTHING };

fn refused(reason: DropReason) -> Outcome {
    Outcome { result: Err(reason), ..NOTHING }
}

/// Neighbours with the other station's two addresses at A, or without entries.
fn neighbours(known: bool) -> Neighbours {
    let mut neighbours = Neighbours::default();
    for addr in [IpAddr::V4(THEIRS), IpAddr::V6(THEIRS6)].into_iter().filter(|_| known) {
        neighbours.learn(Instant::ZERO, LINK, addr, LladdrUpdate::Solicitation(A), &mut Vec::new());
    }
    neighbours
}

fn outcome(neighbours: &Neighbours, addr: IpAddr, result: Result<(), DropReason>, actions: Vec<Action>) -> Outcome {
    let mut outcome = Outcome { result, ..NOTHING };
    let entry = neighbours.iter().find(|entry| entry.addr == addr);
    outcome.neighbour = entry.and_then(|entry| Some((entry.mac?, entry.state.name())));
    for action in actions {
        match action {
            Action::Answer { link: LINK, frame } => outcome.answer = Some(frame.to_vec()),
            Action::Conflict { link: LINK, addr, station } => outcome.conflict = Some((addr, station)),
            other => panic!("{other:?}"),
        }
    }
    outcome
}

fn handle_arp(known: bool, bytes: &[u8]) -> Outcome {
    let (mem, mut neighbours, mut actions) = (Memory::heap(), neighbours(known), Vec::new());
    let result = arp::handle(&mut neighbours, Instant::ZERO, &mem, HERE, |addr| addr == OURS, bytes, &mut actions);
    outcome(&neighbours, IpAddr::V4(THEIRS), result, actions)
}

fn handle_nd(known: bool, bytes: &[u8]) -> Outcome {
    let (mem, mut neighbours, mut actions) = (Memory::heap(), neighbours(known), Vec::new());
    let result = nd::handle(
        &mut neighbours,
        Instant::ZERO,
        &mem,
        HERE,
        |addr, _| (addr == OURS6).then_some(addr),
        bytes,
        &mut actions,
    );
    outcome(&neighbours, IpAddr::V6(THEIRS6), result, actions)
}

fn framed(to: MacAddr, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    [eth::EthHeader::new(to, HERE.mac, ethertype).as_bytes(), payload].concat()
}

/// A neighbour discovery packet with a correct checksum.
fn packet(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, body: Neighbour, options: &[u8]) -> Vec<u8> {
    let mut message = [body.as_bytes(), options].concat();
    icmpv6::fill_check(&mut message, src, dst).unwrap();
    let mut header = ipv6::Ipv6Header::new(src, dst, Protocol::ICMPV6, message.len() as u16);
    header.set_hop_limit(hop_limit);
    [header.as_bytes(), &message].concat()
}

fn solicit(src: Ipv6Addr, target: Ipv6Addr, from: Option<MacAddr>) -> Vec<u8> {
    let option = from.map(LinkAddr::source);
    let option = option.as_ref().map(LinkAddr::as_bytes).unwrap_or_default();
    packet(src, solicited_node(target), 255, Neighbour::solicit(target), option)
}

fn advert(target: Ipv6Addr, dst: Ipv6Addr, flags: AdvertFlags, at: Option<MacAddr>) -> Vec<u8> {
    let option = at.map(LinkAddr::target);
    let option = option.as_ref().map(LinkAddr::as_bytes).unwrap_or_default();
    packet(target, dst, 255, Neighbour::advert(target, flags), option)
}

#[test]
fn arp_packet_is_handled_as_rfc_826_says() {
    use wire::arp::ArpHeader;
    let reply_to =
        |mac: MacAddr, ip| framed(mac, EtherType::ARP, ArpHeader::reply((HERE.mac, OURS), (mac, ip)).as_bytes());
    let stale = |mac| Some((mac, "STALE"));
    let request = |mac, sender, target| ArpHeader::request((mac, sender), target).as_bytes().to_vec();
    let reply = |mac, sender, to| ArpHeader::reply((mac, sender), to).as_bytes().to_vec();
    let operation = |operation: u8| {
        let mut bytes = request(A, THEIRS, OURS);
        bytes[7] = operation;
        bytes
    };
    let malformed = || refused(DropReason::ArpMalformed);
    #[rustfmt::skip]
    let cases = [
        ("a request to us", false, request(A, THEIRS, OURS),
            Outcome { neighbour: stale(A), answer: Some(reply_to(A, THEIRS)), ..NOTHING }),
        ("a request to us, from elsewhere than known", true, request(B, THEIRS, OURS),
            Outcome { neighbour: stale(B), answer: Some(reply_to(B, THEIRS)), ..NOTHING }),
        ("a request to others", false, request(A, THEIRS, Ipv4Addr::new(10, 0, 0, 3)), NOTHING),
        ("a request to others, from elsewhere than known", true, request(B, THEIRS, Ipv4Addr::new(10, 0, 0, 3)),
            Outcome { neighbour: stale(B), ..NOTHING }),
        ("a probe for our address", false, request(A, Ipv4Addr::UNSPECIFIED, OURS),
            Outcome { answer: Some(reply_to(A, Ipv4Addr::UNSPECIFIED)), ..NOTHING }),
        ("an announcement of an unknown station", false, request(A, THEIRS, THEIRS), NOTHING),
        ("an announcement of a move", true, request(B, THEIRS, THEIRS), Outcome { neighbour: stale(B), ..NOTHING }),
        ("an announcement by a reply", true, reply(B, THEIRS, (MacAddr::BROADCAST, THEIRS)),
            Outcome { neighbour: stale(B), ..NOTHING }),
        ("a reply to us", true, reply(A, THEIRS, (HERE.mac, OURS)),
            Outcome { neighbour: Some((A, "REACHABLE")), ..NOTHING }),
        ("an unsolicited reply", false, reply(A, THEIRS, (HERE.mac, OURS)), NOTHING),
        ("another station with our address, asking", true, request(B, OURS, THEIRS),
            Outcome { conflict: Some((OURS.into(), B)), ..KNOWN }),
        ("another station with our address, announcing", false, request(B, OURS, OURS),
            Outcome { conflict: Some((OURS.into(), B)), ..NOTHING }),
        ("another station with our address, replying", false, reply(B, OURS, (HERE.mac, OURS)),
            Outcome { conflict: Some((OURS.into(), B)), ..NOTHING }),
        ("our own request, come back", true, request(HERE.mac, OURS, THEIRS), KNOWN),
        ("somebody's address at our own link-layer address", true, request(HERE.mac, THEIRS, OURS), KNOWN),
        ("a group as sender", false, request(GROUP, THEIRS, OURS), malformed()),
        ("a zero sender", false, request(MacAddr::ZERO, THEIRS, OURS), malformed()),
        ("everybody as sender", false, request(MacAddr::BROADCAST, THEIRS, OURS), malformed()),
        ("a multicast address", false, request(A, Ipv4Addr::new(224, 0, 0, 1), OURS), malformed()),
        ("the broadcast address", false, request(A, Ipv4Addr::BROADCAST, OURS), malformed()),
        ("a loopback address", false, request(A, Ipv4Addr::LOCALHOST, OURS), malformed()),
        ("RARP", false, operation(3), malformed()),
        ("operation 0", false, operation(0), malformed()),
        ("truncated", false, request(A, THEIRS, OURS)[..27].to_vec(), malformed()),
        ("nothing", false, Vec::new(), malformed()),
        ("padding behind it", true, [reply(A, THEIRS, (HERE.mac, OURS)), vec![0; 18]].concat(),
            Outcome { neighbour: Some((A, "REACHABLE")), ..NOTHING }),
    ];
    for (what, known, bytes, want) in cases {
        assert_eq!(handle_arp(known, &bytes), want, "{what}");
    }
}

#[test]
fn solicitation_is_handled_as_rfc_4861_says() {
    let here = |dst, to, solicited| {
        let flags = AdvertFlags { router: true, solicited, overriding: true };
        framed(to, EtherType::IPV6, &advert(OURS6, dst, flags, Some(HERE.mac)))
    };
    let all_nodes = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    let answer = |dst, to, solicited| Some(here(dst, to, solicited));
    let none = Ipv6Addr::UNSPECIFIED;
    // The reply does not count as a use of the entry.
    let stale = |mac| Some((mac, "STALE"));
    let body = Neighbour::solicit(OURS6);
    let group = solicited_node(OURS6);
    let malformed = || refused(DropReason::NeighbourMalformed);
    let mut wrong_sum = solicit(THEIRS6, OURS6, Some(A));
    wrong_sum[42] ^= 1;
    #[rustfmt::skip]
    let cases = [
        ("for us", false, solicit(THEIRS6, OURS6, Some(A)),
            Outcome { neighbour: stale(A), answer: answer(THEIRS6, A, true), ..NOTHING }),
        ("for us, from elsewhere than known", true, solicit(THEIRS6, OURS6, Some(B)),
            Outcome { neighbour: stale(B), answer: answer(THEIRS6, B, true), ..NOTHING }),
        ("for us alone", false, packet(THEIRS6, OURS6, 255, body, LinkAddr::source(A).as_bytes()),
            Outcome { neighbour: stale(A), answer: answer(THEIRS6, A, true), ..NOTHING }),
        ("for us alone, without its link-layer address, which is known", true, packet(THEIRS6, OURS6, 255, body, &[]),
            Outcome { neighbour: stale(A), answer: answer(THEIRS6, A, true), ..NOTHING }),
        ("checking whether our address is free", false, solicit(none, OURS6, None),
            Outcome { answer: answer(wire::nd::ALL_NODES, all_nodes, false), ..NOTHING }),
        ("for another node", true, solicit(THEIRS6, THEIRS6, Some(B)), KNOWN),
        ("from our own address", true, solicit(OURS6, OURS6, Some(B)),
            Outcome { conflict: Some((OURS6.into(), B)), ..KNOWN }),
        ("our own, come back", true, solicit(OURS6, THEIRS6, Some(HERE.mac)), KNOWN),
        ("an option that we do not know, before ours", false,
            packet(THEIRS6, group, 255, body, &[&[14, 1, 0, 0, 0, 0, 0, 0][..], LinkAddr::source(A).as_bytes()].concat()),
            Outcome { neighbour: stale(A), answer: answer(THEIRS6, A, true), ..NOTHING }),
        ("from beyond a router", false, packet(THEIRS6, group, 254, body, LinkAddr::source(A).as_bytes()), malformed()),
        ("with a wrong checksum", false, wrong_sum, refused(DropReason::ChecksumWrong)),
        ("truncated", false, packet(THEIRS6, group, 255, body, &[1]), malformed()),
        ("an option of length zero", false, packet(THEIRS6, group, 255, body, &[1, 0, 0, 0, 0, 0, 0, 0]), malformed()),
        ("an option past the end", false, packet(THEIRS6, group, 255, body, &[1, 2, 0, 0, 0, 0, 0, 0]), malformed()),
        ("a group as link-layer address", false, solicit(THEIRS6, OURS6, Some(GROUP)), malformed()),
        ("a zero link-layer address", false, solicit(THEIRS6, OURS6, Some(MacAddr::ZERO)), malformed()),
        ("checking, yet with a link-layer address", false, solicit(none, OURS6, Some(A)), malformed()),
        ("checking, to one node", false, packet(none, OURS6, 255, body, &[]), malformed()),
        ("for a group", false,
            packet(THEIRS6, group, 255, Neighbour::solicit(wire::nd::ALL_NODES), LinkAddr::source(A).as_bytes()),
            malformed()),
        ("from a group", false, solicit(wire::nd::ALL_NODES, OURS6, Some(A)), refused(DropReason::IpSourceInvalid)),
    ];
    for (what, known, bytes, want) in cases {
        assert_eq!(handle_nd(known, &bytes), want, "{what}");
    }
}

#[test]
fn an_advertisement_is_learnt_from_or_refused_as_rfc_4861_says() {
    let flags = |solicited, overriding| AdvertFlags { router: false, solicited, overriding };
    let reachable = |mac| Outcome { neighbour: Some((mac, "REACHABLE")), ..NOTHING };
    let all = wire::nd::ALL_NODES;
    let malformed = || Outcome { neighbour: KNOWN.neighbour, ..refused(DropReason::NeighbourMalformed) };
    #[rustfmt::skip]
    let cases = [
        ("an answer", true, advert(THEIRS6, OURS6, flags(true, true), Some(A)), reachable(A)),
        ("an answer without link-layer address", true, advert(THEIRS6, OURS6, flags(true, false), None), reachable(A)),
        ("an answer from elsewhere", true, advert(THEIRS6, OURS6, flags(true, true), Some(B)), reachable(B)),
        ("a proxy's answer", true, advert(THEIRS6, OURS6, flags(true, false), Some(B)), KNOWN),
        ("an announcement of a move", true, advert(THEIRS6, all, flags(false, true), Some(B)),
            Outcome { neighbour: Some((B, "STALE")), ..NOTHING }),
        ("not of a neighbour in resolution", false, advert(THEIRS6, OURS6, flags(true, true), Some(A)), NOTHING),
        ("of our own address", true, advert(OURS6, all, flags(false, true), Some(B)),
            Outcome { conflict: Some((OURS6.into(), B)), ..KNOWN }),
        ("of our own address, by us", true, advert(OURS6, all, flags(false, true), Some(HERE.mac)), KNOWN),
        ("an answer to everybody", true, advert(THEIRS6, all, flags(true, true), Some(A)), malformed()),
        ("a group as link-layer address", true, advert(THEIRS6, OURS6, flags(true, true), Some(GROUP)), malformed()),
        ("at our own link-layer address", true, advert(THEIRS6, OURS6, flags(true, true), Some(HERE.mac)), KNOWN),
        ("truncated", true, packet(THEIRS6, OURS6, 255, Neighbour::advert(THEIRS6, flags(true, true)), &[2]),
            malformed()),
    ];
    for (what, known, bytes, want) in cases {
        assert_eq!(handle_nd(known, &bytes), want, "{what}");
    }
}

#[test]
fn fragment_ping_and_router_discovery_are_ignored() {
    let whole = solicit(THEIRS6, OURS6, Some(A));
    let mut fragment = whole[..40].to_vec();
    fragment[5] += 8;
    fragment[6] = 44;
    fragment.extend([58, 0, 0, 0, 0, 0, 0, 1]);
    fragment.extend(&whole[40..]);
    assert_eq!(handle_nd(false, &fragment), refused(DropReason::NeighbourMalformed));

    let of_kind = |kind| {
        let mut bytes = solicit(THEIRS6, OURS6, None);
        bytes.truncate(48);
        (bytes[5], bytes[40]) = (8, kind);
        icmpv6::fill_check(&mut bytes[40..], THEIRS6, solicited_node(OURS6)).unwrap();
        bytes
    };
    assert_eq!(handle_nd(false, &of_kind(133)), NOTHING, "a router solicitation is valid, and changes nothing");
    for kind in [128, 137] {
        assert_eq!(handle_nd(false, &of_kind(kind)), refused(DropReason::IcmpIgnored), "type {kind}");
    }
    let mut udp = whole;
    udp[6] = 17;
    assert_eq!(handle_nd(false, &udp), refused(DropReason::IcmpIgnored));
}

#[test]
fn advertisement_waits_for_link_layer_address() {
    let (mem, mut neighbours, mut actions) = (Memory::heap(), Neighbours::default(), Vec::new());
    let bytes = packet(THEIRS6, OURS6, 255, Neighbour::solicit(OURS6), &[]);
    let own = |addr, _| (addr == OURS6).then_some(addr);
    nd::handle(&mut neighbours, Instant::ZERO, &mem, HERE, own, &bytes, &mut actions).unwrap();
    assert!(matches!(actions[..], [Action::Solicit { target: IpAddr::V6(THEIRS6), unicast_to: None, .. }]));
    actions.clear();
    let answer = advert(THEIRS6, OURS6, AdvertFlags { solicited: true, ..AdvertFlags::default() }, Some(A));
    nd::handle(&mut neighbours, Instant::ZERO, &mem, HERE, own, &answer, &mut actions).unwrap();
    let [Action::Send { to, packet, .. }] = &actions[..] else { panic!("{actions:?}") };
    let flags = AdvertFlags { router: true, solicited: true, overriding: true };
    assert_eq!((*to, packet.to_vec()), (A, advert(OURS6, THEIRS6, flags, Some(HERE.mac))));
}

#[test]
fn our_solicitations_find_a_neighbour_that_is_one_of_us() {
    let (mem, now) = (Memory::heap(), Instant::ZERO);
    let there = Station { link: PortId(7), mac: B };
    let mut here = Neighbours::default();
    let hops = [IpAddr::V4(THEIRS), IpAddr::V6(THEIRS6)];
    for (hop, unicast_to) in hops.into_iter().flat_map(|hop| [(hop, None), (hop, Some(B))]) {
        let (mut their_table, mut actions) = (Neighbours::default(), Vec::new());
        let request = match hop {
            IpAddr::V4(target) => arp::solicit(&mem, HERE, OURS, target, unicast_to).unwrap(),
            IpAddr::V6(target) => nd::solicit(&mem, HERE, OURS6, target, unicast_to).unwrap(),
        };
        let frame = request.to_vec();
        let (header, request) = eth::EthHeader::split_from(&frame).unwrap();
        let to_all = if hop.is_ipv4() { MacAddr::BROADCAST } else { MacAddr([0x33, 0x33, 0xff, 0, 0, 2]) };
        assert_eq!((header.src(), header.dst()), (HERE.mac, unicast_to.unwrap_or(to_all)));
        match hop {
            IpAddr::V4(_) => {
                arp::handle(&mut their_table, now, &mem, there, |addr| addr == THEIRS, request, &mut actions).unwrap();
            }
            IpAddr::V6(_) => {
                nd::handle(
                    &mut their_table,
                    now,
                    &mem,
                    there,
                    |addr, _| (addr == THEIRS6).then_some(addr),
                    request,
                    &mut actions,
                )
                .unwrap();
            }
        }
        let [Action::Answer { link: PortId(7), frame }] = &actions[..] else { panic!("{actions:?}") };
        let frame = frame.to_vec();
        let (header, answer) = eth::EthHeader::split_from(&frame).unwrap();
        assert_eq!((header.src(), header.dst()), (B, HERE.mac));

        let mut actions = Vec::new();
        let waits = Packet::with_data(&mem, b"waits").unwrap();
        here.resolve(now, &mem, LINK, hop, waits, &mut actions);
        match hop {
            IpAddr::V4(_) => {
                arp::handle(&mut here, now, &mem, HERE, |addr| addr == OURS, answer, &mut actions).unwrap();
            }
            IpAddr::V6(_) => {
                nd::handle(&mut here, now, &mem, HERE, |addr, _| (addr == OURS6).then_some(addr), answer, &mut actions)
                    .unwrap();
            }
        }
        let packet = Packet::with_data(&mem, b"next").unwrap();
        let sent = here.resolve(now, &mem, LINK, hop, packet, &mut actions);
        assert!(matches!(sent, Resolution::Send(B, _)), "{hop}: {sent:?}");
    }
    assert!(here.iter().all(|entry| entry.state.name() == "REACHABLE"));
}

#[test]
fn sender_is_learnt_without_memory_for_an_answer() {
    let pool = || packet::Pool::bounded(256, 0);
    let (mem, mut neighbours, mut actions) = (Memory::new(pool(), pool()), Neighbours::default(), Vec::new());
    let bytes = wire::arp::ArpHeader::request((A, THEIRS), OURS);
    let own = |addr| addr == OURS;
    let result = arp::handle(&mut neighbours, Instant::ZERO, &mem, HERE, own, bytes.as_bytes(), &mut actions);
    assert_eq!((result, actions.len(), neighbours.len()), (Err(DropReason::NoMemory), 0, 1));
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused_or_understood_but_never_panic(
        valid in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        fix_sum in any::<bool>(),
    ) {
        let flags = AdvertFlags { router: true, solicited: true, overriding: true };
        let mut bytes = match valid {
            0 => wire::arp::ArpHeader::request((A, THEIRS), OURS).as_bytes().to_vec(),
            1 => wire::arp::ArpHeader::reply((A, THEIRS), (HERE.mac, OURS)).as_bytes().to_vec(),
            2 => solicit(THEIRS6, OURS6, Some(A)),
            _ => advert(THEIRS6, OURS6, flags, Some(A)),
        };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if fix_sum && valid >= 2 && bytes.len() >= 48 {
            let (src, dst) = {
                let header = ipv6::Ipv6Header::ref_from(&bytes).unwrap();
                (header.src(), header.dst())
            };
            icmpv6::fill_check(&mut bytes[40..], src, dst).unwrap();
        }
        for known in [false, true] {
            let (mem, mut neighbours, mut actions) = (Memory::heap(), neighbours(known), Vec::new());
            let now = Instant::ZERO;
            let v4 = arp::handle(&mut neighbours, now, &mem, HERE, |addr| addr == OURS, &bytes, &mut actions);
            let v6 = nd::handle(&mut neighbours, now, &mem, HERE, |addr, _| (addr == OURS6).then_some(addr), &bytes, &mut actions);
            prop_assert!(v4.is_err() || v6.is_err(), "nothing is both");
            // A learnt address is that of one station other than this node.
            for entry in neighbours.iter() {
                prop_assert!(entry.mac.is_none_or(|mac| mac.is_unicast() && mac != HERE.mac), "{:?}", entry);
            }
        }
    }
}
