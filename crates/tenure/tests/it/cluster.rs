//! Nodes and daemons on real stores, in one process: the driver, not the machines, which have tests of their
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::cluster::{Cluster, Config, Definition, Generation, Options, Shard};
use tenure::core::session;
use tenure::daemon::{Context, DaemonError, daemon};
use tenure::store::Store;
use tenure::store::engine::memory::Memory;
use tenure::testing::ManualClock;
use tenure::{Node, NodeOptions};

use crate::support::{brisk, node_on, until};

mod balance;
#[cfg(feature = "file")]
mod held;
mod misbehaving;
mod observers;
mod outages;
#[cfg(feature = "file")]
mod overlap;
#[cfg(all(feature = "file", feature = "sqlite"))]
mod processes;
mod registry;
#[cfg(feature = "file")]
mod troupe;

/// Long enough for a slow machine to keep it.
const TTL: Duration = Duration::from_secs(6);

/// How much time passes at once, where it is passed by hand.
const STEP: Duration = Duration::from_millis(250);

/// Everything that happens to shards, on all nodes of a test.
#[derive(Debug, Default)]
pub(crate) struct Board {
    running: Mutex<BTreeMap<Shard, BTreeMap<Generation, String>>>,
    /// Every start: the shard, the node, the generation.
    starts: Mutex<Vec<(Shard, String, Generation)>>,
}

impl Board {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Notes that a shard runs for as long as the answer lives. Two of one shard are a failure.
    pub(crate) fn enter(self: &Arc<Self>, context: &Context) -> Entered {
        let (shard, generation) = (context.shard().clone(), context.generation());
        let node = context.node().to_string();
        let mut running = self.running.lock().unwrap();
        let shards = running.entry(shard.clone()).or_default();
        assert!(
            shards.is_empty(),
            "{shard} in {generation} on {node}: {shards:?}"
        );
        shards.insert(generation, node.clone());
        let mut starts = self.starts.lock().unwrap();
        let before = starts.iter().rfind(|(other, ..)| *other == shard);
        assert!(before.is_none_or(|(.., before)| *before < generation));
        starts.push((shard.clone(), node, generation));
        Entered {
            board: self.clone(),
            shard,
            generation,
        }
    }

    /// What runs where: shards by node.
    pub(crate) fn loads(&self) -> BTreeMap<String, BTreeSet<Shard>> {
        let mut loads: BTreeMap<String, BTreeSet<Shard>> = BTreeMap::new();
        for (shard, nodes) in &*self.running.lock().unwrap() {
            for node in nodes.values() {
                loads.entry(node.clone()).or_default().insert(shard.clone());
            }
        }
        loads
    }

    /// How many shards run on each node, without names.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let mut counts: Vec<_> = self.loads().values().map(BTreeSet::len).collect();
        counts.sort_unstable();
        counts
    }

    /// How often anything was started.
    pub(crate) fn starts(&self) -> usize {
        self.starts.lock().unwrap().len()
    }

    /// How often a shard of this daemon was started.
    pub(crate) fn starts_of(&self, daemon: &str) -> usize {
        let starts = self.starts.lock().unwrap();
        let of_it = |(shard, ..): &&(Shard, String, Generation)| shard.daemon.as_str() == daemon;
        starts.iter().filter(of_it).count()
    }

    pub(crate) fn starts_since(&self, number: usize) -> Vec<(Shard, String)> {
        let starts = self.starts.lock().unwrap();
        let later = starts[number..].iter();
        later
            .map(|(shard, node, _)| (shard.clone(), node.clone()))
            .collect()
    }

    /// A daemon that does nothing but note that it runs.
    pub(crate) fn daemon(self: &Arc<Self>, id: &str) -> impl tenure::daemon::Daemon + use<> {
        let board = self.clone();
        daemon(id, move |context| {
            let board = board.clone();
            async move {
                let _entered = board.enter(&context);
                context.stopping().cancelled().await;
                Ok::<(), DaemonError>(())
            }
        })
    }
}

