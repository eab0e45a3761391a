//! The store in etcd, version 3 of its API.

mod client;
mod connection;
mod endpoint;
mod proto;
mod range;
mod watch;

pub(crate) use client::{Etcd, Found, MemberStatus, Write};
pub(crate) use connection::CallError;
pub(crate) use endpoint::Endpoint;
pub(crate) use watch::{Watch, WatchAnswer};
