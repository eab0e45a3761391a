//! Content of ESP: authentic packets, alone, in bursts and in trains, with arbitrary plaintext and a valid or arbitrary
//! trailer. Decapsulation, GRO and IP input process the content in a node with every kind of configuration; each packet
//! is accounted for once, the links can send all sent packets, and all memory is returned.

use sim::{Choices, malformed_inner};

/// Runs one input.
pub fn target(input: &[u8]) {
    malformed_inner(&mut Choices::new(input));
}
