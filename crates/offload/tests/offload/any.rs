//! Properties of random packets and bursts.

use proptest::prelude::*;

use crate::model::{gro, gso};

fn claims() -> impl Strategy<Value = gso::Claims> {
    let change = (0u16..80, prop_oneof![4 => Just(0u8), 1 => any::<u8>()]);
    let size = prop_oneof![4 => 1u16..2000, 1 => any::<u16>()];
    let pages = prop_oneof![3 => Just(0u8), 1 => 1u8..40];
    let tunnels = prop_oneof![Just((0, 0)), any::<(u8, u16)>()];
    let headers = (any::<u8>(), change, any::<u8>(), tunnels, any::<u8>());
    (headers, size, any::<u16>(), any::<(u8, u16, u16)>(), any::<(u8, u16)>(), any::<u16>(), pages).prop_map(
        |((number, change, l3, tunnels, kind), size, segs, csum, shape, features, pages)| gso::Claims {
            number,
            change,
            l3,
            tunnels,
            kind,
            size,
            segs,
            csum,
            shape,
            features,
            pages,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_packet_is_cut_into_all_of_its_payload_or_refused(
        claims in claims(),
        payload in proptest::collection::vec(any::<u8>(), 0..5000),
    ) {
        gso::run(&claims, &payload);
    }

    #[test]
    fn a_burst_in_any_shapes_comes_out_as_it_came(
        options in any::<u8>(),
        steps in proptest::collection::vec(
            (prop_oneof![4 => 0u8..7, 1 => any::<u8>()], any::<u8>(), prop_oneof![3 => Just(1000u16), 1 => any::<u16>()], any::<u16>()),
            0..80,
        ),
    ) {
        gro::run(options, &steps);
    }
}
