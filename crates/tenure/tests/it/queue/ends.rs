//! How serving ends and begins again: everyone is answered, and nothing is guessed.

use std::sync::Arc;
use std::time::Duration;

use tenure::queue::{Config, Error, Options, Queue, Serving};
use tenure::store::engine::memory::Memory;
use tenure::store::wrap::faulty::{Fault, Faults, Faulty, Kind};
use tenure::store::wrap::metered::Operation;
use tenure::store::{Expect, Key, Store};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::stage::{claim, id, ids, job, node_on, open, open_with, served, stands, submit, worker};
use crate::support::{PATIENCE, namespace, until};

fn place(namespace: &str, seq: u64) -> Key {
    Key::new(format!("{namespace}/queue/log/{seq:020}")).unwrap()
}

async fn hangs(faulty: &Faulty, count: u64) {
    until("a request hangs", async || {
        faulty.injected()[&Kind::Hung] >= count
    })
    .await;
}

fn faulty() -> Arc<Faulty> {
    let memory = Arc::new(Memory::new());
    Arc::new(Faulty::new(memory, Faults::default(), 1).unwrap())
}

#[tokio::test]
async fn closing_answers_everyone_and_commits_what_waits() {
    let (store, namespace) = (faulty(), namespace());
    let node = node_on(store.clone(), &namespace, "a", PATIENCE, None).await;
    let queue = open(&node).await;
    let mut waiting = JoinSet::new();
    for number in 0..5 {
        let queue = queue.clone();
        let mut claim = worker(&number.to_string());
        claim.queues = vec![tenure::core::QueueName::new("other").unwrap()];
        waiting.spawn(async move { queue.claim(claim.waiting(PATIENCE)).await });
    }
    store
        .script(Operation::Put, &place(&namespace, 2), Fault::Hang)
        .unwrap();
    let mut submits = JoinSet::new();
    for name in ["in flight", "waits"] {
        let (queue, name) = (queue.clone(), name.replace(' ', "-"));
        submits.spawn(async move { queue.submit(vec![job(&name)]).await });
        hangs(&store, 1).await;
    }
    let closing = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.close().await })
    };
    while let Some(answer) = waiting.join_next().await {
        let error = answer.unwrap().unwrap_err();
        assert!(matches!(error, Error::Stopped), "{error:?}");
    }
    assert!(!closing.is_finished(), "a commit is under way");
    store.release();
    while let Some(answer) = submits.join_next().await {
        answer.unwrap().unwrap();
    }
    timeout(PATIENCE, closing).await.unwrap().unwrap();
    assert!(matches!(queue.state(), Serving::Stopped));
    let error = queue.submit(vec![job("late")]).await.unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error:?}");
    // The node goes on, and the queue can be opened again.
    let queue = open(&node).await;
    for name in ["in-flight", "waits"] {
        assert!(queue.job(&id(name)).unwrap().is_some(), "{name}");
    }
    node.shutdown().await;
}

#[tokio::test]
async fn too_many_callers_are_turned_away_until_there_is_room() {
    let (store, namespace) = (faulty(), namespace());
    let node = node_on(store.clone(), &namespace, "a", PATIENCE, None).await;
    let options = Options {
        log: Config {
            backlog_records_max: 2,
            ..Config::default()
        },
        ..Options::default()
    };
    let queue = open_with(&node, options).await;
    store
        .script(Operation::Put, &place(&namespace, 2), Fault::Hang)
        .unwrap();
    let mut callers = JoinSet::new();
    for number in 0..3 {
        let queue = queue.clone();
        callers.spawn(async move { queue.submit(vec![job(&number.to_string())]).await });
        hangs(&store, 1).await;
    }
    until("two wait", async || {
        queue.statistics().unwrap().waiting == 2
    })
    .await;
    let error = queue.submit(vec![job("much")]).await.unwrap_err();
    assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
    // Reading waits for nothing, and shows nothing that is not committed.
    assert!(queue.job(&id("0")).unwrap().is_none());
    store.release();
    while let Some(answer) = callers.join_next().await {
        answer.unwrap().unwrap();
    }
    submit(&queue, &["much"]).await;
    assert_eq!(queue.statistics().unwrap().turned_away, 1);
    node.shutdown().await;
}

