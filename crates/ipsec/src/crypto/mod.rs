//! Threads and devices for the ciphers' work, and the order in which it comes back.
//!
//! A packet that is sealed or opened becomes a [`Task`] that owns all it needs: numbers are reserved and windows checked
//! before, windows marked and packets passed on after, on the thread that owns the SAs. What lies between touches no
//! state, so it may be done anywhere ([`Crypto`]) and finish in any order; a line gives it out in the order in which it
//! was handed in (Linux `crypto/pcrypt.c`, `padata_reorder`).

mod batcher;
mod box_pool;
mod pool;
pub(crate) mod queue;
mod reorder;
mod task;

pub use pool::Pool;
pub use task::{Crypto, Task};
