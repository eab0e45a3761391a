//! Rates, and the transmission time of a packet at a rate.

use std::time::Duration;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Link layer of a rate (`TC_LINKLAYER_*`; the kernel keeps four bits of the number).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkLayer(u8);

impl LinkLayer {
    /// Ethernet, and all other layers without cells.
    pub const ETHERNET: Self = Self(1);
    /// Cells of 53 bytes with 48 bytes of payload.
    pub const ATM: Self = Self(2);

    /// Link layer of that number; bits above the fourth are ignored.
    pub const fn new(number: u8) -> Self {
        Self(number & 0x0f)
    }

    /// Number of the link layer.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// Rate with the overhead that a link adds to each packet (Linux `tc_ratespec`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RateSpec {
    /// Bytes per second.
    pub rate: u64,
    /// Cost of each packet in bytes, in addition to its length.
    pub overhead: u16,
    /// Minimum cost of a packet in bytes.
    pub mpu: u16,
    /// Link layer.
    pub link_layer: LinkLayer,
}

/// Rate with a division by multiplication and shift (Linux `psched_ratecfg`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pace {
    spec: RateSpec,
    mult: u32,
    shift: u8,
}

impl Pace {
    /// Prepares a rate, which must not be 0.
    pub(crate) fn new(spec: RateSpec) -> Self {
        assert_ne!(spec.rate, 0, "rate of {spec:?}");
        // The factor with the most significant bits for which `mult` and a 64-bit product have room.
        let mut shift = 0;
        let mut factor = NANOS_PER_SEC;
        while factor / spec.rate < 1 << 31 && factor < 1 << 63 {
            factor <<= 1;
            shift += 1;
        }
        let mult = u32::try_from(factor / spec.rate).unwrap_or(u32::MAX);
        Self { spec, mult, shift }
    }

    /// Transmission time of a packet of `len` bytes, in nanoseconds (Linux `psched_l2t_ns`).
    pub(crate) fn nanos(&self, len: u32) -> u64 {
        let bytes = (u64::from(len) + u64::from(self.spec.overhead)).max(u64::from(self.spec.mpu));
        let on_link = if self.spec.link_layer == LinkLayer::ATM { bytes.div_ceil(48) * 53 } else { bytes };
        on_link.saturating_mul(u64::from(self.mult)) >> self.shift
    }

    /// Length of the longest packet with a transmission time of at most `time`, in bytes (Linux `psched_ns_t2l`).
    pub(crate) fn bytes(&self, time: Duration) -> u32 {
        let mut bytes = time.as_nanos().saturating_mul(u128::from(self.spec.rate)) / u128::from(NANOS_PER_SEC);
        if self.spec.link_layer == LinkLayer::ATM {
            bytes = bytes / 53 * 48;
        }
        u32::try_from(bytes.saturating_sub(u128::from(self.spec.overhead))).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn time_of_a_packet_has_overhead_minimum_and_cells() {
        // At 125 MB/s a byte takes 8 ns.
        let spec = |overhead, mpu, link_layer| RateSpec { rate: 125_000_000, overhead, mpu, link_layer };
        let cases = [
            (spec(0, 0, LinkLayer::ETHERNET), 0, 0),
            (spec(0, 0, LinkLayer::ETHERNET), 1500, 12_000),
            (spec(24, 0, LinkLayer::ETHERNET), 1500, 12_192),
            (spec(0, 64, LinkLayer::ETHERNET), 63, 512),
            (spec(0, 64, LinkLayer::ETHERNET), 65, 520),
            (spec(4, 64, LinkLayer::ETHERNET), 61, 520),
            (spec(0, 0, LinkLayer::ATM), 48, 53 * 8),
            (spec(0, 0, LinkLayer::ATM), 49, 106 * 8),
            (spec(10, 0, LinkLayer::ATM), 38, 53 * 8),
            (spec(10, 0, LinkLayer::ATM), 39, 106 * 8),
        ];
        for (spec, len, want) in cases {
            assert_eq!(Pace::new(spec).nanos(len), want, "{len} bytes at {spec:?}");
        }
    }

    #[test]
    fn time_of_a_packet_is_rounded_down_as_in_linux() {
        // 154 bytes at 100 Gbit/s take 12.32 ns.
        assert_eq!(Pace::new(RateSpec { rate: 12_500_000_000, ..RateSpec::default() }).nanos(154), 12);
    }

    #[test]
    fn link_layer_keeps_four_bits() {
        assert_eq!(LinkLayer::new(0xf2), LinkLayer::ATM);
        assert_eq!(LinkLayer::new(0x1f).number(), 15);
    }

    #[test]
    fn extreme_rates_neither_panic_nor_wrap() {
        let atm = |rate| Pace::new(RateSpec { rate, overhead: u16::MAX, mpu: u16::MAX, link_layer: LinkLayer::ATM });
        assert!(atm(1).nanos(u32::MAX) >= 4_000_000_000 * NANOS_PER_SEC);
        assert_eq!(atm(u64::MAX).nanos(1500), 0);
        assert_eq!(atm(u64::MAX).bytes(Duration::MAX), u32::MAX);
        assert_eq!(atm(1).bytes(Duration::ZERO), 0);
    }

    proptest! {
        #[test]
        fn time_of_a_packet_agrees_with_a_division(rate in 1_u64..1 << 40, len in 0_u32..1 << 26) {
            let pace = Pace::new(RateSpec { rate, ..RateSpec::default() });
            let exact = u64::try_from(u128::from(len) * u128::from(NANOS_PER_SEC) / u128::from(rate)).unwrap();
            let time = pace.nanos(len);
            prop_assert!(time <= exact && exact - time <= 1 + (exact >> 30), "{time} for {exact}");
        }

        #[test]
        fn longest_packet_of_a_time_takes_no_longer(
            rate in 1_u64..1 << 40,
            nanos in 0_u64..1 << 32,
            overhead: u16,
            is_atm: bool,
        ) {
            let link_layer = if is_atm { LinkLayer::ATM } else { LinkLayer::ETHERNET };
            let pace = Pace::new(RateSpec { rate, overhead, mpu: 0, link_layer });
            let len = pace.bytes(Duration::from_nanos(nanos));
            prop_assert!(len == 0 || pace.nanos(len) <= nanos, "{len} bytes");
        }
    }
}