#[tokio::test]
async fn a_damaged_log_is_named_and_served_once_it_is_whole() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let node = node_on(store.clone(), &namespace, "a", PATIENCE, None).await;
    let queue = open(&node).await;
    submit(&queue, &["a"]).await;
    queue.close().await;

    let key = place(&namespace, 2);
    let whole = store.get(&key).await.unwrap().unwrap();
    let mut damaged = whole.value.to_vec();
    let last = damaged.len() - 2;
    damaged[last] ^= 1;
    let version = store
        .put(&key, damaged.into(), &Expect::Version(whole.version))
        .await
        .unwrap();
    let queue = Queue::open(&node, Options::default()).await.unwrap();
    let error = timeout(PATIENCE, queue.serving())
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains(key.as_str()), "{error}");
    assert!(matches!(queue.state(), Serving::Failed(_)));
    let refused = queue.submit(vec![job("b")]).await.unwrap_err();
    assert!(matches!(refused, Error::NotServing { .. }), "{refused:?}");

    store
        .put(&key, whole.value, &Expect::Version(version))
        .await
        .unwrap();
    stands(&queue, "served", |state| {
        matches!(state, Serving::Serving { .. })
    })
    .await;
    assert_eq!(ids(&claim(&queue, worker("w")).await), ["a"]);
    node.shutdown().await;
}

/// As by somebody who tidies up below a broker that runs.
#[tokio::test]
async fn a_log_that_is_moved_away_below_its_leader_is_not_begun_anew() {
    let root = tempfile::tempdir().unwrap();
    let store = tenure::store::engine::file::File::open(root.path()).await;
    let namespace = namespace();
    let node = node_on(Arc::new(store.unwrap()), &namespace, "a", PATIENCE, None).await;
    let queue = open(&node).await;
    submit(&queue, &["a"]).await;
    let (folder, aside) = (
        root.path().join(&namespace).join("queue"),
        root.path().join("aside"),
    );
    std::fs::rename(&folder, &aside).unwrap();
    let lost = queue.submit(vec![job("lost")]).await;
    assert!(lost.is_err(), "{lost:?}");
    stands(&queue, "refused", |state| {
        matches!(state, Serving::Failed(Error::Corrupt { what, .. }) if what.contains("everything in it is missing"))
    })
    .await;
    assert!(!folder.exists(), "it was begun anew");
    std::fs::rename(&aside, &folder).unwrap();
    stands(&queue, "served again", |state| {
        matches!(state, Serving::Serving { .. })
    })
    .await;
    assert!(queue.job(&id("a")).unwrap().is_some());
    node.shutdown().await;
}

#[tokio::test]
async fn a_claim_whose_caller_is_gone_costs_no_attempt() {
    let (store, namespace) = (faulty(), namespace());
    let node = node_on(store.clone(), &namespace, "a", PATIENCE, None).await;
    let queue = open(&node).await;
    let mut once = job("a");
    once.max_attempts = Some(1);
    queue.submit(vec![once]).await.unwrap();
    store
        .script(Operation::Put, &place(&namespace, 3), Fault::Hang)
        .unwrap();
    let gone = {
        let queue = queue.clone();
        tokio::spawn(async move { claim(&queue, worker("gone")).await })
    };
    hangs(&store, 1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    store.release();
    let claimed = claim(&queue, worker("w")).await;
    assert_eq!((ids(&claimed), claimed[0].attempt), (vec!["a"], 1));
    node.shutdown().await;
}

#[tokio::test]
async fn a_leader_that_resigns_hands_over_and_its_callers_are_told() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let ttl = Duration::from_secs(10);
    let a = node_on(store.clone(), &namespace, "a", ttl, None).await;
    let b = node_on(store.clone(), &namespace, "b", ttl, None).await;
    let first = open(&a).await;
    let second = Queue::open(&b, Options::default()).await.unwrap();
    submit(&first, &["a"]).await;
    let waits = {
        let queue = first.clone();
        let mut claim = worker("w");
        claim.types = vec![tenure::core::JobType::new("other").unwrap()];
        tokio::spawn(async move { queue.claim(claim.waiting(PATIENCE)).await })
    };
    until("b is a candidate", async || {
        let name = first.election().name().clone();
        a.view().status(&name).await.unwrap().candidates.len() == 2
    })
    .await;
    first.election().resign();
    served(&second).await;
    let error = timeout(PATIENCE, waits)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::NotServing { .. }), "{error:?}");
    assert_eq!(ids(&claim(&second, worker("w")).await), ["a"]);
    a.shutdown().await;
    b.shutdown().await;
}
