//! The six groups of the kernel's GRO self-test (`tools/testing/selftests/net/gro.c`): data, ack, flags, tcp, ip,
//! large. The result of each case is the payload lengths of the packets from one burst.

use offload::gro::Config;

use crate::frames::*;

const LEN: usize = 1000;

/// `n` segments in order.
fn run(v6: bool, sizes: &[usize]) -> Vec<Frame> {
    let mut seq = 1u32;
    let segment = |(index, &len): (usize, &usize)| {
        let frame = if v6 { tcp6(seq, len) } else { tcp4(seq, 7 + index as u16, len) };
        seq = seq.wrapping_add(len as u32);
        frame
    };
    sizes.iter().enumerate().map(segment).collect()
}

/// Both families, with `change` applied to the frame at `at`.
fn changed(sizes: &[usize], at: usize, change: impl Fn(&mut Frame)) -> [Vec<usize>; 2] {
    [false, true].map(|v6| {
        let mut frames = run(v6, sizes);
        change(&mut frames[at]);
        glue_frames(MERGE, &frames)
    })
}

fn both(want: &[usize]) -> [Vec<usize>; 2] {
    [want.to_vec(), want.to_vec()]
}

#[test]
fn data_merges_until_a_short_segment() {
    let cases: [(&[usize], &[usize]); 6] = [
        (&[LEN, LEN], &[2 * LEN]),
        (&[LEN, LEN / 2], &[LEN + LEN / 2]),
        (&[LEN / 2, LEN], &[LEN / 2, LEN]),
        (&[LEN, LEN / 2, LEN, LEN], &[LEN + LEN / 2, 2 * LEN]),
        (&[LEN, LEN - 1, 1], &[2 * LEN - 1, 1]),
        (&[LEN, 1], &[LEN + 1]),
    ];
    for (sizes, want) in cases {
        assert_eq!(changed(sizes, 0, |_| ()), both(want), "{sizes:?}");
    }
}

#[test]
fn ack_is_never_merged() {
    assert_eq!(changed(&[0, 0, 0], 0, |_| ()), both(&[0, 0, 0]));
    assert_eq!(changed(&[LEN, 0, LEN], 0, |_| ()), both(&[LEN, 0, LEN]));
}

#[test]
fn flags_end_a_flow_or_stay_apart() {
    let sizes = [LEN; 5];
    for (flag, want) in [(PSH, &[3 * LEN, 2 * LEN][..]), (FIN, &[3 * LEN, 2 * LEN])] {
        assert_eq!(changed(&sizes, 2, |frame| frame.flags |= flag), both(want), "{flag:#x}");
        assert_eq!(changed(&sizes, 0, |frame| frame.flags |= flag), both(&[LEN, 4 * LEN]), "{flag:#x} first");
    }
    for flag in [SYN, RST, URG] {
        assert_eq!(changed(&sizes, 2, |frame| frame.flags |= flag), both(&[2 * LEN, LEN, 2 * LEN]), "{flag:#x}");
    }
    // Only a first segment may have CWR, so it starts the next packet.
    assert_eq!(changed(&sizes, 2, |frame| frame.flags |= CWR), both(&[2 * LEN, 3 * LEN]));
    assert_eq!(changed(&sizes, 0, |frame| frame.flags |= CWR), both(&[5 * LEN]));
    // ECE and the reserved bits must be equal.
    assert_eq!(changed(&sizes, 2, |frame| frame.flags |= ECE), both(&[2 * LEN, LEN, 2 * LEN]));
    assert_eq!(changed(&sizes, 2, |frame| frame.flags |= 0x800), both(&[2 * LEN, LEN, 2 * LEN]));
}

