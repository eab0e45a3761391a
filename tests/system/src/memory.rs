//! Search for secrets in the memory of another process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::Outcome;

/// Bytes of the pieces of a secret that are searched for.
const PIECE: usize = 8;

/// Bytes of one read.
const CHUNK: usize = 1 << 20;

/// Named secrets, as pieces of `PIECE` bytes to search for.
#[derive(Debug, Default)]
pub struct Secrets {
    /// Names by piece.
    names: HashMap<u64, String>,
    /// First two bytes of all pieces, as a table: most of memory begins with none of them.
    fronts: Vec<bool>,
}

impl Secrets {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self { names: HashMap::new(), fronts: vec![false; 1 << 16] }
    }

    /// Adds the whole pieces of `bytes`.
    pub fn add(&mut self, name: &str, bytes: &[u8]) {
        for (at, piece) in bytes.chunks_exact(PIECE).enumerate() {
            let piece = piece.try_into().map_or(0, u64::from_le_bytes);
            self.names.insert(piece, format!("{name}, bytes from {}", at * PIECE));
            self.fronts[usize::from(piece as u16)] = true;
        }
    }

    /// Adds a key, in binary and in the hexadecimal digits of files and commands.
    pub fn add_key(&mut self, name: &str, key: &[u8]) {
        self.add(name, key);
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.add(&format!("{name} in hexadecimal"), digits.as_bytes());
    }

    /// Adds the round keys that AES expands `key` to, for encryption and for decryption.
    pub fn add_aes(&mut self, name: &str, key: &[u8]) {
        let words = expand(key);
        for (round, key) in words.chunks_exact(4).enumerate() {
            self.add(&format!("{name}, round key {round}"), key.as_flattened());
            let inverse: Vec<[u8; 4]> = key.iter().map(|word| inv_mix_column(*word)).collect();
            self.add(&format!("{name}, round key {round} of decryption"), inverse.as_flattened());
        }
    }

    /// Adds the first block that HMAC hashes of `key`, inside and outside (RFC 2104 §2).
    pub fn add_hmac(&mut self, name: &str, key: &[u8]) {
        for (what, pad) in [("inner", 0x36), ("outer", 0x5c)] {
            let padded: Vec<u8> = key.iter().map(|byte| byte ^ pad).collect();
            self.add(&format!("{name} with its {what} pad"), &padded);
        }
    }

    /// Adds the keys that AES-CMAC derives from `key`: the masks K1 and K2 (RFC 4493 §2.3).
    pub fn add_cmac(&mut self, name: &str, key: &[u8]) {
        let mut mask = encrypt(&expand(key), [0; 16]);
        for what in ["K1", "K2"] {
            mask = double(mask);
            self.add(&format!("{name}, {what} of CMAC"), &mask);
        }
    }

    /// Adds the keys that AES-XCBC-MAC derives from `key`: the key K1 and its round keys, and the masks K2 and K3 (RFC
    /// 3566 §4).
    pub fn add_xcbc(&mut self, name: &str, key: &[u8]) {
        let words = expand(key);
        for number in 1..=3 {
            let derived = encrypt(&words, [number; 16]);
            let name = format!("{name}, K{number} of XCBC");
            self.add(&name, &derived);
            if number == 1 {
                self.add_aes(&name, &derived);
            }
        }
    }

    /// Pieces found in the memory of process `pid`: name, mapping and address.
    ///
    /// # Errors
    /// The process has ended, or its memory is not to be read.
    pub fn find_in(&self, pid: u32) -> Outcome<Vec<String>> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let mut found = Vec::new();
        // Each read begins with the end of the one before, so that no piece is cut.
        let mut chunk = vec![0; CHUNK + PIECE];
        for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
            let mut fields = line.split_whitespace();
            let range = fields.next().and_then(|range| range.split_once('-'));
            let number = |text| u64::from_str_radix(text, 16);
            let (start, end) = range.ok_or("no range in a line of maps")?;
            let (mut at, end) = (number(start)?, number(end)?);
            let what = fields.nth(4).unwrap_or("anonymous");
            while at < end {
                let len = chunk.len().min((end - at) as usize);
                let Ok(read @ 1..) = memory.read_at(&mut chunk[..len], at) else { break };
                for (offset, piece) in chunk[..read].windows(PIECE).enumerate() {
                    if self.fronts[usize::from(u16::from_le_bytes([piece[0], piece[1]]))] {
                        let piece = piece.try_into().map_or(0, u64::from_le_bytes);
                        let name = self.names.get(&piece);
                        found.extend(name.map(|name| format!("{name}: {what}, {:#x}", at + offset as u64)));
                    }
                }
                at += read.saturating_sub(PIECE - 1).max(1) as u64;
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Words of the key schedule of AES (FIPS 197 §5.2).
fn expand(key: &[u8]) -> Vec<[u8; 4]> {
    let mut words: Vec<[u8; 4]> = key.as_chunks().0.to_vec();
    let (in_key, mut constant) = (words.len(), 1);
    for at in in_key..4 * (in_key + 7) {
        let mut word = words[at - 1];
        if at % in_key == 0 {
            word.rotate_left(1);
            word = word.map(substitute);
            word[0] ^= constant;
            constant = times(constant, 2);
        } else if in_key > 6 && at % in_key == 4 {
            word = word.map(substitute);
        }
        words.push(std::array::from_fn(|byte| word[byte] ^ words[at - in_key][byte]));
    }
    words
}

/// Encryption of one block by the key schedule `words` (FIPS 197 §5.1).
fn encrypt(words: &[[u8; 4]], block: [u8; 16]) -> [u8; 16] {
    let mut state = block;
    for (round, key) in words.chunks_exact(4).enumerate() {
        if round > 0 {
            let shifted: [u8; 16] = std::array::from_fn(|at| substitute(state[(at + 4 * (at % 4)) % 16]));
            state = shifted;
        }
        if round > 0 && 4 * round + 4 < words.len() {
            state.as_chunks_mut().0.iter_mut().for_each(|column| *column = mix(*column, [2, 3, 1, 1]));
        }
        state.iter_mut().zip(key.as_flattened()).for_each(|(byte, key)| *byte ^= key);
    }
    state
}

/// Product with x in the field of 128 bits (RFC 4493 §2.3).
fn double(block: [u8; 16]) -> [u8; 16] {
    let number = u128::from_be_bytes(block);
    ((number << 1) ^ (0x87 * (number >> 127))).to_be_bytes()
}

/// A column of a round key of the equivalent inverse cipher (FIPS 197 §5.3.5).
fn inv_mix_column(column: [u8; 4]) -> [u8; 4] {
    mix(column, [14, 11, 13, 9])
}

/// Product of a column with the matrix whose first row is `factors` (FIPS 197 §5.1.3).
fn mix(column: [u8; 4], factors: [u8; 4]) -> [u8; 4] {
    std::array::from_fn(|row| (0..4).fold(0, |sum, at| sum ^ times(column[at], factors[(at + 4 - row) % 4])))
}

/// S-box (FIPS 197 §5.1.1).
fn substitute(byte: u8) -> u8 {
    let inverse = (0..=255).find(|&other| times(byte, other) == 1).unwrap_or(0);
    (0..5).fold(0x63, |sum, turn| sum ^ inverse.rotate_left(turn))
}

/// Product in the field of 256 elements (FIPS 197 §4.2).
fn times(a: u8, b: u8) -> u8 {
    let (mut a, mut product) = (a, 0);
    for bit in 0..8 {
        product ^= a * (b >> bit & 1);
        a = (a << 1) ^ (0x1b * (a >> 7));
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197 appendices A.1 and A.3.
    #[test]
    fn aes_of_fips_197_vectors_agrees() {
        let key = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        for (text, last) in [
            ("2b7e151628aed2a6abf7158809cf4f3c", [0xb6, 0x63, 0x0c, 0xa6]),
            ("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4", [0x70, 0x6c, 0x63, 0x1e]),
        ] {
            assert_eq!(expand(&key(text)).last(), Some(&last));
        }
        // FIPS 197 appendix C.1: the key 0, 1, 2, … and the text 0x00, 0x11, 0x22, …
        let words = expand(&(0..16).collect::<Vec<u8>>());
        let encrypted = encrypt(&words, std::array::from_fn(|at| at as u8 * 0x11));
        assert_eq!(encrypted.to_vec(), key("69c4e0d86a7b0430d8cdb78070b4c55a"));
        // RFC 4493 §4: K1 and K2.
        let first = double(encrypt(&expand(&key("2b7e151628aed2a6abf7158809cf4f3c")), [0; 16]));
        assert_eq!(first.to_vec(), key("fbeed618357133667c85e08f7236a8de"));
        assert_eq!(double(first).to_vec(), key("f7ddac306ae266ccf90bc11ee46d513b"));
        // FIPS 197 §5.1.3 and its inverse.
        assert_eq!(inv_mix_column([0x04, 0x66, 0x81, 0xe5]), [0xd4, 0xbf, 0x5d, 0x30]);
    }

    #[test]
    fn secret_of_this_process_is_found_until_it_is_zeroed() {
        let mut secrets = Secrets::new();
        let mut bytes: Vec<u8> = (0..40).map(|at: u8| at.wrapping_mul(37) ^ 0xa5).collect();
        secrets.add("it", &bytes[8..24]);
        let here = |found: Vec<String>, bytes: &[u8]| {
            let at = bytes.as_ptr() as u64;
            found.iter().filter(|it| [8, 16].iter().any(|front| it.ends_with(&format!("{:#x}", at + front)))).count()
        };
        let pid = std::process::id();
        assert_eq!(here(secrets.find_in(pid).unwrap(), &bytes), 2);
        bytes.fill(0);
        assert_eq!(here(secrets.find_in(pid).unwrap(), &bytes), 0);
    }
}
