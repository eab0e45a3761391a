//! Models of the orders of this crate: each runs the crate's own types, made of loom's atomics and locks, through all
//! interleavings of its threads with at most two preemptions. A thread that sleeps for ever fails a model.

mod log;
mod ref_count;
mod starter;
mod table;
mod work_queue;

/// Runs a model, in all its interleavings.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}
