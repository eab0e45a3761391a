//! AES-XCBC-MAC (RFC 3566): CBC-MAC under a key drawn from the SA's, its last block mixed with another such key.

use aes::Aes128;
use aes::cipher::BlockCipherEncrypt;
use cbc_mac::{CbcMac, KeyInit, Mac};
use zeroize::Zeroizing;

const BLOCK_LEN: usize = 16;

type Block = [u8; BLOCK_LEN];

/// The three keys. Zeroed on drop.
pub(super) struct Xcbc {
    mac: CbcMac<Aes128>,
    /// For a last block that is whole, and for one that had to be padded.
    last: [Zeroizing<Block>; 2],
}

impl Xcbc {
    /// `None` unless `key` has 16 bytes.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let cipher = Aes128::new_from_slice(key).ok()?;
        let drawn = |number| {
            let mut block = [number; BLOCK_LEN].into();
            cipher.encrypt_block(&mut block);
            Zeroizing::new(Block::from(block))
        };
        Some(Self { mac: CbcMac::new_from_slice(&*drawn(1)).ok()?, last: [drawn(2), drawn(3)] })
    }

    /// The code over `front` and, of at most four bytes, `back`.
    pub(super) fn code(&self, [front, back]: [&[u8]; 2]) -> Block {
        let total = front.len() + back.len();
        let before_last = total.saturating_sub(1) / BLOCK_LEN * BLOCK_LEN;
        let (front, front_tail) = front.split_at(before_last.min(front.len()));
        let (back, back_tail) = back.split_at(before_last - front.len());
        let mut mac = self.mac.clone();
        mac.update(front);
        mac.update(back);
        let mut block = [0; BLOCK_LEN];
        let mut len = 0;
        for &byte in front_tail.iter().chain(back_tail) {
            block[len] = byte;
            len += 1;
        }
        if let Some(mark) = block.get_mut(len) {
            *mark = 0x80;
        }
        let key = &self.last[usize::from(len < BLOCK_LEN)];
        block.iter_mut().zip(key.iter()).for_each(|(byte, key)| *byte ^= key);
        mac.update(&block);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3566 §4.6, cases 1 to 6: the bytes 0, 1, 2, … as key and message.
    #[test]
    fn the_vectors_of_rfc_3566_are_made() {
        let cases: [(u8, u128); 6] = [
            (0, 0x75f0_251d_528a_c01c_4573_dfd5_84d7_9f29),
            (3, 0x5b37_6580_ae2f_19af_e721_9cee_f172_756f),
            (16, 0xd2a2_46fa_349b_68a7_9998_a439_4ff7_a263),
            (20, 0x47f5_1b45_6496_6215_b898_5c63_055e_d308),
            (32, 0xf54f_0ec8_d2b9_f3d3_6807_734b_d528_3fd4),
            (34, 0xbecb_b3bc_cdb5_18a3_0677_d548_1fb6_b4d8),
        ];
        let key: Vec<u8> = (0..16).collect();
        let xcbc = Xcbc::new(&key).unwrap();
        for (len, want) in cases {
            let message: Vec<u8> = (0..len).collect();
            for cut in 0..=message.len().min(4) {
                let (front, back) = message.split_at(message.len() - cut);
                assert_eq!(xcbc.code([front, back]), want.to_be_bytes(), "{len} bytes, the last {cut} apart");
            }
        }
        assert!(Xcbc::new(&key[..15]).is_none() && Xcbc::new(&[0; 24]).is_none());
    }
}
