//! Any operations on reassembly, of all users and under both policies, with all invariants checked after each
//! operation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reassembly::Policy;

#[expect(dead_code, reason = "the other tests send more than this one does")]
#[path = "../../crates/reassembly/tests/model/mod.rs"]
mod model;

fuzz_target!(|input: (bool, u16, Vec<model::ops::OpStep>)| {
    let (fair, limit, steps) = input;
    let policy = if fair { Policy::Fair } else { Policy::Linux };
    model::ops::run(policy, limit.into(), &steps[..steps.len().min(300)]);
});
