//! Content of ESP: authentic packets, alone, in bursts and in trains, whose plaintext is the fuzzer's, with a valid
//! trailer or the fuzzer's. Decapsulation, GRO and IP input process it in a node with one of everything; each packet
//! ends in one place, sent packets are ones that the links take, and all memory is returned.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::{Choices, malformed_inner};

fuzz_target!(|input: &[u8]| malformed_inner(&mut Choices::new(input)));
