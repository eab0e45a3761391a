//! Random sequences of operations compared with plain bytes.

mod model;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn operations_change_a_packet_as_they_change_plain_bytes(
        steps in prop::collection::vec((0..model::KINDS, any::<u8>(), any::<u16>()), 0..60),
        small_pages in 0u8..40,
        large_pages in 0u8..8,
    ) {
        model::run(small_pages, large_pages, &steps);
    }
}
