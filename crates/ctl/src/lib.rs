//! Requests of the control socket and their replies, the [state] of a node that replies show, and its text.
//!
//! # Decides
//! - Forms of requests and replies: a [`Request`] is one line of JSON, as is each [`Reply`]; [`event`] and [`trace`]
//!   are the lines that follow a `monitor` and a `trace`.
//! - Text of the state: [`Shown`] prints as iproute2 would; [`procfs`] prints the files of `/proc/net` that name
//!   counters.
//! - Header of messages on the socket for IKE daemons: [`ike`].
//!
//! # Leaves to others
//! Sockets, permissions and answers (crate `daemon`, which fills the state in); sending of requests (crate `client`);
//! the command line (program `fatpath`). Nothing here does I/O.
//!
//! # Limits
//! A request has at most [`MAX_REQUEST_LEN`](request::MAX_REQUEST_LEN) bytes (4096), without its newline. An IKE
//! message has at most [`MAX_IKE_LEN`](ike::MAX_IKE_LEN) (65 503), behind a header of
//! [`IKE_HEADER_LEN`](ike::IKE_HEADER_LEN) (40). Replies have no limit here; crate `client` reads 256 MiB.
//!
//! # Standards
//! RFC 3948 §2.2 (the non-ESP marker, which [`ike`] omits) and RFC 7296 §2 (ports of IKE).
#![forbid(unsafe_code)]

pub mod event;
pub mod ike;
pub mod procfs;
pub mod request;
pub mod state;
mod text;
pub mod trace;

pub use request::{LoadStage, Reply, Request, Shown, StateKind};
pub use text::size;
