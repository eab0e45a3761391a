//! Bursts of packets through GRO and GSO: bytes and order are unchanged.

use crate::offload_model as model;
use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((options, steps)) = structured::<(u8, Vec<model::gro::Step>)>(input) else { return };
    model::gro::run(options, &steps[..steps.len().min(200)]);
}
