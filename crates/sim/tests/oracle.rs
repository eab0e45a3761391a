//! SAs and policies compared with plain lists, over long random sequences.

use sim::{Choices, Oracle, Rng};

#[test]
fn databases_after_any_steps_agree_with_plain_search() {
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
