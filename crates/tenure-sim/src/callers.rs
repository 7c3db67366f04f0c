//! One-shot callers beside running nodes, on virtual time: programs that call `elect` now and then, are asked to go, and crash.
//!
//! Here runs the production code: [`OneShot`](tenure::OneShot) and [`Node`](tenure::Node) with its driver. Simulated are what they stand on and who uses them:
//! time is tokio's, paused; each program has a clock with a rate of its own; the store is memory behind a network that
//! fails, and in half of all seeds tells no ages, as databases and buckets do. A caller has two elections and one session,
//! so that one of them renews what the other one waits for. Every call has a ttl of its own choice.
//!
//! What a caller was told, "leader for so long from now", is trust like that of a node, until it is told otherwise or that
//! time is over by its clock. It is judged all the time:
//!
//! - two never trust themselves to lead one election;
//! - a term belongs to one candidate;
//! - when the faults are over, a caller that is asked to go is followed by another one in time, with exactly one new term,
//!   though its session is renewed all the while for the other election.

mod calm;
mod chaos;
mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::Failure;
use crate::invariants::Violation;
use world::World;

/// What a run is made of, beside its seed.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long chaos lasts.
    pub chaos: Duration,
    /// How many lines of a failing trace are shown.
    pub trace_lines: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chaos: Duration::from_secs(15 * 60),
            trace_lines: 120,
        }
    }
}

/// What a run that broke nothing was like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How much time passed in the world.
    pub simulated: Duration,
    /// Calls that were told to lead.
    pub led: u64,
    /// Calls that were told to go.
    pub asked: u64,
    /// Requests to callers that a leader followed.
    pub followed: u64,
    /// Calls that failed, or were dropped.
    pub failed: u64,
    /// The same for the same seed.
    pub digest: u64,
}

/// Runs a seed.
///
/// # Errors
///
/// The first violation, with the trace that led to it.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the host");
    let world = {
        let _entered = runtime.enter();
        World::new(seed)
    };
    let verdict = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            live(&world, options.chaos).await?;
            Ok(world.summary())
        })
    }));
    let violation = match verdict {
        Ok(Ok(summary)) => return Ok(summary),
        Ok(Err(violation)) => violation,
        Err(panic) => Violation::new("nothing panics", crate::panic_message(panic.as_ref())),
    };
    let trace = world.trace().tail(options.trace_lines);
    Err(Box::new(Failure {
        seed,
        violation,
        trace,
    }))
}

/// Chaos, then calm.
async fn live(world: &Arc<World>, chaos: Duration) -> Result<(), Violation> {
    chaos::rage(world, chaos).await?;
    calm::check(world).await
}
