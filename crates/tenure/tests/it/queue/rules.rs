//! Brokers of two versions beside each other: nobody writes what another cannot read.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::queue::{Keep, KeepIds, Rules, Settings, SubmitStatus};
use tenure::core::session::{Record, State};
use tenure::core::{Incarnation, NodeId, ScheduleName, Wall};
use tenure::queue::Error;
use tenure::store::engine::memory::Memory;
use tenure::store::{Expect, Key, Store};
use tokio::time::{Instant, sleep};

use super::stage::{self, claim, done, id, job, node_on, open, submit, worker};
use crate::support::{PATIENCE, namespace};

/// A session of a version that says nothing of rules.
struct Old {
    store: Arc<dyn Store>,
    key: Key,
    record: Record,
}

impl Old {
    async fn join(store: Arc<dyn Store>, namespace: &str) -> Self {
        let incarnation = Incarnation(7);
        let key = Key::new(format!("{namespace}/nodes/old/{incarnation}")).unwrap();
        let record = Record {
            node: NodeId::new("old").unwrap(),
            incarnation,
            counter: 0,
            nonce: tenure::core::Nonce::default(),
            ttl: Duration::from_secs(3600),
            state: State::Alive,
            joined_at: Wall(0),
            about: Box::default(),
        };
        let old = Self { store, key, record };
        let text = String::from_utf8(old.record.encode()).unwrap();
        assert!(!text.contains("rules"), "{text}");
        let value = old.record.encode().into();
        old.store
            .put(&old.key, value, &Expect::Absent)
            .await
            .unwrap();
        old
    }

    async fn leave(mut self) {
        self.record.state = State::Gone;
        self.record.counter += 1;
        let version = self.store.get(&self.key).await.unwrap().unwrap().version;
        let value = self.record.encode().into();
        let expect = Expect::Version(version);
        self.store.put(&self.key, value, &expect).await.unwrap();
    }
}

fn settings(ids: KeepIds) -> Settings {
    Settings {
        completed: Keep {
            age_ms: None,
            count: Some(0),
        },
        ids,
        ..Settings::default()
    }
}

#[tokio::test]
async fn a_leader_goes_by_newer_rules_when_the_last_old_process_has_left() {
    let (store, namespace) = (Arc::new(Memory::new()), namespace());
    let old = Old::join(store.clone(), &namespace).await;
    let node = node_on(
        store.clone(),
        &namespace,
        "new",
        Duration::from_secs(10),
        None,
    )
    .await;
    let queue = open(&node).await;
    assert_eq!(queue.rules().unwrap(), Rules::FIRST);
    queue.configure(settings(KeepIds::default())).await.unwrap();
    submit(&queue, &["a"]).await;
    // What the old process could not read is not written.
    let ids = KeepIds {
        age_ms: 1,
        ..KeepIds::default()
    };
    let refused = queue.configure(settings(ids)).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    let schedule = ScheduleName::new("s").unwrap();
    let refused = queue.pause_schedule(schedule).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");

    old.leave().await;
    let deadline = Instant::now() + PATIENCE;
    while queue.rules().ok() != Some(Rules::LATEST) {
        assert!(Instant::now() < deadline, "{:?}", queue.state());
        sleep(Duration::from_millis(50)).await;
    }
    // In the same term, with everything that was there.
    let claimed = claim(&queue, worker("w")).await;
    assert_eq!(stage::ids(&claimed), ["a"]);
    queue
        .complete(claimed.iter().map(done).collect())
        .await
        .unwrap();
    let again = queue.submit(vec![job("a")]).await.unwrap();
    assert_eq!(again[0].status, SubmitStatus::Duplicate);
    let left = queue.job(&id("a")).unwrap().unwrap();
    assert!(left.remnant);
    queue.configure(settings(ids)).await.unwrap();
    node.shutdown().await;
}
