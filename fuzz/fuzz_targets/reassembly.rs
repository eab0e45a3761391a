//! Any sequence of fragments compared with the hole list of RFC 815, and packets of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[expect(dead_code, reason = "the other tests send more than the model does")]
#[path = "../../crates/reassembly/tests/model/mod.rs"]
mod model;

fuzz_target!(|input: (Vec<model::Step>, Vec<Vec<u8>>)| {
    let (steps, packets) = input;
    model::run(&steps[..steps.len().min(300)]);
    model::hostile(&packets[..packets.len().min(50)]);
});
