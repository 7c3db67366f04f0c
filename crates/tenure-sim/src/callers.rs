//! One-shot callers beside running nodes, on virtual time: programs that call `elect` now and then, are asked to
//! resign, and crash.
//!
//! This runs the production code: [`OneShot`](tenure::OneShot) and [`Node`](tenure::Node) with its driver. Their
//! environment and their users are simulated: time is tokio's, paused; each program has a clock with its own rate; the
//! store is in memory behind a network that fails, and in half of all seeds has no ages, like databases and buckets. A
//! caller is in two elections with one session, so that calls for one renew what the other waits for. Each call
//! chooses its ttl.
//!
//! An answer "leader for this long from now" is trust like a node's, until the next answer or until the time is over
//! by the caller's clock. These claims are checked all the time:
//!
//! - no two trust themselves to lead the same election;
//! - a term belongs to one candidate;
//! - when the faults are over, a caller that is asked to resign is followed by another one in time, with exactly one
//!   new term, although its session is still renewed for the other election.

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

/// The options of a run, besides its seed.
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

/// The figures of a run without a violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How much simulated time passed.
    pub simulated: Duration,
    /// Calls that were answered "leader".
    pub led: u64,
    /// Calls that were asked to resign.
    pub asked: u64,
    /// Requests to resign that were followed by a new leader.
    pub followed: u64,
    /// Calls that failed, or were dropped.
    pub failed: u64,
    /// Equal for equal seeds.
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
