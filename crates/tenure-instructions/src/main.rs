//! The hot paths, one after the other, so that valgrind can count their instructions.
//!
//! `scripts/bench-instructions` runs this program and compares what each path costs with `baseline.txt`. Instructions do
//! not depend on what else the machine does, so small changes show that no stopwatch can see. They are not time: a
//! missed cache line, a system call or a wake-up of a thread costs more than its instructions.
//!
//! Everything is fixed: seeds, clocks, names and payloads. Only what runs inside [`count`] is counted; [`report`] ends a
//! path and says for how many pieces of work its instructions were.
// The file of another crate that it includes has its tests in that crate's folders. Lints look at test targets, too.
#![cfg(not(test))]
#![allow(clippy::print_stdout, reason = "its output is the point")]
#![allow(clippy::unwrap_used, reason = "it stops at the first surprise")]

use std::hint::black_box;
use std::io::Write as _;

mod json;
mod log;
mod queue;
mod session;

fn main() {
    for depth in [0, 100_000] {
        queue::run(depth);
    }
    queue::schedules();
    queue::snapshot();
    json::run();
    log::run();
    for elections in [1, 1_000] {
        session::run(elections);
    }
}

/// Counts the instructions of this work. Valgrind knows this function by its name.
#[inline(never)]
pub(crate) fn count<T>(work: impl FnOnce() -> T) -> T {
    let result = work();
    // Nothing may be moved behind the end.
    black_box(result)
}

/// What was counted since the last report was this path, for so many pieces of work. Valgrind writes its numbers down
/// when this function ends; it knows it by its name.
#[inline(never)]
pub(crate) fn report(path: &str, pieces: usize) {
    assert!(pieces > 0, "{path} did nothing");
    println!("{path} {pieces}");
    std::io::stdout().flush().unwrap();
}
