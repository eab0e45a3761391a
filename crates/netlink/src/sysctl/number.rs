//! Parser of numbers written to a file of `/proc/sys` (Linux `proc_get_long`, `strtoul_lenient`).

use std::ops::RangeInclusive;

use crate::error::errno;

/// Linux's `int`.
pub(super) const INT: RangeInclusive<i128> = i32::MIN as i128..=i32::MAX as i128;
/// Linux's `unsigned int`.
pub(super) const UINT: RangeInclusive<i128> = 0..=u32::MAX as i128;
/// Linux's `unsigned long`.
pub(super) const ULONG: RangeInclusive<i128> = 0..=u64::MAX as i128;
/// Linux's `int` of jiffies at `HZ` = 1000, in seconds.
pub(super) const SECONDS: RangeInclusive<i128> = -(i32::MAX as i128 / 1000)..=i32::MAX as i128 / 1000;

/// Bytes of a page without the terminating NUL: later bytes of a text are ignored.
const MAX_TEXT: usize = 4095;

/// A number of this many characters or more is refused (`TMPBUFLEN - 1`).
const MAX_CHARS: usize = 21;

/// The number at the start of `text`, if it is within `bounds`.
///
/// # Errors
/// `EINVAL`: the text begins with no number, or the number is out of bounds.
pub(super) fn within(bounds: RangeInclusive<i128>, text: &[u8]) -> Result<i128, i32> {
    parse(text).filter(|value| bounds.contains(value)).ok_or(errno::EINVAL)
}

/// The number at the start of `text`, after white space: decimal, hexadecimal with prefix `0x`, or octal with prefix
/// `0`; text after the number is ignored if a blank, a tab or a newline separates it. `None`: the text begins with no
/// number.
fn parse(text: &[u8]) -> Option<i128> {
    let text = text.get(..MAX_TEXT).unwrap_or(text);
    let begin = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r'))?;
    let text = text.get(begin..)?;
    // A sign alone is no number.
    let (negative, unsigned) = match text.strip_prefix(b"-") {
        Some(rest) if !rest.is_empty() => (true, rest),
        _ => (false, text),
    };
    let hexadecimal = unsigned.strip_prefix(b"0x").or_else(|| unsigned.strip_prefix(b"0X"));
    let hexadecimal = hexadecimal.filter(|digits| digits.first().is_some_and(u8::is_ascii_hexdigit));
    let (radix, digits) = match (hexadecimal, unsigned) {
        (Some(digits), _) => (16, digits),
        (None, [b'0', ..]) => (8, unsigned),
        (None, _) => (10, unsigned),
    };
    let end = digits.iter().position(|&byte| !char::from(byte).is_digit(radix)).unwrap_or(digits.len());
    let (digits, behind) = digits.split_at(end);
    let chars = text.len() - behind.len();
    if chars >= MAX_CHARS || !matches!(behind, [] | [b' ' | b'\t' | b'\n', ..]) {
        return None;
    }
    let value = u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()?;
    Some(if negative { -i128::from(value) } else { i128::from(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_as_linux_reads_it() {
        let cases: [(&str, Option<i128>); 29] = [
            ("20\n", Some(20)),
            ("20", Some(20)),
            (" \t\n\x0b 20 ", Some(20)),
            ("0", Some(0)),
            ("-1\n", Some(-1)),
            ("0x1f", Some(31)),
            ("0X1F\n", Some(31)),
            ("010", Some(8)),
            ("-0x10", Some(-16)),
            ("1 2\n", Some(1)),
            ("1\tx", Some(1)),
            ("18446744073709551615", Some(u64::MAX.into())),
            ("00000000000000000007", Some(7)),
            ("000000000000000000007", None),
            ("18446744073709551616", None),
            ("", None),
            (" \n", None),
            ("-", None),
            ("- 1", None),
            ("--1", None),
            ("+1", None),
            ("x", None),
            ("1x", None),
            ("08", None),
            ("0x", None),
            ("0xg", None),
            ("1,2", None),
            ("1\0", None),
            ("1\r\n", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text.as_bytes()), want, "{text:?}");
        }
        assert_eq!(parse(&[b"7".to_vec(), vec![b' '; 5000]].concat()), Some(7));
        assert_eq!(parse(&[vec![b' '; 4095], b"7".to_vec()].concat()), None, "a page is looked at");
    }
}
