//! The shapes of fragments, and of the reassembled datagram.

use base::{PortId, SaId};
use packet::{Buf, CopyReason, Csum, MAX_FRAGS, Memory, Packet, geometry};
use wire::checksum;
use wire::ip::Info;
use wire::ipv6;
use wire::{Protocol, Version};

use crate::world::{BOTH, Piece, World, last, part};

/// The fragments of a datagram of `len` bytes, at most `step` each.
fn train(len: usize, step: usize) -> Vec<Piece> {
    (0..len).step_by(step).map(|at| if at + step < len { part(at, step) } else { last(at, len - at) }).collect()
}

/// An IPv6 fragment with hop-by-hop options before and destination options behind the fragment header.
fn with_extensions(piece: Piece) -> Vec<u8> {
    let mut bytes = Piece { protocol: Protocol::DEST_OPTS, ..piece }.bytes(Version::V6);
    bytes.splice(40..40, [44, 0, 1, 4, 0, 0, 0, 0]);
    if piece.at == 0 {
        bytes[56..64].copy_from_slice(&[17, 0, 1, 4, 0, 0, 0, 0]);
    }
    bytes[ipv6::NEXT_HEADER_AT] = Protocol::HOP_BY_HOP.0;
    ipv6::Ipv6Header::mut_from(&mut bytes).unwrap().set_payload_len((16 + piece.len) as u16);
    bytes
}

#[test]
fn each_fragment_may_have_any_shape() {
    let pieces = [part(0, 48), part(48, 40), last(88, 13)];
    type ToBytes = fn(Piece) -> Vec<u8>;
    let families: [(Version, ToBytes, usize); 3] = [
        (Version::V4, |piece| piece.bytes(Version::V4), 20),
        (Version::V6, |piece| piece.bytes(Version::V6), 48),
        (Version::V6, with_extensions, 56),
    ];
    for (version, to_bytes, header_len) in families {
        let mut want = to_bytes(part(0, 48));
        want.extend(
            part(48, 40).bytes(version).split_off(version.header_len() + if version == Version::V6 { 8 } else { 0 }),
        );
        want.extend(
            last(88, 13).bytes(version).split_off(version.header_len() + if version == Version::V6 { 8 } else { 0 }),
        );
        match version {
            Version::V4 => {
                want[2..4].copy_from_slice(&121_u16.to_be_bytes());
                want[6..8].fill(0);
                wire::ipv4::fill_check(&mut want).unwrap();
            }
            Version::V6 => {
                want.drain(header_len - 8..header_len);
                want[if header_len == 48 { 6 } else { 40 }] = if header_len == 48 { 17 } else { 60 };
                let payload_len = want.len() - 40;
                ipv6::Ipv6Header::mut_from(&mut want).unwrap().set_payload_len(payload_len as u16);
            }
        }
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            for which in 0..3 {
                let bytes = to_bytes(pieces[which]);
                let count = geometry::all(&Memory::heap(), &bytes, &[20, 40, 48, 56]).len();
                for shape in 0..count {
                    let mut world = World::new(version);
                    for at in order {
                        let bytes = to_bytes(pieces[at]);
                        let (name, pkt) = if at == which {
                            geometry::all(&world.mem, &bytes, &[20, 40, 48, 56]).swap_remove(shape)
                        } else {
                            (String::new(), Packet::with_data(&world.mem, &bytes).unwrap())
                        };
                        world.send_packet(pkt, &bytes);
                        if at == order[2] {
                            assert_eq!(world.bytes(), [want.clone()], "{version} {order:?}, {which} as {name}");
                        }
                    }
                    world.assert_pages_came_home();
                }
            }
        }
    }
}

