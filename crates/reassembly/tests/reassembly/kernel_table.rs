//! Behaviour of a 6.18 kernel, case by case, with the exact changes of its counters. The datagram has 400 bytes, in
//! fragments of 104, 104, 96 and 96.

use base::DropReason;
use reassembly::TruncatedChain;
use wire::icmpv6::Problem;
use wire::ip::Info;
use wire::{Malformed, Protocol, Version};

use crate::world::{BOTH, LINK, Moved, Piece, Refused, World, last, part};

const LEN: usize = 400;

fn a() -> Piece {
    part(0, 104)
}
fn b() -> Piece {
    part(104, 104)
}
fn c() -> Piece {
    part(208, 96)
}
fn d() -> Piece {
    last(304, 96)
}

/// Result.
#[derive(Default)]
struct Want {
    /// The TOS of each delivered datagram.
    delivered: Vec<u8>,
    moved: Moved,
    refused: Vec<Refused>,
}

fn delivered(requests: u64) -> Want {
    Want { delivered: vec![0], moved: Moved { requests, oks: 1, ..Moved::default() }, ..Want::default() }
}

/// Delivered finally, though a queue was dropped before.
fn delivered_after_a_failure(requests: u64) -> Want {
    let want = delivered(requests);
    Want { moved: Moved { fails: 1, ..want.moved }, ..want }
}

fn with_tos(tos: u8) -> Want {
    Want { delivered: vec![tos], ..delivered(4) }
}

fn failed(requests: u64) -> Want {
    Want { moved: Moved { requests, fails: 1, ..Moved::default() }, ..Want::default() }
}

fn overlapped(requests: u64) -> Want {
    Want { moved: Moved { requests, fails: 1, overlaps: 1, ..Moved::default() }, ..Want::default() }
}

fn nothing(requests: u64) -> Want {
    Want { moved: Moved { requests, ..Moved::default() }, ..Want::default() }
}

fn refused(requests: u64, refused: Refused) -> Want {
    let moved = Moved { requests, header_errors: 1, ..Moved::default() };
    Want { moved, refused: vec![refused], ..Want::default() }
}

fn check(name: &str, version: Version, pieces: &[Piece], want: &Want) {
    let mut world = World::new(version);
    world.send_all(pieces);
    let whole: Vec<_> = want.delivered.iter().map(|&tos| Piece { tos, ..a() }.whole(version, LEN)).collect();
    assert_eq!(world.bytes(), whole, "{name}, {version}");
    assert_eq!(world.counters, want.moved.counters(version), "{name}, {version}");
    assert_eq!(world.refused, want.refused, "{name}, {version}");
    let left = world.reassembly.queues() as u64;
    world.drain();
    let moved = Moved { fails: want.moved.fails + left, timeouts: left, ..want.moved };
    assert_eq!(world.counters, moved.counters(version), "{name}, {version}, once what is left has timed out");
    let lost: u64 = world.dropped.iter().map(|&(_, packets)| packets).sum();
    let joined = if want.delivered.is_empty() { 0 } else { 4 * want.delivered.len() as u64 };
    assert_eq!(lost + joined + world.refused.len() as u64, world.sent, "{name}, {version}: each ends in one place");
    world.assert_pages_came_home();
}

