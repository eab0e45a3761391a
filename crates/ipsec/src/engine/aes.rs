//! AES by AWS-LC, with each key schedule made in the allocation where it stays.
//!
//! A schedule is handled by its address alone. Returning, cloning or moving a cipher object by value would leave a copy
//! of its round keys on the stack of each thread that does so, which zeroing the object does not reach.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use aws_lc_sys as aws_lc;
use zeroize::Zeroize;

/// Bytes of an AES block.
pub(super) const BLOCK_LEN: usize = 16;

/// An AES block.
pub(super) type Block = [u8; BLOCK_LEN];

/// Bytes that [`EncryptingKey::chain`] encrypts in one call of the library.
const CHAIN_LEN: usize = 32 * BLOCK_LEN;

/// A key schedule, zeroed on drop.
///
/// Invariant: `AES_set_encrypt_key` or `AES_set_decrypt_key` has succeeded on it, as the type around it says. Nothing
/// changes it from then on, so threads may share it.
struct Schedule(Box<aws_lc::AES_KEY>);

impl Drop for Schedule {
    fn drop(&mut self) {
        self.0.rd_key.zeroize();
    }
}

/// A schedule of round keys that encrypts.
pub(super) struct EncryptingKey(Schedule);

/// Progress of a key stream.
struct CtrState {
    counter: Block,
    /// The last block of the key stream, and the number of its bytes that are used.
    last: Block,
    used_of_last: c_uint,
}

impl CtrState {
    const fn new(counter: Block) -> Self {
        Self { counter, last: [0; BLOCK_LEN], used_of_last: 0 }
    }
}

/// A schedule of round keys that decrypts.
pub(super) struct DecryptingKey(Schedule);

type Expand = unsafe extern "C" fn(*const u8, c_uint, *mut aws_lc::AES_KEY) -> c_int;

impl Schedule {
    /// The schedule that `expand`, one of the two functions of the invariant, makes of `key`; `None` for a length that
    /// AES does not have.
    fn new(key: &[u8], expand: Expand) -> Option<Self> {
        let bits = match key.len() {
            16 => 128,
            24 => 192,
            32 => 256,
            _ => return None,
        };
        let mut schedule = Self(Box::new(aws_lc::AES_KEY { rd_key: [0; 60], rounds: 0 }));
        // SAFETY: `key` has `bits` bits, and the schedule may be written.
        let failed = unsafe { expand(key.as_ptr(), bits, &raw mut *schedule.0) };
        assert_eq!(failed, 0, "a key of a length that AES has");
        Some(schedule)
    }

    fn as_ptr(&self) -> *const aws_lc::AES_KEY {
        &raw const *self.0
    }

    /// Encrypts or decrypts whole blocks in place by cipher block chaining, after the block `iv`.
    fn cbc(&self, mut iv: Block, text: &mut [u8], direction: c_int) {
        assert!(text.len().is_multiple_of(BLOCK_LEN), "whole blocks, not {} bytes", text.len());
        let at = text.as_mut_ptr();
        // SAFETY: the schedule is for this direction, as both callers see to; `text` is whole blocks that are read before they
        // are written, and `iv` is one block.
        unsafe {
            aws_lc::AES_cbc_encrypt(at, at, text.len(), self.as_ptr(), iv.as_mut_ptr(), direction);
        }
    }
}

