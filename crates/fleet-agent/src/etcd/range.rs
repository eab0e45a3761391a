//! Ranges of keys, read by pages, and revisions of answers.

use fleet::MAX_VALUE;

use super::connection::CallError;
use super::proto::{RangeRequest, RangeResponse, ResponseHeader};

/// Keys that one request reads at most.
const PAGE: i64 = 10_000;

/// A key with its value and the revision of its last change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Found {
    pub(crate) key: Vec<u8>,
    /// Value; of one that is longer than any of this program's, the beginning.
    pub(crate) value: Vec<u8>,
    pub(crate) revision: u64,
}

/// Keys of a range that are read page by page. A page that is too long for one message is read again as smaller ones.
#[derive(Debug)]
pub(super) struct Pages {
    key: Vec<u8>,
    end: Vec<u8>,
    /// Keys of the next page.
    limit: i64,
    /// Revision at which all pages are read; 0 before the first one for the present revision.
    revision: u64,
    found: Vec<Found>,
}

impl Pages {
    pub(super) const fn new(key: Vec<u8>, end: Vec<u8>, revision: u64) -> Self {
        Self { key, end, limit: PAGE, revision, found: Vec::new() }
    }

    /// Request for the next page.
    pub(super) fn request(&self) -> RangeRequest {
        let (key, range_end) = (self.key.clone(), self.end.clone());
        RangeRequest { key, range_end, limit: self.limit, revision: self.revision.cast_signed() }
    }

    /// Takes the answer. Returns whether it was the last one.
    ///
    /// # Errors
    /// The answer is an error, or a single key is too long.
    pub(super) fn take(&mut self, answer: Result<RangeResponse, CallError>) -> Result<bool, CallError> {
        let page = match answer {
            Err(CallError::TooLong(_)) if self.limit > 1 => {
                self.limit /= 2;
                return Ok(false);
            }
            answer => answer?,
        };
        if self.revision == 0 {
            self.revision = revision_of(page.header.as_ref());
        }
        let is_last = !page.more || page.kvs.is_empty();
        self.found.extend(page.kvs.into_iter().map(|kv| Found {
            key: kv.key,
            value: cut(kv.value),
            revision: kv.mod_revision.cast_unsigned(),
        }));
        if let Some(last) = self.found.last() {
            // The next key in order.
            self.key.clone_from(&last.key);
            self.key.push(0);
        }
        Ok(is_last)
    }

    /// All keys, and the revision at which they were read.
    pub(super) fn finish(self) -> (Vec<Found>, u64) {
        (self.found, self.revision)
    }
}

/// Drops what is behind the longest value of this program: the beginning is refused, and the key is not taken for a deleted one.
pub(super) fn cut(mut value: Vec<u8>) -> Vec<u8> {
    if value.len() > MAX_VALUE {
        value.truncate(MAX_VALUE + 1);
        value.shrink_to_fit();
    }
    value
}

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
    use super::super::proto::EtcdKeyValue;
    use super::*;

    #[test]
    fn range_of_a_prefix_ends_behind_it() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(b"a\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
    }

    /// Answer of a member that has these keys, to a program that takes messages of so many bytes.
    fn answer(keys: &[EtcdKeyValue], request: &RangeRequest, longest: usize) -> Result<RangeResponse, CallError> {
        let rest: Vec<_> = keys.iter().filter(|kv| kv.key >= request.key).collect();
        let page: Vec<_> = rest.iter().take(request.limit as usize).map(|kv| (*kv).clone()).collect();
        let len = page.iter().map(|kv| kv.value.len()).sum();
        if len > longest {
            return Err(CallError::TooLong(len));
        }
        let more = page.len() < rest.len();
        Ok(RangeResponse { header: Some(ResponseHeader { revision: 9 }), kvs: page, more })
    }

    #[test]
    fn pages_that_are_too_long_are_read_as_smaller_ones() {
        let key = |number: u8| EtcdKeyValue { key: vec![b'a', number], mod_revision: 7, value: vec![b'x'; 10_000] };
        let keys: Vec<_> = (0..45).map(key).collect();
        for (longest, is_read) in [(usize::MAX, true), (100_000, true), (10_000, true), (9999, false)] {
            let mut pages = Pages::new(vec![b'a'], vec![b'b'], 0);
            let outcome = loop {
                match pages.take(answer(&keys, &pages.request(), longest)) {
                    Ok(false) => {}
                    outcome => break outcome,
                }
            };
            assert_eq!(outcome.is_ok(), is_read, "{longest}");
            let (found, revision) = pages.finish();
            let want: Vec<_> = keys.iter().filter(|_| is_read).map(|kv| kv.key.clone()).collect();
            assert_eq!(found.iter().map(|found| found.key.clone()).collect::<Vec<_>>(), want, "{longest}");
            assert!(found.iter().all(|found| found.value.len() == MAX_VALUE + 1 && found.revision == 7));
            assert_eq!(revision, if is_read { 9 } else { 0 });
        }
        assert_eq!(cut(vec![1; MAX_VALUE]).len(), MAX_VALUE);
    }
}
