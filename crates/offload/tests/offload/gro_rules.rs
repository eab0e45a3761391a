//! Packets that GRO holds, the order in which it releases them, and their geometry.

use base::{Origin, PortId, SaId};
use offload::Gro;
use offload::gro::Config;
use packet::{Buf, Csum, Cut, Gso, GsoKind, MAX_FRAGS, Memory, Packet, geometry};

use crate::frames::*;

const SLOTS_ONLY: Config = Config { udp: true, frag_list: false };

/// `n` segments of 1448 bytes with the lengths of their headers, as from 64 KiB of payload.
fn stream(n: u32) -> Vec<(Vec<u8>, usize)> {
    (0..n).map(|n| tcp4(1 + n * 1448, n as u16, 1448)).map(|frame| (frame.bytes(), frame.header_len())).collect()
}

#[test]
fn a_merged_packet_says_how_to_cut_it() {
    let mem = Memory::heap();
    let last = |frame: Frame| Frame { flags: ACK | PSH | FIN, ..frame };
    let first = |frame: Frame| Frame { flags: ACK | CWR, ..frame };
    let cases = [
        (vec![first(tcp4(9, 5, 100)), last(tcp4(109, 6, 50))], GsoKind::TcpV4, true, false),
        (vec![tcp4(9, 5, 100), last(tcp4(109, 5, 50))], GsoKind::TcpV4, false, true),
        (vec![tcp6(9, 100), last(tcp6(109, 50))], GsoKind::TcpV6, false, false),
        (vec![udp4(5, 100), udp4(6, 50)], GsoKind::Udp, false, false),
        (vec![udp6(5, 100), udp6(6, 50)], GsoKind::Udp, false, false),
    ];
    for (frames, kind, ecn, fixed_id) in cases {
        let packets = frames.iter().map(|frame| received(&mem, &frame.bytes())).collect();
        let [packet] = glue(&mem, MERGE, packets).try_into().expect("one packet");
        assert_eq!(packet.meta.cut, Cut::Gso(Gso { kind, size: 100, segs: 2, ecn, fixed_id }));
        assert!(matches!(packet.meta.csum, Csum::Partial { .. }), "{packet:?}");
        assert_eq!(packet.meta.origin.device(), PortId(7));
        // A device that completes the checksum sends one large correct packet, with the flags of the first and the last
        // segment.
        let payload: Vec<u8> = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
        let flags = frames[0].flags | frames[1].flags;
        let want = Frame { payload, flags, ..frames[0].clone() }.bytes();
        check_on_wire(&completed(&packet));
        assert_eq!(completed(&packet), want, "{kind:?}");
    }
}

#[test]
fn a_lone_packet_comes_out_as_it_came_and_verified() {
    let mem = Memory::heap();
    for frame in [tcp4(1, 1, 10), tcp6(1, 10), udp4(1, 10), udp6(1, 10)] {
        let [packet] = glue(&mem, MERGE, vec![received(&mem, &frame.bytes())]).try_into().expect("one packet");
        assert_eq!(packet.to_vec(), frame.bytes());
        assert_eq!((packet.meta.cut, packet.meta.csum), (Cut::Whole, Csum::Unnecessary));
    }
    assert_eq!(mem.copies().total_bytes(), 0);
}

#[test]
fn a_wrong_checksum_goes_through_as_it_came() {
    let mem = Memory::heap();
    for frame in [tcp4(1, 1, 11), tcp6(1, 11), udp4(1, 11), udp6(1, 11)] {
        let mut bytes = frame.bytes();
        *bytes.last_mut().unwrap() ^= 4;
        let complete = plain_sum(&bytes);
        for csum in [Csum::None, Csum::Complete(complete)] {
            let mut packet = received(&mem, &bytes);
            packet.meta.csum = csum;
            let mut gro = Gro::new(MERGE);
            let mut out = Vec::new();
            gro.receive(&mem, packet, &mut out);
            assert_eq!((out.len(), gro.held()), (1, 0), "{csum:?}");
            assert_eq!((out[0].to_vec(), out[0].meta.csum), (bytes.clone(), csum));
        }
    }
}

