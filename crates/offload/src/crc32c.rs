//! CRC32c, the checksum of SCTP (RFC 9260 §6.8 and appendix A; Castagnoli's polynomial 0x1EDC6F41, reflected).

/// The polynomial, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Number of bytes per step.
const STEP: usize = 8;

/// `TABLES[n][b]` is the contribution of a byte `b` followed by `n` bytes in the step.
static TABLES: [[u32; 256]; STEP] = tables();

const fn tables() -> [[u32; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        tables[0][byte] = rest;
        byte += 1;
    }
    let mut step = 1;
    while step < STEP {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[step - 1][byte];
            tables[step][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        step += 1;
    }
    tables
}

/// CRC32c of bytes in several buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc32c(u32);

impl Crc32c {
    /// CRC of no bytes.
    pub(crate) const EMPTY: Self = Self(!0);

    /// Appends bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<STEP>();
        for &block in blocks {
            let mixed = (u64::from_le_bytes(block) ^ u64::from(self.0)).to_le_bytes();
            let terms = mixed.iter().rev().zip(&TABLES).map(|(&byte, table)| table[usize::from(byte)]);
            self.0 = terms.fold(0, |all, term| all ^ term);
        }
        for &byte in rest {
            self.0 = self.0 >> 8 ^ TABLES[0][usize::from(self.0 as u8 ^ byte)];
        }
    }

    /// The checksum in wire order: RFC 9260 appendix A sends the lowest byte first.
    pub(crate) const fn to_bytes(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 appendix B.4, and the check value of the CRC catalogue.
    #[test]
    fn crc32c_of_published_vectors_is_theirs() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        let cases: [(&[u8], u32); 5] = [
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&rising, 0x46dd_794e),
            (&falling, 0x113f_db5c),
            (b"123456789", 0xe306_9283),
        ];
        for (bytes, want) in cases {
            for cut in 0..bytes.len() {
                let mut crc = Crc32c::EMPTY;
                crc.add(&bytes[..cut]);
                crc.add(&bytes[cut..]);
                assert_eq!(crc.to_bytes(), want.to_le_bytes(), "{bytes:?} in pieces at {cut}");
            }
        }
    }
}
