//! Every operation on every shape of the same bytes, with and without memory: the result does not depend on the shape,
//! and a failure changes nothing.

use packet::{CopyReason, Csum, Memory, Packet, Pool, PoolDry, geometry};

type Operation = fn(&Memory, &mut Packet) -> Result<(), PoolDry>;
type Plain = fn(&mut Vec<u8>);

/// An operation, its effect on plain bytes, and whether a complete sum stays valid.
#[allow(clippy::unit_arg, reason = "an operation to a line")]
const OPERATIONS: &[(&str, Operation, Plain, bool)] = &[
    (
        "push 14",
        |mem, packet| packet.push(mem, 14).map(|new| new.fill(9)),
        |bytes| drop(bytes.splice(..0, [9; 14])),
        false,
    ),
    (
        "push more than any headroom",
        |mem, packet| packet.push(mem, 300).map(|new| new.fill(9)),
        |bytes| drop(bytes.splice(..0, [9; 300])),
        false,
    ),
    ("pull 1", |_, packet| Ok(packet.pull(1)), |bytes| drop(bytes.drain(..1)), true),
    ("pull 41", |_, packet| Ok(packet.pull(41)), |bytes| drop(bytes.drain(..41)), true),
    ("pull all", |_, packet| Ok(packet.pull(packet.len())), Vec::clear, true),
    ("trim by 1", |_, packet| Ok(packet.trim(packet.len() - 1)), |bytes| bytes.truncate(bytes.len() - 1), true),
    ("trim to 21", |_, packet| Ok(packet.trim(21)), |bytes| bytes.truncate(21), true),
    ("trim to nothing", |_, packet| Ok(packet.trim(0)), Vec::clear, true),
    ("linearize", |mem, packet| packet.linearize(mem), |_| {}, true),
    ("may_pull 20", |mem, packet| packet.may_pull(mem, 20).map(|has| assert!(has)), |_| {}, true),
    ("may_pull 60", |mem, packet| packet.may_pull(mem, 60).map(|has| assert!(has)), |_| {}, true),
    ("may_pull all", |mem, packet| packet.may_pull(mem, packet.len()).map(|has| assert!(has)), |_| {}, true),
    ("may_pull more", |mem, packet| packet.may_pull(mem, packet.len() + 1).map(|has| assert!(!has)), |_| {}, true),
    ("make_writable", |mem, packet| packet.make_writable(mem, 0).map(|pieces| assert!(pieces > 0)), |_| {}, true),
    ("make_writable with a tail", |mem, packet| packet.make_writable(mem, 40).map(|_| ()), |_| {}, true),
    ("clone_shared, and only the clone is left", |_, packet| Ok(*packet = packet.clone_shared()), |_| {}, true),
    ("copy", |mem, packet| packet.copy(mem, CopyReason::Copy).map(|copy| *packet = copy), |_| {}, true),
    (
        "move_front of 50, and append the rest",
        |mem, packet| {
            let mut front = Packet::new(mem, 0, 0)?;
            if packet.move_front(50, &mut front).is_ok() {
                front.append(std::mem::replace(packet, nothing()));
                *packet = front;
            }
            Ok(())
        },
        |_| {},
        false,
    ),
    (
        "append to a header",
        |mem, packet| {
            let mut header = Packet::with_data(mem, &[7; 8])?;
            header.append(std::mem::replace(packet, nothing()));
            *packet = header;
            Ok(())
        },
        |bytes| drop(bytes.splice(..0, [7; 8])),
        false,
    ),
    (
        "into parts and together again",
        |_, packet| {
            let (head, frags, children) = std::mem::replace(packet, nothing()).into_parts();
            *packet = Packet::from_buf(head);
            frags.for_each(|frag| packet.push_frag(frag).expect("the slot it had"));
            children.for_each(|child| packet.push_child(child));
            Ok(())
        },
        |_| {},
        false,
    ),
];

/// A packet without data, which needs no page.
fn nothing() -> Packet {
    Packet::from_buf(packet::Buf::foreign([]))
}

