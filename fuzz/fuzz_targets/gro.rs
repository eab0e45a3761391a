//! Bursts of packets through GRO and GSO: bytes and order are unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[expect(dead_code, reason = "the other half is for the other target")]
#[path = "../../crates/offload/tests/model/mod.rs"]
mod model;

fuzz_target!(|input: (u8, Vec<model::gro::Step>)| {
    let (options, steps) = input;
    model::gro::run(options, &steps[..steps.len().min(200)]);
});
