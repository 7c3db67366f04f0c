//! One-shot callers: fixed seeds, and a few new ones.

use std::hash::{BuildHasher, RandomState};

use tenure_sim::callers::{Options, Summary, run};

fn must_pass(seed: u64) -> Summary {
    let passed = run(seed, &Options::default());
    passed.unwrap_or_else(|failure| panic!("{}\nseed {seed}: {}", failure.trace, failure.violation))
}

#[test]
fn seeds_of_callers_hold_and_everything_happens() {
    let (mut led, mut asked, mut followed, mut failed) = (0, 0, 0, 0);
    for seed in 0..20 {
        let summary = must_pass(seed);
        led += summary.led;
        asked += summary.asked;
        followed += summary.followed;
        failed += summary.failed;
    }
    assert!(
        led > 500 && asked > 50 && followed > 50 && failed > 50,
        "{led} {asked} {followed} {failed}"
    );
}

#[test]
#[allow(
    clippy::print_stdout,
    reason = "a fresh seed is known by nothing but its number"
)]
fn fresh_seeds_of_callers_hold() {
    // The standard library seeds its hashers from the operating system.
    let first = RandomState::new().hash_one("seed") >> 1;
    for seed in first..first + 5 {
        println!("fresh seed {seed}");
        must_pass(seed);
    }
}

#[test]
fn one_seed_of_callers_is_one_run() {
    assert_eq!(must_pass(3), must_pass(3));
    assert_ne!(must_pass(3).digest, must_pass(4).digest);
}
