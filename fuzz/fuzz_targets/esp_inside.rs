//! What is inside of ESP: authentic packets, alone, in bursts and in trains, whose text is the fuzzer's, with a trailer of
//! its choice or of its own. Decapsulation, GRO and IP input meet it in a node with one of everything; each packet ends
//! somewhere, what is sent is what the links take, and all memory comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::{Choices, esp_inside};

fuzz_target!(|input: &[u8]| esp_inside(&mut Choices::new(input)));