#[test]
fn datagram_of_64_kib_is_one_packet_of_slots_without_copy() {
    for (version, step) in [(Version::V4, 1480), (Version::V6, 1448)] {
        let pieces = train(65_500, step);
        assert!(pieces.len() > 44 && pieces.len() <= MAX_FRAGS);
        for reversed in [false, true] {
            let mut world = World::new(version);
            let mut order = pieces.clone();
            if reversed {
                order.reverse();
            }
            world.send_all(&order);
            assert!(world.bytes() == [part(0, 0).whole(version, 65_500)]);
            let whole = &world.delivered[0];
            assert_eq!((whole.frags().len(), whole.frag_list().len()), (pieces.len() - 1, 0));
            assert_eq!(world.mem.copies().total_bytes(), 0);
        }
    }
}

#[test]
fn fragments_beyond_the_slots_are_children_in_order() {
    for count in [MAX_FRAGS, MAX_FRAGS + 1, MAX_FRAGS + 2, 2 * MAX_FRAGS + 3] {
        let pieces = train((count - 1) * 648 + 1, 648);
        assert_eq!(pieces.len(), count);
        for version in BOTH {
            for tail_at in [0, count / 2, count - 1] {
                let mut order = pieces.clone();
                let tail = order.remove(count - 1);
                order.insert(tail_at, tail);
                let mut world = World::new(version);
                world.send_all(&order);
                assert!(world.bytes() == [part(0, 0).whole(version, (count - 1) * 648 + 1)], "{count} {tail_at}");
                // Nothing was copied into a head that is not last.
                world.delivered[0].check_invariants();
            }
        }
    }
}

#[test]
fn fragment_that_fits_tailroom_is_copied_and_its_page_freed() {
    let mut world = World::new(Version::V4);
    world.send_all(&[part(0, 800), part(800, 400)]);
    assert_eq!(world.mem.small().in_use(), 1);
    assert_eq!(world.mem.copies().get(CopyReason::Coalesce).bytes, 400);
    world.send(last(1200, 1400));
    assert_eq!(world.delivered[0].frags().len(), 1);
    assert_eq!(world.bytes(), [part(0, 0).whole(Version::V4, 2600)]);
}

/// The sum of all bytes, as in [`Csum::Complete`].
fn complete(bytes: &[u8]) -> Csum {
    Csum::Complete(checksum::fold(checksum::sum(bytes)))
}

#[test]
fn checksums_add_up_unless_one_is_missing() {
    type State = fn(&[u8]) -> Csum;
    let none: State = |_| Csum::None;
    let unnecessary: State = |_| Csum::Unnecessary;
    let partial: State = |_| Csum::Partial { start: 48, offset: 6 };
    // Checksum states of the three fragments, and of the whole datagram; `complete` stands for a correct sum.
    let cases: [([State; 3], State); 8] = [
        ([complete; 3], complete),
        ([complete, none, complete], none),
        ([none, complete, complete], none),
        ([unnecessary; 3], unnecessary),
        ([unnecessary, unnecessary, complete], none),
        ([none; 3], none),
        ([partial; 3], none),
        ([partial, none, none], none),
    ];
    let pieces = [part(0, 96), part(96, 1000), last(1096, 77)];
    for version in BOTH {
        for (case, (states, want)) in cases.into_iter().enumerate() {
            for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
                let mut world = World::new(version);
                for at in order {
                    let bytes = Piece { tos: [1, 3, 1][at], ..pieces[at] }.bytes(version);
                    let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
                    pkt.meta.csum = states[at](&bytes);
                    world.send_packet(pkt, &bytes);
                }
                let whole = &world.delivered[0];
                let (got, want) = (whole.meta.csum, want(&whole.to_vec()));
                match (got, want) {
                    // Zero has two forms.
                    (Csum::Complete(got), Csum::Complete(want)) => assert_eq!(got % 0xffff, want % 0xffff, "{version}"),
                    _ => assert_eq!(got, want, "{version}, case {case}, order {order:?}"),
                }
            }
        }
    }
}

