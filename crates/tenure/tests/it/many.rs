//! Many elections in one process, on stores that are slow or have few connections.
//!
//! Time is tokio's, which is paused: it goes on when nothing is left to do, so a minute takes as long as the work in it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tenure::core::session::Config;
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::metered::{Metered, Operation};
use tenure::store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};
use tenure::testing::RunningClock;
use tenure::{Election, Leadership, Node, NodeOptions};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{elected, node_on, until};

const TTL: Duration = Duration::from_secs(10);

/// How much later than asked a heartbeat may be confirmed: it waits for nobody, and the store takes milliseconds.
const LATE: Duration = Duration::from_millis(300);

/// A store without hints, with so many connections, each request of which takes a while.
#[derive(Debug)]
struct Slow {
    memory: Memory,
    connections: Semaphore,
    request: Duration,
    page: Duration,
    pages_fail: AtomicBool,
    reads: AtomicUsize,
    reads_at_once: AtomicUsize,
    reads_at_once_max: AtomicUsize,
    /// When heartbeats were asked for and confirmed.
    heartbeats: Mutex<Vec<(Instant, Instant)>>,
}

impl Slow {
    fn new(connections: usize, request: Duration, page: Duration) -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(),
            connections: Semaphore::new(connections),
            request,
            page,
            pages_fail: AtomicBool::new(false),
            reads: AtomicUsize::new(0),
            reads_at_once: AtomicUsize::new(0),
            reads_at_once_max: AtomicUsize::new(0),
            heartbeats: Mutex::default(),
        })
    }

    async fn wait(&self, time: Duration) {
        let _connection = self.connections.acquire().await.unwrap();
        sleep(time).await;
    }

    async fn wait_for_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let at_once = self.reads_at_once.fetch_add(1, Ordering::Relaxed) + 1;
        self.reads_at_once_max.fetch_max(at_once, Ordering::Relaxed);
        self.wait(self.request).await;
        self.reads_at_once.fetch_sub(1, Ordering::Relaxed);
    }

    /// The longest time from one confirmed heartbeat to the next, and of one of them.
    fn slowest_heartbeat(&self) -> (Duration, Duration) {
        let heartbeats = self.heartbeats.lock().unwrap();
        let pairs = heartbeats.windows(2);
        let between = pairs.map(|pair| pair[1].1 - pair[0].1).max();
        let each = heartbeats.iter().map(|(asked, done)| *done - *asked).max();
        (between.unwrap(), each.unwrap())
    }
}

#[async_trait::async_trait]
impl Store for Slow {
    fn describe(&self) -> Description {
        let mut description = self.memory.describe();
        description.capabilities.hints = false;
        description
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.wait_for_read().await;
        self.memory.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.wait_for_read().await;
        self.memory.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let asked = Instant::now();
        self.wait(self.request).await;
        let put = self.memory.put(key, value, expect).await;
        if key.as_str().contains("/nodes/") && put.is_ok() {
            let mut heartbeats = self.heartbeats.lock().unwrap();
            heartbeats.push((asked, Instant::now()));
        }
        put
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.wait(self.request).await;
        self.memory.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.wait(self.page).await;
        if self.pages_fail.load(Ordering::Relaxed) && prefix.as_str().contains("/elections") {
            return Err(Error::Unavailable {
                doing: format!("listing {prefix}"),
                source: "as the test wants it".into(),
            });
        }
        self.memory.list(prefix, after).await
    }

    fn watch(&self, _: &Prefix) -> Option<Watch> {
        None
    }
}

async fn node(store: &Arc<Slow>) -> Node {
    let mut options = NodeOptions::new("memory:", "many");
    options.node = Some("a".to_owned());
    options.session = Config::for_ttl(TTL);
    options.nudge = None;
    options.runtime = RunningClock::new(1_000_000, 1_767_225_600_000).runtime();
    Node::start_with(store.clone(), options).await.unwrap()
}

/// Joins them all, and waits until each is led.
async fn lead(
    node: &Node,
    names: impl Iterator<Item = String>,
    within: Duration,
) -> Vec<Leadership> {
    let mut elections: Vec<Election> = Vec::new();
    for name in names {
        elections.push(node.join(&name).await.unwrap());
    }
    let elected = async {
        let mut terms = Vec::new();
        for election in &elections {
            terms.push(election.elected().await.unwrap());
        }
        terms
    };
    timeout(within, elected)
        .await
        .expect("not all are led in time")
}

fn lost(terms: &[Leadership]) -> usize {
    terms.iter().filter(|term| term.check().is_err()).count()
}

