//! GRO and GSO as inverse operations.

use std::collections::BTreeMap;

use offload::Features;
use offload::gro::Config;
use packet::{Memory, Packet};
use proptest::prelude::*;

use crate::frames::*;

/// One step of a flow: the difference between the next packet and a continuation.
#[derive(Clone, Debug)]
struct Step {
    flow: u16,
    len: usize,
    kind: Kind,
}

/// Step of the next packet.
#[derive(Clone, Debug)]
enum Kind {
    Continue,
    Flags(u16),
    Seq(u32),
    Ack,
    Ttl,
    Ecn,
    Timestamp,
    Id(u16),
    Corrupt,
    Pad,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        12 => Just(Kind::Continue),
        2 => prop_oneof![Just(PSH), Just(FIN), Just(SYN), Just(RST), Just(URG), Just(CWR), Just(ECE)].prop_map(Kind::Flags),
        1 => (1u32..3).prop_map(Kind::Seq),
        1 => Just(Kind::Ack),
        1 => Just(Kind::Ttl),
        1 => Just(Kind::Ecn),
        1 => Just(Kind::Timestamp),
        1 => (0u16..3).prop_map(Kind::Id),
        1 => Just(Kind::Corrupt),
        1 => Just(Kind::Pad),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![5 => Just(1448usize), 2 => Just(500), 1 => 0usize..1449, 1 => Just(9000)];
    (0..6u16, len, kind()).prop_map(|(flow, len, kind)| Step { flow, len, kind })
}

/// Six flows: TCP and UDP, both families, with and without options, with and without DF.
fn flow(number: u16) -> Frame {
    let frame = match number {
        0 => tcp4(0xffff_f000, 0xfff0, 0),
        1 => Frame { frag: 0, options: Vec::new(), ..tcp4(5, 5, 0) },
        2 => tcp6(5, 0),
        3 => Frame { dest_opts: vec![TCP, 0, 1, 4, 0, 0, 0, 0], ..tcp6(5, 0) },
        4 => udp4(5, 0),
        _ => udp6(5, 0),
    };
    Frame { port: 1000 + number, ..frame }
}

/// The frames of these steps with the lengths of their headers, and their flows.
fn frames(steps: &[Step]) -> Vec<(u16, Vec<u8>, usize)> {
    let mut flows: BTreeMap<u16, (Frame, u16)> = (0..6).map(|n| (n, (flow(n), 1))).collect();
    let mut out = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let (frame, id_step) = flows.get_mut(&step.flow).expect("six flows");
        frame.flags = ACK;
        frame.id = frame.id.wrapping_add(*id_step);
        match step.kind {
            Kind::Continue | Kind::Corrupt | Kind::Pad => {}
            Kind::Flags(flags) => frame.flags |= flags,
            Kind::Seq(ahead) => frame.seq = frame.seq.wrapping_add(ahead),
            Kind::Ack => frame.ack = frame.ack.wrapping_add(1),
            Kind::Ttl => frame.ttl ^= 1,
            Kind::Ecn => frame.tos ^= 3,
            Kind::Timestamp => {
                if let Some(byte) = frame.options.last_mut() {
                    *byte = byte.wrapping_add(1);
                }
            }
            Kind::Id(step) => *id_step = step,
        }
        frame.payload = bytes(step.len, index as u32);
        let mut data = frame.bytes();
        let header_len = data.len() - step.len;
        match step.kind {
            Kind::Corrupt => *data.last_mut().expect("not empty") ^= 1,
            Kind::Pad => data.extend([0, 0]),
            _ => {}
        }
        frame.seq = frame.seq.wrapping_add(step.len as u32);
        out.push((step.flow, data, header_len));
    }
    out
}