#[test]
fn tcp_headers_have_to_agree() {
    let apart = both(&[LEN, LEN, LEN]);
    let sizes = [LEN; 3];
    let changes: [(&str, ChangeFrame); 9] = [
        ("sequence one too far", |frame| frame.seq += 1),
        ("sequence one too early", |frame| frame.seq -= 1),
        ("acknowledgment", |frame| frame.ack += 1),
        ("window", |frame| frame.window += 1),
        ("urgent pointer", |frame| frame.urgent = 1),
        ("time stamp", |frame| frame.options[11] += 1),
        ("no options", |frame| frame.options.clear()),
        ("longer options", |frame| frame.options.extend([1, 1, 1, 1])),
        ("checksum", |frame| frame.payload[3] ^= 1),
    ];
    for (what, change) in changes {
        let got = [false, true].map(|v6| {
            let mem = packet::Memory::heap();
            let frames = run(v6, &sizes);
            let packets = frames.iter().enumerate().map(|(at, frame)| {
                let mut frame = frame.clone();
                let mut bytes = frame.bytes();
                if at == 1 {
                    let (right, len) = (bytes.clone(), bytes.len());
                    change(&mut frame);
                    bytes = frame.bytes();
                    if what == "checksum" {
                        bytes[..len - LEN].copy_from_slice(&right[..len - LEN]);
                    }
                }
                received(&mem, &bytes)
            });
            let out = glue(&mem, MERGE, packets.collect());
            out.iter().map(|packet| packet.meta.cut.segs() as usize * LEN).collect::<Vec<_>>()
        });
        assert_eq!(got, apart, "{what}");
    }
    // Unchanged packets are merged; different ports are a different flow.
    assert_eq!(changed(&sizes, 1, |_| ()), both(&[3 * LEN]));
    let [v4, v6] = changed(&sizes, 1, |frame| frame.port += 1);
    for mut got in [v4, v6] {
        got.sort_unstable();
        assert_eq!(got, [LEN, LEN, LEN]);
    }
    // Segments without options, and with the maximum.
    for len in [0, 4, 40] {
        let frames = [0, 1].map(|n| Frame { options: vec![1; len], ..tcp4(1 + n * 1000, n as u16, LEN) });
        assert_eq!(glue_frames(MERGE, &frames), [2 * LEN], "{len} bytes of options");
    }
}

