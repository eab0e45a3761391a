//! Requests to one member.

use std::time::Duration;

use super::connection::{CallError, Connection, LIMIT, READ_LIMIT};
use super::endpoint::Endpoint;
use super::proto::*;
use super::range::{Found, Pages, end_of, revision_of};
use super::watch::{Answers, Watch};

/// gRPC's number of `PERMISSION_DENIED`.
const PERMISSION_DENIED: u32 = 7;

/// Write of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) key: String,
    /// New value; `None` deletes the key.
    pub(crate) value: Option<Vec<u8>>,
    /// Revision of the last change that the key must have; 0 if it must not exist, `None` for any.
    pub(crate) expected: Option<u64>,
}

/// State of a member, as it says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct MemberStatus {
    /// Revision.
    pub(crate) revision: u64,
    /// Size of the database, which the quota limits.
    pub(crate) db_bytes: u64,
    /// Alarms, such as `NOSPACE`.
    pub(crate) errors: Vec<String>,
}

/// Connection to a member.
#[derive(Debug)]
pub(crate) struct Etcd {
    pub(super) connection: Connection,
}

impl Etcd {
    /// Connects to a member.
    ///
    /// # Errors
    /// The member does not answer.
    pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Self, CallError> {
        Ok(Self { connection: Connection::open(endpoint).await? })
    }

    /// Name by which the member knows this program: the common name of its certificate.
    pub(crate) fn user(&self) -> Option<&str> {
        self.connection.user()
    }

    /// A refusal with the names of the request and of the user.
    pub(super) fn named(&self, err: CallError, what: &str) -> CallError {
        match err {
            CallError::Refused { code: PERMISSION_DENIED, text } => {
                let user = self.user().map_or_else(|| "no user".to_owned(), |user| format!("user {user}"));
                CallError::Refused { code: PERMISSION_DENIED, text: format!("{text}: {user}, {what}") }
            }
            other => other,
        }
    }

    /// One key, as the majority of members has it, and the store's revision.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn get(&self, key: &str) -> Result<(Option<Found>, u64), CallError> {
        let (mut found, revision) = self.range(key.into(), Vec::new(), 0).await?;
        Ok((found.pop(), revision))
    }

    /// All keys with this beginning, at `revision` or, if that is 0, at the present one, which is returned.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn prefix(&self, prefix: &str, revision: u64) -> Result<(Vec<Found>, u64), CallError> {
        self.range(prefix.into(), end_of(prefix.as_bytes()), revision).await
    }

    /// The first key that is before or behind those with a beginning.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn other_key(&self, prefix: &str) -> Result<Option<Vec<u8>>, CallError> {
        for (key, range_end) in [(vec![0], prefix.into()), (end_of(prefix.as_bytes()), vec![0])] {
            let request = RangeRequest { key, range_end, limit: 1, revision: 0 };
            let page = self.connection.call("/etcdserverpb.KV/Range", &request, READ_LIMIT).await;
            let page: RangeResponse = page.map_err(|err| self.named(err, "read all keys"))?;
            if let Some(kv) = page.kvs.into_iter().next() {
                return Ok(Some(kv.key));
            }
        }
        Ok(None)
    }

    /// The first key in a range.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn first_key(&self, from: &str, end: &str) -> Result<Option<Vec<u8>>, CallError> {
        let request = RangeRequest { key: from.into(), range_end: end.into(), limit: 1, revision: 0 };
        let page = self.connection.call("/etcdserverpb.KV/Range", &request, READ_LIMIT).await;
        let page: RangeResponse = page.map_err(|err| self.named(err, &format!("read {from}")))?;
        Ok(page.kvs.into_iter().next().map(|kv| kv.key))
    }

    async fn range(&self, key: Vec<u8>, end: Vec<u8>, at: u64) -> Result<(Vec<Found>, u64), CallError> {
        let mut pages = Pages::new(key, end, at);
        loop {
            let request = pages.request();
            let page = self.connection.call("/etcdserverpb.KV/Range", &request, READ_LIMIT).await;
            let what = || format!("read {}", String::from_utf8_lossy(&request.key));
            if pages.take(page.map_err(|err| self.named(err, &what())))? {
                return Ok(pages.finish());
            }
        }
    }

    /// Carries out writes together, if all keys are as expected. Returns whether they were.
    ///
    /// # Errors
    /// No answer: whether the writes were carried out is unknown. Or a refusal.
    pub(crate) async fn write(&self, writes: &[Write], lease: i64) -> Result<bool, CallError> {
        let compare = writes.iter().filter_map(|write| {
            let revision = write.expected?.cast_signed();
            let union = Some(CompareUnion::ModRevision(revision));
            let key = write.key.clone().into_bytes();
            Some(Compare { result: CompareResult::Equal.into(), target: CompareTarget::Mod.into(), key, union })
        });
        let success = writes.iter().map(|write| {
            let key = write.key.clone().into_bytes();
            let request = match &write.value {
                Some(value) => RequestUnion::Put(PutRequest { key, value: value.clone(), lease }),
                None => RequestUnion::Delete(DeleteRequest { key }),
            };
            RequestOp { request: Some(request) }
        });
        let request = TxnRequest { compare: compare.collect(), success: success.collect() };
        let answer = self.connection.call("/etcdserverpb.KV/Txn", &request, LIMIT).await;
        let answer: TxnResponse = answer.map_err(|err| {
            let keys: Vec<_> = writes.iter().map(|write| write.key.as_str()).collect();
            self.named(err, &format!("write {}", keys.join(", ")))
        })?;
        Ok(answer.succeeded)
    }

    /// Makes a lease.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn grant(&self, ttl: Duration) -> Result<i64, CallError> {
        let request = LeaseGrantRequest { ttl: ttl.as_secs().cast_signed() };
        let answer: LeaseGrantResponse =
            self.connection.call("/etcdserverpb.Lease/LeaseGrant", &request, LIMIT).await?;
        Ok(answer.id)
    }

    /// Renews a lease. Returns whether it still exists.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn renew(&self, id: i64) -> Result<bool, CallError> {
        let request = LeaseKeepAliveRequest { id };
        let answer: LeaseKeepAliveResponse =
            self.connection.call("/etcdserverpb.Lease/LeaseKeepAlive", &request, LIMIT).await?;
        Ok(answer.ttl > 0)
    }

    /// State of the member.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn status(&self) -> Result<MemberStatus, CallError> {
        let path = "/etcdserverpb.Maintenance/Status";
        let answer: StatusResponse = self.connection.call(path, &StatusRequest {}, LIMIT).await?;
        let revision = revision_of(answer.header.as_ref());
        Ok(MemberStatus { revision, db_bytes: answer.db_size.max(0).cast_unsigned(), errors: answer.errors })
    }

    /// Opens a stream of watches.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) async fn watch(&self) -> Result<(Watch, Answers), CallError> {
        let (out, answers) = self.connection.stream("/etcdserverpb.Watch/Watch").await?;
        Ok((Watch::new(out), Answers::new(answers)))
    }
}
