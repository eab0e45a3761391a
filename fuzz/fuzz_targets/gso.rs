//! Super-packets from a guest, segmented and fitted to devices.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[expect(dead_code, reason = "the other half is for the other target")]
#[path = "../../crates/offload/tests/model/mod.rs"]
mod model;

type Input = ((u8, u16), [u8; 6], (u16, u16, u16, u16), (u8, u16, u16), (u8, u16), Vec<u8>);

fuzz_target!(|input: Input| {
    let (tunnels, [number, xor, l3, kind, pages, repeat], (at, size, segs, features), csum, shape, payload) = input;
    let claims = model::gso::Claims { number, change: (at, xor), l3, tunnels, kind, size, segs, csum, shape, features, pages };
    // Long payloads without long inputs.
    let len = (payload.len() * (1 + usize::from(repeat))).min(60_000);
    let payload: Vec<u8> = payload.into_iter().cycle().take(len).collect();
    model::gso::run(&claims, &payload);
});
