//! Engines that panic: an answer that never comes, not the end of the session; and if it stays so, a step
//! down when trust ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure::core::election::EndReason;
use tenure::store::engine::memory::Memory;
use tenure::store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};
use tenure::{Node, Transition};

use crate::support::{brisk, elected, namespace, node_on, until};

/// Panics in the middle of every request while it is told to.
#[derive(Debug, Default)]
struct Panicking {
    memory: Arc<Memory>,
    panics: AtomicBool,
    panicked: AtomicU64,
}

impl Panicking {
    fn check(&self) {
        if self.panics.load(Ordering::SeqCst) {
            self.panicked.fetch_add(1, Ordering::SeqCst);
            panic!("an engine with a bug");
        }
    }
}

#[async_trait::async_trait]
impl Store for Panicking {
    fn describe(&self) -> Description {
        self.memory.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.check();
        self.memory.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.check();
        self.memory.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        let version = self.memory.put(key, value, expect).await;
        self.check();
        version
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.check();
        self.memory.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.check();
        self.memory.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        self.memory.watch(prefix)
    }
}

#[tokio::test]
async fn an_engine_that_panics_now_and_then_costs_nothing() {
    let store = Arc::new(Panicking::default());
    let node = node_on(&store, &namespace(), "a", brisk(Duration::from_secs(10))).await;
    // The cluster asks the store on the same thread.
    node.cluster(tenure::cluster::Options::default())
        .await
        .unwrap();
    // Enough elections that their leases are listed.
    let mut leaderships = Vec::new();
    for number in 0..15 {
        let election = node.join(&format!("e{number}")).await.unwrap();
        leaderships.push(elected(&election).await);
    }
    for _ in 0..3 {
        let before = store.panicked.load(Ordering::SeqCst);
        store.panics.store(true, Ordering::SeqCst);
        until("the engine has panicked", async || {
            store.panicked.load(Ordering::SeqCst) >= before + 3
        })
        .await;
        store.panics.store(false, Ordering::SeqCst);
        let confirmed = confirmed_heartbeats(&node);
        until("a heartbeat is confirmed", async || {
            confirmed_heartbeats(&node) > confirmed
        })
        .await;
    }
    for leadership in leaderships {
        leadership.check().unwrap();
    }
    node.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_keeps_panicking_ends_the_term_at_the_deadline() {
    let store = Arc::new(Panicking::default());
    let (namespace, session) = (namespace(), brisk(Duration::from_secs(3)));
    let node = node_on(&store, &namespace, "a", session.clone()).await;
    let election = node.join("e").await.unwrap();
    let leadership = elected(&election).await;
    let mut transitions = election.subscribe();
    store.panics.store(true, Ordering::SeqCst);
    // Whatever was on its way was sent before.
    let latest = Instant::now() + session.ttl - session.margin;
    loop {
        let asked_at = Instant::now();
        match leadership.check() {
            Ok(remaining) => assert!(asked_at + remaining <= latest, "trust was stretched"),
            Err(_) => break,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!election.is_leader());
    let other = node_on(&store.memory, &namespace, "b", session).await;
    let new = elected(&other.join("e").await.unwrap()).await;
    assert!(new.term() > leadership.term());

    let first = transitions.next().await;
    assert!(
        matches!(first, Some(Transition::Elected { .. })),
        "{first:?}"
    );
    let second = transitions.next().await;
    let Some(Transition::Ended { term, reason }) = second else {
        panic!("{second:?}");
    };
    assert_eq!(term, leadership.term());
    assert!(
        matches!(reason, EndReason::Expired | EndReason::SessionOver),
        "{reason}"
    );
    store.panics.store(false, Ordering::SeqCst);
    node.shutdown().await;
    other.shutdown().await;
}

fn confirmed_heartbeats(node: &Node) -> u64 {
    let heartbeats = node.metrics().heartbeats;
    let done = heartbeats
        .iter()
        .find(|each| each.outcome == tenure::HeartbeatOutcome::Done);
    done.map_or(0, |done| done.count)
}
