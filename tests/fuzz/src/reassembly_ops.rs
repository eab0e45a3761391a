//! Any operations on reassembly, of all users and under both policies, with all invariants checked after each
//! operation.

use reassembly::Policy;

use crate::reassembly_model as model;
use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((fair, limit, steps)) = structured::<(bool, u16, Vec<model::ops::OpStep>)>(input) else { return };
    let policy = if fair { Policy::Fair } else { Policy::Linux };
    model::ops::run(policy, limit.into(), &steps[..steps.len().min(300)]);
}