impl EncryptingKey {
    /// The schedule of `key`; `None` for a length that AES does not have.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        Schedule::new(key, aws_lc::AES_set_encrypt_key).map(Self)
    }

    /// Encrypts one block in place.
    pub(super) fn block(&self, block: &mut Block) {
        let at = block.as_mut_ptr();
        // SAFETY: the schedule encrypts, by the invariant; the block is read before it is written.
        unsafe { aws_lc::AES_encrypt(at, at, self.0.as_ptr()) }
    }

    /// Encrypts whole blocks in place by cipher block chaining (NIST SP 800-38A §6.2).
    ///
    /// # Panics
    /// When `text` is not whole blocks.
    pub(super) fn cbc(&self, iv: Block, text: &mut [u8]) {
        self.0.cbc(iv, text, aws_lc::AES_ENCRYPT);
    }

    /// As [`cbc`](Self::cbc), from two other buffers, one behind the other.
    ///
    /// # Panics
    /// When `to` is not whole blocks, or not as long as both.
    pub(super) fn cbc_from(&self, mut iv: Block, (front, behind): (&[u8], &[u8]), to: &mut [u8]) {
        let whole = front.len() / BLOCK_LEN * BLOCK_LEN;
        let (front, tail) = front.split_at(whole);
        let (to, rest) = to.split_at_mut(whole);
        // SAFETY: the schedule encrypts, by the invariant; both texts are `whole` bytes, whole blocks, and apart from each other, one
        // being borrowed alone; `iv` is one block, and becomes the last one that was written.
        unsafe {
            aws_lc::AES_cbc_encrypt(
                front.as_ptr(),
                to.as_mut_ptr(),
                whole,
                self.0.as_ptr(),
                iv.as_mut_ptr(),
                aws_lc::AES_ENCRYPT,
            );
        }
        let (tail_to, behind_to) = rest.split_at_mut(tail.len());
        tail_to.copy_from_slice(tail);
        behind_to.copy_from_slice(behind);
        self.cbc(iv, rest);
    }

    /// Encrypts or decrypts in place with the key stream of `counter` and its successors (NIST SP 800-38A §6.5).
    pub(super) fn ctr(&self, counter: Block, text: &mut [u8]) {
        let at = text.as_mut_ptr();
        // SAFETY: each byte of `text` is read before it is written.
        unsafe { self.apply_ctr(&mut CtrState::new(counter), at, at, text.len()) }
    }

    /// As [`ctr`](Self::ctr), from two other buffers, one behind the other.
    ///
    /// # Panics
    /// When `to` is not as long as both.
    pub(super) fn ctr_from(&self, counter: Block, (front, behind): (&[u8], &[u8]), to: &mut [u8]) {
        assert_eq!(to.len(), front.len() + behind.len(), "a key stream changes no length");
        let (front_to, behind_to) = to.split_at_mut(front.len());
        let mut state = CtrState::new(counter);
        for (from, to) in [(front, front_to), (behind, behind_to)] {
            // SAFETY: both are as long, and apart from each other, one being borrowed alone.
            unsafe { self.apply_ctr(&mut state, from.as_ptr(), to.as_mut_ptr(), from.len()) }
        }
    }

    /// Encrypts or decrypts the next `len` bytes.
    ///
    /// # Safety
    /// `from` may be read and `to` written for `len` bytes; they are the same or apart.
    unsafe fn apply_ctr(&self, state: &mut CtrState, from: *const u8, to: *mut u8, len: usize) {
        let CtrState { counter, last, used_of_last } = state;
        // SAFETY: the schedule encrypts, by the invariant; the caller promises valid pointers; counter and last block of the key
        // stream are blocks, and as many bytes of the latter are used as the last call has said.
        unsafe {
            aws_lc::AES_ctr128_encrypt(
                from,
                to,
                len,
                self.0.as_ptr(),
                counter.as_mut_ptr(),
                last.as_mut_ptr(),
                used_of_last,
            );
        }
    }

    /// Continues the CBC-MAC `mac` over whole blocks: each is added to it, and it is encrypted (FIPS 113).
    ///
    /// # Panics
    /// When `blocks` is not whole blocks.
    pub(super) fn chain(&self, mac: &mut Block, blocks: &[u8]) {
        assert!(blocks.len().is_multiple_of(BLOCK_LEN), "whole blocks, not {} bytes", blocks.len());
        // The library encrypts faster by chaining than block by block, but writes every block. Only the last one is
        // used.
        let mut encrypted = MaybeUninit::<[u8; CHAIN_LEN]>::uninit();
        for part in blocks.chunks(CHAIN_LEN) {
            let to = encrypted.as_mut_ptr().cast();
            // SAFETY: the schedule encrypts, by the invariant; `part` is whole blocks and no more than there is room for; `mac`
            // is a block, and becomes the last one that was written.
            unsafe {
                aws_lc::AES_cbc_encrypt(
                    part.as_ptr(),
                    to,
                    part.len(),
                    self.0.as_ptr(),
                    mac.as_mut_ptr(),
                    aws_lc::AES_ENCRYPT,
                );
            }
        }
    }
}

