//! Text of half an address: all four groups of hexadecimal digits, as iproute2 writes locators.

use std::fmt;

/// Writes 64 bits as four groups.
pub(crate) fn write(bits: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let group = |shift: u32| bits >> shift & 0xffff;
    f.pad(&format!("{:x}:{:x}:{:x}:{:x}", group(48), group(32), group(16), group(0)))
}

/// Reads four groups, if the text is nothing else.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let mut bits = 0;
    let mut groups = 0;
    for group in text.split(':') {
        let is_group = matches!(group.len(), 1..=4) && group.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_group || groups == 4 {
            return None;
        }
        bits = bits << 16 | u64::from_str_radix(group, 16).ok()?;
        groups += 1;
    }
    (groups == 4).then_some(bits)
}