#[tokio::test(start_paused = true)]
async fn a_few_elections_of_a_large_namespace_are_led_though_its_pages_are_slow() {
    let store = Slow::new(100, Duration::from_millis(5), Duration::from_millis(120));
    for number in 0..20_000 {
        let key = Key::new(format!("many/elections/{number:06}-of-others")).unwrap();
        store
            .memory
            .put(&key, "{}".into(), &Expect::Absent)
            .await
            .unwrap();
    }
    let node = node(&store).await;
    // All over the namespace.
    let names = (0..12).map(|number| format!("{:06}", number * 1700));
    let terms = lead(&node, names, TTL * 3).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(lost(&terms), 0);
    assert_eq!(node.metrics().sessions_lost, 0);
    node.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn elections_are_kept_while_listings_fail_or_do_not_end() {
    let store = Slow::new(100, Duration::from_millis(5), Duration::from_millis(20));
    let node = node(&store).await;
    let names = (0..300).map(|number| number.to_string());
    let terms = lead(&node, names, TTL * 3).await;
    sleep(Duration::from_secs(10)).await;
    let before = store.reads.load(Ordering::Relaxed);
    sleep(Duration::from_secs(10)).await;
    let by_listings = store.reads.load(Ordering::Relaxed) - before;
    assert!(
        by_listings < 100,
        "{by_listings} reads though listings serve"
    );

    store.pages_fail.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(lost(&terms), 0);
    let at_once = store.reads_at_once_max.load(Ordering::Relaxed);
    assert!(at_once <= 64, "{at_once} reads at once");
    assert_eq!(node.metrics().sessions_lost, 0);
    node.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn elections_are_kept_while_pages_hang() {
    let store = Slow::new(100, Duration::from_millis(5), Duration::from_secs(3600));
    let node = node(&store).await;
    let names = (0..300).map(|number| number.to_string());
    let terms = lead(&node, names, TTL * 3).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(lost(&terms), 0);
    node.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn thousands_of_elections_settle_on_few_connections_and_no_heartbeat_is_late() {
    let store = Slow::new(8, Duration::from_millis(5), Duration::from_millis(5));
    let node = node(&store).await;
    let names = (0..3000).map(|number| number.to_string());
    let terms = lead(&node, names, TTL * 3).await;
    sleep(TTL * 2).await;
    assert_eq!(lost(&terms), 0);
    assert_eq!(node.metrics().sessions_lost, 0);
    let (between, each) = store.slowest_heartbeat();
    assert!(
        between <= Config::for_ttl(TTL).heartbeat + LATE,
        "{between:?}"
    );
    assert!(each <= LATE, "{each:?}");
    node.shutdown().await;
}

/// Without hints, and each node counted by itself.
#[tokio::test]
async fn leaving_hundreds_of_elections_looks_the_others_up_once() {
    const ELECTIONS: usize = 200;
    let store = Slow::new(64, Duration::ZERO, Duration::ZERO);
    let session = || Config {
        stand_back: Duration::from_secs(1),
        ..Config::for_ttl(Duration::from_secs(30))
    };
    let metered = Arc::new(Metered::new(store.clone()));
    let leader = node_on(&metered, "many", "leader", session()).await;
    let names = || (0..ELECTIONS).map(|number| number.to_string());
    lead(&leader, names(), Duration::from_secs(30)).await;
    let mut others = Vec::new();
    for number in 0..4 {
        let node = node_on(&store, "many", &format!("other-{number}"), session()).await;
        let mut elections = Vec::new();
        for name in names() {
            elections.push(node.join(&name).await.unwrap());
        }
        others.push((node, elections));
    }
    until("all stand", async || {
        let election = others[0].1[ELECTIONS - 1].name();
        let status = leader.view().status(election).await.unwrap();
        status.candidates.len() == 5
    })
    .await;
    let gets = || {
        let ended = metered.meter().snapshot().ended;
        let gets = ended
            .iter()
            .filter(|ended| ended.operation == Operation::Get);
        gets.map(|ended| ended.count).sum::<u64>()
    };
    let before = gets();
    leader.shutdown().await;
    let made = gets() - before;
    assert!(made <= 20, "{made} reads");

    let led = |name: usize| {
        others
            .iter()
            .any(|(_, elections)| elections[name].is_leader())
    };
    let all_led = async || (0..ELECTIONS).all(led);
    until("others lead", all_led).await;
    for (node, _) in &others {
        node.shutdown().await;
    }
}

/// Who leaves has left long before it knows whom to tell.
#[tokio::test]
async fn whoever_waits_is_told_before_the_leader_is_gone() {
    // No poll comes while anyone waits.
    let session = || Config::for_ttl(Duration::from_secs(12 * 3600));
    let store = Slow::new(64, Duration::ZERO, Duration::from_millis(100));
    let a = node_on(&store, "many", "a", session()).await;
    let first = elected(&a.join("e").await.unwrap()).await;
    let b = node_on(&store, "many", "b", session()).await;
    let other = b.join("e").await.unwrap();
    until("b stands", async || {
        let status = b.view().status(other.name()).await.unwrap();
        status.candidates.len() == 2
    })
    .await;
    a.shutdown().await;
    let second = elected(&other).await;
    assert!(second.term() > first.term());
    b.shutdown().await;
}
