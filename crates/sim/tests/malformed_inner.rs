//! Authentic but malformed packets, from seeds.

use sim::{Choices, Rng, malformed_inner};

#[test]
fn any_inside_of_esp_ends_in_one_place_without_a_leak() {
    let seeds = std::env::var("FATPATH_SIM_SEEDS").map_or(400, |value| value.parse().expect("a number"));
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let bytes: Vec<u8> = (0..rng.below(12_000)).map(|_| rng.bits() as u8).collect();
        let run = std::panic::AssertUnwindSafe(|| malformed_inner(&mut Choices::new(&bytes)));
        if let Err(why) = std::panic::catch_unwind(run) {
            eprintln!("the seed is {seed}");
            std::panic::resume_unwind(why);
        }
    }
}
