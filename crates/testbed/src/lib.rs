//! Namespaces, processes and directories of measurements and tests, which are removed on drop.
//!
//! # Decides
//! - End of resources: a [`Namespace`] is deleted, a [`Daemon`] or [`Helper`] ended, a [`Scratch`] directory removed when
//!   its value is dropped, however the measurement ends.
//! - Waits: each has a limit and ends at a signal ([`Stop`]).
//! - Form of a failure: [`Failure`], one line.
//!
//! # Leaves to others
//! Devices in the namespaces, gateways, traffic and results (the crates `bench` and `system`).
//!
//! # Limits
//! A tool ends within 10 seconds (`TOOL_LIMIT` in `process.rs`), a daemon within 2 after SIGTERM (`END_LIMIT` in
//! `daemon.rs`); then they are killed.
//!
//! # Standards
//! No RFC.
#![forbid(unsafe_code)]

mod daemon;
mod failure;
mod netns;
mod process;
mod scratch;
mod stop;

pub use daemon::Daemon;
pub use failure::{Failure, tail, warn};
pub use netns::{Namespace, Opened};
pub use process::{Helper, command, end, finish, tool};
pub use scratch::Scratch;
pub use stop::Stop;
