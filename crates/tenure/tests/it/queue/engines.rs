//! The whole life of jobs on every store, over two leaders.

use std::time::Duration;

use tenure::Node;
use tenure::core::queue::{Failed, Failure, Payload, State, SubmitStatus};
use tenure::queue::{Error, HeartbeatAnswer, Queue, Serving};

use tokio::time::timeout;

use super::stage::{claim, claim_now, done, id, ids, job, open, served, submit, worker};
use crate::support::{self, PATIENCE, namespace};

const TTL: Duration = Duration::from_secs(10);

async fn lives(url: &str) {
    let namespace = namespace();
    let first = support::node(url, &namespace, "first", TTL).await;
    let queue = open(&first).await;
    submit(&queue, &["a", "b", "c"]).await;
    let again = queue.submit(vec![job("a")]).await.unwrap();
    assert_eq!(again[0].status, SubmitStatus::Duplicate);

    let mut two = worker("w");
    two.max = 2;
    let claimed = claim(&queue, two).await;
    assert_eq!(ids(&claimed), ["a", "b"]);
    let progress = Payload::new("{\"percent\":50}").unwrap();
    let held = tenure::core::queue::Claim {
        id: id("a"),
        token: claimed[0].token,
    };
    let beats = queue
        .heartbeat(vec![(held.clone(), Some(progress.clone()))])
        .await
        .unwrap();
    assert_eq!(
        beats,
        [Ok(HeartbeatAnswer::Renewed(Duration::from_secs(30)))]
    );
    let shown = queue.job(&id("a")).unwrap().unwrap();
    assert_eq!(
        (shown.state, shown.progress),
        (State::Running, Some(progress))
    );

    let answers = queue.complete(vec![done(&claimed[0])]).await.unwrap();
    assert_eq!(answers[0].outcome, Ok(()));
    let failure = Failure {
        id: id("b"),
        token: claimed[1].token,
        error: Some("no".into()),
        retry_in_ms: Some(0),
        permanent: false,
    };
    let answers = queue.fail(vec![failure]).await.unwrap();
    let outcome = answers[0].outcome;
    assert!(matches!(outcome, Ok(Failed::Again { .. })), "{outcome:?}");

    let second = support::node(url, &namespace, "second", TTL).await;
    goes_on(&second, &first, &queue).await;
}

/// The second leader has what the first one acknowledged.
async fn goes_on(second: &Node, first: &Node, queue: &Queue) {
    let next = Queue::open(second, tenure::queue::Options::default())
        .await
        .unwrap();
    let error = next.submit(vec![job("d")]).await.unwrap_err();
    assert!(matches!(error, Error::NotServing { .. }), "{error}");
    first.shutdown().await;
    let mut state = queue.watch();
    let stopped = state.wait_for(|state| matches!(state, Serving::Stopped));
    timeout(PATIENCE, stopped).await.unwrap().unwrap();
    served(&next).await;
    assert_eq!(next.job(&id("a")).unwrap().unwrap().state, State::Completed);
    let b = next.job(&id("b")).unwrap().unwrap();
    assert_eq!(
        (b.state, b.attempt, b.error.as_deref()),
        (State::Ready, 1, Some("no"))
    );
    let mut all = worker("w");
    all.max = 9;
    let claimed = claim(&next, all.clone()).await;
    assert_eq!(ids(&claimed), ["b", "c"]);
    next.complete(claimed.iter().map(done).collect())
        .await
        .unwrap();
    assert!(claim_now(&next, all).await.unwrap().is_empty());
    second.shutdown().await;
}

#[tokio::test]
async fn jobs_live_in_files() {
    let folder = tempfile::tempdir().unwrap();
    lives(&format!("file:{}", folder.path().display())).await;
}

#[tokio::test]
async fn jobs_live_in_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    lives(&format!("sqlite:{}", folder.path().join("db").display())).await;
}

#[tokio::test]
async fn jobs_live_in_postgres() {
    if let Some(url) = support::url("TENURE_TEST_POSTGRES") {
        lives(&url).await;
    }
}

#[tokio::test]
async fn jobs_live_in_a_newer_postgres() {
    if let Some(url) = support::url("TENURE_TEST_POSTGRES_NEW") {
        lives(&url).await;
    }
}

#[tokio::test]
async fn jobs_live_in_azure() {
    if let Some(url) = support::url("TENURE_TEST_AZURE") {
        lives(&url).await;
    }
}

#[tokio::test]
async fn jobs_live_in_mariadb() {
    if let Some(url) = support::url("TENURE_TEST_MYSQL") {
        lives(&url).await;
    }
}

#[tokio::test]
async fn jobs_live_in_ceph() {
    if let Some(url) = support::url("TENURE_TEST_S3_CEPH") {
        lives(&url).await;
    }
}
