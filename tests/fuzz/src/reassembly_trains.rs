//! Fragments in bursts, with equal and different headers, compared with the same fragments one by one.

use reassembly::Policy;

use crate::reassembly_model as model;
use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((fair, limit, how, steps)) = structured::<(bool, u32, u8, Vec<model::trains::TrainStep>)>(input) else {
        return;
    };
    let policy = if fair { Policy::Fair } else { Policy::Linux };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    model::trains::run(policy, limit, how, &steps[..steps.len().min(300)]);
}
