//! Reply to a command of `ethtool`.

/// New first bytes of the program's block, and the result of the call.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) block: Vec<u8>,
    pub(super) result: u32,
}

impl Answer {
    /// Reply with a block of 32-bit words.
    pub(super) fn words(words: impl IntoIterator<Item = u32>) -> Self {
        Self { block: words.into_iter().flat_map(u32::to_ne_bytes).collect(), result: 0 }
    }

    /// Reply with a `struct ethtool_value`.
    pub(super) fn value(command: u32, value: u32) -> Self {
        Self::words([command, value])
    }
}

/// Appends a text in a field of `len` bytes, the last a zero byte.
pub(super) fn put_text(to: &mut Vec<u8>, text: &str, len: usize) {
    let end = to.len() + len;
    to.extend(text.bytes().take(len - 1));
    to.resize(end, 0);
}
