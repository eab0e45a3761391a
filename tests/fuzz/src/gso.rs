//! Super-packets from a guest, segmented and fitted to devices.

use crate::offload_model as model;
use crate::structured::structured;

type Input = ((u8, u16), [u8; 6], (u16, u16, u16, u16), (u8, u16, u16), (u8, u16), Vec<u8>);

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((tunnels, [number, xor, l3, kind, pages, repeat], (at, size, segs, features), csum, shape, payload)) =
        structured::<Input>(input)
    else {
        return;
    };
    let claims =
        model::gso::Claims { number, change: (at, xor), l3, tunnels, kind, size, segs, csum, shape, features, pages };
    // Long payloads without long inputs.
    let len = (payload.len() * (1 + usize::from(repeat))).min(60_000);
    let payload: Vec<u8> = payload.into_iter().cycle().take(len).collect();
    model::gso::run(&claims, &payload);
}