#[test]
fn verified_packet_is_not_summed_again() {
    let mem = Memory::heap();
    let states = |frame: &Frame| {
        let l4 = if frame.v6 { 40 } else { 20 };
        let bytes = frame.bytes();
        [
            (Csum::Unnecessary, true),
            (Csum::Partial { start: l4, offset: 16 }, true),
            (Csum::Partial { start: l4, offset: 6 }, false),
            (Csum::Partial { start: 0, offset: l4 + 16 }, false),
            (Csum::Complete(plain_sum(&bytes)), true),
            (Csum::Complete(plain_sum(&bytes) ^ 1), false),
            (Csum::None, true),
        ]
    };
    for (first, second) in [(tcp4(1, 1, 333), tcp4(334, 2, 333)), (tcp6(1, 333), tcp6(334, 333))] {
        for (csum, merges) in states(&second) {
            let mut packets = vec![received(&mem, &first.bytes()), received(&mem, &second.bytes())];
            packets[1].meta.csum = csum;
            assert_eq!(glue(&mem, MERGE, packets).len() == 1, merges, "{csum:?}");
        }
    }
}

#[test]
fn three_layouts_of_64_kib_become_one_packet_without_a_copy() {
    for layout in Layout::ALL {
        let mem = Memory::heap();
        let mut out = glue(&mem, MERGE, layout.packets(&mem, &stream(45)));
        let packet = out.pop().expect("a packet");
        assert!(out.is_empty());
        assert_eq!((packet.len(), packet.meta.cut.segs()), (52 + 45 * 1448, 45), "{layout:?}");
        let slots = if matches!(layout, Layout::Paged) { 45 } else { 44 };
        assert_eq!((packet.frags().len(), packet.frag_list().len()), (slots, 0), "{layout:?}");
        assert_eq!(mem.copies().total_bytes(), 0, "{layout:?}");
    }
}

#[test]
fn with_children_a_merge_goes_on_where_the_slots_end() {
    let frames: Vec<_> = (0..60).map(|n| tcp4(1 + n * 1000, n as u16, 1000)).collect();
    let frames: Vec<_> = frames.iter().map(|frame| (frame.bytes(), frame.header_len())).collect();
    let cases = [(MERGE, vec![(60, MAX_FRAGS, 11)]), (SLOTS_ONLY, vec![(48, MAX_FRAGS - 1, 0), (12, 11, 0)])];
    for (config, want) in cases {
        let mem = Memory::heap();
        let out = glue(&mem, config, Layout::Linear.packets(&mem, &frames));
        let shapes: Vec<_> =
            out.iter().map(|pkt| (pkt.meta.cut.segs(), pkt.frags().len(), pkt.frag_list().len())).collect();
        assert_eq!(shapes, want);
        assert_eq!(mem.copies().total_bytes(), 0);
        let segments: Vec<_> = out.into_iter().flat_map(|pkt| cut(&mem, &SG, pkt, 0)).map(|pkt| pkt.to_vec()).collect();
        let sent: Vec<_> = frames.iter().map(|(bytes, _)| bytes.clone()).collect();
        assert_eq!(segments, sent);
    }
}

#[test]
fn truesize_is_kept_but_for_the_shells() {
    let mem = Memory::heap();
    let packets = Layout::Linear.packets(&mem, &stream(20));
    let before: usize = packets.iter().map(Packet::truesize).sum();
    let [packet] = glue(&mem, MERGE, packets).try_into().expect("one packet");
    assert_eq!(packet.truesize(), before - 19 * packet::PACKET_OVERHEAD);
    drop(packet);
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
}

