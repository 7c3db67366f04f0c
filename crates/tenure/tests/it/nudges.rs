//! On a store without hints a datagram tells who should look: without it these tests would wait for hours.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure::core::session::Config;
use tenure::store::engine::memory::Memory;
use tenure::store::{
    Change, Description, Error, Expect, Key, Object, Page, Prefix, Store, Version, Watch,
};

use tenure::Node;

use crate::support::{brisk, elected, namespace, node_on, options, until};

/// Long enough that no poll comes while anyone waits.
const TTL: Duration = Duration::from_secs(12 * 3600);

#[derive(Debug, Default)]
struct Hintless(Memory);

#[async_trait::async_trait]
impl Store for Hintless {
    fn describe(&self) -> Description {
        let mut description = self.0.describe();
        description.capabilities.hints = false;
        description
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.0.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.0.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.0.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.0.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.0.list(prefix, after).await
    }

    fn watch(&self, _: &Prefix) -> Option<Watch> {
        None
    }
}

/// A store with hints, which nobody asks for.
#[derive(Debug, Default)]
struct Unwatched(Memory);

#[async_trait::async_trait]
impl Store for Unwatched {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>, Error> {
        self.0.get(key).await
    }

    async fn get_if_changed(&self, key: &Key, version: &Version) -> Result<Change, Error> {
        self.0.get_if_changed(key, version).await
    }

    async fn put(&self, key: &Key, value: Bytes, expect: &Expect) -> Result<Version, Error> {
        self.0.put(key, value, expect).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.0.delete(key).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>) -> Result<Page, Error> {
        self.0.list(prefix, after).await
    }

    fn watch(&self, prefix: &Prefix) -> Option<Watch> {
        panic!("{prefix} is watched")
    }
}

#[tokio::test]
async fn who_only_polls_listens_to_nothing_and_sends_no_datagram() {
    let (store, namespace) = (Arc::new(Unwatched::default()), namespace());
    let start = async |name: &str| {
        let session = brisk(Duration::from_secs(5));
        let mut options = options("memory:", &namespace, name, session);
        options.polls_only = true;
        Node::start_with(store.clone(), options).await.unwrap()
    };
    let (a, b) = (start("a").await, start("b").await);
    let first = a.join("e").await.unwrap();
    elected(&first).await;
    let second = b.join("e").await.unwrap();
    until("b is a candidate", async || {
        let status = b.view().status(second.name()).await.unwrap();
        let listens = |candidate: &tenure::Candidate| candidate.about.nudge.is_some();
        assert!(!status.candidates.iter().any(listens), "{status:?}");
        status.candidates.len() == 2
    })
    .await;
    second.request_resign().await.unwrap();
    elected(&second).await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_leader_that_is_asked_to_go_is_told_at_once() {
    let (store, namespace) = (Arc::new(Hintless::default()), namespace());
    let session = || Config::for_ttl(TTL);
    let a = node_on(&store, &namespace, "a", session()).await;
    let election = a.join("e").await.unwrap();
    let first = elected(&election).await;
    let b = node_on(&store, &namespace, "b", session()).await;
    b.joined().await.unwrap();
    let other = b.join("e").await.unwrap();

    // The leader is told that it is asked, and it tells the candidate that the lease is free.
    until("b is a candidate", async || {
        let status = b.view().status(other.name()).await.unwrap();
        status.candidates.len() == 2
    })
    .await;
    other.request_resign().await.unwrap();
    let second = elected(&other).await;
    assert!(second.term() > first.term() && first.check().is_err());

    // The same by name, asked by one that does not lead.
    election.transfer_to(b.id()).await.unwrap();
    let a_id = a.id().clone();
    election.transfer_to(&a_id).await.unwrap();
    let third = elected(&election).await;
    assert!(third.term() > second.term());
    a.shutdown().await;
    b.shutdown().await;
}
