//! SAs and policies against plain lists, in long random lives.

use sim::{Choices, Oracle, Rng};

#[test]
fn whatever_is_done_to_the_databases_they_find_what_a_plain_search_finds() {
    let mut protected = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let bytes: Vec<u8> = (0..6000).map(|_| rng.bits() as u8).collect();
        let run = std::panic::AssertUnwindSafe(|| {
            let (mut oracle, mut choices) = (Oracle::new(), Choices::new(&bytes));
            while !choices.is_over() {
                oracle.step(&mut choices);
            }
            oracle.protected()
        });
        protected += std::panic::catch_unwind(run).unwrap_or_else(|why| {
            eprintln!("the seed is {seed}");
            std::panic::resume_unwind(why)
        });
    }
    assert!(protected > 20_000, "{protected}");
}
