//! AES-CMAC (RFC 4493, of any AES key) and AES-XCBC-MAC (RFC 3566): CBC-MACs whose last block is masked, so that
//! messages of different lengths cannot be continued into each other.

use zeroize::Zeroizing;

use super::aes::{BLOCK_LEN, Block, EncryptingKey};

/// The polynomial that reduces a product in the field of 128 bits (RFC 4493 §2.3).
const REDUCTION: u8 = 0x87;

/// A key and its masks. Zeroed on drop.
pub(super) struct CbcMac {
    key: EncryptingKey,
    /// Masks of a last block that is whole, and of one that had to be padded.
    masks: Box<Zeroizing<[Block; 2]>>,
}

impl CbcMac {
    /// AES-CMAC: the masks are products of the encrypted zero block. `None` for a length that AES does not have.
    pub(super) fn cmac(key: &[u8]) -> Option<Self> {
        let key = EncryptingKey::new(key)?;
        let mut masks = Box::new(Zeroizing::new([[0; BLOCK_LEN]; 2]));
        let [whole, padded] = &mut **masks;
        key.block(whole);
        double(whole);
        padded.copy_from_slice(whole);
        double(padded);
        Some(Self { key, masks })
    }

    /// AES-XCBC-MAC: key and masks are drawn from the SA's key. `None` unless that has 16 bytes.
    pub(super) fn xcbc(key: &[u8]) -> Option<Self> {
        let source = EncryptingKey::new(key).filter(|_| key.len() == BLOCK_LEN)?;
        let mut drawn = Zeroizing::new([1; BLOCK_LEN]);
        source.block(&mut drawn);
        let mut masks = Box::new(Zeroizing::new([[2; BLOCK_LEN], [3; BLOCK_LEN]]));
        masks.iter_mut().for_each(|mask| source.block(mask));
        Some(Self { key: EncryptingKey::new(&*drawn)?, masks })
    }

    /// The code over `front` followed by `back`, which has at most four bytes.
    pub(super) fn code(&self, [front, back]: [&[u8]; 2]) -> Block {
        let total = front.len() + back.len();
        let before_last = total.saturating_sub(1) / BLOCK_LEN * BLOCK_LEN;
        // Whole blocks of `front`, without the last block.
        let in_front = before_last.min(front.len() / BLOCK_LEN * BLOCK_LEN);
        let (blocks, front) = front.split_at(in_front);
        let mut mac = [0; BLOCK_LEN];
        self.key.chain(&mut mac, blocks);
        // Fewer than two blocks are left: the end of `front`, and `back`.
        let mut left = [0; 2 * BLOCK_LEN];
        let mut len = 0;
        for &byte in front.iter().chain(back) {
            left[len] = byte;
            len += 1;
        }
        let (blocks, last) = left.split_at_mut(before_last - in_front);
        self.key.chain(&mut mac, blocks);
        let last_len = len - blocks.len();
        if last_len < BLOCK_LEN {
            last[last_len] = 0x80;
        }
        let mask = &self.masks[usize::from(last_len < BLOCK_LEN)];
        // Added to the chained block and not to the last one, because encryption overwrites the former: a last block of
        // zeros would leave the mask itself on the stack.
        mac.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        self.key.chain(&mut mac, &last[..BLOCK_LEN]);
        mac
    }
}

/// Doubles an element of the field of 128 bits in place (RFC 4493 §2.3), in constant time.
fn double(block: &mut Block) {
    let mut carry = 0;
    for byte in block.iter_mut().rev() {
        let top = *byte >> 7;
        *byte = *byte << 1 | carry;
        carry = top;
    }
    block[BLOCK_LEN - 1] ^= REDUCTION & carry.wrapping_neg();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
    }

    /// Asserts that the code of `message` is `want`, at every split of the message in two.
    fn assert_makes(mac: &CbcMac, message: &[u8], want: Block) {
        for cut in 0..=message.len().min(4) {
            let (front, back) = message.split_at(message.len() - cut);
            assert_eq!(mac.code([front, back]), want, "{} bytes, the last {cut} apart", message.len());
        }
    }

    /// RFC 4493 §4.
    #[test]
    fn cmac_makes_the_vectors_of_rfc_4493() {
        let message: [u8; 64] = hex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
                                     30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710");
        let cases: [(usize, u128); 4] = [
            (0, 0xbb1d_6929_e959_3728_7fa3_7d12_9b75_6746),
            (16, 0x070a_16b4_6b4d_4144_f79b_dd9d_d04a_287c),
            (40, 0xdfa6_6747_de9a_e630_30ca_3261_1497_c827),
            (64, 0x51f0_bebf_7e3b_9d92_fc49_7417_7936_3cfe),
        ];
        let cmac = CbcMac::cmac(&hex::<16>("2b7e151628aed2a6abf7158809cf4f3c")).unwrap();
        for (len, want) in cases {
            assert_makes(&cmac, &message[..len], want.to_be_bytes());
        }
    }

    /// RFC 3566 §4.6, cases 1 to 6: the bytes 0, 1, 2, … as key and message.
    #[test]
    fn xcbc_makes_the_vectors_of_rfc_3566() {
        let cases: [(u8, u128); 6] = [
            (0, 0x75f0_251d_528a_c01c_4573_dfd5_84d7_9f29),
            (3, 0x5b37_6580_ae2f_19af_e721_9cee_f172_756f),
            (16, 0xd2a2_46fa_349b_68a7_9998_a439_4ff7_a263),
            (20, 0x47f5_1b45_6496_6215_b898_5c63_055e_d308),
            (32, 0xf54f_0ec8_d2b9_f3d3_6807_734b_d528_3fd4),
            (34, 0xbecb_b3bc_cdb5_18a3_0677_d548_1fb6_b4d8),
        ];
        let key: Vec<u8> = (0..16).collect();
        let xcbc = CbcMac::xcbc(&key).unwrap();
        for (len, want) in cases {
            let message: Vec<u8> = (0..len).collect();
            assert_makes(&xcbc, &message, want.to_be_bytes());
        }
        assert!(CbcMac::xcbc(&key[..15]).is_none() && CbcMac::xcbc(&[0; 24]).is_none());
    }
}
