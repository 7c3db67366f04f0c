//! What every engine must show: each test runs on all of them.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure::Node;
use tenure::core::session::Config;
use tenure::store::Store;
use tenure::store::engine::memory::Memory;
use tenure::store::engine::object::Objects;
use tenure_testkit::gcs::Gcs;

use crate::support::{PATIENCE, Stage, elected, id, keep_log, logged, namespace, options, until};

/// Where a test runs, and how a node of its own gets there.
struct TestStore {
    namespace: String,
    access: Access,
}

enum Access {
    Url(String),
    Shared(Arc<dyn Store>),
    Gcs(Gcs),
    Folder(TempDir, &'static str),
}

impl TestStore {
    fn new(access: Access) -> Self {
        let namespace = namespace();
        Self { namespace, access }
    }

    fn server(variable: &str) -> Option<Self> {
        Some(Self::new(Access::Url(crate::support::url(variable)?)))
    }

    fn folder(scheme: &'static str) -> Self {
        Self::new(Access::Folder(tempfile::tempdir().unwrap(), scheme))
    }

    async fn node(&self, name: &str, ttl: Duration) -> Node {
        let options = |url: &str| options(url, &self.namespace, name, Config::for_ttl(ttl));
        match &self.access {
            Access::Url(url) => Node::start(options(url)).await,
            Access::Shared(store) => Node::start_with(store.clone(), options("memory:")).await,
            Access::Gcs(gcs) => {
                let url = gcs.url().parse().unwrap();
                let store = Objects::open_with(&url, Gcs::variables()).await.unwrap();
                Node::start_with(Arc::new(store), options("")).await
            }
            Access::Folder(folder, scheme) => {
                let url = format!("{scheme}:{}", folder.path().join("store").display());
                Node::start(options(&url)).await
            }
        }
        .unwrap()
    }
}

macro_rules! on_every_engine {
    ($($claim:ident)*) => {$(
        mod $claim {
            use super::*;

            async fn on(place: Option<TestStore>) {
                if let Some(place) = place {
                    super::$claim(&place).await;
                }
            }

            #[tokio::test]
            async fn on_memory() { on(Some(TestStore::new(Access::Shared(Arc::new(Memory::new()))))).await; }
            #[tokio::test]
            async fn on_file() { on(Some(TestStore::folder("file"))).await; }
            #[tokio::test]
            async fn on_sqlite() { on(Some(TestStore::folder("sqlite"))).await; }
            #[tokio::test]
            async fn on_postgres() { on(TestStore::server("TENURE_TEST_POSTGRES")).await; }
            #[tokio::test]
            async fn on_pgbouncer() { on(TestStore::server("TENURE_TEST_PGBOUNCER")).await; }
            #[tokio::test]
            async fn on_mariadb() { on(TestStore::server("TENURE_TEST_MYSQL")).await; }
            #[tokio::test]
            async fn on_ceph() { on(TestStore::server("TENURE_TEST_S3_CEPH")).await; }
            #[tokio::test]
            async fn on_seaweedfs() { on(TestStore::server("TENURE_TEST_S3_SEAWEED")).await; }
            #[tokio::test]
            async fn on_azurite() { on(TestStore::server("TENURE_TEST_AZURE")).await; }
            #[tokio::test]
            async fn on_gcs() { on(Some(TestStore::new(Access::Gcs(Gcs::start("bucket").await)))).await; }
        }
    )*};
}

on_every_engine! {
    exactly_one_leads_through_every_kind_of_hand_over
    two_processes_with_one_id_are_two_candidates_and_reported
}

async fn exactly_one_leads_through_every_kind_of_hand_over(place: &TestStore) {
    // Long enough that no term ends by itself on a slow machine; how soon leaders look for requests.
    let ttl = Duration::from_secs(5);
    let stage = Stage::new();
    let (a, b) = (place.node("a", ttl).await, place.node("b", ttl).await);
    let election_a = a.join("e").await.unwrap();
    stage.lead(&a, &election_a);
    assert_eq!(stage.led(1).await, id("a"));
    let election_b = b.join("e").await.unwrap();
    stage.lead(&b, &election_b);

    let c = place.node("c", ttl).await;
    let observed = c.observe("e").await.unwrap();
    let sees = async |name: &str| {
        until(&format!("the observer sees {name}"), async || {
            observed
                .leader()
                .is_some_and(|leader| leader.node == id(name))
        })
        .await;
    };
    sees("a").await;
    let old = elected(&election_a).await;
    assert!(!election_b.is_leader() && !observed.is_leader());

    old.resign();
    assert_eq!(stage.led(2).await, id("b"));
    assert!(old.check().is_err() && !election_a.is_leader());
    sees("b").await;

    // Candidates are found in the sessions, which say so with a write of their own.
    until("a is listed", async || {
        let status = b.view().status(election_b.name()).await.unwrap();
        status.candidates.len() == 2
    })
    .await;
    election_b.transfer_to(&id("a")).await.unwrap();
    assert_eq!(stage.led(3).await, id("a"));
    observed.request_resign().await.unwrap();
    assert_eq!(stage.led(4).await, id("b"));
    sees("b").await;

    // What an old term wants changes nothing in a newer one.
    old.resign();
    b.shutdown().await;
    assert_eq!(stage.led(5).await, id("a"));
    old.resign();
    sees("a").await;
    assert!(election_a.is_leader());
    assert_eq!(stage.terms(), [1, 2, 3, 4, 5]);
    let status = c.view().status(election_a.name()).await.unwrap();
    let why: Vec<_> = status
        .lease
        .unwrap()
        .history
        .into_iter()
        .map(|past| past.reason)
        .collect();
    assert_eq!(
        why,
        [
            "resigned",
            "transferred to a",
            "resigned, asked by c",
            "resigned"
        ]
    );
    assert_eq!(a.metrics().elections[election_a.name()].elected, 3);
    for node in [a, c] {
        node.shutdown().await;
    }
}

async fn two_processes_with_one_id_are_two_candidates_and_reported(place: &TestStore) {
    keep_log();
    let ttl = Duration::from_secs(3);
    let (first, second) = (place.node("a", ttl).await, place.node("a", ttl).await);
    let stage = Stage::new();
    let election = first.join("e").await.unwrap();
    stage.lead(&first, &election);
    stage.led(1).await;
    let other = second.join("e").await.unwrap();
    stage.lead(&second, &other);
    until("both are listed", async || {
        let status = first.view().status(election.name()).await.unwrap();
        status.candidates.len() == 2
    })
    .await;
    until("the duplicate is reported", async || {
        !second.duplicates().is_empty()
    })
    .await;
    let twin = first.joined().await.unwrap();
    assert_eq!(second.duplicates()[0].incarnation, twin.incarnation);
    assert_eq!(second.metrics().duplicates, 1);
    let lines = logged(&place.namespace);
    let about = lines.iter().filter(|line| line.contains("same node id"));
    assert!(about.count() >= 1, "{lines:#?}");

    elected(&election).await.resign();
    stage.led(2).await;
    let new = tokio::time::timeout(PATIENCE, other.elected())
        .await
        .unwrap()
        .unwrap();
    assert!(new.term().0 >= 2 && !election.is_leader());
    first.shutdown().await;
    second.shutdown().await;
}
