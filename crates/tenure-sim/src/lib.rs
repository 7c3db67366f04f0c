//! Deterministic simulation of Tenure: a seed in, a verdict out.
//!
//! A [`World`] runs the production machines of `tenure-core`, one [`Node`](tenure_core::node::Node) per process, on
//! virtual time against a virtual [`store`]. All randomness comes from one seed, so running a seed again repeats its
//! failure. A run has two halves: chaos, with the [`invariants`] checked after every event, and then calm, in which
//! the cluster must converge, stay stable, and carry out requests in time ([`liveness`]).
//!
//! The simulation decides no more than a driver does: it carries out requests, feeds answers back and wakes machines
//! when they ask for it.
//!
//! [`stack`] is another simulation, of everything as it runs in production, including drivers and queue. [`callers`]
//! covers what it leaves out: elections of one-shot callers.

pub mod callers;
pub mod clock;
pub mod command;
pub mod faults;
pub mod invariants;
mod judge;
pub mod liveness;
pub mod model;
pub mod oracle;
pub mod process;
pub mod stack;
pub mod store;
pub mod trace;
pub mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use faults::{Counts, Fault};
pub use invariants::Violation;
pub use world::{Options, World};

/// The figures of a run without a violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How much simulated time passed.
    pub simulated: Duration,
    /// How many steps the machines made.
    pub steps: u64,
    /// How many requests they sent.
    pub requests: u64,
    /// The most requests that one process sent in one second.
    pub requests_per_second_max: u64,
    /// How many terms were led.
    pub elected: u64,
    /// How long after the faults it took until a leader stayed, in percent of the bound.
    pub convergence_percent: u64,
    /// The faults of the run.
    pub faults: Counts,
    /// Equal for equal seeds.
    pub digest: u64,
}

/// A run with a violation.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed to run again.
    pub seed: u64,
    /// What was broken.
    pub violation: Violation,
    /// The end of the trace.
    pub trace: String,
}

/// Runs a seed.
///
/// # Errors
///
/// The first violation, with the trace that led to it.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let mut world = World::new(seed, options);
    // The machines assert their own invariants: a panic is a verdict too.
    let verdict = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = match verdict {
        Ok(Ok(())) => return Ok(world.summary()),
        Ok(Err(violation)) => violation,
        Err(panic) => Violation::new("no machine panics", panic_message(panic.as_ref())),
    };
    Err(Box::new(Failure {
        seed,
        violation,
        trace: world.trace.tail(options.trace_lines),
    }))
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}
