//! Hosts: each has a clock, a way to the store, and a process that comes and goes.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::cluster::{Cluster, Definition};
use tenure::daemon::{Context, DaemonError, daemon};
use tenure::queue::{Options, Queue, Serving};
use tenure::testing::RunningClock;
use tenure::{Node, NodeOptions, cluster};
use tenure_core::election::Term;
use tenure_core::queue::Rules;
use tenure_random::Random;
use tenure_store::Store;
use tenure_store::wrap::faulty::{Faults, Faulty};
use tokio::time::Instant;

use super::faults::Fault;
use super::invariants::{check_trust, nothing_is_damaged, recovered_is_committed};
use super::outbox;
use super::plan::{BATCH_BYTES_SMALL, Plan};
use super::process::Process;
use super::store::{Local, Recorded};
use super::world::{WALL_MS, World};
use crate::clock::{Rates, SLOW, real_length};

/// How many shards of each daemon there are: one that runs anywhere, one that runs once on a node, and one that only the
/// first host may run.
const INDEXERS: u32 = 3;
const AGENTS: u32 = 2;
const SPECIALS: u32 = 1;

/// How many shards the cluster keeps running.
pub(crate) const SHARDS: u32 = INDEXERS + AGENTS + SPECIALS;

/// The daemon whose shards are no two on one node, and the one that needs a label.
pub(crate) const AGENT: &str = "agent";
pub(crate) const SPECIAL: &str = "special";

/// The host that has the label.
pub(crate) const LABELLED: &str = "n1";

/// What a node takes, and what a special takes of it. All but the specials fit beside a special.
const CAPACITY: u32 = 6;
const SPECIAL_WEIGHT: u32 = 2;

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
    /// Whether its clock stands still, and if not, until when what it does may rest on a time when it did.
    is_frozen: bool,
    doubted_until: Option<Instant>,
}

/// A process that has come up.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) process: Arc<Process>,
    pub(crate) node: Node,
    pub(crate) queue: Queue,
    pub(crate) cluster: Cluster,
}

impl Host {
    pub(crate) fn draw(
        random: &mut Random,
        number: usize,
        plan: &Plan,
        store: &Arc<Recorded>,
    ) -> Self {
        let rate = Rates::within([&plan.session]).draw(random);
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
        [running.queue.election(), running.cluster.election()]
            .map(|election| Some(election.leadership()?.term()))
    }

    /// Its clock stands still from now on.
    pub(crate) fn freeze(&self) {
        self.clock.stop();
        self.state().is_frozen = true;
    }

    /// Its clock goes on. What was trusted before is trusted for up to a ttl from now on, on its clock, and nothing of
    /// that is promised: no clock has told it that time passed.
    pub(crate) fn thaw(&self, ttl: Duration) {
        let mut state = self.state();
        self.clock.go_on();
        if std::mem::take(&mut state.is_frozen) {
            state.doubted_until = Some(Instant::now() + real_length(ttl, SLOW));
        }
    }

    /// Whether its clock stands still, or did so that recently that only fencing protects from what it does.
    pub(crate) fn is_doubted(&self) -> bool {
        let state = self.state();
        state.is_frozen
            || state
                .doubted_until
                .is_some_and(|until| Instant::now() < until)
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
        let (node, queue, cluster) = open(&world, number, &own).await;
        let running = Running {
            process: own.clone(),
            node,
            queue: queue.clone(),
            cluster,
        };
        world.hosts[number].state().running = Some(running);
        watch(&world, number, &own, &queue).await;
    });
}

async fn open(world: &Arc<World>, number: usize, process: &Arc<Process>) -> (Node, Queue, Cluster) {
    let (host, plan) = (&world.hosts[number], &world.plan);
    let mut options = NodeOptions::new("memory:", world.namespace.as_str());
    options.node = Some(host.name.clone());
    options.session = plan.session.clone();
    options.nudge = None;
    if host.name == LABELLED {
        options.labels.insert("disk".to_owned(), "fast".to_owned());
    }
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
        capacity: Some(CAPACITY),
        ..cluster::Options::default()
    };
    let cluster = node.cluster(options).await.expect("the options are right");
    let special = Definition {
        weight: SPECIAL_WEIGHT,
        requires: [("disk".to_owned(), "fast".to_owned())].into(),
        ..Definition::shards(SPECIALS)
    };
    let definitions = [
        ("indexer", Definition::shards(INDEXERS)),
        (AGENT, Definition::replicas(AGENTS)),
        (SPECIAL, special),
    ];
    for (name, definition) in definitions {
        let shared = world.clone();
        let worker = daemon(name, move |context| work(shared.clone(), context));
        cluster
            .register(worker, definition)
            .expect("the definition is right");
    }
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
    (node, queue, cluster)
}

/// The work of a daemon: it fails at times, before it has begun or later, and at times it does not end when it is told to.
async fn work(world: Arc<World>, context: Context) -> Result<(), DaemonError> {
    let bad = world.plan.daemons_bad;
    let doubted = world.doubted();
    let verdict = world.shards().start(&context, &doubted);
    world.say(
        context.node().as_str(),
        &format!("works for {} in {}", context.shard(), context.generation()),
    );
    world.judge(verdict);
    let _active = Active(world.clone(), context.clone());
    if world.strikes(Fault::DaemonFailed, bad) {
        world.pause_about(Duration::from_secs(2)).await;
        return Err("it fails".into());
    }
    context.stopping().cancelled().await;
    if world.strikes(Fault::DaemonHangs, bad) {
        std::future::pending::<()>().await;
    }
    Ok(())
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
