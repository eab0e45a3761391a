//! Requests of the control socket and their replies, the [state] of a node that replies show, and its text.
//!
//! - A [`Request`] is one line of JSON, as is each [`Reply`]; [`event`] and [`trace`] are the lines that follow a `monitor` and
//!   a `trace`.
//! - [`Shown`] prints as iproute2 would; [`procfs`] prints the files of `/proc/net` that name counters.
//! - [`ike`] is the header of messages on the socket for IKE daemons.
//!
//! The daemon serves the sockets and fills the state in; nothing here does I/O.
#![forbid(unsafe_code)]

pub mod event;
pub mod ike;
pub mod procfs;
pub mod request;
pub mod state;
mod text;
pub mod trace;

pub use request::{Reply, Request, Shown, What};