#[test]
fn every_geometry_merges_to_the_same_bytes() {
    let dest_opts = vec![TCP, 0, 1, 4, 0, 0, 0, 0];
    let pairs = [
        [tcp4(1, 1, 300), tcp4(301, 2, 200)],
        [tcp6(1, 300), tcp6(301, 200)],
        [tcp6(1, 300), tcp6(301, 200)].map(|frame| Frame { dest_opts: dest_opts.clone(), ..frame }),
        [udp4(1, 300), udp4(2, 200)],
        [udp6(1, 300), udp6(2, 200)],
    ];
    for pair in pairs {
        let mem = Memory::heap();
        let plain = pair.iter().map(|frame| received(&mem, &frame.bytes())).collect();
        let [glued] = glue(&mem, MERGE, plain).try_into().expect("one packet");
        let end = pair[0].header_len();
        let cuts = [1, 19, 20, 33, 40, 44, 48, 51, end - 1, end, end + 1];
        let [first, second] = pair.each_ref().map(|frame| geometry::all(&mem, &frame.bytes(), &cuts));
        for ((name, first), (_, second)) in first.into_iter().zip(second) {
            let [packet] = glue(&mem, MERGE, vec![first, second]).try_into().expect(&name);
            assert_eq!((packet.to_vec(), packet.meta.cut), (glued.to_vec(), glued.meta.cut), "{name} {:?}", pair[0]);
        }
    }
}

#[test]
fn without_children_one_slot_is_left_whatever_comes() {
    let frames: Vec<_> = (0..60).map(|n| tcp4(1 + n * 1000, n as u16, 1000)).collect();
    // Every head is foreign, and every third payload has many fragments, or a child.
    for (foreign, pieces) in
        [(false, 1), (true, 1), (false, 10), (true, 10), (true, 46), (true, 47), (true, 60), (false, 0)]
    {
        let mem = Memory::heap();
        let build = |(index, frame): (usize, &Frame)| {
            let data = frame.bytes();
            let (headers, payload) = data.split_at(frame.header_len() + 10);
            let mut packet =
                if foreign { Packet::from_buf(Buf::foreign(headers.to_vec())) } else { received(&mem, headers) };
            packet.meta.origin = Origin::Port(PortId(7)).into();
            let pieces = if index % 3 == 0 { pieces } else { 1 };
            if pieces == 0 {
                packet.push_child(Packet::with_data(&mem, payload).unwrap());
                return packet;
            }
            for piece in payload.chunks(payload.len().div_ceil(pieces)) {
                packet.append(Packet::with_data(&mem, piece).unwrap());
            }
            packet
        };
        let out = glue(&mem, SLOTS_ONLY, frames.iter().enumerate().map(build).collect());
        for packet in out.iter().filter(|packet| packet.meta.cut.gso().is_some()) {
            assert!(packet.frag_list().is_empty(), "{foreign} {pieces}");
            assert!(packet.frags().len() < MAX_FRAGS, "{foreign} {pieces}");
        }
        let back: Vec<_> = out.into_iter().flat_map(|pkt| cut(&mem, &SG, pkt, 0)).map(|pkt| pkt.to_vec()).collect();
        assert_eq!(back, frames.iter().map(Frame::bytes).collect::<Vec<_>>());
    }
}

#[test]
fn the_ninth_flow_of_a_bucket_lets_the_oldest_go() {
    let mem = Memory::heap();
    let mut gro = Gro::new(MERGE);
    let mut out = Vec::new();
    let (mut ports, mut full) = (1u16.., None);
    // Adds flows until a new flow needs one of the 64 slots.
    while full.is_none() {
        let port = ports.next().unwrap();
        let held = gro.held();
        gro.receive(&mem, received(&mem, &Frame { port, ..tcp4(1, 1, 10) }.bytes()), &mut out);
        if gro.held() == held {
            full = Some(port);
        }
    }
    assert!(gro.held() >= 8, "a bucket has eight");
    let [oldest] = &out[..] else { panic!("one at a time: {out:?}") };
    assert_eq!(oldest.meta.cut, Cut::Whole);
    // The evicted flow was the first of its bucket: the others are still held, and merge.
    let gone = u16::from_be_bytes([oldest.head()[20], oldest.head()[21]]);
    for port in (1..=full.unwrap()).filter(|&port| port != gone) {
        let held = gro.held();
        gro.receive(&mem, received(&mem, &Frame { port, ..tcp4(11, 2, 10) }.bytes()), &mut out);
        assert_eq!((gro.held(), out.len()), (held, 1), "{port} is held");
    }
    gro.flush(&mut out);
    assert!(out[1..].iter().all(|packet| packet.meta.cut.segs() == 2));
}

