//! A hundred fixed seeds, and a few new ones.
//!
//! A seed means one run of the present simulation: every addition to it changes all runs. Failures that a seed once
//! found are kept as traces in `tenure-core/tests/traces`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use tenure_sim::{Counts, Fault, Options, run};

fn must_pass(seed: u64, options: &Options) -> tenure_sim::Summary {
    run(seed, options).unwrap_or_else(|failure| {
        panic!(
            "{}\nseed {seed}: {}\nrun it again: cargo run -p tenure-sim -- --seed {seed}",
            failure.trace, failure.violation
        )
    })
}

#[test]
fn a_hundred_seeds_hold_and_every_fault_happens() {
    let mut faults = Counts::default();
    for seed in 0..100 {
        faults.add(&must_pass(seed, &Options::default()).faults);
    }
    let counts: BTreeMap<_, _> = Fault::ALL.map(|fault| (fault, faults.of(fault))).into();
    let unseen: Vec<_> = counts.iter().filter(|(_, count)| **count == 0).collect();
    assert!(unseen.is_empty(), "never happened: {unseen:?}");
}

#[test]
#[allow(
    clippy::print_stdout,
    reason = "a fresh seed is known by nothing but its number"
)]
fn fresh_seeds_hold() {
    // The standard library seeds its hashers from the operating system.
    let first = RandomState::new().hash_one("seed") >> 1;
    for seed in first..first + 10 {
        println!("fresh seed {seed}");
        must_pass(seed, &Options::default());
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in [3, 17, 99] {
        let options = Options::default();
        assert_eq!(must_pass(seed, &options), must_pass(seed, &options));
    }
    let digest = |seed| must_pass(seed, &Options::default()).digest;
    assert_ne!(digest(3), digest(4));
}

#[test]
fn many_nodes_and_a_single_one_hold() {
    for seed in 0..5 {
        for nodes in [1, 9] {
            let options = Options {
                nodes: Some(nodes),
                ..Options::default()
            };
            must_pass(seed, &options);
        }
    }
}
