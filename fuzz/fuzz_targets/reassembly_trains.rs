//! Fragments in bursts, with equal and different headers, compared with the same fragments one by one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reassembly::Policy;

#[expect(dead_code, reason = "the other tests send more than this one does")]
#[path = "../../crates/reassembly/tests/model/mod.rs"]
mod model;

fuzz_target!(|input: (bool, u32, u8, Vec<model::trains::TrainStep>)| {
    let (fair, limit, how, steps) = input;
    let policy = if fair { Policy::Fair } else { Policy::Linux };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    model::trains::run(policy, limit, how, &steps[..steps.len().min(300)]);
});