#[test]
fn no_more_than_64_flows_are_held_and_none_is_lost() {
    let mem = Memory::heap();
    let mut gro = Gro::new(MERGE);
    let mut out = Vec::new();
    for port in 0..1000 {
        gro.receive(&mem, received(&mem, &Frame { port, ..tcp4(1, 1, 10) }.bytes()), &mut out);
        assert!(gro.held() <= 64);
        assert_eq!(out.len() + gro.held(), usize::from(port) + 1);
    }
    assert!(gro.held() > 48, "the flows spread over the buckets: {} held", gro.held());
    gro.flush(&mut out);
    assert_eq!((out.len(), gro.held()), (1000, 0));
}

#[test]
fn link_tag_and_sas_are_part_of_the_flow() {
    let changes: [(&str, ChangePacket); 4] = [
        ("nothing", |_| ()),
        ("link", |pkt| pkt.meta.origin = Origin::Port(PortId(8)).into()),
        ("vlan", |pkt| pkt.meta.vlan = Some(1)),
        ("SA", |pkt| pkt.meta.sec_path.push(SaId(1))),
    ];
    for (what, change) in changes {
        let mem = Memory::heap();
        let mut packets = vec![received(&mem, &tcp4(1, 1, 10).bytes()), received(&mem, &tcp4(11, 2, 10).bytes())];
        change(&mut packets[1]);
        let want = if what == "nothing" { 1 } else { 2 };
        assert_eq!(glue(&mem, MERGE, packets).len(), want, "{what}");
    }
}

#[test]
fn a_packet_that_is_not_merged_does_not_overtake_its_flow() {
    let held = tcp4(1, 1, 10);
    let [first, mut fat] = [tcp4(11, 2, 10), tcp4(21, 3, 30)].map(|frame| frame.bytes());
    let fragment = Frame { frag: 0x2000, ..tcp4(11, 2, 10) }.bytes();
    let optioned = Frame { ip_options: vec![1; 4], ..tcp4(11, 2, 10) }.bytes();
    let mut bad_ip = first.clone();
    bad_ip[10] ^= 1;
    let mut short = first.clone();
    short[32] = 0x40;
    let mut bad_check = first.clone();
    bad_check[60] ^= 1;
    let padded = [first.clone(), vec![0]].concat();
    let ack = tcp4(11, 2, 0).bytes();
    fat[40] = 0;
    for (what, bytes) in [
        ("fragment", fragment),
        ("options", optioned),
        ("IPv4 checksum", bad_ip),
        ("data offset", short),
        ("TCP checksum", bad_check),
        ("padding", padded),
        ("pure ACK", ack),
        ("fat", fat),
    ] {
        let mem = Memory::heap();
        let mut gro = Gro::new(MERGE);
        let mut out = Vec::new();
        gro.receive(&mem, received(&mem, &held.bytes()), &mut out);
        gro.receive(&mem, received(&mem, &Frame { port: 9, ..held.clone() }.bytes()), &mut out);
        assert_eq!((out.len(), gro.held()), (0, 2));
        let mut packet = received(&mem, &bytes);
        if what == "fat" {
            packet.meta.csum = Csum::Unnecessary;
            packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 10, segs: 3, ecn: false, fixed_id: false });
        }
        gro.receive(&mem, packet, &mut out);
        let order: Vec<_> = out.iter().map(Packet::to_vec).collect();
        let at = |bytes: &[u8]| order.iter().position(|out| out == bytes);
        assert!(at(&held.bytes()) < at(&bytes) && at(&held.bytes()).is_some(), "{what}: {order:?}");
    }
}