impl DecryptingKey {
    /// The schedule of `key`; `None` for a length that AES does not have.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        Schedule::new(key, aws_lc::AES_set_decrypt_key).map(Self)
    }

    /// Decrypts whole blocks in place by cipher block chaining (NIST SP 800-38A §6.2).
    ///
    /// # Panics
    /// When `text` is not whole blocks.
    pub(super) fn cbc(&self, iv: Block, text: &mut [u8]) {
        self.0.cbc(iv, text, aws_lc::AES_DECRYPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197 appendix C: the key and the text are the bytes 0, 1, 2, … and 0x00, 0x11, 0x22, …
    #[test]
    fn aes_block_of_fips_197_encrypts_and_decrypts() {
        let cases: [(u8, u128); 3] = [
            (16, 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a),
            (24, 0xdda9_7ca4_864c_dfe0_6eaf_70a0_ec0d_7191),
            (32, 0x8ea2_b7ca_5167_45bf_eafc_4990_4b49_6089),
        ];
        let text: Block = std::array::from_fn(|at| at as u8 * 0x11);
        for (len, want) in cases {
            let key: Vec<u8> = (0..len).collect();
            let mut block = text;
            EncryptingKey::new(&key).unwrap().block(&mut block);
            assert_eq!(block, want.to_be_bytes());
            DecryptingKey::new(&key).unwrap().cbc([0; BLOCK_LEN], &mut block);
            assert_eq!(block, text);
        }
        for len in [0, 15, 17, 33] {
            assert!(EncryptingKey::new(&vec![0; len]).is_none() && DecryptingKey::new(&vec![0; len]).is_none());
        }
    }

    #[test]
    fn text_in_two_buffers_is_encrypted_as_in_one() {
        let key = EncryptingKey::new(&[7; 32]).unwrap();
        let text: Vec<u8> = (0..160).map(|at| at as u8 ^ 0x5a).collect();
        for len in (0..=text.len()).step_by(BLOCK_LEN) {
            for at in 0..=len {
                let parts = text[..len].split_at(at);
                let [mut cbc, mut ctr] = [(); 2].map(|()| text[..len].to_vec());
                key.cbc([9; BLOCK_LEN], &mut cbc);
                key.ctr([9; BLOCK_LEN], &mut ctr);
                let mut to = vec![0xee; len];
                key.cbc_from([9; BLOCK_LEN], parts, &mut to);
                assert_eq!(to, cbc, "CBC, {at} of {len} bytes");
                to.fill(0xee);
                key.ctr_from([9; BLOCK_LEN], parts, &mut to);
                assert_eq!(to, ctr, "CTR, {at} of {len} bytes");
            }
        }
    }

    #[test]
    fn chain_of_any_length_ends_as_cbc_does() {
        let key = EncryptingKey::new(&[7; 16]).unwrap();
        for blocks in [0, 1, 2, 31, 32, 33, 64, 100] {
            let text: Vec<u8> = (0..blocks * BLOCK_LEN).map(|at| at as u8).collect();
            let mut mac = [9; BLOCK_LEN];
            key.chain(&mut mac, &text);
            let mut encrypted = text;
            key.cbc([9; BLOCK_LEN], &mut encrypted);
            assert_eq!(mac, encrypted.last_chunk().copied().unwrap_or([9; BLOCK_LEN]), "{blocks} blocks");
        }
    }
}
