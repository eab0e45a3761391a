//! SAs and policies that are added, changed, taken away and outlived, as a list of operations: what is found is what a
//! plain search through lists finds, and what was remembered of a flow is never stale.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::{Choices, Oracle};

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let mut oracle = Oracle::new();
    for _ in 0..400 {
        if choices.is_over() {
            break;
        }
        oracle.step(&mut choices);
    }
});
