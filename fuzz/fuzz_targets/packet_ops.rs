//! Any sequence of operations on packets, in pools that may be exhausted, compared with plain bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/packet/tests/model/mod.rs"]
mod model;

fuzz_target!(|input: (u8, u8, Vec<model::Step>)| {
    let (small_pages, large_pages, steps) = input;
    model::run(small_pages % 40, large_pages % 8, &steps[..steps.len().min(200)]);
});
