//! Copies by `make_writable`: only of shared or foreign buffers (Linux's `skb_cow_data`).

use std::sync::Arc;

use packet::{Buf, Copied, CopyReason, Memory, Packet};

fn buf(mem: &Memory, len: usize) -> Buf {
    let mut buf = mem.take(64, len).unwrap();
    buf.put(len).unwrap().fill(1);
    buf
}

/// A buffer without tailroom.
fn full(mem: &Memory, len: usize) -> Buf {
    let mut room = buf(mem, len);
    room.split_to(len)
}

fn with_frags(mem: &Memory, frags: usize) -> Packet {
    let mut packet = Packet::from_buf(buf(mem, 50));
    for _ in 0..frags {
        packet.push_frag(buf(mem, 100)).unwrap();
    }
    packet
}

fn with_children(mem: &Memory, children: usize) -> Packet {
    let mut packet = Packet::from_buf(buf(mem, 50));
    for _ in 0..children {
        packet.push_child(Packet::from_buf(buf(mem, 100)));
    }
    packet
}

/// Makes the packet writable with 24 bytes of tailroom. Returns the number of buffers, and of bytes copied for
/// [`CopyReason::Writable`] and [`CopyReason::Expand`].
fn cost(packet: &mut Packet) -> (usize, u64, u64) {
    let mem = Memory::heap();
    let before = packet.to_vec();
    let pieces = packet.make_writable(&mem, 24).unwrap();
    assert!(packet.to_vec() == before, "other bytes in {packet:?}");
    packet.check_invariants();
    let bytes = |reason| mem.copies().get(reason).bytes;
    let cost = (pieces, bytes(CopyReason::Writable), bytes(CopyReason::Expand));
    assert_eq!(mem.copies().total_bytes(), cost.1 + cost.2, "copied for another reason");
    // A second call does nothing.
    let copied = mem.copies().total_bytes();
    assert_eq!(packet.make_writable(&mem, 24), Ok(pieces));
    assert_eq!(mem.copies().total_bytes(), copied);
    cost
}

#[test]
fn a_packet_of_our_own_with_room_behind_it_costs_nothing() {
    let mem = Memory::heap();
    assert_eq!(cost(&mut Packet::from_buf(buf(&mem, 500))), (1, 0, 0));
    for frags in 1..=17 {
        assert_eq!(cost(&mut with_frags(&mem, frags)), (1 + frags, 0, 0), "{frags} slots");
        assert_eq!(cost(&mut with_children(&mem, frags)), (1 + frags, 0, 0), "{frags} children");
    }
}

#[test]
fn only_the_last_piece_is_copied_when_the_tail_is_short() {
    let mem = Memory::heap();
    assert_eq!(cost(&mut Packet::from_buf(full(&mem, 500))), (1, 0, 500));
    for frags in 1..=17 {
        let mut packet = with_frags(&mem, frags - 1);
        packet.push_frag(full(&mem, 70)).unwrap();
        assert_eq!(cost(&mut packet), (1 + frags, 0, 70), "{frags} slots");
    }
    let mut packet = with_children(&mem, 3);
    packet.push_child(Packet::from_buf(full(&mem, 70)));
    assert_eq!(cost(&mut packet), (5, 0, 70));
    // Exact to one byte.
    for (missing, want) in [(0, 0), (1, 2048 - 64 - 24 + 1)] {
        let mut packet = Packet::from_buf(buf(&mem, 2048 - 64 - 24 + missing));
        assert_eq!(cost(&mut packet), (1, 0, want), "{missing} missing");
    }
}

#[test]
fn bytes_that_a_clone_sees_are_copied_while_it_lives() {
    let mem = Memory::heap();
    for frags in [0, 1, 17] {
        let mut packet = with_frags(&mem, frags);
        let clone = packet.clone_shared();
        assert_eq!(cost(&mut packet), (1 + frags, 50 + 100 * frags as u64, 0), "{frags} slots");
        drop(clone);
        let mut packet = with_frags(&mem, frags);
        drop(packet.clone_shared());
        assert_eq!(cost(&mut packet), (1 + frags, 0, 0), "{frags} slots, and the clone is gone");
    }
}

#[test]
fn cloned_child_is_copied_without_its_siblings() {
    let mem = Memory::heap();
    let mut packet = Packet::from_buf(buf(&mem, 50));
    let mut clones = Vec::new();
    for at in 0..5 {
        let mut child = Packet::from_buf(buf(&mem, 100 + at));
        if at == 2 {
            clones.push(child.clone_shared());
        }
        packet.push_child(child);
    }
    assert_eq!(cost(&mut packet), (6, 102, 0));
}

