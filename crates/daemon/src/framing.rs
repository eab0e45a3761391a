//! Records in a row of bytes, each with its length and a checksum: a damaged record is told from one that is torn off by the
//! end of the bytes.

/// Bytes of a record before its content: the length of the content, the length's complement, and the checksum.
const HEAD: usize = 12;

/// Longest content of a record: more than the longest request.
const MAX_CONTENT: usize = 1 << 20;

/// Error: a record is not what was written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Damaged;

/// Appends a record with this content to `into`.
pub(crate) fn put(into: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len = (1 + parts.iter().map(|part| part.len()).sum::<usize>()) as u32;
    let mut sum = Crc::default().with(&[kind]);
    for part in parts {
        sum = sum.with(part);
    }
    into.extend([len, !len, sum.value()].iter().flat_map(|word| word.to_le_bytes()));
    into.push(kind);
    parts.iter().for_each(|part| into.extend_from_slice(part));
}

/// CRC-32 as in Ethernet and zip.
#[derive(Clone, Copy)]
struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Crc {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        while at < table.len() {
            let mut value = at as u32;
            let mut bit = 0;
            while bit < 8 {
                value = value >> 1 ^ if value & 1 == 1 { 0xedb8_8320 } else { 0 };
                bit += 1;
            }
            table[at] = value;
            at += 1;
        }
        table
    };

    fn with(self, bytes: &[u8]) -> Self {
        let step = |sum: u32, byte: &u8| sum >> 8 ^ Self::TABLE[usize::from(sum as u8 ^ byte)];
        Self(bytes.iter().fold(self.0, step))
    }

    const fn value(self) -> u32 {
        !self.0
    }
}

/// Content of the first record, its kind included, and the bytes behind it; `None` at the end of the bytes.
type First<'a> = Option<(&'a [u8], &'a [u8])>;

/// Content of the first record of `bytes`, and the bytes behind it; `None` if they end before it does.
///
/// # Errors
/// The record is damaged.
pub(crate) fn split(bytes: &[u8]) -> Result<First<'_>, Damaged> {
    let Some((head, after)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let word = |n: usize| u32::from_le_bytes([head[4 * n], head[4 * n + 1], head[4 * n + 2], head[4 * n + 3]]);
    let (len, sum) = (word(0), word(2));
    if len != !word(1) || len as usize > MAX_CONTENT {
        return Err(Damaged);
    }
    let Some((content, rest)) = after.split_at_checked(len as usize) else { return Ok(None) };
    if Crc::default().with(content).value() != sum {
        return Err(Damaged);
    }
    Ok(Some((content, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_one_of_ethernet() {
        assert_eq!(Crc::default().with(b"123456789").value(), 0xcbf4_3926);
    }
}
