//! SAs and policies that are added, changed, deleted and expire, as a list of operations: look-ups agree with a linear
//! search through lists, and a cached result of a flow is never stale.

use sim::{Choices, Oracle};

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut choices = Choices::new(input);
    let mut oracle = Oracle::new();
    for _ in 0..400 {
        if choices.is_over() {
            break;
        }
        oracle.step(&mut choices);
    }
}
