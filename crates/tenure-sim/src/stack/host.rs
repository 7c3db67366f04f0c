//! Hosts: each has a clock, a way to the store, and a process that comes and goes.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::cluster::Definition;
use tenure::daemon::{Context, daemon};
use tenure::queue::{Options, Queue, Serving};
use tenure::testing::RunningClock;
use tenure::{Election, Node, NodeOptions, cluster};
use tenure_core::election::Term;
use tenure_core::queue::Rules;
use tenure_random::Random;
use tenure_store::Store;
use tenure_store::wrap::faulty::{Faults, Faulty};

use super::faults::Fault;
use super::invariants::{check_trust, nothing_is_damaged, recovered_is_committed};
use super::outbox;
use super::plan::{BATCH_BYTES_SMALL, Plan};
use super::process::Process;
use super::store::{Local, Recorded};
use super::world::{WALL_MS, World};

/// How far a clock's rate may be off: two differ by less than the 1 % that every configuration must cover.
const RATE_PPM_MAX: u64 = 4_000;

/// How many shards the cluster keeps running.
pub(crate) const SHARDS: u32 = 3;

/// A host.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) clock: RunningClock,
    pub(crate) store: Arc<Faulty>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those of its last process.
    rules: Option<Rules>,
    process: Option<Arc<Process>>,
    running: Option<Running>,
    panic: Option<String>,
}

/// A process that has come up.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) process: Arc<Process>,
    pub(crate) node: Node,
    pub(crate) queue: Queue,
    /// Whoever leads it hands out the daemons.
    pub(crate) clusters: Election,
}

impl Host {
    pub(crate) fn draw(
        random: &mut Random,
        number: usize,
        plan: &Plan,
        store: &Arc<Recorded>,
    ) -> Self {
        let rate = 1_000_000 - RATE_PPM_MAX + random.below(2 * RATE_PPM_MAX + 1);
        let store = Faulty::new(store.clone(), plan.store.clone(), random.bits());
        Self {
            name: format!("n{number}"),
            clock: RunningClock::new(rate, WALL_MS),
            store: Arc::new(store.expect("the plan's faults are possible")),
            state: Mutex::default(),
        }
    }

    pub(crate) fn process(&self) -> Option<Arc<Process>> {
        self.state().process.clone()
    }

    pub(crate) fn running(&self) -> Option<Running> {
        self.state().running.clone()
    }

    pub(crate) fn is_serving(&self) -> bool {
        let running = self.running();
        running.is_some_and(|running| running.queue.is_serving())
    }

    /// The terms that it trusts itself to lead: that of the queue, and that of the cluster.
    pub(crate) fn leads(&self) -> [Option<Term>; 2] {
        let Some(running) = self.running().filter(|it| !it.process.is_crashed()) else {
            return [None; 2];
        };
        [running.queue.election(), &running.clusters]
            .map(|election| Some(election.leadership()?.term()))
    }

    /// What a process of it said that panicked.
    pub(crate) fn panic(&self) -> Option<String> {
        let state = self.state();
        let process = state.process.as_ref();
        state.panic.clone().or_else(|| process?.panic())
    }

    /// Ends its process where it stands.
    pub(crate) fn crash(&self) {
        let mut state = self.state();
        state.running = None;
        if let Some(process) = state.process.take() {
            process.crash();
            state.panic = state.panic.take().or_else(|| process.panic());
        }
    }

