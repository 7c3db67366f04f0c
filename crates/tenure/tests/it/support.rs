//! What several tests need.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure::core::NodeId;
use tenure::core::election::Term;
use tenure::core::session::Config;
use tenure::store::Store;
use tenure::{Election, Leadership, Node, NodeOptions};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing_subscriber::filter::LevelFilter;

/// Long enough for a slow machine; nothing is measured against it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The server that a test wants, from the environment; without it the test is skipped, out loud.
pub(crate) fn url(variable: &str) -> Option<String> {
    tenure_testkit::skip::server(variable)
}

/// A namespace that no other test uses: servers are shared.
pub(crate) fn namespace() -> String {
    format!("it-{}", uuid::Uuid::new_v4())
}

pub(crate) fn options(url: &str, namespace: &str, name: &str, session: Config) -> NodeOptions {
    let mut options = NodeOptions::new(url, namespace);
    options.node = Some(name.to_owned());
    options.session = session;
    options
}

pub(crate) async fn node(url: &str, namespace: &str, name: &str, ttl: Duration) -> Node {
    let options = options(url, namespace, name, Config::for_ttl(ttl));
    Node::start(options).await.unwrap()
}

/// A node on a store that is open already.
pub(crate) async fn node_on(
    store: &Arc<impl Store>,
    namespace: &str,
    name: &str,
    session: Config,
) -> Node {
    let options = options("memory:", namespace, name, session);
    Node::start_with(store.clone(), options).await.unwrap()
}

/// A ttl that a slow machine keeps, with many heartbeats in it, so that little has to be waited for.
pub(crate) fn brisk(ttl: Duration) -> Config {
    Config {
        heartbeat: ttl / 20,
        ..Config::for_ttl(ttl)
    }
}

pub(crate) fn id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub(crate) async fn elected(election: &Election) -> Leadership {
    timeout(PATIENCE, election.elected())
        .await
        .expect("nobody is elected")
        .unwrap()
}

/// Polls a future once, and drops it. Says whether it was still under way.
pub(crate) async fn begun_and_dropped(future: impl Future) -> bool {
    let mut future = std::pin::pin!(future);
    let poll = |context: &mut Context<'_>| Poll::Ready(future.as_mut().poll(context).is_pending());
    std::future::poll_fn(poll).await
}

/// Waits until something is so; it is looked at again and again, since no signal tells of it.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, looks)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Where leaders of one election work: it must never hold two, and it remembers who was there.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    log: watch::Sender<Vec<(NodeId, Term)>>,
    working: Mutex<Option<NodeId>>,
}

impl Stage {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Works in every term that this node leads.
    pub(crate) fn lead(self: &Arc<Self>, node: &Node, election: &Election) {
        let (stage, node, election) = (self.clone(), node.id().clone(), election.clone());
        tokio::spawn(async move {
            let work = |leadership| stage.clone().work(node.clone(), leadership);
            election.lead(work).await
        });
    }

    async fn work(self: Arc<Self>, node: NodeId, leadership: Leadership) {
        let before = self.working.lock().unwrap().replace(node.clone());
        assert_eq!(before, None, "{node} works beside another leader");
        let _leave = Leave(&self);
        let entry = (node, leadership.term());
        self.log.send_modify(|log| log.push(entry));
        leadership.stopping().cancelled().await;
    }

    /// The leader of the `number`th term that was worked in, and all before.
    pub(crate) async fn led(&self, number: usize) -> NodeId {
        let mut log = self.log.subscribe();
        let log = timeout(PATIENCE, log.wait_for(|log| log.len() >= number));
        let log = log.await.expect("nobody is elected").unwrap();
        let terms: Vec<_> = log.iter().map(|(_, term)| term.0).collect();
        assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
        log[number - 1].0.clone()
    }

    pub(crate) fn terms(&self) -> Vec<u64> {
        self.log.borrow().iter().map(|(_, term)| term.0).collect()
    }
}

struct Leave<'a>(&'a Stage);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        *self.0.working.lock().unwrap() = None;
    }
}

static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Keeps what is logged from now on, of all tests of this process.
pub(crate) fn keep_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(LevelFilter::WARN)
            .with_writer(|| Keeper)
            .init();
    });
}

/// The lines of the log that name a namespace.
pub(crate) fn logged(namespace: &str) -> Vec<String> {
    let bytes = LOGGED.lock().unwrap().clone();
    let lines = String::from_utf8(bytes).unwrap();
    let of_it = lines.lines().filter(|line| line.contains(namespace));
    of_it.map(str::to_owned).collect()
}

struct Keeper;

impl io::Write for Keeper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
