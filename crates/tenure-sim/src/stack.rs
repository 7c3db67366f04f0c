//! The whole stack in one thread and on virtual time: sessions, elections, cluster, queue, log, snapshots,
//! clients and workers. A seed in, a verdict out.
//!
//! Here runs the production code: `tenure::Node` with its driver, `tenure::cluster::Cluster`, `tenure::queue::Queue` with
//! its writer, recovery, clean-up, claims and maintenance. Simulated are what it stands on and who uses it:
//!
//! - **time** is tokio's, paused, so it jumps to the next timer when everyone waits;
//! - each **host** has a clock with a rate and a wall clock of its own, and a process
//!   that is crashed between any two steps, paused, and started again;
//! - the **store** is memory behind a slow network, and for each host a
//!   [`Faulty`](tenure_store::wrap::faulty::Faulty) before it;
//! - the **disk**, for the half of all seeds that keep the log in files, is slow, full and broken at times, and
//!   forgets what was not synced when the power fails;
//! - **clients and workers** call brokers over a network that delays, loses and doubles calls;
//! - the tables of an **outbox**, in a third of all seeds, are a model behind the same network: its relay is the
//!   production code, a daemon of the cluster.
//!
//! A run has two halves. First chaos: every write is seen as it reaches the store, or is durable on the disk, and given to a
//! ledger, which knows what is committed, no matter who wrote it; brokers, clients and workers are held to it
//! by the invariants, one file each. Then calm: everything must come to rest, serve and hold what was
//! promised.
//!
//! Not simulated are HTTP, forwarding, the clients and the worker runtime, one-shot elections, which have a simulation of
//! their own ([`callers`](crate::callers)), and the engines: clients call a broker's `Queue`.
//!
//! What a client was not told counts as maybe: it is there or not, or comes later.

mod calm;
mod chaos;
mod claims;
mod disk;
mod faults;
mod held;
mod history;
mod host;
mod invariants;
mod jobs;
mod ledger;
mod network;
mod outbox;
mod people;
mod plan;
pub(crate) mod process;
mod shrink;
mod store;
mod submitter;
mod waiters;
mod worker;
mod world;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use faults::{Counts, Fault, Part};
pub use shrink::{Smallest, shrink};
use tenure_random::Random;

use crate::Failure;
use crate::invariants::Violation;
use plan::Plan;
use world::World;

/// What a run is made of, beside its seed.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long chaos lasts.
    pub chaos: Duration,
    /// Faults that do not happen.
    pub off: BTreeSet<Fault>,
    /// Whether the log is kept in files, not in objects; if nothing is said, in half of the seeds.
    pub files: Option<bool>,
    /// Whether hosts stand still at times, and their clocks with them; if nothing is said, in a third of the seeds. Only of
    /// such a host nothing is promised that follows from clocks, for that long and a ttl more.
    pub freezes: Option<bool>,
    /// Whether there is an outbox beside the queue; if nothing is said, in a third of the seeds.
    pub outbox: Option<bool>,
    /// How many lines of a failing trace are shown.
    pub trace_lines: usize,
    /// Whether those of a run that breaks nothing are shown too.
    pub always_trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chaos: Duration::from_secs(43 * 60),
            off: BTreeSet::new(),
            files: None,
            freezes: None,
            outbox: None,
            trace_lines: 150,
            always_trace: false,
        }
    }
}

/// What a run that broke nothing was like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How much time passed in the world.
    pub simulated: Duration,
    /// Requests that reached the store.
    pub requests: u64,
    /// Records that were committed.
    pub records: u64,
    /// Jobs that were ever enqueued.
    pub jobs: u64,
    /// Claims that workers got.
    pub claims: u64,
    /// Snapshots that were published.
    pub snapshots: u64,
    /// How often the log was taken over.
    pub takeovers: u64,
    /// How often a shard was started.
    pub shards: u64,
    /// Calls about jobs whose order was looked for.
    pub calls: u64,
    /// Jobs with too many calls at once to tell.
    pub unjudged: u64,
    /// What went wrong on the way.
    pub faults: Counts,
    /// The same for the same seed.
    pub digest: u64,
    /// The last that happened, if it was asked for.
    pub trace: String,
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
        let mut random = Random::of_run(seed);
        let plan = Plan::draw(&mut random, options).with_outbox(seed, options.outbox);
        World::new(random, plan)
    };
    world.trace().keep(options.trace_lines);
    let verdict = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            live(&world, options.chaos).await?;
            // Outside the runtime it is another time.
            Ok(summary(&world, options))
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
    world.say("plan", &format!("{:?}", world.plan));
    for number in 0..world.hosts.len() {
        world.count(Fault::ClockRate);
        host::start(world, number);
    }
    for number in 0..world.plan.submitters {
        world.run_client(submitter::run(world.clone(), number));
    }
    for number in 0..world.plan.workers {
        world.run_client(worker::run(world.clone(), number));
    }
    outbox::start(world);
    world.run_client(people::operate(world.clone()));
    world.run_client(people::look(world.clone()));
    chaos::rage(world, chaos).await;
    world.verdict()?;
    calm::check(world).await?;
    world.verdict()
}

fn summary(world: &World, options: &Options) -> Summary {
    let (ledger, trace) = (world.ledger(), world.trace());
    Summary {
        simulated: world.elapsed(),
        requests: world.requests.load(Ordering::Relaxed),
        records: ledger.records() as u64,
        jobs: ledger.jobs.jobs.len() as u64,
        claims: world.claims().count,
        snapshots: ledger.snapshots,
        takeovers: ledger.takeovers,
        shards: world.shards().started,
        calls: world.calls().len(),
        unjudged: world.unjudged.load(Ordering::Relaxed),
        faults: world.faults(),
        digest: trace.digest(),
        trace: if options.always_trace {
            trace.tail(options.trace_lines)
        } else {
            String::new()
        },
    }
}