/// Case of a rekey or a route change: packets with another origin are not released before earlier ones.
#[test]
fn packet_by_another_path_flushes_its_held_flow() {
    let changes: [(&str, ChangePacket); 3] = [
        ("link", |pkt| pkt.meta.origin = Origin::Port(PortId(8)).into()),
        ("vlan", |pkt| pkt.meta.vlan = Some(1)),
        ("SA", |pkt| pkt.meta.sec_path.push(SaId(1))),
    ];
    let bytes = [tcp4(1, 1, 10), tcp4(11, 2, 10), tcp4(21, 3, 0)].map(|frame| frame.bytes());
    for (what, change) in changes {
        let mem = Memory::heap();
        let mut gro = Gro::new(MERGE);
        let mut out = Vec::new();
        for (at, bytes) in bytes.iter().enumerate() {
            let mut pkt = received(&mem, bytes);
            if at > 0 {
                change(&mut pkt);
            }
            gro.receive(&mem, pkt, &mut out);
        }
        assert_eq!(out.iter().map(Packet::to_vec).collect::<Vec<_>>(), bytes, "{what}");
    }
}

#[test]
fn other_protocols_pass_and_leave_what_is_held() {
    let mem = Memory::heap();
    let mut gro = Gro::new(Config { udp: false, ..MERGE });
    let mut out = Vec::new();
    gro.receive(&mem, received(&mem, &tcp4(1, 1, 10).bytes()), &mut out);
    for bytes in [vec![], vec![0x45], vec![0xff; 60], udp4(1, 20).bytes(), udp6(1, 20).bytes(), {
        let mut icmp = udp4(1, 20).bytes();
        icmp[9] = 1;
        icmp
    }] {
        let before = out.len();
        gro.receive(&mem, received(&mem, &bytes), &mut out);
        assert_eq!(out.len(), before + 1, "{bytes:?}");
        assert_eq!(out.last().unwrap().to_vec(), bytes);
    }
}

#[test]
fn a_head_that_others_see_costs_its_headers_and_no_payload() {
    let mem = Memory::heap();
    let frames = [tcp4(1, 1, 500), tcp4(501, 2, 500)].map(|frame| frame.bytes());
    let first = Packet::from_buf(Buf::foreign(frames[0].clone()));
    let mut second = Packet::from_buf(Buf::foreign(frames[1].clone()));
    second.meta.origin = first.meta.origin;
    let [packet] = glue(&mem, MERGE, vec![first, second]).try_into().expect("one packet");
    assert_eq!(packet.meta.cut.segs(), 2);
    assert_eq!(mem.copies().get(packet::CopyReason::Writable).bytes, 52);
    assert_eq!(mem.copies().total_bytes(), 52);
    let back: Vec<_> = cut(&mem, &SG, packet, 0).iter().map(Packet::to_vec).collect();
    assert_eq!(back, frames);
}

/// Most packets of a flow are merged by prediction, which must not merge any other packet.
#[test]
fn joining_buffers_is_receiving_packets() {
    let flows: [fn(u32) -> Frame; 6] = [
        |n| tcp4(1 + n * 100, (0xfff8 + n) as u16, 100),
        |n| tcp4(0xffff_fe00_u32.wrapping_add(n * 100), 7, 100),
        |n| Frame { frag: 0, options: Vec::new(), ..tcp4(n * 100, n as u16, 100) },
        |n| Frame { options: Vec::new(), ..tcp6(n * 100, 100) },
        // Each of these starts a new packet: one because of its flag, the other because of its identification.
        |n| Frame { flags: ACK | CWR, ..tcp4(1 + n * 100, n as u16, 100) },
        |n| tcp4(1 + n * 100, (n ^ (n / 3 % 2)) as u16, 100),
    ];
    let changes: [ChangeFrame; 11] = [
        |_| {},
        |frame| frame.flags |= PSH,
        |frame| frame.flags |= CWR,
        |frame| frame.seq = frame.seq.wrapping_add(1),
        |frame| frame.id ^= 1,
        |frame| frame.ack += 1,
        |frame| frame.payload.truncate(40),
        |frame| frame.payload.push(1),
        |frame| frame.payload.clear(),
        |frame| frame.ttl -= 1,
        // Too short for a prediction.
        |frame| (frame.seq, frame.payload) = (frame.seq.wrapping_add(1), vec![1; 10]),
    ];
    for flow in flows {
        for change in changes {
            let mut changed = flow(6);
            change(&mut changed);
            // The maximum that fits into a packet, and more.
            let frames = (0..100).map(|n| if n == 6 { changed.bytes() } else { flow(n).bytes() });
            join_as_received(&frames.collect::<Vec<_>>());
        }
        for bit in 0..8 * 80 {
            let mut frames: Vec<_> = (0..9).map(|n| flow(n).bytes()).collect();
            frames[6][bit / 8] ^= 1 << (bit % 8);
            join_as_received(&frames);
        }
    }
    // Up to the longest packet.
    let frames = (0..60).map(|n| tcp4(1 + n * 1448, n as u16, 1448).bytes());
    join_as_received(&frames.collect::<Vec<_>>());
}