pub(crate) struct Entered {
    board: Arc<Board>,
    shard: Shard,
    generation: Generation,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut running = self.board.running.lock().unwrap();
        running
            .get_mut(&self.shard)
            .unwrap()
            .remove(&self.generation);
    }
}

/// Times at which little has to be waited for.
pub(crate) fn config() -> Config {
    Config {
        cycle: Duration::from_millis(50),
        settle: Duration::from_millis(200),
        drain_timeout: TTL * 2,
        failure_delay: Duration::from_millis(100),
        ..Config::default()
    }
}

pub(crate) fn options() -> Options {
    Options {
        config: config(),
        ..Options::default()
    }
}

/// A node that takes part in the cluster.
pub(crate) struct Peer {
    pub(crate) node: Node,
    pub(crate) cluster: Cluster,
}

impl Peer {
    pub(crate) async fn start(store: &Arc<impl Store>, name: &str) -> Self {
        let node = node_on(store, "test", name, brisk(TTL)).await;
        let cluster = node.cluster(options()).await.unwrap();
        Self { node, cluster }
    }

    pub(crate) async fn with(
        store: &Arc<impl Store>,
        name: &str,
        board: &Arc<Board>,
        shards: u32,
    ) -> Self {
        let peer = Self::start(store, name).await;
        let daemon = board.daemon("d");
        peer.cluster
            .register(daemon, Definition::shards(shards))
            .unwrap();
        peer
    }
}

/// A node on a clock that is moved by hand.
pub(crate) async fn peer_at(
    runtime: tenure::Runtime,
    store: &Arc<impl Store>,
    name: &str,
    config: Config,
) -> Peer {
    let mut node_options = NodeOptions::new("memory:", "test");
    node_options.node = Some(name.to_owned());
    node_options.session = session::Config::for_ttl(Duration::from_secs(10));
    node_options.runtime = runtime;
    let node = Node::start_with(store.clone(), node_options).await.unwrap();
    let options = Options {
        config,
        ..Options::default()
    };
    let cluster = node.cluster(options).await.unwrap();
    Peer { node, cluster }
}

pub(crate) async fn counts_are(board: &Board, wanted: &[usize]) {
    until(&format!("{wanted:?}"), async || board.counts() == wanted).await;
}

pub(crate) fn memory() -> Arc<Memory> {
    Arc::new(Memory::new())
}

/// Lets time pass for these nodes, and never faster than a slow machine makes their heartbeats.
pub(crate) async fn pass(clock: &ManualClock, peers: &[&Peer], time: Duration) {
    // Below that a leader would be told to stop its work.
    pass_down_to(Duration::from_millis(2200), clock, peers, time).await;
}

/// The same, where trust may run down to so much before a heartbeat is waited for.
pub(crate) async fn pass_down_to(
    trust_min: Duration,
    clock: &ManualClock,
    peers: &[&Peer],
    time: Duration,
) {
    pass_in_outage(clock, time.min(STEP)).await;
    let mut passed = STEP;
    loop {
        until("heartbeats are made", async || {
            let trusts = peers
                .iter()
                .map(|peer| peer.node.metrics().trust_remaining_ms);
            let low = |trust: &u64| (1..trust_min.as_millis()).contains(&u128::from(*trust));
            let mut low = trusts.filter(low);
            low.next().is_none()
        })
        .await;
        if passed >= time {
            return;
        }
        pass_in_outage(clock, STEP).await;
        passed += STEP;
    }
}

/// Lets time pass whether or not anybody can make a heartbeat.
pub(crate) async fn pass_in_outage(clock: &ManualClock, time: Duration) {
    let mut passed = Duration::ZERO;
    while passed < time {
        clock.advance(STEP);
        passed += STEP;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Lets time pass until something is so; returns how long that took.
pub(crate) async fn pass_until(
    clock: &ManualClock,
    peers: &[&Peer],
    what: &str,
    mut is_so: impl AsyncFnMut() -> bool,
) -> Duration {
    let mut passed = Duration::ZERO;
    until(what, async || {
        if is_so().await {
            return true;
        }
        pass(clock, peers, STEP).await;
        passed += STEP;
        false
    })
    .await;
    passed
}