//= test RFC 5722 §4 overlap
#[test]
fn both_families_match_linux() {
    let tos = |piece: Piece, tos| Piece { tos, ..piece };
    let cases: Vec<(&str, Vec<Piece>, Want)> = vec![
        ("in order", vec![a(), b(), c(), d()], delivered(4)),
        ("reversed", vec![d(), c(), b(), a()], delivered(4)),
        ("exact duplicate", vec![a(), b(), b(), c(), d()], delivered(5)),
        ("duplicate of the first", vec![a(), a(), b(), c(), d()], delivered(5)),
        ("duplicate inside a piece", vec![a(), b(), part(112, 8), c(), d()], delivered(5)),
        ("duplicate spanning two queued pieces", vec![a(), b(), part(0, 208), c(), d()], delivered(5)),
        ("duplicate with other bytes", vec![a(), b(), Piece { change: 1, ..b() }, c(), d()], delivered(5)),
        ("superset of a queued piece", vec![a(), b(), part(96, 120), c(), d()], overlapped(5)),
        ("superset in a hole", vec![a(), c(), part(200, 104), b(), d()], overlapped(5)),
        ("overlap at the tail", vec![a(), b(), part(200, 104), c(), d()], overlapped(5)),
        ("overlap at the front", vec![a(), c(), part(104, 112), b(), d()], overlapped(5)),
        ("overlap with the end of the run before", vec![a(), c(), part(96, 112), b(), d()], overlapped(5)),
        ("overlap of two runs", vec![a(), c(), part(96, 120), b(), d()], overlapped(5)),
        (
            "tail overlap, then full resend with same id",
            vec![a(), b(), part(200, 104), a(), b(), c(), d()],
            Want { moved: Moved { overlaps: 1, ..delivered_after_a_failure(7).moved }, ..delivered(7) },
        ),
        ("duplicate spanning two runs", vec![d(), c(), b(), part(104, 200), a()], overlapped(5)),
        ("duplicate next to a closed hole", vec![a(), c(), b(), part(0, 208), d()], overlapped(5)),
        ("duplicate inside a run of one", vec![d(), c(), b(), part(112, 8), a()], delivered(5)),
        ("a duplicate that alone is a last", vec![a(), part(104, 296), d()], nothing(3)),
        ("two lasts, same end", vec![a(), b(), d(), d(), c()], delivered(5)),
        ("two lasts, different end", vec![a(), d(), last(304, 88), b(), c()], failed(5)),
        ("two lasts, later end", vec![a(), d(), last(304, 104), b(), c()], failed(5)),
        ("a last before what has come", vec![a(), b(), c(), last(208, 88), d()], failed(5)),
        (
            "last first, then data beyond it, then all",
            vec![d(), part(400, 96), a(), b(), c(), d()],
            delivered_after_a_failure(6),
        ),
        ("zero-length MF piece in the middle", vec![a(), part(104, 0), b(), c(), d()], failed(5)),
        ("zero-length last piece", vec![a(), b(), c(), last(304, 0), d()], failed(5)),
        ("ECN CE and ECT0", vec![tos(a(), 2), tos(b(), 3), tos(c(), 2), tos(d(), 2)], with_tos(3)),
        ("ECN CE and ECT1", vec![tos(a(), 1), tos(b(), 1), tos(c(), 1), tos(d(), 3)], with_tos(3)),
        ("ECN ECT0 and ECT1", vec![tos(a(), 2), tos(b(), 1), tos(c(), 1), tos(d(), 1)], with_tos(2)),
        ("ECN Not-ECT with CE", vec![a(), b(), tos(c(), 3), d()], failed(4)),
        ("ECN Not-ECT with ECT0", vec![tos(a(), 2), b(), tos(c(), 2), tos(d(), 2)], failed(4)),
        ("DSCP differs", vec![tos(a(), 0xb8), b(), tos(c(), 0x28), d()], with_tos(0xb8)),
        ("DSCP differs, first last", vec![d(), tos(c(), 0x28), b(), tos(a(), 0xb8)], with_tos(0xb8)),
    ];
    for (name, pieces, want) in cases {
        for version in BOTH {
            check(name, version, &pieces, &want);
        }
    }
}

#[test]
fn ipv4_trims_a_length_that_is_no_multiple_of_8() {
    let pieces = |next| vec![part(0, 103), part(next, 208 - next), c(), d()];
    check("next at 104", Version::V4, &pieces(104), &nothing(4));
    check("next at 96", Version::V4, &pieces(96), &delivered(4));
    check("less than 8", Version::V4, &[a(), part(104, 7), b(), c(), d()], &failed(5));
}

//= test RFC 8200 §4.5 multiple-of-8
#[test]
fn ipv6_length_not_multiple_of_8_is_answered_others_kept() {
    let problem = (DropReason::FragmentLength, Problem::FIELD, 4);
    let pieces = |next| vec![part(0, 103), part(next, 208 - next), c(), d()];
    check("next at 104", Version::V6, &pieces(104), &refused(4, problem));
    check("next at 96", Version::V6, &pieces(96), &refused(4, problem));
    let mut want = refused(5, problem);
    (want.delivered, want.moved.oks) = (vec![0], 1);
    check("then the right one", Version::V6, &[a(), b(), part(208, 95), c(), d()], &want);
}

//= test RFC 8200 §4.5 same-datagram
#[test]
fn ipv6_ignores_later_next_headers_and_reserved_bits() {
    let other = |piece: Piece| Piece { protocol: Protocol(200), reserved: 0xff, ..piece };
    check("in order", Version::V6, &[a(), other(b()), c(), other(d())], &delivered(4));
    check("reversed", Version::V6, &[other(d()), c(), other(b()), a()], &delivered(4));
}