    /// The store does nothing worse than take its time.
    pub(crate) fn heal(&self) {
        self.store
            .set_faults(Faults::default())
            .expect("no faults are possible");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a process on a host that has none.
pub(crate) fn start(world: &Arc<World>, number: usize) {
    let host = &world.hosts[number];
    let process = Process::new(world.random().bits());
    {
        let mut state = host.state();
        if state.process.is_some() {
            return;
        }
        state.process = Some(process.clone());
    }
    world.say(&host.name, "starts");
    let world = world.clone();
    let own = process.clone();
    process.spawn(async move {
        let (node, queue, clusters) = open(&world, number, &own).await;
        let running = Running {
            process: own.clone(),
            node,
            queue: queue.clone(),
            clusters,
        };
        world.hosts[number].state().running = Some(running);
        watch(&world, number, &own, &queue).await;
    });
}

async fn open(
    world: &Arc<World>,
    number: usize,
    process: &Arc<Process>,
) -> (Node, Queue, Election) {
    let (host, plan) = (&world.hosts[number], &world.plan);
    let mut options = NodeOptions::new("memory:", world.namespace.as_str());
    options.node = Some(host.name.clone());
    options.session = plan.session.clone();
    options.nudge = None;
    options.runtime = host.clock.runtime().with_process(process.clone());
    let store: Arc<dyn Store> = if plan.files {
        Arc::new(Local {
            store: host.store.clone(),
            disk: world.disk.clone(),
        })
    } else {
        host.store.clone()
    };
    let node = Node::start_with(store, options)
        .await
        .expect("the options are right");
    let options = cluster::Options {
        config: plan.cluster.clone(),
        ..cluster::Options::default()
    };
    let cluster = node.cluster(options).await.expect("the options are right");
    let shared = world.clone();
    let worker = daemon("indexer", move |context| {
        let world = shared.clone();
        async move {
            let trusts = !world.plan.freezes;
            let verdict = world.shards().start(&context, trusts);
            world.say(
                context.node().as_str(),
                &format!("works for {} in {}", context.shard(), context.generation()),
            );
            world.judge(verdict);
            let _active = Active(world, context.clone());
            context.stopping().cancelled().await;
            Ok(())
        }
    });
    cluster
        .register(worker, Definition::shards(SHARDS))
        .expect("the definition is right");
    outbox::register(world, &node, &cluster);
    let mut log = plan.log.clone();
    log.rules_max = version(world, number);
    let mut options = Options {
        log,
        ..Options::default()
    };
    if options.log.batch_bytes_max == BATCH_BYTES_SMALL {
        // Everything that a job may have goes into one commit.
        options.limits.payload_bytes_max = 8 * 1024;
        options.limits.result_bytes_max = 8 * 1024;
    }
    let queue = Queue::open(&node, options)
        .await
        .expect("the options are right");
    (node, queue, cluster.election().clone())
}

/// The rules of the version that a host comes up with: terms of several follow each other, forward and back.
fn version(world: &World, number: usize) -> Rules {
    let host = &world.hosts[number];
    let rules = match world.plan.versions {
        [only] => *only,
        versions => *world.random().pick(versions),
    };
    let before = host.state().rules.replace(rules);
    let change = match before.map(|before| rules.cmp(&before)) {
        Some(Ordering::Greater) => Fault::Upgraded,
        Some(Ordering::Less) => Fault::Downgraded,
        _ => return rules,
    };
    world.count(change);
    world.say(&host.name, &format!("comes up with rules {rules}"));
    rules
}

/// Work for a shard, until it is dropped: in good order, or because its process crashed.
struct Active(Arc<World>, Context);

impl Drop for Active {
    fn drop(&mut self) {
        let Self(world, context) = self;
        world.shards().end(context.shard(), context.generation());
    }
}

/// Sees how the queue stands, and holds it to the ledger whenever it begins to serve.
async fn watch(world: &Arc<World>, number: usize, process: &Arc<Process>, queue: &Queue) {
    let name = world.hosts[number].name.clone();
    let mut states = queue.watch();
    loop {
        let state = states.borrow_and_update().clone();
        match &state {
            Serving::Recovering(_) => world.takeover.notify_waiters(),
            Serving::Standby { .. } => world.say(&name, "stands by"),
            Serving::Serving { term, .. } => {
                world.say(&name, &format!("serves in term {term}"));
                check_trust(world);
                world.ledger().serves(*term);
                world.served.notify_waiters();
                begin(world, number, queue);
                follow(world, &name, process, queue);
            }
            Serving::Failed(error) => world.say(&name, &format!("cannot serve: {error}")),
            Serving::Stopped => world.say(&name, "has stopped"),
        }
        world.judge(nothing_is_damaged::check(&name, &state));
        if states.changed().await.is_err() {
            return;
        }
    }
}

fn begin(world: &Arc<World>, number: usize, queue: &Queue) {
    let session = world.hosts[number]
        .running()
        .and_then(|running| running.node.session());
    if let Some(session) = session {
        let verdict = recovered_is_committed::check(&world.ledger(), queue, session.incarnation);
        world.judge(verdict);
    }
}

fn follow(world: &Arc<World>, name: &str, process: &Arc<Process>, queue: &Queue) {
    let (world, name) = (world.clone(), name.to_owned());
    let mut follower = queue.follow();
    process.spawn(async move {
        while let Ok(followed) = follower.next().await {
            world.say(&name, &format!("has applied {}", followed.position));
            let verdict = world.ledger().followed(&followed);
            world.judge(verdict);
        }
    });
}

/// Stops a process in good order.
pub(crate) fn shut_down(world: &Arc<World>, number: usize) -> Option<()> {
    let running = world.hosts[number].running()?;
    let (world, process) = (world.clone(), running.process.clone());
    process.spawn(async move {
        running.queue.close().await;
        running.node.shutdown().await;
        let host = &world.hosts[number];
        world.say(&host.name, "has shut down");
        // Unless another has taken its place meanwhile.
        let is_current = host
            .process()
            .is_some_and(|own| Arc::ptr_eq(&own, &running.process));
        if is_current {
            host.crash();
        }
        restart(&world, number, Duration::from_secs(5));
    });
    Some(())
}

/// Starts a process again after a while.
pub(crate) fn restart(world: &Arc<World>, number: usize, within: Duration) {
    let world = world.clone();
    tokio::spawn(async move {
        world.pause_about(within / 2).await;
        start(&world, number);
    });
}
