//! Memory of another owner (a guest's pages, a page cache's) is unchanged by every transform.

use std::sync::Arc;

use offload::{Features, fit};
use packet::{Buf, Cut, Gso, GsoKind, Memory, Packet};

use crate::frames::*;

/// A guest's memory, readable for the test.
struct Guest(Arc<Vec<u8>>);

impl AsRef<[u8]> for Guest {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn foreign(memory: &Arc<Vec<u8>>) -> Buf {
    Buf::foreign(Guest(Arc::clone(memory)))
}

/// Encrypts in place, like a later stage: inverts every writable byte.
fn scribble(packets: Vec<Packet>) {
    for packet in packets {
        let (head, frags, children) = packet.into_parts();
        let deeper = children.flat_map(|child| {
            let (head, frags, _) = child.into_parts();
            std::iter::once(head).chain(frags)
        });
        for mut buf in std::iter::once(head).chain(frags).chain(deeper) {
            if let Some(bytes) = buf.bytes_mut() {
                bytes.iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
    }
}

#[test]
fn merged_foreign_packets_are_never_written() {
    for header_in_guest in [true, false] {
        let mem = Memory::heap();
        let frames: Vec<_> = (0..60).map(|n| tcp4(1 + n * 1000, n as u16, 1000).bytes()).collect();
        let memory: Vec<_> = frames.iter().cloned().map(Arc::new).collect();
        let packets = memory.iter().map(|memory| {
            if header_in_guest {
                return Packet::from_buf(foreign(memory));
            }
            let mut buf = foreign(memory);
            buf.pull(52);
            let mut packet = Packet::with_data(&mem, &memory[..52]).unwrap();
            packet.push_frag(buf).unwrap();
            packet
        });
        let glued = glue(&mem, MERGE, packets.collect());
        assert_eq!(glued.len(), 1);
        let segments: Vec<_> = glued.into_iter().flat_map(|packet| cut(&mem, &SG, packet, 0)).collect();
        assert_eq!(segments.iter().map(Packet::to_vec).collect::<Vec<_>>(), frames);
        scribble(segments);
        assert!(memory.iter().map(|memory| &**memory).eq(&frames), "headers in the guest's memory: {header_in_guest}");
    }
}

#[test]
fn fitting_a_foreign_packet_never_writes_it() {
    let frame = tcp4(1, 1, 3000);
    let bytes = [&[2; 14][..], &frame.bytes()].concat();
    for features in [Features::NONE, SG, SG_CSUM, Features::ALL, Features { sg: false, ..Features::ALL }] {
        for fat in [true, false] {
            let mem = Memory::heap();
            let memory = Arc::new(bytes.clone());
            let mut packet = Packet::from_buf(foreign(&memory));
            packet.meta.vlan = Some(9);
            if fat {
                packet.meta.cut =
                    Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 1000, segs: 3, ecn: false, fixed_id: false });
            }
            let mut out = Vec::new();
            fit(&mem, &features, packet, 14, &mut out).unwrap();
            out.iter().for_each(|packet| check_on_wire(&completed(packet)[18..]));
            scribble(out);
            assert_eq!(*memory, bytes, "{features:?} fat {fat}");
        }
    }
}
