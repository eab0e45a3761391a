//! Any sequence of fragments compared with the hole list of RFC 815, and packets of any bytes.

use crate::reassembly_model as model;
use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((steps, packets)) = structured::<(Vec<model::Step>, Vec<Vec<u8>>)>(input) else { return };
    model::run(&steps[..steps.len().min(300)]);
    model::hostile(&packets[..packets.len().min(50)]);
}
