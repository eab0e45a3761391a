//! Fragmentation, undone by reassembly, and IPv6's own rules.

use base::DropReason;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, Pool, geometry};
use reassembly::{fragment, fragment_v6};
use wire::ip::Info;
use wire::ipv6::{self, Ipv6};
use wire::{Protocol, Version, ext};

use crate::world::{BOTH, World, part, payload};

fn cut(mem: &Memory, packet: Packet, mtu: usize) -> Result<Vec<Packet>, DropReason> {
    let mut out = Vec::new();
    let result = match Version::of(packet.head()).unwrap() {
        Version::V4 => fragment(mem, packet, mtu, &mut out),
        Version::V6 => fragment_v6(mem, packet, mtu, 0xdead_beef, &mut out),
    };
    assert!(result.is_ok() || out.is_empty());
    result.map(|()| out)
}

/// An IPv6 packet with these next headers, eight bytes each but the last, in front of `len` bytes of payload.
fn chain(kinds: &[Protocol], len: usize) -> Vec<u8> {
    let (&first, rest) = kinds.split_first().unwrap();
    let mut bytes = part(0, 0).whole(Version::V6, 0);
    for &next in rest {
        bytes.extend_from_slice(ext::ExtHeader::new(next, 8).unwrap().as_bytes());
        bytes.extend([1, 4, 0, 0, 0, 0]);
    }
    bytes.extend(payload(0, len));
    let payload_len = (bytes.len() - 40) as u16;
    let header = ipv6::Ipv6Header::mut_from(&mut bytes).unwrap();
    header.set_next_header(first);
    header.set_payload_len(payload_len);
    bytes
}

#[test]
fn fragmented_and_put_together_a_packet_is_what_it_was() {
    for version in BOTH {
        for (mtu, len) in [(1280, 1300), (1280, 65_000), (1500, 65_507), (1499, 3000), (576, 20_001), (72, 800)] {
            let mut bytes = part(0, 0).whole(version, len);
            if version == Version::V4 {
                bytes[4..6].copy_from_slice(&0xbeef_u16.to_be_bytes());
                wire::ipv4::fill_check(&mut bytes).unwrap();
            }
            let count = geometry::all(&Memory::heap(), &bytes, &[20, 28, 40, 48]).len();
            for shape in 0..count {
                let mut world = World::new(version);
                let (name, mut packet) = geometry::all(&world.mem, &bytes, &[20, 28, 40, 48]).swap_remove(shape);
                packet.may_pull(&world.mem, 40).unwrap();
                let mut fragments = cut(&world.mem, packet, mtu).unwrap();
                if shape % 2 == 1 {
                    fragments.reverse();
                }
                for fragment in fragments {
                    let bytes = fragment.to_vec();
                    assert!(bytes.len() <= mtu && fragment.meta.cut == Cut::Fragment);
                    world.send_packet(fragment, &bytes);
                }
                assert!(world.bytes() == [bytes.clone()], "{version}, {len} bytes over {mtu}, {name}");
                assert_eq!(world.reassembly.memory(), 0);
            }
        }
    }
}

//= test RFC 5722 §4 no-overlaps-made
#[test]
fn headers_for_routers_are_in_each_fragment() {
    use Protocol as P;
    // The chain, and the number of its bytes that are repeated (RFC 8200 §4.5).
    let cases: [(&[P], usize); 5] = [
        (&[P::UDP], 40),
        (&[P::HOP_BY_HOP, P::UDP], 48),
        (&[P::DEST_OPTS, P::UDP], 40),
        (&[P::DEST_OPTS, P::ROUTING, P::UDP], 56),
        (&[P::HOP_BY_HOP, P::DEST_OPTS, P::ROUTING, P::DEST_OPTS, P::UDP], 64),
    ];
    for (kinds, repeated) in cases {
        let mut bytes = chain(kinds, 3000);
        bytes[7] = 9;
        let mut world = World::new(Version::V6);
        let fragments = cut(&world.mem, Packet::with_data(&world.mem, &bytes).unwrap(), 1280).unwrap();
        assert_eq!(fragments.len(), 3, "{kinds:?}");
        for (at, fragment) in fragments.into_iter().enumerate() {
            let part = fragment.to_vec();
            let view = Ipv6::parse(&part).unwrap();
            let found = view.chain().unwrap().fragment.unwrap();
            assert_eq!((found.place.offset, found.info.id), (repeated, 0xdead_beef), "{kinds:?}");
            assert_eq!(view.header().hop_limit(), 9);
            assert_eq!(found.info.more, at < 2);
            assert!(found.info.offset.bytes() == at * ((1280 - repeated - 8) / 8 * 8));
            world.send_packet(fragment, &part);
        }
        assert!(world.bytes() == [bytes], "{kinds:?}");
    }
}

#[test]
fn a_payload_in_one_page_is_not_copied() {
    let mem = Memory::heap();
    let packet = Packet::with_data(&mem, &part(0, 0).whole(Version::V6, 60_000)).unwrap();
    let fragments = cut(&mem, packet, 1500).unwrap();
    assert_eq!(mem.copies().total_bytes(), 48 * fragments.len() as u64);
}

#[test]
fn packet_that_may_not_be_fragmented_is_refused() {
    let mem = Memory::heap();
    let packet = || Packet::with_data(&mem, &part(0, 0).whole(Version::V6, 3000)).unwrap();
    let refused = |packet: Packet, mtu: usize| cut(&mem, packet, mtu).map(|all| all.len()).unwrap_err();
    assert_eq!(refused(packet(), 55), DropReason::CannotSegment);
    assert_eq!(cut(&mem, packet(), 56).map(|all| all.len()), Ok(375));
    let mut changed = packet();
    changed.meta.csum = Csum::Partial { start: 40, offset: 6 };
    assert_eq!(refused(changed, 1280), DropReason::CannotSegment);
    let mut changed = packet();
    changed.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size: 1000, segs: 3, ecn: false, fixed_id: false });
    assert_eq!(refused(changed, 1280), DropReason::CannotSegment);
    let again = Packet::with_data(&mem, &part(0, 2000).bytes(Version::V6)).unwrap();
    assert_eq!(refused(again, 1280), DropReason::CannotSegment, "a fragment already");
    let long_chain = chain(&[Protocol::DEST_OPTS, Protocol::DEST_OPTS, Protocol::UDP], 100);
    for (mtu, fits) in [(71, false), (72, true)] {
        let packet = Packet::with_data(&mem, &long_chain).unwrap();
        assert_eq!(cut(&mem, packet, mtu).is_ok(), fits, "UDP ends 24 bytes into what is fragmented, over {mtu}");
    }
    let dry = Memory::new(Pool::bounded(Memory::SMALL, 2), Pool::heap(Memory::LARGE));
    let packet = Packet::with_data(&mem, &part(0, 0).whole(Version::V6, 3000)).unwrap();
    assert_eq!(cut(&dry, packet, 700).map(|all| all.len()), Err(DropReason::NoMemory));
}

#[test]
fn a_packet_that_fits_is_left_alone() {
    let mem = Memory::heap();
    let bytes = part(0, 0).whole(Version::V6, 1240);
    let out = cut(&mem, Packet::with_data(&mem, &bytes).unwrap(), 1280).unwrap();
    assert_eq!((out.len(), out[0].to_vec(), out[0].meta.cut), (1, bytes.clone(), Cut::Whole));
    assert_eq!(Info::parse(&bytes, bytes.len()).unwrap().fragment, None);
}