/// The bytes of each flow's packets, in order. The source port identifies the flow.
fn by_flow(packets: impl IntoIterator<Item = Vec<u8>>) -> BTreeMap<u16, Vec<Vec<u8>>> {
    let mut flows = BTreeMap::<_, Vec<_>>::new();
    for bytes in packets {
        let l4 = match (bytes[0] >> 4, bytes[6]) {
            (4, _) => 20,
            (_, 60) => 48,
            _ => 40,
        };
        flows.entry(u16::from_be_bytes([bytes[l4], bytes[l4 + 1]])).or_default().push(bytes);
    }
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn cutting_what_was_merged_gives_the_frames_that_came(
        steps in proptest::collection::vec(step(), 1..120),
        layout in prop_oneof![Just(Layout::Linear), Just(Layout::Paged), Just(Layout::Train)],
        frag_list in any::<bool>(),
        features in prop_oneof![Just(Features::NONE), Just(SG), Just(SG_CSUM)],
        burst in 1usize..80,
    ) {
        let mem = Memory::heap();
        let sent = frames(&steps);
        let input: Vec<_> = sent.iter().map(|(_, data, header_len)| (data.clone(), *header_len)).collect();
        let mut glued = Vec::new();
        for burst in input.chunks(burst) {
            glued.extend(glue(&mem, Config { udp: true, frag_list }, layout.packets(&mem, burst)));
        }
        prop_assert_eq!(mem.copies().total_bytes(), 0, "GRO copies nothing");
        prop_assert!(frag_list || glued.iter().all(|packet| packet.frag_list().is_empty()));
        for packet in glued.iter().filter(|packet| packet.meta.cut.gso().is_some()) {
            check_on_wire(&completed(packet));
        }
        let cut: Vec<_> = glued.into_iter().flat_map(|packet| cut(&mem, &features, packet, 0)).collect();
        let came = by_flow(cut.iter().map(completed));
        prop_assert_eq!(came, by_flow(input.into_iter().map(|(data, _)| data)));
        drop(cut);
        prop_assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
    }

    #[test]
    fn merging_what_was_cut_gives_the_fat_packet_back(
        (flow_number, len, size, flags) in (0u16..6, 2usize..60_000, 28u16..9000, prop_oneof![Just(ACK), Just(ACK | PSH), Just(ACK | CWR | FIN)]),
        by_reference in any::<bool>(),
    ) {
        let frame = flow(flow_number);
        let flags = if frame.protocol == TCP { flags } else { ACK };
        let size = if frame.protocol == UDP { size.max((len / 64 + 1) as u16) } else { size };
        let frame = Frame { payload: bytes(len, 9), flags, ..frame };
        let mem = Memory::heap();
        let whole = frame.bytes();
        // As left by GRO: from the first and the last segment.
        let segments: Vec<_> = frame.payload.chunks(size.into()).enumerate().map(|(index, payload)| {
            let (first, last) = (index == 0, (index + 1) * usize::from(size) >= len);
            let mut flags = flags;
            if !first { flags &= !CWR; }
            if !last { flags &= !(PSH | FIN); }
            let seq = frame.seq.wrapping_add((index * usize::from(size)) as u32);
            Frame { payload: payload.to_vec(), flags, seq, id: frame.id.wrapping_add(index as u16), ..frame.clone() }.bytes()
        }).collect();
        prop_assume!(segments.len() > 1);
        let glued = glue(&mem, MERGE, segments.iter().map(|bytes| received(&mem, bytes)).collect());
        prop_assert_eq!(glued.len(), 1);
        prop_assert_eq!(completed(&glued[0]), whole.clone());
        let gso = glued[0].meta.cut;
        let features = if by_reference { SG } else { Features::NONE };
        let again: Vec<Packet> = glued.into_iter().flat_map(|packet| cut(&mem, &features, packet, 0)).collect();
        prop_assert_eq!(again.iter().map(Packet::to_vec).collect::<Vec<_>>(), segments);
        let glued = glue(&mem, MERGE, again);
        prop_assert_eq!(glued.len(), 1);
        prop_assert_eq!((completed(&glued[0]), glued[0].meta.cut), (whole, gso));
    }
}
