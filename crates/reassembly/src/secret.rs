//! Keyed hash of a universal family.

use std::hash::{BuildHasher, RandomState};

/// Maximum number of words of a key, including SAs.
const MOST: usize = 10;

/// Random function of the family.
///
/// At most one in 2³² functions maps two keys of the same length to the same sum, even if an attacker has chosen the
/// keys ("multilinear-HM" of Lemire and Kaser, "Strongly universal string hashing is fast"), at the cost of a
/// multiplication per word. Sums are mixed afterwards: with some functions, consecutive keys would otherwise fall into
/// few chains of a table. No output reveals the function to a peer.
#[derive(Clone, Debug)]
pub(crate) struct Secret {
    sum: u64,
    factors: [[u64; 2]; MOST],
}

impl Secret {
    /// A function drawn at random.
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        let factor = |at: usize| random.hash_one(at);
        Self { sum: factor(2 * MOST), factors: std::array::from_fn(|at| [factor(2 * at), factor(2 * at + 1)]) }
    }

    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn hash(&self, words: &[u64]) -> u32 {
        debug_assert!(words.len() <= MOST, "{} words", words.len());
        let sum = words.iter().zip(&self.factors).fold(self.sum, |sum, (&word, factors)| {
            let low = (word & u64::from(u32::MAX)).wrapping_add(factors[0]);
            let high = (word >> 32).wrapping_add(factors[1]);
            sum.wrapping_add(low.wrapping_mul(high))
        });
        (mixed(sum) >> 32) as u32
    }
}

/// Spreads sums that differ little, as the sums of consecutive keys may: one to one (MurmurHash3's `fmix64`).
#[inline(always)]
const fn mixed(mut sum: u64) -> u64 {
    sum = (sum ^ sum >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    sum = (sum ^ sum >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    sum ^ sum >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_key_changes_the_value() {
        let secret = Secret::new();
        let key = [0x0123_4567_89ab_cdef_u64; MOST];
        for bit in 0..64 * MOST {
            let mut other = key;
            other[bit / 64] ^= 1 << (bit % 64);
            assert_ne!(secret.hash(&other), secret.hash(&key), "but for bit {bit}");
        }
    }

    #[test]
    fn counting_keys_fill_table_evenly_with_any_function() {
        const SLOTS: usize = 1024;
        // For a few of a thousand functions the sums do not differ enough.
        for word in (0..MOST).cycle().take(200) {
            for shift in [0, 16, 32, 48] {
                let secret = Secret::new();
                let mut filled = [0_u32; SLOTS];
                for n in 0..4 * SLOTS as u64 {
                    let mut key = [7; MOST];
                    key[word] = n << shift;
                    filled[secret.hash(&key) as usize % SLOTS] += 1;
                }
                let fullest = filled.iter().max().copied().unwrap_or_default();
                assert!(fullest < 32, "{fullest} of {} keys in one of {SLOTS} slots", 4 * SLOTS);
            }
        }
    }

    #[test]
    fn hash_functions_of_two_secrets_differ() {
        let [one, other] = [(); 2].map(|()| Secret::new());
        let same = (0..1000).filter(|&word| one.hash(&[word, 1]) == other.hash(&[word, 1])).count();
        assert_eq!(same, 0, "two functions hash alike");
    }
}
