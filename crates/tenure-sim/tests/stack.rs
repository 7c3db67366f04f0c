//! The whole stack: a few fixed seeds, a few new ones, and failures that were found before.
//!
//! A seed means one run of the present simulation: every addition to it, or to the product, changes all runs. A
//! failure that a seed once found is kept as a separate test, here or where the bug was.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tenure_sim::stack::{Counts, Fault, Options, Summary, run, shrink};

/// Short, since these are part of every test run; `make sim` has more.
fn options(chaos_seconds: u64) -> Options {
    Options {
        chaos: Duration::from_secs(chaos_seconds),
        ..Options::default()
    }
}

fn must_pass(seed: u64, options: &Options) -> Summary {
    run(seed, options).unwrap_or_else(|failure| {
        let smallest = shrink(failure, options);
        panic!(
            "{}\nseed {seed}: {}\nrun it again: {}",
            smallest.failure.trace,
            smallest.failure.violation,
            smallest.command()
        )
    })
}

#[test]
fn some_seeds_hold_and_every_fault_happens() {
    let mut faults = Counts::default();
    let (mut snapshots, mut takeovers, mut with_time_set) = (0, 0, 0);
    for seed in 0..20 {
        // More runs with files, so that disk faults are covered.
        let options = Options {
            files: Some(seed % 3 != 0),
            ..options(180)
        };
        let summary = must_pass(seed, &options);
        faults.add(&summary.faults);
        with_time_set += u32::from(summary.faults.of(Fault::TimeSet) > 0);
        snapshots += summary.snapshots;
        takeovers += summary.takeovers;
    }
    let unseen: Vec<_> = Fault::ALL
        .into_iter()
        .filter(|&fault| faults.of(fault) == 0)
        .collect();
    assert!(unseen.is_empty(), "never happened: {unseen:?}");
    assert!(snapshots > 0 && takeovers > 8, "{snapshots} {takeovers}");
    // Whether time is set depends on the seed.
    assert!(with_time_set > 10, "time was set in {with_time_set} seeds");
}

#[test]
#[allow(
    clippy::print_stdout,
    reason = "a fresh seed is known by nothing but its number"
)]
fn fresh_seeds_hold() {
    // The standard library seeds its hashers from the operating system.
    let first = RandomState::new().hash_one("seed") >> 1;
    for seed in first..first + 8 {
        println!("fresh seed {seed}");
        must_pass(seed, &options(180));
    }
}

/// The seed chooses the form of the log, and how rows are delivered.
#[test]
fn rows_of_an_outbox_are_enqueued_once_in_order_and_only_if_committed() {
    for seed in 0..12 {
        let options = Options {
            outbox: Some(true),
            ..options(180)
        };
        must_pass(seed, &options);
    }
}

#[test]
fn one_seed_is_one_run() {
    let options = Options {
        always_trace: true,
        trace_lines: usize::MAX,
        ..options(120)
    };
    for seed in [3, 7, 11, 19] {
        let options = Options {
            outbox: Some(seed > 10),
            ..options.clone()
        };
        let (first, second) = (must_pass(seed, &options), must_pass(seed, &options));
        let mut lines = first.trace.lines().zip(second.trace.lines());
        let different = lines.find(|(first, second)| first != second);
        assert_eq!(different, None, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}
