//! Traffic flow confidentiality: every packet of a tunnel has the same size (RFC 4303 §2.7).

use crate::common::{HERE, NAT_T, Pair, THERE, decode, fat, sa, segments, udp_packet};
use ipsec::Train;
use packet::{Cut, Packet};
use wire::Version;
use xfrm::{SaConfig, SaFlags};

/// A tunnel over IPv4 or IPv6 that pads packets to `tfcpad` bytes.
fn config(outer: usize, udp: bool, tfcpad: u32) -> SaConfig {
    SaConfig { src: HERE[outer], dst: THERE[outer], encap: if udp { NAT_T } else { None }, tfcpad, ..sa() }
}

//= test RFC 4303 §2.7 tfc-padding
#[test]
fn all_sizes_are_equal_on_the_wire() {
    for outer in 0..2 {
        for udp in [false, true] {
            for inner in [Version::V4, Version::V6] {
                let mut pair = Pair::new(&config(outer, udp, 1500));
                let most = pair.sender.sa(pair.out_sa).unwrap().inner_mtu(1500);
                let headers = inner.header_len() + 8;
                let sizes = [0, 1, 2, 3, 100, 1000, most - headers - 1, most - headers].map(|len| {
                    let bytes = udp_packet(inner, len);
                    let wire = pair.seal(Packet::with_data(&pair.mem, &bytes).unwrap(), Train::None).remove(0);
                    let size = wire.len();
                    assert_eq!(pair.open(wire)[0].to_vec(), bytes, "the padding is cut off");
                    size
                });
                assert!(sizes.iter().all(|&size| size == sizes[0] && size <= 1500), "{sizes:?}");
                assert!(sizes[0] > 1500 - 4, "as much as the path takes: {sizes:?}");
            }
        }
    }
}

#[test]
fn the_segments_of_a_fat_packet_are_of_one_size_too() {
    for train in [Train::None, Train::Udp] {
        let mut pair = Pair::new(&config(0, true, 1200));
        let (bytes, csum, cut) = fat(Version::V4, true, 1000, 4300);
        let want = segments(&pair.mem, &bytes, csum, cut);
        let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
        let wire = pair.seal(pkt, train);
        let esp = 8 + 8 + 1202_usize.next_multiple_of(4) + 16;
        if let (Train::Udp, Cut::Gso(gso)) = (train, wire[0].meta.cut) {
            assert_eq!((usize::from(gso.size), wire[0].len()), (esp, 28 + 5 * esp));
        } else {
            assert!(wire.len() == 5 && wire.iter().all(|pkt| pkt.len() == 28 + esp));
        }
        let got: Vec<_> = wire.into_iter().flat_map(|pkt| pair.open(pkt)).map(|pkt| pkt.to_vec()).collect();
        assert_eq!(got, want);
    }
}

#[test]
fn padding_is_zero_and_in_front_of_the_trailer() {
    let config = config(0, false, 200);
    let mut pair = Pair::new(&config);
    let bytes = udp_packet(Version::V4, 33);
    let wire = pair.seal(Packet::with_data(&pair.mem, &bytes).unwrap(), Train::None).remove(0);
    let (_, esp) = crate::common::split_wire(&wire);
    let decoded = decode(&config, &esp[0], 0);
    let zeros = vec![0; 200 - bytes.len()];
    assert_eq!(decoded.payload, [bytes, zeros].concat());
}

#[test]
fn longer_or_unpadded_packet_is_unchanged() {
    let flags = SaFlags::default();
    for (tfcpad, len) in [(0, 100), (100, 72), (100, 200)] {
        let (mut padded, mut plain) =
            (Pair::new(&SaConfig { flags, ..config(0, false, tfcpad) }), Pair::new(&config(0, false, 0)));
        let [a, b] = [&mut padded, &mut plain].map(|pair| {
            let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, len)).unwrap();
            pair.seal(pkt, Train::None).remove(0).len()
        });
        assert_eq!(a, b, "tfcpad {tfcpad}, {len} bytes");
    }
}