#[test]
fn ip_headers_have_to_agree() {
    let sizes = [LEN; 2];
    let fields: [(&str, ChangeFrame); 3] =
        [("TTL", |frame| frame.ttl -= 1), ("DSCP", |frame| frame.tos |= 4), ("ECN", |frame| frame.tos |= 3)];
    for (what, change) in fields {
        assert_eq!(changed(&sizes, 1, change), both(&[LEN, LEN]), "{what}");
    }
    let v4_only: [(&str, ChangeFrame); 4] = [
        ("DF", |frame| frame.frag = 0),
        ("reserved bit", |frame| frame.frag |= 0x8000),
        ("last fragment", |frame| frame.frag = 64),
        ("first fragment", |frame| frame.frag = 0x2000),
    ];
    for (what, change) in v4_only {
        let mut frames = run(false, &sizes);
        change(&mut frames[1]);
        assert_eq!(glue_frames(MERGE, &frames), [LEN, LEN], "{what}");
    }
    // Options in one IPv4 header, or in all headers.
    let mut frames = run(false, &sizes);
    frames[1].ip_options = vec![1; 4];
    assert_eq!(glue_frames(MERGE, &frames), [LEN, LEN + 4]);
    frames[0].ip_options = vec![1; 4];
    assert_eq!(glue_frames(MERGE, &frames), [LEN, LEN]);
    // A different flow label is a different flow.
    let mut frames = run(true, &sizes);
    frames[1].flow_label += 1;
    assert_eq!(glue_frames(MERGE, &frames), [LEN, LEN]);
    // Packets with equal extension headers are merged, others are not.
    let mut frames = run(true, &sizes);
    frames.iter_mut().for_each(|frame| frame.dest_opts = vec![TCP, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(glue_frames(MERGE, &frames), [2 * LEN]);
    frames[1].dest_opts = vec![TCP, 0, 1, 4, 0, 0, 0, 1];
    assert_eq!(glue_frames(MERGE, &frames), [LEN, LEN]);
    // The same bytes as an extension header of another kind.
    frames[1].dest_opts = frames[0].dest_opts.clone();
    let (mem, first, mut second) = (packet::Memory::heap(), frames[0].bytes(), frames[1].bytes());
    assert_eq!(std::mem::replace(&mut second[6], wire::Protocol::HOP_BY_HOP.0), wire::Protocol::DEST_OPTS.0);
    assert_eq!(glue(&mem, MERGE, [first, second].iter().map(|bytes| received(&mem, bytes)).collect()).len(), 2);
}

#[test]
fn ip_identifications_count_up_or_stay_under_df() {
    let cases: [(u16, &[u16], &[usize]); 7] = [
        (DF, &[7, 8, 9], &[3 * LEN]),
        (DF, &[7, 7, 7], &[3 * LEN]),
        (0, &[7, 8, 9], &[3 * LEN]),
        (0, &[7, 7, 7], &[LEN, LEN, LEN]),
        (DF, &[7, 8, 8], &[2 * LEN, LEN]),
        (DF, &[7, 7, 8], &[2 * LEN, LEN]),
        (0, &[0xffff, 0, 1], &[3 * LEN]),
    ];
    for (frag, ids, want) in cases {
        let frames: Vec<_> =
            (0u32..).zip(ids).map(|(n, &id)| Frame { frag, ..tcp4(1 + n * LEN as u32, id, LEN) }).collect();
        assert_eq!(glue_frames(MERGE, &frames), want, "{ids:?} with {frag:#x}");
    }
}

#[test]
fn padded_frames_are_not_merged() {
    let mem = packet::Memory::heap();
    let frames = run(false, &[6, 6]);
    let padded = frames.iter().map(|frame| received(&mem, &[frame.bytes(), vec![0; 2]].concat()));
    assert_eq!(glue(&mem, MERGE, padded.collect()).len(), 2);
    let plain = frames.iter().map(|frame| received(&mem, &frame.bytes()));
    assert_eq!(glue(&mem, MERGE, plain.collect()).len(), 1);
}

#[test]
fn large_packets_stop_at_64_kib() {
    for (v6, headers) in [(false, 52), (true, 72)] {
        let room = 65_535 - headers;
        let mut sizes = vec![1448; room / 1448];
        sizes.push(room % 1448);
        let frames = run(v6, &sizes);
        assert_eq!(glue_frames(MERGE, &frames), [room], "up to the last byte");
        *sizes.last_mut().unwrap() += 1;
        let frames = run(v6, &sizes);
        assert_eq!(glue_frames(MERGE, &frames), [room - room % 1448, room % 1448 + 1], "one byte too many");
    }
}

#[test]
fn udp_merges_equal_datagrams_and_one_shorter() {
    let cases: [(&[usize], &[usize]); 4] = [
        (&[LEN, LEN, LEN], &[3 * LEN]),
        (&[LEN, LEN - 1, LEN], &[2 * LEN - 1, LEN]),
        (&[LEN - 1, LEN], &[LEN - 1, LEN]),
        (&[0, 0], &[0, 0]),
    ];
    for (sizes, want) in cases {
        for v6 in [false, true] {
            let frames: Vec<_> =
                (7..).zip(sizes).map(|(id, &len)| if v6 { udp6(id, len) } else { udp4(id, len) }).collect();
            assert_eq!(glue_frames(MERGE, &frames), want, "{sizes:?}");
            let apart = glue_frames(Config { udp: false, ..MERGE }, &frames);
            assert_eq!(apart, sizes, "not requested");
        }
    }
    let many: Vec<_> = (0..65).map(|id| udp4(id, 10)).collect();
    assert_eq!(glue_frames(MERGE, &many), [640, 10], "64 at most");
}

#[test]
fn udp_without_a_checksum_is_not_merged() {
    let mem = packet::Memory::heap();
    let packets = [7, 8].map(|id| {
        let mut bytes = udp4(id, LEN).bytes();
        bytes[26..28].fill(0);
        received(&mem, &bytes)
    });
    assert_eq!(glue(&mem, MERGE, packets.into()).len(), 2);
}
