#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::netlink_ila::target(input));
