//! Watches of one stream.

use fleet::Event;

use super::connection::{CallError, Inbound, Outbound};
use super::proto::*;
use super::range::{cut, end_of, revision_of};

/// Requests of a stream.
#[derive(Debug)]
pub(crate) struct Watch(Outbound);

impl Watch {
    pub(super) const fn new(out: Outbound) -> Self {
        Self(out)
    }

    /// Watches the keys with a beginning, or one key if `is_prefix` is not set, from a revision on. `id` is not 0.
    ///
    /// # Errors
    /// The stream has ended.
    pub(crate) fn create(&mut self, id: i64, key: &str, is_prefix: bool, start: u64) -> Result<(), CallError> {
        let range_end = if is_prefix { end_of(key.as_bytes()) } else { Vec::new() };
        let start_revision = start.cast_signed();
        let create = WatchCreateRequest { key: key.into(), range_end, start_revision, watch_id: id, fragment: true };
        self.0.send(&WatchRequest { request: Some(WatchUnion::Create(create)) })
    }

    /// Requests a sign of life.
    ///
    /// # Errors
    /// The stream has ended.
    pub(crate) fn request_progress(&mut self) -> Result<(), CallError> {
        self.0.send(&WatchRequest { request: Some(WatchUnion::Progress(WatchProgressRequest {})) })
    }
}

/// Answer of a stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum WatchAnswer {
    /// Changes that the watch `id` has seen. An empty list is a sign of life.
    Events {
        id: i64,
        events: Vec<Event>,
        /// Revision of the member.
        revision: u64,
        /// The last revision is there with all its changes: no other part of a long answer follows.
        is_whole: bool,
    },
    /// The watch cannot begin where it was told to: the changes there are compacted.
    Compacted,
    /// The member has ended a watch. etcd may give no number of it if it is denied.
    Cancelled { id: i64, reason: String },
}

/// Answers of a stream.
#[derive(Debug)]
pub(crate) struct Answers(Inbound<WatchResponse>);

impl Answers {
    pub(super) const fn new(answers: Inbound<WatchResponse>) -> Self {
        Self(answers)
    }

    /// The next answer. A dropped call loses nothing.
    ///
    /// # Errors
    /// The stream has ended, orderly or not.
    pub(crate) async fn next(&mut self) -> Result<WatchAnswer, CallError> {
        let answer =
            self.0.next().await?.ok_or_else(|| CallError::Lost("the member has ended the watch".to_owned()))?;
        if answer.compact_revision != 0 {
            return Ok(WatchAnswer::Compacted);
        }
        if answer.canceled {
            return Ok(WatchAnswer::Cancelled { id: answer.watch_id, reason: answer.cancel_reason });
        }
        let revision = revision_of(answer.header.as_ref());
        let events = answer.events.into_iter().filter_map(|event| {
            let kv = event.kv?;
            let is_deletion = event.kind == i32::from(WatchEventType::Delete);
            let value = (!is_deletion).then_some(cut(kv.value));
            Some(Event { key: kv.key, value, revision: kv.mod_revision.cast_unsigned() })
        });
        let (id, is_whole) = (answer.watch_id, !answer.fragment);
        Ok(WatchAnswer::Events { id, events: events.collect(), revision, is_whole })
    }
}
