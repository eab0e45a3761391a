//! Any sequence of operations on packets, in pools that may be exhausted, compared with plain bytes.

use crate::packet_model as model;
use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((small_pages, large_pages, steps)) = structured::<(u8, u8, Vec<model::Step>)>(input) else { return };
    model::run(small_pages % 40, large_pages % 8, &steps[..steps.len().min(200)]);
}