//= test RFC 8200 §4.5 header-chain
#[test]
fn ipv6_refuses_first_fragment_without_upper_layer_header() {
    let cases = [
        (Protocol::UDP, 8, false),
        (Protocol::UDP, 7, true),
        (Protocol::UDP, 4, true),
        (Protocol::UDP, 0, true),
        (Protocol::TCP, 24, false),
        (Protocol::TCP, 16, true),
        (Protocol::ICMPV6, 8, false),
        (Protocol::ICMPV6, 0, true),
        (Protocol::ESP, 8, false),
        (Protocol::ESP, 0, true),
    ];
    let problem = (DropReason::FragmentHeaderChain, Problem::HEADER_CHAIN, 0);
    for (protocol, len, is_refused) in cases {
        let want = if is_refused { refused(1, problem) } else { nothing(1) };
        check(&format!("{len} bytes of {protocol}"), Version::V6, &[Piece { protocol, ..part(0, len) }], &want);
    }
}

//= test RFC 8200 §4.5 header-chain
#[test]
fn ipv6_needs_upper_layer_header_behind_all_others() {
    const AH: [u8; 2] = [51, 4];
    let udp_behind = |kind: u8| vec![(kind, vec![17, 0])];
    let (ah, ah_dest) = (vec![(AH[0], vec![17, AH[1]])], vec![(AH[0], vec![60, AH[1]]), (60, vec![17, 0])]);
    // Headers, each of 8 bytes except AH; bytes of payload; whether it is refused.
    let cases = [
        ("AH truncated", &ah, 8, true),
        ("nothing behind AH", &ah, 24, true),
        ("UDP behind AH", &ah, 32, false),
        ("nothing behind AH and options", &ah_dest, 32, true),
        ("options behind AH truncated", &ah_dest, 24, true),
        ("UDP behind AH and options", &ah_dest, 40, false),
        ("nothing behind hop-by-hop options", &udp_behind(0), 8, true),
        ("UDP behind hop-by-hop options", &udp_behind(0), 16, false),
        ("nothing behind a fragment header", &udp_behind(44), 8, true),
        ("UDP behind a fragment header", &udp_behind(44), 16, false),
        ("nothing behind that of a later fragment", &vec![(44, vec![17, 0, 0, 9])], 8, false),
    ];
    let problem = (DropReason::FragmentHeaderChain, Problem::HEADER_CHAIN, 0);
    for (name, headers, len, is_refused) in cases {
        let mut chain = Vec::new();
        for (kind, start) in headers {
            let header_len = if *kind == AH[0] { 24 } else { 8 };
            chain.extend(start);
            chain.resize(chain.len() + header_len - start.len(), 0);
        }
        let mut bytes = Piece { protocol: Protocol(headers[0].0), ..part(0, len) }.bytes(Version::V6);
        chain.resize(len, 0);
        bytes[48..].copy_from_slice(&chain);
        for (shape, pkt) in packet::geometry::all(&packet::Memory::heap(), &bytes, &[40, 48, 50]) {
            let mut world = World::new(Version::V6);
            world.send_packet(pkt, &bytes);
            let refused: Vec<Refused> = is_refused.then_some(problem).into_iter().collect();
            assert_eq!(
                (world.refused, world.reassembly.queues()),
                (refused, usize::from(!is_refused)),
                "{name}, {shape}"
            );
        }
    }
}

//= test RFC 8200 §4.7 no-next-header
#[test]
fn ipv6_ignores_bytes_behind_no_next_header() {
    let no_next = |piece: Piece| Piece { protocol: Protocol::NO_NEXT, ..piece };
    check("nothing at all", Version::V6, &[no_next(part(0, 0))], &failed(1));
    check("something all the same", Version::V6, &[no_next(part(0, 8))], &nothing(1));
}

//= test RFC 8200 §4.5 too-long
#[test]
fn ipv6_refuses_a_fragment_that_ends_beyond_65535() {
    let problem = (DropReason::FragmentTooLong, Problem::FIELD, 42);
    check("by one", Version::V6, &[last(65_528, 8)], &refused(1, problem));
    check("not at all", Version::V6, &[last(65_528, 7)], &nothing(1));
    check("others follow", Version::V6, &[part(65_528, 8)], &refused(1, problem));
}

