//! Orders of memory made by hand: what threads share without a lock around it.
//!
//! # Decides
//! - Operations and packets for each of several workers, and the wake-up of a worker that sleeps ([`Log`], [`Inbox`]).
//! - Tasks of threads that help a worker, and the wake-up of these threads ([`WorkQueue`]).
//! - Number of references to a value that the last of them frees ([`RefCount`]).
//! - Table of descriptors that threads share with calls to `close` that nothing observes ([`Table`]), and a descriptor
//!   that the first of several threads makes ([`Starter`]).
//!
//! With the feature `loom` the types are made of loom's atomics and locks, and `tests/models` runs them through all
//! interleavings and all values that a load may return: `cargo xtask loom`.
//!
//! # Leaves to others
//! Meaning of operations, packets and tasks, and all system calls (crates `daemon`, `ipsec`, `preload`); memory of pages
//! (crate `packet`). Flags of one thread's progress, which order nothing else, are with their users.
//!
//! # Limits
//! A [`Log`] has at most 64 workers. Loom regards loads and stores with `SeqCst` as acquire and release, so order
//! between two locations is by fences alone. Its models have at most 4 threads and two preemptions in each run.
//!
//! # Standards
//! No RFC. The orders are those of the C++20 memory model.
#![forbid(unsafe_code)]

mod bursts;
mod doorbell;
mod log;
mod primitives;
mod ref_count;
mod starter;
mod table;
mod work_queue;

pub use doorbell::Notifier;
pub use log::{Closed, Inbox, Log, log};
pub use ref_count::RefCount;
pub use starter::{NotStarted, Starter};
pub use table::{Connection, Full, HasConnection, Table};
pub use work_queue::WorkQueue;
