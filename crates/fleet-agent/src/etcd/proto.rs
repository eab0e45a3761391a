//! Messages of etcd's API version 3 that this program uses (`etcdserverpb` of `rpc.proto`, `mvccpb` of `kv.proto`), by their field numbers.

use prost::{Enumeration, Message, Oneof};

/// `RangeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
}

/// `ResponseHeader`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

/// `RangeResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<EtcdKeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
}

/// `KeyValue`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EtcdKeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
}

/// `PutRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

/// `DeleteRangeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
}

/// `Compare`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub(crate) result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(oneof = "CompareUnion", tags = "6")]
    pub(crate) union: Option<CompareUnion>,
}

/// `Compare.CompareResult`.
#[derive(Clone, Copy, Debug, Enumeration, Eq, PartialEq)]
#[repr(i32)]
pub(crate) enum CompareResult {
    Equal = 0,
}

/// `Compare.CompareTarget`.
#[derive(Clone, Copy, Debug, Enumeration, Eq, PartialEq)]
#[repr(i32)]
pub(crate) enum CompareTarget {
    /// Zero of the enumeration, which is not used.
    Version = 0,
    Mod = 2,
}

/// `Compare.target_union`.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum CompareUnion {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

/// `RequestOp`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "RequestUnion", tags = "2, 3")]
    pub(crate) request: Option<RequestUnion>,
}

/// `RequestOp.request`.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum RequestUnion {
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

/// `TxnRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
}

/// `TxnResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
}

/// `WatchRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchUnion", tags = "1, 3")]
    pub(crate) request: Option<WatchUnion>,
}

/// `WatchRequest.request_union`.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum WatchUnion {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

/// `WatchCreateRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "8")]
    pub(crate) fragment: bool,
}

/// `WatchProgressRequest`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct WatchProgressRequest {}

/// `WatchResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(bool, tag = "7")]
    pub(crate) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<WatchEvent>,
}

/// `Event`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchEvent {
    #[prost(enumeration = "WatchEventType", tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<EtcdKeyValue>,
}

/// `Event.EventType`.
#[derive(Clone, Copy, Debug, Enumeration, Eq, PartialEq)]
#[repr(i32)]
pub(crate) enum WatchEventType {
    Put = 0,
    Delete = 1,
}

/// `LeaseGrantRequest`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
}

/// `LeaseGrantResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
}

/// `LeaseKeepAliveRequest`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

/// `LeaseKeepAliveResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

/// `AuthEnableRequest`, `AuthDisableRequest`, `AuthUserListRequest` and `AuthRoleListRequest`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct AuthRequest {}

/// Answer of `Auth` without what this program uses.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct AuthResponse {}

/// `AuthUserGetRequest`, `AuthUserDeleteRequest`, `AuthRoleAddRequest` and `AuthRoleGetRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthNameRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// `AuthUserGetResponse`, `AuthUserListResponse` and `AuthRoleListResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthNamesResponse {
    #[prost(string, repeated, tag = "2")]
    pub(crate) names: Vec<String>,
}

/// `AuthRoleGetResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleGetResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) permissions: Vec<Permission>,
}

/// `authpb.Permission`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Permission {
    #[prost(enumeration = "PermissionKind", tag = "1")]
    pub(crate) kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) range_end: Vec<u8>,
}

/// `authpb.Permission.Type`.
#[derive(Clone, Copy, Debug, Enumeration, Eq, PartialEq)]
#[repr(i32)]
pub(crate) enum PermissionKind {
    Read = 0,
    Write = 1,
    ReadWrite = 2,
}

/// `AuthRoleGrantPermissionRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RoleGrantRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) permission: Option<Permission>,
}

/// `AuthUserAddRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserAddRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) options: Option<UserAddOptions>,
}

/// `authpb.UserAddOptions`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct UserAddOptions {
    #[prost(bool, tag = "1")]
    pub(crate) no_password: bool,
}

/// `AuthUserGrantRoleRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserGrantRequest {
    #[prost(string, tag = "1")]
    pub(crate) user: String,
    #[prost(string, tag = "2")]
    pub(crate) role: String,
}

/// `AuthenticateRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

/// `AuthenticateResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

/// `StatusRequest`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct StatusRequest {}

/// `StatusResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
}