/// The parser refuses these, so they have no summary.
#[test]
fn ipv6_answers_truncated_header_chains() {
    let dest_opts = |piece: Piece, len_blocks: u8| {
        let mut bytes = Piece { protocol: Protocol::DEST_OPTS, ..piece }.bytes(Version::V6);
        if piece.len >= 2 {
            bytes[48..50].copy_from_slice(&[17, len_blocks]);
        }
        bytes
    };
    let without_payload = || {
        let mut bytes = a().bytes(Version::V6);
        bytes[4..6].fill(0);
        bytes
    };
    let without_payload_behind_options = || {
        let mut bytes = part(0, 0).whole(Version::V6, 8);
        (bytes[6], bytes[40], bytes[41]) = (0, 44, 0);
        bytes
    };
    let seven_bytes = || {
        let mut bytes = a().bytes(Version::V6);
        bytes.truncate(47);
        bytes[5] = 7;
        bytes
    };
    let chain = Some((DropReason::FragmentHeaderChain, Problem::HEADER_CHAIN, 0));
    let field = |pointer| Some((DropReason::Ipv6Header, Problem::FIELD, pointer));
    let cases = [
        ("a payload of nothing", without_payload(), field(40)),
        ("nothing behind hop-by-hop options", without_payload_behind_options(), field(48)),
        ("seven bytes of a fragment header", seven_bytes(), field(40)),
        ("options longer than the first fragment", dest_opts(part(0, 8), 5), chain),
        ("no options at all", dest_opts(part(0, 0), 0), chain),
        ("options longer than an atomic fragment", dest_opts(last(0, 8), 5), None),
        ("options that end with the first fragment", dest_opts(part(0, 8), 0), None),
        ("a later fragment", dest_opts(part(8, 8), 5), None),
    ];
    for (name, bytes, want) in cases {
        for (shape, mut pkt) in packet::geometry::all(&packet::Memory::heap(), &bytes, &[40, 48]) {
            let found = TruncatedChain::find(&packet::Memory::heap(), &mut pkt);
            assert_eq!(found.map(|it| (it.reason, it.code, it.pointer)), want, "{name}, {shape}");
            assert_eq!(pkt.to_vec(), bytes);
            if let Some(found) = found {
                assert_eq!(Info::parse(&bytes, bytes.len()), Err(Malformed::Ipv6Extension), "{name}");
                assert_eq!(found.info.src, "2001:db8::1".parse::<std::net::IpAddr>().unwrap());
            }
        }
    }
}

#[test]
fn a_payload_of_exactly_65535_is_too_much_for_ipv4_alone() {
    let pieces = [part(0, 32_768), last(32_768, 32_767)];
    for version in BOTH {
        let mut world = World::new(version);
        world.send_all(&pieces);
        let oks = u64::from(version == Version::V6);
        let moved = Moved { requests: 2, oks, fails: 1 - oks, ..Moved::default() };
        assert_eq!(world.counters, moved.counters(version), "{version}");
        if version == Version::V6 {
            assert!(world.bytes() == [a().whole(version, 65_535)]);
        } else {
            assert_eq!(world.dropped, [(DropReason::FragmentTooLong, 2)]);
        }
    }
}

//= test RFC 8200 §4.5 timeout
#[test]
fn timeout_quotes_the_first_fragment_if_received() {
    for version in BOTH {
        let moved = Moved { requests: 2, fails: 1, timeouts: 1, ..Moved::default() };
        let cases = [(vec![b(), a()], Some(a())), (vec![a(), b()], Some(a())), (vec![b(), d()], None)];
        for (pieces, quoted) in cases {
            let mut world = World::new(version);
            world.send_all(&pieces);
            let first = world.drain();
            assert_eq!(world.counters, moved.counters(version), "{version} {pieces:?}");
            assert_eq!(world.dropped, [(DropReason::FragmentTimeout, 2)]);
            let bytes: Vec<_> = quoted.map(|piece| piece.bytes(version)).into_iter().collect();
            assert_eq!(first.iter().map(|(bytes, _)| bytes.clone()).collect::<Vec<_>>(), bytes, "{version}");
            for (bytes, info) in first {
                assert_eq!(Info::parse(&bytes, bytes.len()), Ok(info));
            }
        }
    }
}

#[test]
fn trimmed_fragment_is_quoted_as_kept() {
    let mut world = World::new(Version::V4);
    world.send_all(&[part(0, 103), part(96, 8)]);
    let [(bytes, info)] = &world.drain()[..] else { panic!("one first piece") };
    assert_eq!(*bytes, part(0, 103).bytes(Version::V4)[..116]);
    assert_eq!((info.total_len, info.payload_len()), (116, 96));
}

//= test RFC 8200 §4.5 atomic
#[test]
fn atomic_fragment_does_not_touch_queue_of_its_id() {
    let atomic = last(0, 48);
    let mut world = World::new(Version::V6);
    world.send(atomic);
    let moved = Moved { requests: 1, oks: 1, ..Moved::default() };
    assert_eq!(world.counters, moved.counters(Version::V6));
    world.send_all(&[a(), b(), atomic, c(), d()]);
    let moved = Moved { requests: 6, oks: 3, ..Moved::default() };
    assert_eq!(world.counters, moved.counters(Version::V6));
    let (small, large) = (a().whole(Version::V6, 48), a().whole(Version::V6, LEN));
    assert_eq!(world.bytes(), [small.clone(), small, large]);
    assert!(world.delivered.iter().all(|pkt| pkt.meta.origin.device() == LINK));
}

