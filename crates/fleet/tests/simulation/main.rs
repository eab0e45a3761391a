//! Five agents, two hundred tasks, and a store that fails in many ways: no mapping is withdrawn unless the mover has deleted its task,
//! none goes back, and in the end all gateways are as the mover has it.
//!
//! A run is a seed, which is printed when it fails: `FATPATH_FLEET_SEED=7` runs one and prints its steps, `FATPATH_FLEET_SEEDS=100000` that many.

mod agent;
mod random;
mod store;
mod world;

use std::env;

use world::World;

/// Number of seeds of a test without the variable.
const SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn run(name: &str, with_disasters: bool) {
    let one = number("FATPATH_FLEET_SEED");
    let is_one = one.is_some();
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => 0..number("FATPATH_FLEET_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| World::new(seed, with_disasters, is_one).run());
        if let Err(panic) = outcome {
            eprintln!("FATPATH_FLEET_SEED={seed} cargo test -p fatpath-fleet-core --test simulation {name}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Compaction, restarts, cut connections, lost, repeated and reordered events, refusals of the gateway, jumps of the clock, bad values.
#[test]
fn agents_converge_without_an_operator() {
    run("agents_converge_without_an_operator", false);
}

/// Also a store that is emptied, made anew, restored from a backup, or whose keys are all deleted.
#[test]
fn disaster_of_the_store_withdraws_nothing() {
    run("disaster_of_the_store_withdraws_nothing", true);
}
