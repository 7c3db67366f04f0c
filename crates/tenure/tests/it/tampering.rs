//! Objects deleted or restored by hand: terms never repeat, a clear error is logged, and leadership
//! recovers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure::Node;
use tenure::core::election::Lease;
use tenure::store::engine::file::File;
use tenure::store::engine::memory::Memory;
use tenure::store::{Expect, Key, Store};

use crate::support::{Stage, brisk, keep_log, logged, namespace, node_on, until};

/// Three candidates, and the hand of an operator.
struct Scene<S> {
    store: Arc<S>,
    namespace: String,
    nodes: Vec<Node>,
    stage: Arc<Stage>,
}

impl<S: Store> Scene<S> {
    async fn new(store: S) -> Self {
        keep_log();
        let (store, namespace, stage) = (Arc::new(store), namespace(), Stage::new());
        let mut nodes = Vec::new();
        for name in ["a", "b", "c"] {
            let session = brisk(Duration::from_secs(2));
            let node = node_on(&store, &namespace, name, session).await;
            let election = node.join("e").await.unwrap();
            stage.lead(&node, &election);
            nodes.push(node);
        }
        stage.led(1).await;
        Self {
            store,
            namespace,
            nodes,
            stage,
        }
    }

    fn key(&self, kind: &str) -> Key {
        Key::new(format!("{}/{kind}/e", self.namespace)).unwrap()
    }

    async fn read(&self, kind: &str) -> (Bytes, Expect) {
        let object = self.store.get(&self.key(kind)).await.unwrap().unwrap();
        (object.value, Expect::Version(object.version))
    }

    /// Moves leadership on.
    async fn next_term(&self) {
        let before = self.stage.terms().len();
        let name = "e".parse().unwrap();
        let view = self.nodes[0].view();
        view.request_resign(&name, self.nodes[0].id())
            .await
            .unwrap();
        self.stage.led(before + 1).await;
    }

    /// One of these is logged, and then somebody works under the lease that is in the store, in a term higher than all
    /// before (the stage sees to that). Another term that comes meanwhile, on a machine that is too busy for
    /// heartbeats, proves neither.
    async fn recovers(self, messages: &[&str]) {
        let says = |line: &String| {
            line.contains("ERROR") && messages.iter().any(|message| line.contains(message))
        };
        until("it is logged", async || {
            logged(&self.namespace).iter().any(says)
        })
        .await;
        until("the lease that is there is worked under", async || {
            let object = self.store.get(&self.key("elections")).await.unwrap();
            let lease = object.map(|object| Lease::decode(&object.value).unwrap());
            let term = lease.filter(|lease| lease.holder().is_some());
            term.is_some_and(|lease| self.stage.terms().last() == Some(&lease.term.0))
        })
        .await;
        self.stage.led(self.stage.terms().len()).await;
        let name = "e".parse().unwrap();
        let metrics = self.nodes.iter().map(Node::metrics);
        let anomalies: u64 = metrics.map(|each| each.elections[&name].anomalies).sum();
        assert!(anomalies > 0);
        for node in self.nodes {
            node.shutdown().await;
        }
    }
}

async fn lease_deleted(store: impl Store) {
    let scene = Scene::new(store).await;
    scene.next_term().await;
    scene.store.delete(&scene.key("elections")).await.unwrap();
    let missing = "the lease is missing although term";
    scene.recovers(&[missing]).await;
}

async fn lease_restored(store: impl Store) {
    let scene = Scene::new(store).await;
    let (copy, _) = scene.read("elections").await;
    assert_eq!(Lease::decode(&copy).unwrap().term.0, 1);
    scene.next_term().await;
    scene.next_term().await;
    // A leader may write at the same time; the operator insists.
    let key = scene.key("elections");
    until("the copy is restored", async || {
        let (_, expect) = scene.read("elections").await;
        scene.store.put(&key, copy.clone(), &expect).await.is_ok()
    })
    .await;
    // By the node that takes it, from the fence; or by the leader itself, if the copy says that it holds an older term.
    let (fence, leader) = ("was led;", "but this process has led term");
    scene.recovers(&[fence, leader]).await;
}

async fn fence_deleted(store: impl Store) {
    let scene = Scene::new(store).await;
    scene.next_term().await;
    scene.store.delete(&scene.key("fences")).await.unwrap();
    let name = "e".parse().unwrap();
    let view = scene.nodes[0].view();
    view.request_resign(&name, scene.nodes[0].id())
        .await
        .unwrap();
    scene.recovers(&["the fence is missing at term"]).await;
}

#[tokio::test]
async fn a_lease_deleted_while_held_repeats_no_term_in_memory() {
    lease_deleted(Memory::new()).await;
}

#[tokio::test]
async fn a_lease_deleted_while_held_repeats_no_term_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    lease_deleted(File::open(folder.path()).await.unwrap()).await;
}

#[tokio::test]
async fn a_lease_restored_from_an_older_copy_repeats_no_term_in_memory() {
    lease_restored(Memory::new()).await;
}

#[tokio::test]
async fn a_lease_restored_from_an_older_copy_repeats_no_term_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    lease_restored(File::open(folder.path()).await.unwrap()).await;
}

#[tokio::test]
async fn a_deleted_fence_is_made_again_above_the_lease_in_memory() {
    fence_deleted(Memory::new()).await;
}

#[tokio::test]
async fn a_deleted_fence_is_made_again_above_the_lease_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    fence_deleted(File::open(folder.path()).await.unwrap()).await;
}

/// Somebody restores a backup under a running leader, or deletes the store: it ends at its next heartbeat, long
/// before its trust does, and does not come back by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_replaced_ends_the_session() {
    let namespace = namespace();
    // The last is the folder of the namespace alone.
    for (scheme, below) in [("file", ""), ("sqlite", ""), ("file", namespace.as_str())] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let url = format!("{scheme}:{}", path.display());
        let ttl = Duration::from_secs(20);
        let node = crate::support::node(&url, &namespace, "a", ttl).await;
        let path = if below.is_empty() {
            path
        } else {
            path.join(below)
        };
        let election = node.join("e").await.unwrap();
        let leadership = crate::support::elected(&election).await;
        std::fs::rename(&path, folder.path().join("aside")).unwrap();
        let before = std::time::Instant::now();
        tokio::time::timeout(ttl / 2, leadership.ended().cancelled_owned())
            .await
            .unwrap();
        assert!(before.elapsed() < ttl / 2);
        assert!(!election.is_leader());
        assert!(!path.exists(), "it was made anew");
    }
}
