//! A broker that was paused and woken: it acknowledges nothing, steps down, and harms nobody.
//!
//! Its clock stands still, so that it sends no heartbeat and believes that it leads: what a virtual machine that
//! is paused believes when it is woken. Where the store has hints one may tell it; where it has none, only the
//! log does.

use std::time::Duration;

use tenure::core::queue::{State, SubmitStatus};
use tenure::queue::{Error, Options, Queue, Serving};
use tenure::testing::ManualClock;
use tenure::{Node, NodeOptions};

use super::stage::{claim, done, id, ids, job, open, served, stands, submit, worker};
use crate::support::{self, namespace};

async fn woken_broker_is_fenced(url: &str) {
    let namespace = namespace();
    let store = tenure::store::open(url).await.unwrap();
    let has_hints = store.describe().capabilities.hints;
    let ttl = Duration::from_secs(2);
    let clock = ManualClock::new();
    let session = tenure::core::session::Config::for_ttl(ttl);
    let mut options: NodeOptions = support::options(url, &namespace, "old", session);
    options.runtime = clock.runtime();
    let old_node = Node::start(options).await.unwrap();
    let old = open(&old_node).await;
    submit(&old, &["a", "b"]).await;
    let claimed = claim(&old, worker("w")).await;
    assert_eq!(ids(&claimed), ["a"]);

    // Meanwhile the others see no heartbeat, and go on without it.
    let new_node = support::node(url, &namespace, "new", ttl).await;
    let new = Queue::open(&new_node, Options::default()).await.unwrap();
    served(&new).await;
    submit(&new, &["c"]).await;

    let noticed = !old.is_serving();
    assert!(!noticed || has_hints, "nobody told it");
    let late = old.submit(vec![job("late")]).await.unwrap_err();
    match late {
        Error::Fenced | Error::Unknown { .. } => {}
        Error::NotServing { .. } | Error::Stopped if has_hints => {}
        error => panic!("{error:?}"),
    }
    stands(&old, "stepped down", |state| {
        matches!(state, Serving::Standby { .. })
    })
    .await;
    let error = old.submit(vec![job("later")]).await.unwrap_err();
    assert!(matches!(error, Error::NotServing { .. }), "{error:?}");

    // What was acknowledged is there, and what was not is not.
    let states = ["a", "b", "c"].map(|job| new.job(&id(job)).unwrap().unwrap().state);
    assert_eq!(states, [State::Running, State::Ready, State::Ready]);
    assert!(new.job(&id("later")).unwrap().is_none());
    // The claim outlives its broker.
    let answers = new.complete(vec![done(&claimed[0])]).await.unwrap();
    assert_eq!(answers[0].outcome, Ok(()));
    // Sent again, what was unknown is there once.
    new.submit(vec![job("late")]).await.unwrap();
    let again = new.submit(vec![job("late")]).await.unwrap();
    assert_eq!(again[0].status, SubmitStatus::Duplicate);
    let counts = new.queue(&job("a").queue).unwrap().unwrap().counts;
    assert_eq!((counts.ready, counts.running, counts.completed), (3, 0, 1));
    new_node.shutdown().await;
}

#[tokio::test]
async fn woken_broker_is_fenced_on_files() {
    let folder = tempfile::tempdir().unwrap();
    woken_broker_is_fenced(&format!("file:{}", folder.path().display())).await;
}

#[tokio::test]
async fn woken_broker_is_fenced_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    woken_broker_is_fenced(&format!("sqlite:{}", folder.path().join("db").display())).await;
}

#[tokio::test]
async fn woken_broker_is_fenced_on_postgres() {
    if let Some(url) = support::url("TENURE_TEST_POSTGRES") {
        woken_broker_is_fenced(&url).await;
    }
}

#[tokio::test]
async fn woken_broker_is_fenced_on_mariadb() {
    if let Some(url) = support::url("TENURE_TEST_MYSQL") {
        woken_broker_is_fenced(&url).await;
    }
}

#[tokio::test]
async fn woken_broker_is_fenced_on_ceph() {
    if let Some(url) = support::url("TENURE_TEST_S3_CEPH") {
        woken_broker_is_fenced(&url).await;
    }
}

#[tokio::test]
async fn woken_broker_is_fenced_on_seaweedfs() {
    if let Some(url) = support::url("TENURE_TEST_S3_SEAWEED") {
        woken_broker_is_fenced(&url).await;
    }
}

#[tokio::test]
async fn woken_broker_is_fenced_on_azure() {
    if let Some(url) = support::url("TENURE_TEST_AZURE") {
        woken_broker_is_fenced(&url).await;
    }
}