/// An odd number of bytes, so that buffers begin at odd offsets.
fn data() -> Vec<u8> {
    (0..1301u32).map(|at| (at * at + 3) as u8).collect()
}

fn all_shapes(mem: &Memory) -> Vec<(String, Packet)> {
    let mut all = geometry::all(mem, &data(), &[1, 14, 20, 41, 60, 1300]);
    for (_, packet) in &mut all {
        packet.meta.csum = Csum::Complete(sum(&data()));
    }
    all
}

/// Lengths of head and fragments, of the packet and of its children.
fn shape(packet: &Packet) -> Vec<Vec<usize>> {
    let own = |packet: &Packet| {
        let slots = packet.frags().iter().map(packet::Buf::len);
        std::iter::once(packet.headlen()).chain(slots).collect::<Vec<_>>()
    };
    std::iter::once(own(packet)).chain(packet.frag_list().iter().map(own)).collect()
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    (words.sum::<u64>() % 0xffff) as u16
}

fn check(what: &str, packet: &Packet, plain: Plain, keeps_sum: bool) {
    let mut want = data();
    plain(&mut want);
    packet.check_invariants();
    assert!(packet.to_vec() == want, "{what}: {packet:?}");
    match packet.meta.csum {
        Csum::Complete(complete) => assert_eq!(complete % 0xffff, sum(&want), "{what}"),
        other => assert!(!keeps_sum && other == Csum::None, "{what}: {other:?}"),
    }
}

#[test]
fn operations_give_the_same_bytes_in_every_geometry() {
    let mem = Memory::heap();
    for &(name, operation, plain, keeps_sum) in OPERATIONS {
        for (shape, mut packet) in all_shapes(&mem) {
            let what = format!("{name} of {shape}");
            operation(&mem, &mut packet).unwrap_or_else(|err| panic!("{what}: {err}"));
            check(&what, &packet, plain, keeps_sum);
        }
    }
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
}

#[test]
fn an_operation_that_finds_no_page_leaves_the_packet_as_it_was() {
    let heap = Memory::heap();
    let mut failed = 0;
    for &(name, operation, plain, keeps_sum) in OPERATIONS {
        // An operation may run out of memory half way.
        for pages in [0, 1, 2, 5] {
            for (shape_name, mut packet) in all_shapes(&heap) {
                let scarce = Memory::new(Pool::bounded(Memory::SMALL, pages), Pool::bounded(Memory::LARGE, pages));
                let what = format!("{name} of {shape_name} with {pages} pages");
                let before = (shape(&packet), packet.meta.csum);
                match operation(&scarce, &mut packet) {
                    Ok(()) => check(&what, &packet, plain, keeps_sum),
                    Err(PoolDry) => {
                        failed += 1;
                        assert!(packet.to_vec() == data(), "{what}: {packet:?}");
                        packet.check_invariants();
                        assert_eq!((shape(&packet), packet.meta.csum), before, "{what}");
                    }
                }
            }
        }
    }
    assert!(failed > 100, "only {failed} operations ran dry");
}

#[test]
fn writable_packet_can_be_written_without_effect_on_clones() {
    let mem = Memory::heap();
    for (shape, mut packet) in all_shapes(&mem) {
        let clone = packet.clone_shared();
        packet.make_writable(&mem, 16).unwrap();
        let (mut head, frags, children) = packet.into_parts();
        let mut written = head.bytes_mut().map(|bytes| bytes.fill(0)).map_or(0, |()| head.len());
        let bufs = children.flat_map(|child| {
            let (head, frags, _) = child.into_parts();
            std::iter::once(head).chain(frags)
        });
        for mut buf in frags.chain(bufs) {
            buf.bytes_mut().unwrap_or_else(|| panic!("{shape}: a buffer that is not writable")).fill(0);
            written += buf.len();
        }
        assert_eq!(written, data().len(), "{shape}");
        assert!(clone.to_vec() == data(), "{shape}: seen through the clone");
    }
}
