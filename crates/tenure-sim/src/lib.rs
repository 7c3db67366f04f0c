//! Deterministic simulation of Tenure: a seed in, a verdict out.
//!
//! A [`World`] runs the production machines of `tenure-core`, one [`Node`](tenure_core::node::Node) per
//! process, on virtual time against a virtual [`store`]. Everything that is random comes from one seed,
//! so a failure is repeated by its number. A run has two halves: chaos, with the [`invariants`] checked
//! after every event, and then calm, in which the cluster must converge, stay as it is, and do what it is
//! asked in good time ([`liveness`]).
//!
//! The simulation decides nothing that a driver would not: it carries requests out, feeds answers back and
//! wakes machines when they ask for it.
//!
//! [`stack`] is another simulation: of everything, drivers and queue included, as it runs in production. [`callers`] has what
//! it leaves out: elections of programs that only call now and then.

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

/// What a run that broke nothing was like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How much time passed in the world.
    pub simulated: Duration,
    /// How many steps the machines made.
    pub steps: u64,
    /// How many requests they sent.
    pub requests: u64,
    /// The most requests that one process sent in one second, each part of it counted alone.
    pub requests_per_second_max: u64,
    /// How many terms were led.
    pub elected: u64,
    /// How long after the faults ended there was a leader that stayed, as a share of the bound.
    pub convergence_percent: u64,
    /// What went wrong on the way.
    pub faults: Counts,
    /// The same for the same seed.
    pub digest: u64,
}

/// A run that broke something.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What to run again.
    pub seed: u64,
    /// What was broken.
    pub violation: Violation,
    /// The last that happened.
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
