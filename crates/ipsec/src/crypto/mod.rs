//! Crypto threads and devices, and the queue that restores the order of their results.
//!
//! A packet that is sealed or opened becomes a [`Task`] that owns all its data: the thread that owns the SAs reserves
//! sequence numbers and checks windows before, and marks windows and passes packets on after. The task itself touches
//! no shared state, so it may run on any thread ([`Crypto`]) and finish in any order; a reorder queue releases results
//! in the order of submission (Linux `crypto/pcrypt.c`, `padata_reorder`).

mod batcher;
mod box_pool;
mod pool;
pub(crate) mod queue;
mod reorder;
mod task;

pub use pool::Pool;
pub use task::{Crypto, Task};