#[test]
fn foreign_pages_are_copied_and_never_written() {
    struct Guest(Arc<[u8; 100]>);
    impl AsRef<[u8]> for Guest {
        fn as_ref(&self) -> &[u8] {
            &*self.0
        }
    }
    let (mem, page) = (Memory::heap(), Arc::new([9; 100]));
    let foreign = || Buf::foreign(Guest(Arc::clone(&page)));
    let in_slot = |mut packet: Packet| {
        packet.push_frag(foreign()).unwrap();
        packet
    };
    // Each of these operations could lose the mark of a foreign page.
    let moved = |mut from: Packet, front: bool| {
        let mut into = Packet::from_buf(buf(&mem, 10));
        let n = from.len() - 40;
        from.move_front(n, &mut into).unwrap();
        if front { into } else { from }
    };
    let joined = |by_append: bool| {
        let mut packet = Packet::from_buf(full(&mem, 10));
        if by_append {
            packet.append(Packet::from_buf(foreign()));
        } else {
            packet.try_coalesce(&mem, Packet::from_buf(foreign())).unwrap();
        }
        packet
    };
    let cut = |mut packet: Packet| {
        packet.pull(20);
        packet.trim(60);
        packet
    };
    let cloned = |mut packet: Packet| packet.clone_shared();
    let child = || {
        let mut packet = Packet::from_buf(buf(&mem, 10));
        packet.push_child(Packet::from_buf(foreign()));
        packet
    };
    let cases = [
        ("as head", Packet::from_buf(foreign()), 100),
        ("as slot", in_slot(with_frags(&mem, 2)), 100),
        ("as child", child(), 100),
        ("cloned, the original gone", cloned(in_slot(with_frags(&mem, 0))), 100),
        ("as head, cut at both ends", cut(Packet::from_buf(foreign())), 60),
        ("moved in front", moved(Packet::from_buf(foreign()), true), 60),
        ("left behind", moved(Packet::from_buf(foreign()), false), 40),
        ("coalesced", joined(false), 100),
        ("appended", joined(true), 100),
        (
            "as grandchild",
            {
                let mut packet = Packet::from_buf(buf(&mem, 10));
                packet.push_child(child());
                packet
            },
            100,
        ),
    ];
    for (name, mut packet, copied) in cases {
        let (_, writable, expand) = cost(&mut packet);
        assert_eq!((writable, expand), (copied, 0), "{name}");
        let (mut head, frags, children) = packet.into_parts();
        let bufs = children.flat_map(|child| {
            let (head, frags, _) = child.into_parts();
            std::iter::once(head).chain(frags)
        });
        head.bytes_mut().expect("a writable head").fill(0);
        frags.chain(bufs).for_each(|mut buf| buf.bytes_mut().expect("a writable piece").fill(0));
        assert_eq!(*page, [9; 100], "{name}: the page of somebody else was written");
    }
}

#[test]
fn foreign_or_shared_head_is_not_written() {
    let mem = Memory::heap();
    let mut original = Packet::with_data(&mem, &[1; 40]).unwrap();
    let packets = [Packet::from_buf(Buf::foreign([1; 40])), original.clone_shared()];
    for mut packet in packets {
        assert!(packet.head_mut().is_none() && packet.put(1).is_none());
        assert_eq!((packet.headroom(), packet.tailroom()), (0, 0));
        packet.push(&mem, 4).unwrap().fill(2);
        packet.head_mut().expect("a head of its own now").fill(3);
        assert_eq!(packet.to_vec(), [3; 44]);
    }
    assert_eq!(original.to_vec(), [1; 40]);
    assert_eq!(mem.copies().get(CopyReason::Writable), Copied { copies: 2, bytes: 80 });
    // The clone is dropped: the head is exclusive again, with all its room.
    original.push(&mem, Memory::HEADROOM).unwrap();
    original.put(1000).expect("the room behind it");
    assert_eq!(mem.copies().total_bytes(), 80);
}

#[test]
fn segments_in_one_page_are_writable_without_a_copy() {
    let mem = Memory::heap();
    let mut page = mem.take(64, 1500 * 10).unwrap();
    page.put(1500 * 10).unwrap().fill(1);
    let charged = page.truesize();
    let mut segments: Vec<_> = (0..10).map(|_| Packet::from_buf(page.split_to(1500))).collect();
    let shares: usize = segments.iter().map(|segment| segment.truesize() - packet::PACKET_OVERHEAD).sum();
    assert_eq!(shares + page.truesize(), charged, "the page's memory is shared out");
    for (at, segment) in segments.iter_mut().enumerate() {
        segment.make_writable(&mem, 0).unwrap();
        segment.head_mut().expect("exclusive").fill(at as u8);
    }
    for (at, segment) in segments.iter().enumerate() {
        assert!(segment.head().iter().all(|&byte| byte == at as u8), "segment {at} was written by another");
    }
    assert_eq!(mem.copies().total_bytes(), 0);
}
