//! The store in etcd, version 3 of its API.

mod auth;
mod client;
mod connection;
mod endpoint;
mod proto;
mod range;
mod subject;
mod tls;
mod watch;

pub(crate) use auth::{Access, Grant};
pub(crate) use client::{Etcd, MemberStatus, Write};
pub(crate) use connection::CallError;
pub(crate) use endpoint::Endpoint;
pub(crate) use range::Found;
pub(crate) use tls::{CertFiles, TlsFiles, check_issuer, read_key};
pub(crate) use watch::{Watch, WatchAnswer};