#[test]
fn a_fragment_inside_a_fragment_is_answered_after_reassembly() {
    // Seen from outside, the payload begins with a fragment header in front of UDP.
    let nested = |piece: Piece| {
        let mut bytes = Piece { protocol: Protocol::FRAGMENT, ..piece }.bytes(Version::V6);
        if piece.at == 0 {
            bytes[48..56].copy_from_slice(&[17, 0, 0, 0, 0, 0, 0, 9]);
        }
        bytes
    };
    let run = |pieces: &[Piece]| {
        let mut world = World::new(Version::V6);
        for &piece in pieces {
            let bytes = nested(piece);
            let pkt = packet::Packet::with_data(&world.mem, &bytes).unwrap();
            world.send_packet(pkt, &bytes);
        }
        let requests = pieces.len() as u64;
        let moved = Moved { requests, oks: 1, header_errors: 1, ..Moved::default() };
        assert_eq!(world.counters, moved.counters(Version::V6));
        assert!(world.delivered.is_empty());
        world.refused
    };
    let reason = DropReason::FragmentNested;
    assert_eq!(run(&[a(), b(), c(), d()]), [(reason, Problem::FIELD, 40)]);
    assert_eq!(run(&[last(0, 100)]), [(reason, Problem::FIELD, 48)], "nothing was taken out of what is quoted");
}

#[test]
fn hop_by_hop_options_inside_a_fragment_hide_no_other_fragment() {
    // Without the outer fragment header the options would be in a legal place, with a fragment header behind them.
    let run = |protocol: Protocol, pieces: &[Piece]| {
        let mut world = World::new(Version::V6);
        for &piece in pieces {
            let mut bytes = Piece { protocol: Protocol::HOP_BY_HOP, ..piece }.bytes(Version::V6);
            if piece.at == 0 {
                bytes[48..56].copy_from_slice(&[protocol.0, 0, 1, 4, 0, 0, 0, 0]);
                bytes[56..64].copy_from_slice(&[17, 0, 0, 1, 0, 0, 0, 9]);
            }
            let pkt = packet::Packet::with_data(&world.mem, &bytes).unwrap();
            world.send_packet(pkt, &bytes);
        }
        let requests = pieces.len() as u64;
        assert_eq!(world.counters, Moved { requests, oks: 1, ..Moved::default() }.counters(Version::V6));
        assert!(world.delivered.is_empty());
        world.refused
    };
    let reason = DropReason::ProtocolUnknown;
    for protocol in [Protocol::FRAGMENT, Protocol::UDP] {
        assert_eq!(run(protocol, &[a(), b(), c(), d()]), [(reason, Problem::NEXT_HEADER, 6)]);
        assert_eq!(run(protocol, &[d(), c(), b(), a()]), [(reason, Problem::NEXT_HEADER, 6)]);
        assert_eq!(
            run(protocol, &[last(0, 100)]),
            [(reason, Problem::NEXT_HEADER, 40)],
            "the fragment header is there"
        );
    }
}

#[test]
fn error_points_to_second_fragment_header_behind_options() {
    let mut bytes = Piece { protocol: Protocol::DEST_OPTS, ..last(0, 100) }.bytes(Version::V6);
    bytes[48..56].copy_from_slice(&[44, 0, 1, 4, 0, 0, 0, 0]);
    let mut world = World::new(Version::V6);
    let pkt = packet::Packet::with_data(&world.mem, &bytes).unwrap();
    world.send_packet(pkt, &bytes);
    assert_eq!(world.refused, [(DropReason::FragmentNested, Problem::FIELD, 56)]);
}

#[test]
fn ipv4_may_carry_protocol_44() {
    for pieces in [vec![a(), b(), c(), d()], vec![d(), c(), b(), a()]] {
        let pieces: Vec<_> = pieces.into_iter().map(|piece| Piece { protocol: Protocol::FRAGMENT, ..piece }).collect();
        let mut world = World::new(Version::V4);
        world.send_all(&pieces);
        let whole = Piece { protocol: Protocol::FRAGMENT, ..a() }.whole(Version::V4, LEN);
        assert_eq!((world.bytes(), world.refused), (vec![whole], vec![]));
    }
}