/// The same for several flows, in any order, up to and above the number of held flows, with other packets in between.
#[test]
fn joining_buffers_of_many_flows_is_receiving_packets() {
    let kinds: [fn(u32) -> Frame; 5] = [
        |n| tcp4(1 + n * 100, n as u16, 100),
        |n| tcp4(1 + n * 100, 7, 100),
        |n| tcp6(1 + n * 100, 100),
        |n| Frame { options: Vec::new(), ..tcp4(1 + n * 100, n as u16, 100) },
        |n| udp4(n as u16, 100),
    ];
    let changes: [ChangeFrame; 6] = [
        |frame| frame.flags |= PSH,
        |frame| frame.seq = frame.seq.wrapping_add(1),
        |frame| frame.payload.truncate(40),
        |frame| frame.frag = 0x2000,
        |frame| frame.ip_options = vec![1; 4],
        |frame| frame.dest_opts = vec![frame.protocol, 0, 1, 4, 0, 0, 0, 0],
    ];
    for flows in [2, 3, 9, 70] {
        for seed in 0..8 {
            let mut chances = bytes(4 * 30 * flows, seed).into_iter().map(usize::from);
            let mut chance = |below: usize| chances.next().expect("enough for all") % below;
            let mut sent = vec![0; flows];
            let frames = (0..30 * flows).map(|nth| {
                // In turn, at random, or several packets of one flow in a row.
                let flow = match seed % 3 {
                    0 => nth % flows,
                    1 => chance(flows),
                    _ => nth / 5 % flows,
                };
                let mut frame = Frame { port: flow as u16, ..kinds[flow % kinds.len()](sent[flow]) };
                sent[flow] += 1;
                if chance(20) == 0 {
                    changes[chance(changes.len())](&mut frame);
                }
                frame.bytes()
            });
            join_as_received(&frames.collect::<Vec<_>>());
        }
    }
}

/// Panics unless packets with a device's sum give the same result if they are passed as buffers first: none, all, or
/// two of three.
fn join_as_received(frames: &[Vec<u8>]) {
    join_as_received_by(SLOTS_ONLY, frames);
    join_as_received_by(MERGE, frames);
}

fn join_as_received_by(config: Config, frames: &[Vec<u8>]) {
    let run = |joins: fn(usize) -> bool| {
        let (mem, mut gro, mut out) = (Memory::heap(), Gro::new(config), Vec::new());
        for (nth, bytes) in frames.iter().enumerate() {
            let mut packet = received(&mem, bytes);
            packet.meta.csum = Csum::Complete(plain_sum(bytes));
            let meta = packet.meta.clone();
            let buf = packet.into_head();
            let left = if joins(nth) { gro.join(&mem, buf, &meta, &mut out) } else { Err(buf) };
            if let Err(buf) = left {
                let mut packet = Packet::from_buf(buf);
                packet.meta = meta;
                gro.receive(&mem, packet, &mut out);
            }
        }
        gro.flush(&mut out);
        out.iter().map(|packet| (packet.to_vec(), packet.meta.cut, packet.meta.csum)).collect::<Vec<_>>()
    };
    let want = run(|_| false);
    assert_eq!(run(|_| true), want);
    assert_eq!(run(|nth| nth % 3 > 0), want);
}
