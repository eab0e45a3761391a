//! Ranges of keys, and revisions of answers.

use super::proto::ResponseHeader;

/// Revision of a header.
pub(super) fn revision_of(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.revision.cast_unsigned())
}

/// End of the range of keys with a beginning: the first key behind them.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last != 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_a_prefix_ends_behind_it() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(b"a\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
    }
}
