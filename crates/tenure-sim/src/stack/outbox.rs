//! An outbox beside the queue: the production relay, a daemon of the cluster like any other, between tables that are a model and the
//! queue of this run.
//!
//! The tables do what the statements of the real engines do, each in one step, behind a network that loses calls and answers and
//! carries some out late. Programs insert in transactions, long and short, and roll some of them back. Workers complete jobs by such a row,
//! and stop after the commit. A relay is crashed, paused and replaced with its process.

mod carrier;
mod tables;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use tenure::Node;
use tenure::cluster::Cluster;
use tenure::outbox::{Database, Options, Policy, Relay};
use tenure_random::Random;

use self::carrier::Carrier;
use self::tables::Way;
pub(crate) use self::tables::{Fate, Gone, Tables, Transaction};
use super::world::World;

/// What the outbox of a run is like.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Whether rows are handed over one by one, groups beside each other, and not in batches.
    one_by_one: bool,
    /// The most rows of one read.
    batch_max: usize,
    writers: usize,
}

impl Plan {
    /// Drawn apart, so that runs without an outbox stay what they are. A third of all have one, unless it is said.
    pub(crate) fn draw(seed: u64, wanted: Option<bool>) -> Option<Self> {
        let mut random = Random::of_actor(seed, "outbox");
        let drawn = random.chance(333);
        let plan = Self {
            one_by_one: random.chance(500),
            batch_max: *random.pick(&[2, 5, 1_000]),
            writers: 4,
        };
        wanted.unwrap_or(drawn).then_some(plan)
    }
}

/// Starts the programs that insert.
pub(crate) fn start(world: &Arc<World>) {
    let writers = world.plan.outbox.as_ref().map_or(0, |plan| plan.writers);
    for number in 0..writers {
        world.run_client(writer::run(world.clone(), number));
    }
}

/// Offers the relay on a node.
pub(crate) fn register(world: &Arc<World>, node: &Node, cluster: &Cluster) {
    let Some(plan) = &world.plan.outbox else {
        return;
    };
    let database = Database::with_tables(Way::new(world), "the model");
    let options = Options {
        policy: Policy {
            batch_max: plan.batch_max,
            attempts_max: u32::MAX,
            backoff_first: Duration::from_millis(200),
            backoff_max: Duration::from_secs(2),
            poll_min: Duration::from_millis(100),
            poll_max: Duration::from_secs(1),
        },
        group_keep: Duration::from_secs(10),
        ..Options::default()
    };
    let carrier = Carrier::new(world, plan.one_by_one);
    let relay = Relay::new(node, database, carrier, options).expect("the name is right");
    relay.register(cluster).expect("the definition is right");
}