#[test]
fn a_sum_stays_right_when_ipv4_trims_a_piece() {
    let mut world = World::new(Version::V4);
    for piece in [part(0, 103), last(96, 50)] {
        let bytes = piece.bytes(Version::V4);
        let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
        pkt.meta.csum = complete(&bytes);
        world.send_packet(pkt, &bytes);
    }
    let whole = &world.delivered[0];
    let (Csum::Complete(got), Csum::Complete(want)) = (whole.meta.csum, complete(&whole.to_vec())) else {
        panic!("no sum in {whole:?}");
    };
    assert_eq!(got % 0xffff, want % 0xffff);
}

#[test]
fn partial_checksum_of_atomic_fragment_moves_with_header() {
    let bytes = last(0, 100).bytes(Version::V6);
    let mut world = World::new(Version::V6);
    let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
    pkt.meta.csum = Csum::Partial { start: 48, offset: 6 };
    world.send_packet(pkt, &bytes);
    assert_eq!(world.delivered[0].meta.csum, Csum::Partial { start: 40, offset: 6 });
    assert_eq!(world.bytes(), [part(0, 0).whole(Version::V6, 100)]);
}

#[test]
fn df_is_set_if_the_largest_fragment_had_it() {
    let df = |piece: Piece| Piece { dont_fragment: true, ..piece };
    let cases = [
        (vec![part(0, 104), last(104, 96)], false),
        (vec![df(part(0, 104)), df(last(104, 96))], true),
        (vec![df(part(0, 104)), last(104, 96)], true),
        (vec![part(0, 104), df(last(104, 96))], false),
        (vec![part(0, 104), df(last(104, 104))], true),
        (vec![df(part(0, 8)), last(8, 96)], false),
    ];
    for (pieces, want) in cases {
        let mut world = World::new(Version::V4);
        world.send_all(&pieces);
        let bytes = world.bytes().remove(0);
        let info = Info::parse(&bytes, bytes.len()).unwrap();
        assert_eq!((info.dont_fragment, info.fragment), (want, None), "{pieces:?}");
    }
}

#[test]
fn metadata_is_from_first_fragment_link_from_last() {
    for version in BOTH {
        let mut world = World::new(version);
        for (piece, link, vlan) in [(part(0, 104), 8, Some(7)), (last(104, 96), 9, None)] {
            let bytes = piece.bytes(version);
            let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
            pkt.meta.vlan = vlan;
            pkt.meta.sec_path.push(SaId(1));
            world.link = PortId(link);
            world.send_packet(pkt, &bytes);
        }
        let meta = &world.delivered[0].meta;
        assert_eq!((meta.origin.device(), meta.vlan, &meta.sec_path[..]), (PortId(9), Some(7), &[SaId(1)][..]));
    }
}

#[test]
fn shared_bytes_are_not_written() {
    for version in BOTH {
        let (first, second) = (part(0, 104).bytes(version), last(104, 96).bytes(version));
        let mut world = World::new(version);
        let mut shared = Packet::with_data(&world.mem, &first).unwrap();
        let onlooker = shared.clone_shared();
        world.send_packet(shared, &first);
        let mut small = Packet::with_data(&world.mem, &second).unwrap();
        let other = small.clone_shared();
        world.send_packet(small, &second);
        assert_eq!(world.bytes(), [part(0, 0).whole(version, 200)]);
        assert_eq!((onlooker.to_vec(), other.to_vec()), (first.clone(), second.clone()));

        let page: &'static [u8] = first.clone().leak();
        world.send_packet(Packet::from_buf(Buf::foreign(page)), &first);
        world.send_packet(Packet::from_buf(Buf::foreign(second.clone())), &second);
        assert_eq!(world.bytes()[1], part(0, 0).whole(version, 200));
        assert_eq!(page, first);
    }
}

#[test]
fn bytes_behind_the_header_length_are_ignored() {
    for version in BOTH {
        let mut world = World::new(version);
        for piece in [part(0, 104), last(104, 3)] {
            let bytes = piece.bytes(version);
            let pkt = Packet::with_data(&world.mem, &[&bytes[..], &[0xee; 20]].concat()).unwrap();
            world.send_packet(pkt, &bytes);
        }
        assert_eq!(world.bytes(), [part(0, 0).whole(version, 107)]);
    }
}
